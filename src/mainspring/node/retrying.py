"""Asking the database until it answers."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from mainspring.errors import NothingSent, StoreUnavailable
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


async def until_sent(ask: Callable[[], Awaitable[T]], metrics: Metrics) -> T:
    """For what may only be asked once, but as late as need be."""
    while True:
        try:
            return await ask()
        except NothingSent:
            metrics.database_errors.inc()
            await asyncio.sleep(_RETRY_PAUSE)
