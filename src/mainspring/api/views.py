"""What callers read: structs of answers, filled by the names of their fields."""

from datetime import UTC, datetime
from typing import TypeVar

from msgspec import Struct

S = TypeVar("S", bound=Struct)

_sources: dict[tuple[object, ...], list[tuple[str, int]]] = {}


def view(kind: type[S], *sources: object, **given: object) -> S:
    """Return a struct with the fields that are given; every other field comes from the first
    source that has an attribute of its name."""
    key = (kind, *map(type, sources), *given)
    found = _sources.get(key)
    if found is None:
        found = _sources[key] = [
            (name, _source_of(name, sources))
            for name in kind.__struct_fields__
            if name not in given
        ]
    for name, source in found:
        given[name] = getattr(sources[source], name)
    return kind(**given)


def _source_of(name: str, sources: tuple[object, ...]) -> int:
    for index, source in enumerate(sources):
        if hasattr(source, name):
            return index
    raise AttributeError(f"no source has {name!r}")


def instant(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def instant_or_none(seconds: float | None) -> datetime | None:
    return None if seconds is None else instant(seconds)
