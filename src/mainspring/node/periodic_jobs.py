"""What a loop does again and again: each chore in its own time, and none at another's expense."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from mainspring.errors import StoreUnavailable
from mainspring.node.retrying import RETRY_PAUSE, wait_at_most
from mainspring.node.state import NodeState
from mainspring.observe.metrics import Metrics

log = structlog.get_logger()


class PeriodicJobs:
    """The times and the tries of one loop's chores; `wanted` ends a rest of it."""

    def __init__(self, state: NodeState, metrics: Metrics, wanted: asyncio.Event) -> None:
        self._state = state
        self._metrics = metrics
        self._wanted = wanted
        self._due: dict[str, float] = {}
        self._failed = False

    def is_time(self, chore: str, every: float) -> bool:
        # By the steady clock: the database's may stand still for us, after it jumped back.
        now = self._state.clock.steady()
        if now < self._due.get(chore, 0.0):
            return False
        self._due[chore] = now + every
        return True

    def soon_again(self, chore: str) -> None:
        """There is more to do of it: in the next turn, after the others had theirs."""
        self._due[chore] = 0.0
        self._wanted.set()

    def not_before(self, chore: str, rest: float) -> None:
        """It was dear: let it rest for so long."""
        self._due[chore] = max(self._due[chore], self._state.clock.steady() + rest)

    async def attempt(self, chore: Callable[[], Awaitable[None]]) -> None:
        """Do a chore. One that fails, perhaps each time, takes no other's turn."""
        try:
            with self._state.engine.reading():
                await chore()
        except StoreUnavailable as problem:
            self._failed = True
            self._metrics.database_errors.inc()
            name = chore.__name__.strip("_")
            log.warning("loading failed", action="load.failed", chore=name, problem=str(problem))

    async def rest(self) -> None:
        """Until a chore is due, or wanted; after a failure for a moment only."""
        if self._failed:
            self._failed = False
            await asyncio.sleep(RETRY_PAUSE)
        else:
            wait = min(self._due.values()) - self._state.clock.steady()
            await wait_at_most(self._wanted, wait)
        self._wanted.clear()
