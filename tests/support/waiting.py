"""Waiting for a condition, with a bound: how tests await what has no signal of its own."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

TICK = 0.02


async def eventually(
    condition: Callable[[], Awaitable[T]], *, within: float, what: str, tick: float = TICK
) -> T:
    """Ask until the answer is true, and return it; fail with `what` when that takes too long."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within
    while True:
        answer = await condition()
        if answer:
            return answer
        if loop.time() > deadline:
            raise AssertionError(f"not within {within:g} s: {what} (last answer: {answer!r})")
        await asyncio.sleep(tick)
