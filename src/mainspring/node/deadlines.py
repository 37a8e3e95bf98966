"""Deadlines of runs, and steps that expired: ended by the owner of their partition."""

import asyncio
from collections.abc import Sequence
from uuid import UUID

import structlog

from mainspring.domain.placement import Ownership
from mainspring.errors import StoreUnavailable
from mainspring.node.recorder import Recorder
from mainspring.node.state import NodeState
from mainspring.observe.metrics import Metrics
from mainspring.postgres.database import REFUSED
from mainspring.store.workflow.step_rows import Ended
from mainspring.workflows.outcomes import StepOutcomes

log = structlog.get_logger()

_EVERY = 1.0


class Deadlines:
    """Looks every second; an index says what is due, so that looking costs next to nothing."""

    def __init__(
        self, state: NodeState, steps: StepOutcomes, recorder: Recorder, metrics: Metrics
    ) -> None:
        self._state = state
        self._steps = steps
        self._recorder = recorder
        self._metrics = metrics

    async def run(self) -> None:
        while True:
            try:
                await self._turn()
            except StoreUnavailable as problem:
                self._metrics.database_errors.inc()
                # It may have been written all the same, and released something.
                self._state.mark_stale(self._state.engine.partitions)
                log.warning("deadlines wait", action="deadline.failed", problem=str(problem))
            await asyncio.sleep(_EVERY)

    async def _turn(self) -> None:
        ownership = self._state.ownership()
        if not ownership.partitions:
            return
        await self._expire(ownership, await self._steps.expiring(ownership))
        for tenant_id, run_id in await self._steps.overdue(ownership):
            now = self._state.clock.now()
            try:
                moved = await self._steps.stop(ownership, tenant_id, run_id, "deadline", now)
            except REFUSED:
                _tell(run_id)
            else:
                self._recorder.moved(moved)

    async def _expire(self, ownership: Ownership, leaving: Sequence[Ended]) -> None:
        """All at once; if that is refused, run by run: one bad run must not hold up the others."""
        try:
            moved = await self._steps.expire(ownership, leaving, self._state.clock.now())
        except REFUSED:
            runs: dict[UUID, list[Ended]] = {}
            for end in leaving:
                runs.setdefault(end.run_id, []).append(end)
            if len(runs) == 1:
                _tell(leaving[0].run_id)
                return
            for of_run in runs.values():
                await self._expire(ownership, of_run)
        else:
            self._recorder.moved(moved)


def _tell(run_id: UUID) -> None:
    """Within an except: this run stays as it is."""
    log.exception("a run cannot be ended", action="deadline.refused", run=str(run_id))
