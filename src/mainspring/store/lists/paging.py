"""Pages of lists with a filter that may match few of very many rows."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import chain, repeat
from typing import Generic, NamedTuple, Protocol, TypeVar
from uuid import UUID

import asyncpg

from mainspring.store.lists.index_paths import ListPath

TIME_LIMIT = 0.1

Item = TypeVar("Item")
Mark = TypeVar("Mark")


class RowPage(NamedTuple, Generic[Item, Mark]):
    """Some items of a list, and where to go on (None at the end)."""

    items: list[Item]
    next_before: Mark | None


LAST_ID = UUID(int=2**128 - 1)
"""An id that comes after all others."""


def next_mark(
    kind: type[Mark], rows: Sequence[asyncpg.Record], limit: int, scan: int
) -> Mark | None:
    """Return where a list goes on after rows with the columns id, scanned, edge; None at its
    end."""
    ids: list[Mark] = [row["id"] for row in rows if row["id"] is not None]
    edge: Mark | None = rows[0]["edge"] if rows[0]["scanned"] == scan else None
    return ids[-1] if len(ids) == limit else edge


async def fill(
    look: Callable[[Mark | None, int], Awaitable[RowPage[Item, Mark]]],
    before: Mark | None,
    limit: int,
    *,
    heavy: bool = False,
) -> RowPage[Item, Mark]:
    """Return a page as full as can be had within the time limit. An empty page looks like the end
    of the list, so more rows are looked at; a heavy page needs one item only."""
    items: list[Item] = []
    time = asyncio.get_running_loop().time
    until = time() + TIME_LIMIT
    while True:
        found, before = await look(before, limit - len(items))
        items += found
        full = len(items) >= limit or (heavy and items)
        if full or before is None or time() > until:
            return RowPage(items, before)


# Search over several paths -----------------------------------------------------------------------

FIRST_SCANS = (200, 5000)
"""Rows to look at on the ordered paths at first, for most pages fill soon."""


class _HasId(Protocol):
    @property
    def id(self) -> UUID: ...


Found = TypeVar("Found", bound=_HasId)


Read = Callable[[ListPath, int, UUID | None, int], Awaitable[RowPage[Found, UUID]]]
"""Returns what a path finds among so many rows, and how far it got (None: to the end)."""


class ListSearch(Generic[Found]):
    """The search for one page: each look goes through more rows than the one before."""

    def __init__(
        self, read: Read[Found], paths: Sequence[ListPath], shortcuts: Sequence[ListPath], most: int
    ) -> None:
        self._read = read
        self._paths = paths
        self._shortcuts = list(shortcuts)
        self._most = most
        self._scans = chain((min(few, most) for few in FIRST_SCANS), repeat(most))
        self._looks = self._found = 0

    async def look(self, before: UUID | None, limit: int) -> RowPage[Found, UUID]:
        """Return some items older than `before`, and where to go on (None at the end)."""
        if self._is_long(limit):
            while self._shortcuts:
                items, edge = await self._read(self._shortcuts.pop(), self._most, before, limit)
                if edge is None:  # it has seen all that match
                    return RowPage(items, _next(items, edge, limit))
        found = await self._look_further(next(self._scans), before, limit)
        self._looks += 1
        self._found += len(found.items)
        return found

    def _is_long(self, missing: int) -> bool:
        """Whether the ordered paths are long: the first looks found less than is missing."""
        return self._looks > len(FIRST_SCANS) or (
            self._looks == len(FIRST_SCANS) and self._found < missing
        )

    async def _look_further(
        self, scan: int, before: UUID | None, limit: int
    ) -> RowPage[Found, UUID]:
        """Follow the path that leads furthest: each goes through all that match."""
        furthest: RowPage[Found, UUID] | None = None
        for path in self._paths:
            items, edge = await self._read(path, scan, before, limit)
            found = RowPage(items, _next(items, edge, limit))
            if edge is None or len(items) == limit:
                return found
            if furthest is None or furthest.next_before is None or edge < furthest.next_before:
                furthest = found
        assert furthest is not None, "a list has at least one path"
        return furthest


def _next(items: Sequence[Found], edge: UUID | None, limit: int) -> UUID | None:
    return items[-1].id if len(items) == limit else edge
