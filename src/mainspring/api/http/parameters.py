"""Query parameters: read strictly, because a filter that is misspelt must not match everything."""

import base64
import binascii
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Generic, NamedTuple, TypeVar
from uuid import UUID

import msgspec
from starlette.datastructures import QueryParams

from mainspring.errors import InvalidRequest, Problem
from mainspring.wire.tasks import TIME_FORM, Instant

F = TypeVar("F")

LARGEST_NUMBER = 2**31 - 1
"""Largest version or id of a tenant that the database can hold."""

MOST_ITEMS = 1000
_DEFAULT_ITEMS = 50
_NO_CURSOR = "is not a cursor of this list"
_FLAGS = {"true": True, "1": True, "false": False, "0": False}


class Parameters:
    """The query parameters of one request; `check` raises the problems of all of them together."""

    def __init__(self, params: QueryParams, known: Collection[str] | None = None) -> None:
        self._params = params
        self._problems: list[Problem] = []
        if known is not None:
            for name in sorted({name for name in params if name not in known}):
                self._refuse(name, "is not a parameter of this list")

    def __contains__(self, name: str) -> bool:
        return name in self._params

    def check(self) -> None:
        if self._problems:
            raise InvalidRequest("some query parameters do not make sense", self._problems)

    def text(self, name: str) -> str | None:
        value = self._params.get(name)
        if value is not None and "\x00" in value:
            self._refuse(name, "contains a NUL character")
            return None
        return value

    def choice(self, name: str, choices: Iterable[str]) -> str | None:
        """Return a parameter that is one of these words."""
        value, words = self._params.get(name), list(choices)
        if value is None or value in words:
            return value
        self._refuse(name, f"is none of {', '.join(words)}")
        return None

    def labels(self) -> dict[str, str] | None:
        labels: dict[str, str] = {}
        for pair in self._params.getlist("label"):
            name, colon, value = pair.partition(":")
            if not colon or not name or "\x00" in pair:
                self._refuse("label", "is not of the form name:value")
            elif labels.setdefault(name, value) != value:
                self._refuse("label", f"asks for two values of {name!r} at once")
        return labels or None

    def instant(self, name: str) -> datetime | None:
        value = self._params.get(name)
        if value is None:
            return None
        # In a query an unescaped plus sign means a space: take the offset as it was meant.
        text = value[:11] + value[11:].replace(" ", "+")
        try:
            found: datetime = msgspec.convert(text, Instant)
            found.timestamp()
        except (msgspec.ValidationError, OverflowError):
            self._refuse(name, f"is not a time with an offset: {TIME_FORM}")
            return None
        if not 1 < found.year < 9999:
            self._refuse(name, "is out of range: the year is one of 2 to 9998")
            return None
        return found

    def uuid(self, name: str) -> UUID | None:
        return self._parsed(name, UUID, "is not an id")

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._params.get(name)
        if value is None:
            return default
        if value not in _FLAGS:
            self._refuse(name, "is neither true nor false")
        return _FLAGS.get(value, False)

    def number(self, name: str, most: int) -> int | None:
        """Return a parameter that is a number of at least 1."""
        text = self._params.get(name)
        if text is None:
            return None
        digits = text.isascii() and text.isdigit() and len(text) <= len(str(most))
        if digits and 1 <= int(text) <= most:
            return int(text)
        self._refuse(name, f"is not a number between 1 and {most}")
        return None

    def limit(self) -> int:
        return self.number("limit", MOST_ITEMS) or _DEFAULT_ITEMS

    def cursor(self) -> UUID | None:
        return self._parsed("cursor", decode_cursor, _NO_CURSOR)

    def number_cursor(self) -> int | None:
        """Return the cursor of a list that is ordered by number."""
        cursor = self.cursor()
        if cursor is not None and cursor.int >= 2**63:
            self._refuse("cursor", _NO_CURSOR)
        return None if cursor is None else cursor.int

    def list_query(self, where: F, *, payloads: bool = False) -> "ListQuery[F]":
        """The query of a list with this filter, when nothing is wrong with any parameter."""
        query = ListQuery(where, self.cursor(), self.limit(), payloads)
        self.check()
        return query

    def _parsed(self, name: str, parse: Callable[[str], F], wrong: str) -> F | None:
        value = self._params.get(name)
        try:
            return None if value is None else parse(value)
        except ValueError:
            self._refuse(name, wrong)
            return None

    def _refuse(self, name: str, detail: str) -> None:
        self._problems.append(Problem(f"/query/{name}", detail))


class ListQuery(NamedTuple, Generic[F]):
    """Which page of a list that is ordered by id, and of which items."""

    where: F
    before: UUID | None
    limit: int
    payloads: bool


class PageQuery(msgspec.Struct, frozen=True):
    """Which page of a list that is ordered by number, and of which items."""

    before: int | None
    limit: int
    where: dict[str, str | None]

    def cursor_after(self, numbers: Sequence[int]) -> str | None:
        """Where the list goes on after the items of these numbers; None after the last page."""
        return next_cursor(UUID(int=numbers[-1]) if len(numbers) == self.limit else None)


def page_query(
    params: QueryParams,
    filters: Collection[str] = (),
    choices: Mapping[str, Collection[str]] = MappingProxyType({}),
) -> PageQuery:
    """Return the query of a list whose filters are plain texts, or one of some words."""
    given = Parameters(params, {*filters, *choices, "limit", "cursor"})
    where = {name: given.text(name) for name in filters}
    where |= {name: given.choice(name, words) for name, words in choices.items()}
    query = PageQuery(given.number_cursor(), given.limit(), where)
    given.check()
    return query


def read_one(params: QueryParams, read: Callable[[Parameters], F]) -> F:
    """Read one parameter; raise when it is wrong."""
    given = Parameters(params)
    value = read(given)
    given.check()
    return value


def flag(params: QueryParams, name: str) -> bool:
    """Return a parameter that is true or false; absent means false."""
    return read_one(params, lambda given: given.flag(name))


def bad_parameter(name: str, detail: str) -> InvalidRequest:
    """Return the error for one wrong parameter."""
    problem = Problem(f"/query/{name}", detail)
    return InvalidRequest("some query parameters do not make sense", [problem])


def encode_cursor(before: UUID) -> str:
    """Return the cursor of the page that follows this id, opaque to callers."""
    return base64.urlsafe_b64encode(before.bytes).decode("ascii").rstrip("=")


def next_cursor(before: UUID | None) -> str | None:
    """Return the cursor of the next page; None at the end of the list."""
    return None if before is None else encode_cursor(before)


def decode_cursor(text: str) -> UUID:
    """Decode a cursor; ValueError for anything that `encode_cursor` did not make."""
    try:
        data = base64.b64decode(text.encode("ascii") + b"==", altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raise ValueError(_NO_CURSOR) from None
    if len(data) != 16 or encode_cursor(UUID(bytes=data)) != text:
        raise ValueError(_NO_CURSOR)
    return UUID(bytes=data)
