"""Periodic jobs of one loop: each in its own time, and none at another's expense."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from mainspring.errors import StoreUnavailable
from mainspring.node.retrying import RETRY_PAUSE, wait_at_most
from mainspring.node.state import NodeState

log = structlog.get_logger()


class PeriodicJobs:
    """When the jobs of a loop are due; `wanted` ends its wait."""

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
