"""Waiting, repeating and retrying: the loops of the drivers, and their batches."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import structlog

from mainspring.errors import StoreUnavailable
from mainspring.node.state import NodeState
from mainspring.observe.metrics import Metrics
from mainspring.postgres.database import REFUSED

T = TypeVar("T")
_Errors = tuple[type[Exception], ...]

RETRY_PAUSE = 0.25

log = structlog.get_logger()


async def until_answered(
    ask: Callable[[], Awaitable[T]],
    metrics: Metrics,
    retry_on: type[StoreUnavailable] = StoreUnavailable,
) -> T:
    """Ask the database until it answers; with `NothingSent`, only while nothing was sent."""
    while True:
        try:
            return await ask()
        except retry_on:
            metrics.database_errors.inc()
            await asyncio.sleep(RETRY_PAUSE)


async def repeat(
    turn: Callable[[], Awaitable[None]],
    metrics: Metrics,
    message: str,
    *,
    action: str,
    errors: _Errors = (StoreUnavailable,),
    pause: float = RETRY_PAUSE,
) -> None:
    """Run a turn for ever. One that fails is logged and counted, and a pause follows."""
    while True:
        try:
            await turn()
        except errors as problem:
            metrics.database_errors.inc()
            log.warning(message, action=action, problem=str(problem) or repr(problem))
            await asyncio.sleep(pause)


async def wait_at_most(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event. Return whether it came in time."""
    try:
        async with asyncio.timeout(max(0.0, seconds)):
            await event.wait()
    except TimeoutError:
        return False
    return True


class PeriodicJobs:
    """The jobs of one loop, each with its own interval. `wanted` ends the loop's wait."""

    def __init__(self, state: NodeState, wanted: asyncio.Event) -> None:
        self._state = state
        self._wanted = wanted
        self._due: dict[str, float] = {}
        self._failed = False

    def is_time(self, job: str, every: float) -> bool:
        # By the steady clock: the database's may stand still for us, after it jumped back.
        now = self._state.clock.steady()
        if now < self._due.get(job, 0.0):
            return False
        self._due[job] = now + every
        return True

    def run_soon(self, job: str) -> None:
        """Run a job again in the next turn, after the others had theirs."""
        self._due[job] = 0.0
        self._wanted.set()

    def delay(self, job: str, seconds: float) -> None:
        """Do not run a job for some seconds: it took long."""
        self._due[job] = max(self._due[job], self._state.clock.steady() + seconds)

    async def run(self, job: Callable[[], Awaitable[None]]) -> None:
        """Run a job. One that fails, perhaps each time, takes no other's turn."""
        try:
            with self._state.engine.running.reading():
                await job()
        except StoreUnavailable as problem:
            self._failed = True
            self._state.metrics.database_errors.inc()
            name = job.__name__.strip("_")
            log.warning("loading failed", action="load.failed", job=name, problem=str(problem))

    async def wait(self) -> None:
        """Wait until a job is due, or wanted; after a failure for a moment only."""
        if self._failed:
            self._failed = False
            await asyncio.sleep(RETRY_PAUSE)
        else:
            wait = min(self._due.values()) - self._state.clock.steady()
            await wait_at_most(self._wanted, wait)
        self._wanted.clear()


async def write_in_parts(
    items: Sequence[T],
    write: Callable[[Sequence[T]], Awaitable[None]],
    refused: Callable[[T, Exception], Awaitable[None]],
    errors: _Errors = REFUSED,
) -> None:
    """Write a batch; if it is refused, its halves, so that a bad item holds up no other. An item
    that is refused alone goes to `refused`."""
    try:
        await write(items)
    except StoreUnavailable:
        raise
    except errors as error:
        if len(items) < 2:
            for item in items:
                await refused(item, error)
            return
        middle = len(items) // 2
        for part in (items[:middle], items[middle:]):
            await write_in_parts(part, write, refused, errors)
