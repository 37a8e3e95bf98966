"""Items of resources as callers read them: structs filled by the names of their fields, and answers
with the revision as ETag."""

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from typing import TypeVar

from msgspec import Struct
from starlette.responses import Response

from mainspring.api.http.bodies import json_response
from mainspring.api.http.operations import Missing, TenantCall, missing

T = TypeVar("T")
S = TypeVar("S", bound=Struct)

NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}", re.ASCII)
"""Names of items that are found by name."""

no_such_calendar = missing("calendar")
no_such_dead_letter = missing("dead letter")
no_such_key = missing("key")
no_such_run = missing("run")
no_such_schedule = missing("schedule")
no_such_secret = missing("secret")
no_such_workflow = missing("workflow")

_Reader = tuple[list[str], Callable[[object], Iterable[object]]]
_readers: dict[tuple[object, ...], list[_Reader]] = {}
"""What is read of each source, by the kind of view, the sources and the fields that are given."""


def view(kind: type[S], *sources: object, **given: object) -> S:
    """Return a struct with the fields that are given; every other field comes from the first
    source that has an attribute of its name."""
    key = (kind, *map(type, sources), *given)
    readers = _readers.get(key)
    if readers is None:
        wanted = [name for name in kind.__struct_fields__ if name not in given]
        readers = _readers[key] = _readers_of(wanted, sources)
    for source, (names, read) in zip(sources, readers, strict=True):
        given.update(zip(names, read(source), strict=True))
    return kind(**given)


def _readers_of(wanted: Sequence[str], sources: Sequence[object]) -> list[_Reader]:
    names: list[list[str]] = [[] for _ in sources]
    for name in wanted:
        having = [index for index, source in enumerate(sources) if hasattr(source, name)]
        if not having:
            raise AttributeError(f"no source has {name!r}")
        names[having[0]].append(name)
    return [(each, _reader(each)) for each in names]


def _reader(names: Sequence[str]) -> Callable[[object], Iterable[object]]:
    if len(names) > 1:
        return attrgetter(*names)  # a tuple, in one call
    return lambda source: [getattr(source, name) for name in names]


def instant(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def instant_or_none(seconds: float | None) -> datetime | None:
    return None if seconds is None else instant(seconds)


def existing(item: T | None, missing: Missing, id: object) -> T:
    """Return the item; raise when there is none, or it is another tenant's."""
    if item is None:
        raise missing(id)
    return item


def name_in(call: TenantCall, missing: Missing) -> str:
    """Return the name in the path; raise NotFound for what is not a name."""
    name: str = call.request.path_params["id"]
    if not NAME.fullmatch(name):
        raise missing(name)
    return name


def item_response(
    item: object, revision: int, status: int = 200, location: str | None = None
) -> Response:
    """Return the answer with an item: its revision as ETag, and its path if it is new."""
    headers = {"ETag": f'"{revision}"'}
    if location is not None:
        headers["Location"] = location
    return json_response(item, status, headers)


def names_revision(header: str, rev: int) -> bool:
    """Whether a list of entity tags names this revision; weak tags count, as for any read."""
    tags = {tag.strip().removeprefix("W/") for tag in header.split(",")}
    return "*" in tags or f'"{rev}"' in tags
