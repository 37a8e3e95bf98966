"""Search for the tasks of one page: on ordered paths, and by a shortcut where these are long."""

from collections.abc import Awaitable, Sequence
from itertools import chain, repeat
from typing import Generic, Protocol, TypeVar
from uuid import UUID

from mainspring.store.lists.index_paths import ListPath
from mainspring.store.lists.paging import RowPage

FIRST_SCANS = (200, 5000)
"""Rows to look at on the ordered paths at first, for most pages fill soon."""


class _HasId(Protocol):
    @property
    def id(self) -> UUID: ...


Item = TypeVar("Item", bound=_HasId)


class Read(Protocol[Item]):
    """Return what a path finds among `scan` rows, and how far it got (None: to the end)."""

    def __call__(
        self, path: ListPath, scan: int, before: UUID | None, limit: int
    ) -> Awaitable[RowPage[Item, UUID]]: ...


class ListSearch(Generic[Item]):
    """The search for one page: each look goes through more rows than the one before."""

    def __init__(
        self, read: Read[Item], paths: Sequence[ListPath], shortcuts: Sequence[ListPath], most: int
    ) -> None:
        self._read = read
        self._paths = paths
        self._shortcuts = list(shortcuts)
        self._most = most
        self._scans = chain((min(few, most) for few in FIRST_SCANS), repeat(most))
        self._looks = self._found = 0

    async def look(self, before: UUID | None, limit: int) -> RowPage[Item, UUID]:
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
        """Whether the ordered paths are long: who found as much as is missing has it in one look,
        for that goes through more rows than all before."""
        return self._looks > len(FIRST_SCANS) or (
            self._looks == len(FIRST_SCANS) and self._found < missing
        )

    async def _look_further(
        self, scan: int, before: UUID | None, limit: int
    ) -> RowPage[Item, UUID]:
        """Follow the path that leads furthest: each goes through all that match."""
        furthest: RowPage[Item, UUID] | None = None
        for path in self._paths:
            items, edge = await self._read(path, scan, before, limit)
            found = RowPage(items, _next(items, edge, limit))
            if edge is None or len(items) == limit:
                return found
            if furthest is None or furthest.next_before is None or edge < furthest.next_before:
                furthest = found
        assert furthest is not None, "a list has at least one path"
        return furthest


def _next(items: Sequence[Item], edge: UUID | None, limit: int) -> UUID | None:
    return items[-1].id if len(items) == limit else edge
