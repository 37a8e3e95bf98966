"""Deadlines of runs, and steps that expired: ended by the owner of their partition."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import structlog

from mainspring.domain.partitions import Ownership
from mainspring.errors import StoreUnavailable
from mainspring.node.retrying import repeat, write_in_parts
from mainspring.node.signals import Announcer
from mainspring.node.state import NodeState
from mainspring.postgres.database import REFUSED
from mainspring.store.workflows.step_rows import Ended
from mainspring.workflows.outcomes import StepOutcomes

log = structlog.get_logger()

_EVERY = 1.0


@dataclass(eq=False)
class Deadlines:
    """Looks every second; an index says what is due, so that looking costs next to nothing."""

    _state: NodeState
    _steps: StepOutcomes
    _announcer: Announcer

    async def run(self) -> None:
        await repeat(
            self._turn,
            self._state.metrics,
            "deadlines wait",
            action="deadline.failed",
            pause=_EVERY,
        )

    async def _turn(self) -> None:
        ownership = self._state.ownership()
        if ownership.partitions:
            try:
                await self._end_overdue(ownership)
            except StoreUnavailable:
                # It may have been written all the same, and released something.
                self._state.mark_stale(self._state.engine.partitions)
                raise
        await asyncio.sleep(_EVERY)

    async def _end_overdue(self, ownership: Ownership) -> None:
        await self._expire(ownership, await self._steps.expiring(ownership))
        for tenant_id, run_id in await self._steps.overdue(ownership):
            now = self._state.clock.now()
            try:
                moved = await self._steps.stop(ownership, tenant_id, run_id, "deadline", now)
            except REFUSED:
                _log_refused(run_id)
            else:
                self._announcer.announce_runs(moved)

    async def _expire(self, ownership: Ownership, leaving: Sequence[Ended]) -> None:
        """Expire steps, those of a run together."""
        runs: dict[UUID, list[Ended]] = {}
        for end in leaving:
            runs.setdefault(end.run_id, []).append(end)

        async def write(part: Sequence[list[Ended]]) -> None:
            ends = [end for of_run in part for end in of_run]
            moved = await self._steps.expire(ownership, ends, self._state.clock.now())
            self._announcer.announce_runs(moved)

        async def refused(of_run: list[Ended], _error: Exception) -> None:
            _log_refused(of_run[0].run_id)

        await write_in_parts(list(runs.values()), write, refused)


def _log_refused(run_id: UUID) -> None:
    """Log the exception at hand: this run stays as it is."""
    log.exception("a run cannot be ended", action="deadline.refused", run=str(run_id))
