"""Asking the database until it answers."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from mainspring.errors import StoreUnavailable
from mainspring.observe.metrics import Metrics

T = TypeVar("T")

_RETRY_PAUSE = 0.25


async def until_answered(ask: Callable[[], Awaitable[T]], metrics: Metrics) -> T:
    """For questions that may be asked again."""
    while True:
        try:
            return await ask()
        except StoreUnavailable:
            metrics.database_errors.inc()
            await asyncio.sleep(_RETRY_PAUSE)
