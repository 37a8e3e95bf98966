"""Documentation of operations: the words and types from which /openapi.json is made.

A route carries a `Doc`, made with the helpers in `mainspring.api.routes`. It names only what is
particular to the operation; `openapi.document` adds what follows from the route: the key and scope
it needs, the id in its path, Idempotency-Key on a POST, the problems every body or key can cause.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Annotated, Literal

from msgspec import Meta

from mainspring.errors import MainspringError

JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter; its type is any that msgspec can describe, constraints included."""

    name: str
    type: object
    description: str
    where: Literal["query", "path", "header"] = "query"
    example: object = None


@dataclass(frozen=True, slots=True)
class Header:
    """A header of an answer."""

    name: str
    description: str
    type: object = str


@dataclass(frozen=True, slots=True)
class Body:
    """A request body in JSON.

    `rules` holds what types cannot say, by the name of the type: JSON Schema keywords that are
    added to its component; a property that is None is taken out.
    """

    type: object
    examples: Mapping[str, object] = field(default_factory=dict)
    required: bool = True
    rules: Mapping[str, Mapping[str, object]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Link:
    """An operation that may follow, with its parameters as runtime expressions of OpenAPI."""

    operation: str
    parameters: Mapping[str, str]
    description: str = ""


@dataclass(frozen=True, slots=True)
class ResponseDoc:
    """An answer that is not a problem. No type means no body; `or_type` is another it may have.

    Several with one status are one answer in several forms, each with its media type.
    """

    status: int
    description: str
    type: object = None
    headers: Sequence[Header] = ()
    media_type: str = JSON
    links: Mapping[str, Link] = field(default_factory=dict)
    or_type: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Doc:
    """An operation in words and types.

    `also_consumes` names media types of bodies that the description tells of in words only, because
    generators of clients cannot make them.
    """

    id: str
    tag: str
    summary: str
    description: str = ""
    params: Sequence[Param] = ()
    body: Body | None = None
    also_consumes: Sequence[str] = ()
    replies: Sequence[ResponseDoc]
    problems: Sequence[type[MainspringError]] = ()


ETAG = Header("ETag", "The revision, for If-Match and If-None-Match.")
GONE = ResponseDoc(204, "It is gone.")
LOCATION = Header("Location", "The path of what was created.")
REPLAYED = Header(
    "Idempotency-Replayed",
    "Present when this is the first answer under the key once more.",
    Literal["true"],
)

Case = Mapping[str, object]
"""A JSON Schema of bodies that are refused because of what they say together."""


def never(*cases: Case) -> dict[str, object]:
    """JSON Schema for bodies that are none of these cases.

    Written with `not`, which generators of clients pass over: of `oneOf` with parts of an object
    they make classes that have these parts only.
    """
    return {"not": {"anyOf": list(cases)}}


def several(*names: str) -> list[Case]:
    """The cases in which two of these fields are given; a null is as good as nothing."""
    return [
        {"required": list(pair), "properties": dict.fromkeys(pair, _SOMETHING)}
        for pair in combinations(names, 2)
    ]


def none_of(*names: str) -> Case:
    """The case in which none of these fields is given."""
    return {"properties": dict.fromkeys(names, _NULL)}


def only_null(*names: str) -> Case:
    """The case in which some of these fields are null and none is given."""
    return {**none_of(*names), "anyOf": [{"required": [name]} for name in names]}


def without(name: str, other: str) -> Case:
    """The case in which the one field is given and the other is not."""
    return {"required": [name], "properties": {name: _SOMETHING, other: _NULL}}


_NULL: Case = {"type": "null"}
_SOMETHING: Case = {"not": _NULL}


def span(
    most: float, *, least: float = 0, zero: bool = False, null: bool = True
) -> dict[str, object]:
    """JSON Schema for a time span, in seconds or as an ISO 8601 duration."""
    bound = "minimum" if zero or least else "exclusiveMinimum"
    forms: list[dict[str, object]] = [
        {"type": "number", bound: least, "maximum": most},
        {"type": "string", "format": "duration", "maxLength": 64},
    ]
    return {"anyOf": [*forms, {"type": "null"}] if null else forms}


def next_page(operation: str) -> dict[str, Link]:
    """Return the link from a page to the next one."""
    return {"next": Link(operation, {"cursor": "$response.body#/next_cursor"})}


AnyText = Annotated[str, Meta(pattern=r"^[^\x00]*$")]
AnyLabel = Annotated[str, Meta(pattern=r"^[^\x00:]+:[^\x00]*$")]

DRY_RUN = Param("dry_run", bool, "Answer what would happen, and change nothing.")
IF_MATCH = Param(
    "If-Match",
    str,
    "Act only if the revision is still this one (an ETag); otherwise the answer is a 412.",
    where="header",
    example='"1"',
)
IF_NONE_MATCH = Param(
    "If-None-Match",
    str,
    "Answer 304 without a body if the revision is still this one (an ETag).",
    where="header",
    example='"1"',
)
OF_TASKS = (
    Param("queue", AnyText, "Only those of this queue."),
    Param("name", AnyText, "Only those of tasks of this name."),
    Param("label", list[AnyLabel], "Only with this label, `name:value`; may be repeated."),
)
"""Filters that tasks, and what became of them, have in common."""

TENANT_ID = Param("id", Annotated[int, Meta(ge=1)], "The tenant's id.", "path")
LIMIT = Param("limit", Annotated[int, Meta(ge=1, le=1000)], "The most items on a page (50).")


def page_by(cursor: object) -> tuple[Param, Param]:
    """Return the parameters of a list whose cursor is of this type."""
    return LIMIT, Param("cursor", cursor, "Where to go on: `next_cursor` of the page before.")


PAGED = page_by(Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{21}[AQgw]$")])
NUMBERED = page_by(Annotated[str, Meta(pattern=r"^A{10}[AB][A-Za-z0-9_-]{10}[AQgw]$")])
