"""Pages of lists with a filter that may match few of very many rows."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, NamedTuple, TypeVar
from uuid import UUID

import asyncpg

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
    """Return where a list goes on after rows of which each has an id, and tells how many were
    looked at and how far; None at the end of the list."""
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
    """A page as full as can be had in a moment.

    One `look` goes through so many rows and no more. Who reads one page only, and gets an empty
    one, takes it for the whole list: so we look on, but not for long. A heavy page has enough as
    soon as it has something.
    """
    items: list[Item] = []
    time = asyncio.get_running_loop().time
    until = time() + TIME_LIMIT
    while True:
        found, before = await look(before, limit - len(items))
        items += found
        full = len(items) >= limit or (heavy and items)
        if full or before is None or time() > until:
            return RowPage(items, before)
