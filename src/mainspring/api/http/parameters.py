"""Query parameters: read strictly, because a filter that is misspelt must not match everything."""

import base64
import binascii
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from uuid import UUID

import msgspec
from starlette.datastructures import QueryParams

from mainspring.domain.execution import Outcome
from mainspring.domain.task import TaskState
from mainspring.domain.workflow.rules import RunState
from mainspring.errors import InvalidRequest, Problem
from mainspring.store.dead_letters import LetterFilter
from mainspring.store.tasks import TaskFilter
from mainspring.store.workflow.workflow_runs import RunFilter
from mainspring.wire.tasks import TIME_FORM, Instant

MOST_ITEMS = 1000
_DEFAULT_ITEMS = 50
_FLAGS = {"true": True, "1": True, "false": False, "0": False}
_FILTERS = {
    *("state", "queue", "name", "label", "due_after", "due_before", "schedule_id"),
    "workflow_run_id",
}
_LETTER_FILTERS = {
    *("resolved", "name", "queue", "label", "fingerprint", "died_after", "died_before")
}
_PAGING = {"limit", "cursor", "payload"}


class TaskQuery(msgspec.Struct, frozen=True):
    """What GET /v1/tasks asks for."""

    where: TaskFilter
    before: UUID | None
    limit: int
    payloads: bool


def task_query(params: QueryParams) -> TaskQuery:
    """All parameters of a list of tasks; everything that is wrong is reported together."""
    problems = _unknown(params, _FILTERS | _PAGING)
    where = TaskFilter(
        state=_choice(params, "state", TaskState, problems),
        queue=_text(params, "queue", problems),
        name=_text(params, "name", problems),
        labels=_labels(params, problems),
        due_after=_instant(params, "due_after", problems),
        due_before=_instant(params, "due_before", problems),
        schedule_id=_uuid(params, "schedule_id", problems),
        workflow_run_id=_uuid(params, "workflow_run_id", problems),
    )
    query = TaskQuery(
        where,
        _cursor(params, problems),
        _limit(params, problems),
        _flag(params, "payload", problems),
    )
    _raise_if(problems)
    return query


def outcome_query(params: QueryParams) -> Outcome | None:
    """The parameters of a list of executions."""
    problems = _unknown(params, {"outcome"})
    outcome = _choice(params, "outcome", Outcome, problems)
    _raise_if(problems)
    return Outcome(outcome) if outcome else None


class LetterQuery(msgspec.Struct, frozen=True):
    """What GET /v1/dead-letters asks for."""

    where: LetterFilter
    before: UUID | None
    limit: int
    payloads: bool
    grouped: bool


def letter_query(params: QueryParams) -> LetterQuery:
    """All parameters of a list of dead letters; payloads are shown unless they are not wanted."""
    problems = _unknown(params, _LETTER_FILTERS | _PAGING | {"group"})
    where = LetterFilter(
        name=_text(params, "name", problems),
        queue=_text(params, "queue", problems),
        labels=_labels(params, problems),
        fingerprint=_text(params, "fingerprint", problems),
        died_after=_instant(params, "died_after", problems),
        died_before=_instant(params, "died_before", problems),
        resolved=_flag(params, "resolved", problems) if "resolved" in params else None,
    )
    query = LetterQuery(
        where,
        _cursor(params, problems),
        _limit(params, problems),
        _flag(params, "payload", problems) if "payload" in params else True,
        _flag(params, "group", problems),
    )
    _raise_if(problems)
    return query


class ScheduleQuery(msgspec.Struct, frozen=True):
    """Which page of schedules, or of what belongs to one."""

    before: UUID | None
    limit: int
    where: dict[str, str | None]


def schedule_query(
    params: QueryParams, choices: Mapping[str, Collection[str]], *, with_cursor: bool = True
) -> ScheduleQuery:
    """A page and its filters: a name, and words out of a few."""
    problems: list[Problem] = []
    where = {"name": _text(params, "name", problems), **_choices(params, choices, problems)}
    before = _cursor(params, problems) if with_cursor else None
    limit = _limit(params, problems)
    _raise_if(problems)
    return ScheduleQuery(before, limit, where)


class RunQuery(msgspec.Struct, frozen=True):
    """What GET /v1/workflow-runs asks for."""

    where: RunFilter
    before: UUID | None
    limit: int


def run_query(params: QueryParams) -> RunQuery:
    """All parameters of a list of runs."""
    problems = _unknown(params, {"workflow", "state", "schedule_id", "limit", "cursor"})
    state = params.get("state")
    if state is not None and state not in set(RunState):
        problems.append(_problem("state", f"is none of {', '.join(RunState)}"))
    where = RunFilter(
        _text(params, "workflow", problems), state, _uuid(params, "schedule_id", problems)
    )
    query = RunQuery(where, _cursor(params, problems), _limit(params, problems))
    _raise_if(problems)
    return query


class PageQuery(msgspec.Struct, frozen=True):
    """Which page of a list that is ordered by number, and of which items."""

    before: int | None
    limit: int
    where: dict[str, str | None]


def page_query(
    params: QueryParams,
    filters: Collection[str] = (),
    choices: Mapping[str, Collection[str]] = MappingProxyType({}),
) -> PageQuery:
    """The parameters of a list whose filters are plain texts, or words out of a few."""
    problems = _unknown(params, {*filters, *choices, "limit", "cursor"})
    where = {name: _text(params, name, problems) for name in filters}
    where |= _choices(params, choices, problems)
    cursor = _cursor(params, problems)
    if cursor is not None and cursor.int >= 2**63:
        problems.append(_problem("cursor", "is not a cursor of this list"))
    limit = _limit(params, problems)
    _raise_if(problems)
    return PageQuery(None if cursor is None else cursor.int, limit, where)


def number_cursor(items: Sequence[object], limit: int, last: int | None) -> str | None:
    """Where a list ordered by number goes on after this page; None when the page is not full."""
    return encode_cursor(UUID(int=last)) if last is not None and len(items) == limit else None


def instant(params: QueryParams, name: str) -> datetime | None:
    """A parameter that is a time."""
    problems: list[Problem] = []
    value = _instant(params, name, problems)
    _raise_if(problems)
    return value


def flag(params: QueryParams, name: str) -> bool:
    """A parameter that is true or false; absent means false."""
    problems: list[Problem] = []
    value = _flag(params, name, problems)
    _raise_if(problems)
    return value


def encode_cursor(before: UUID) -> str:
    """Where a list goes on, in a form that invites nobody to build one."""
    return base64.urlsafe_b64encode(before.bytes).decode("ascii").rstrip("=")


def decode_cursor(text: str) -> UUID:
    """The way back; ValueError for anything that `encode_cursor` did not make."""
    try:
        data = base64.b64decode(text.encode("ascii") + b"==", altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raise ValueError("is not a cursor of this list") from None
    if len(data) != 16 or encode_cursor(UUID(bytes=data)) != text:
        raise ValueError("is not a cursor of this list")
    return UUID(bytes=data)


def _problem(name: str, detail: str) -> Problem:
    return Problem(f"/query/{name}", detail)


def _raise_if(problems: list[Problem]) -> None:
    if problems:
        raise InvalidRequest("some query parameters do not make sense", problems)


def _unknown(params: QueryParams, known: Collection[str]) -> list[Problem]:
    names = {name for name in params if name not in known}
    return [_problem(name, "is not a parameter of this list") for name in sorted(names)]


def _text(params: QueryParams, name: str, problems: list[Problem]) -> str | None:
    value = params.get(name)
    if value is not None and "\x00" in value:
        problems.append(_problem(name, "contains a NUL character"))
        return None
    return value


def _choices(
    params: QueryParams, choices: Mapping[str, Collection[str]], problems: list[Problem]
) -> dict[str, str | None]:
    found = {name: params.get(name) for name in choices}
    for name, value in found.items():
        if value is not None and value not in choices[name]:
            problems.append(_problem(name, f"is none of {', '.join(choices[name])}"))
    return found


def _choice(
    params: QueryParams,
    name: str,
    choices: type[TaskState] | type[Outcome],
    problems: list[Problem],
) -> str | None:
    value = params.get(name)
    if value is None or value in set(choices):
        return value
    problems.append(_problem(name, f"is none of {', '.join(choices)}"))
    return None


def _labels(params: QueryParams, problems: list[Problem]) -> dict[str, str] | None:
    labels: dict[str, str] = {}
    for pair in params.getlist("label"):
        name, colon, value = pair.partition(":")
        if not colon or not name or "\x00" in pair:
            problems.append(_problem("label", "is not of the form name:value"))
        elif labels.setdefault(name, value) != value:
            problems.append(_problem("label", f"asks for two values of {name!r} at once"))
    return labels or None


def _instant(params: QueryParams, name: str, problems: list[Problem]) -> datetime | None:
    value = params.get(name)
    if value is None:
        return None
    # In a query an unescaped plus sign means a space: take the offset as it was meant.
    text = value[:11] + value[11:].replace(" ", "+")
    try:
        found: datetime = msgspec.convert(text, Instant)
        found.timestamp()
    except (msgspec.ValidationError, OverflowError):
        problems.append(_problem(name, f"is not a time with an offset: {TIME_FORM}"))
        return None
    if not 1 < found.year < 9999:
        problems.append(_problem(name, "is out of range: the year is one of 2 to 9998"))
        return None
    return found


def _uuid(params: QueryParams, name: str, problems: list[Problem]) -> UUID | None:
    value = params.get(name)
    if value is None:
        return None
    try:
        return UUID(value)
    except ValueError:
        problems.append(_problem(name, "is not an id"))
        return None


def _limit(params: QueryParams, problems: list[Problem]) -> int:
    value = params.get("limit")
    if value is None:
        return _DEFAULT_ITEMS
    if value.isascii() and value.isdigit() and len(value) <= 4 and 1 <= int(value) <= MOST_ITEMS:
        return int(value)
    problems.append(_problem("limit", f"is not a number between 1 and {MOST_ITEMS}"))
    return _DEFAULT_ITEMS


def _cursor(params: QueryParams, problems: list[Problem]) -> UUID | None:
    value = params.get("cursor")
    if value is None:
        return None
    try:
        return decode_cursor(value)
    except ValueError as error:
        problems.append(_problem("cursor", str(error)))
        return None


def _flag(params: Mapping[str, str], name: str, problems: list[Problem]) -> bool:
    value = params.get(name, "false")
    if value not in _FLAGS:
        problems.append(_problem(name, "is neither true nor false"))
    return _FLAGS.get(value, False)
