"""Waiting for a condition, with a bound: how tests await what has no signal of its own."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

TICK = 0.02
_LENIENT = 3 if "PYTEST_XDIST_WORKER" in os.environ else 1
"""Beside other tests all takes longer. Waits of less than five seconds are meant as they are."""


async def eventually(
    condition: Callable[[], Awaitable[T]], *, within: float, what: str, tick: float = TICK
) -> T:
    """Ask until the answer is true, and return it; fail with `what` when that takes too long."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within * (_LENIENT if within >= 5 else 1)
    while True:
        answer = await condition()
        if answer:
            return answer
        if loop.time() > deadline:
            raise AssertionError(f"not within {within:g} s: {what} (last answer: {answer!r})")
        await asyncio.sleep(tick)
