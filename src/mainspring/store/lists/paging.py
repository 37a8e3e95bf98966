"""Pages of lists with a filter that may match few of very many rows."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

PATIENCE = 0.1

Item = TypeVar("Item")
Mark = TypeVar("Mark")

Found = tuple[list[Item], Mark | None]
"""Items, and where to go on (None at the end)."""


async def fill(
    look: Callable[[Mark | None, int], Awaitable[Found[Item, Mark]]],
    before: Mark | None,
    limit: int,
    *,
    heavy: bool = False,
) -> Found[Item, Mark]:
    """A page as full as can be had in a moment.

    One `look` goes through so many rows and no more. Who reads one page only, and gets an empty
    one, takes it for the whole list: so we look on, but not for long. A heavy page has enough as
    soon as it has something.
    """
    items: list[Item] = []
    time = asyncio.get_running_loop().time
    until = time() + PATIENCE
    while True:
        found, before = await look(before, limit - len(items))
        items += found
        full = len(items) >= limit or (heavy and items)
        if full or before is None or time() > until:
            return items, before
