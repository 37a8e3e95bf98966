"""Deadlines of runs, and steps that expired: ended by the owner of their partition."""

import asyncio

import structlog

from mainspring.errors import StoreUnavailable
from mainspring.node.recorder import Recorder
from mainspring.node.state import NodeState
from mainspring.observe.metrics import Metrics
from mainspring.store.step_outcomes import StepOutcomes

log = structlog.get_logger()

_EVERY = 0.5


class Deadlines:
    """Looks twice a second; an index says what is due, so that looking costs next to nothing."""

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
                self._state.doubt(self._state.engine.partitions)
                log.warning("deadlines wait", action="deadline.failed", problem=str(problem))
            await asyncio.sleep(_EVERY)

    async def _turn(self) -> None:
        tenure = self._state.tenure()
        if not tenure.partitions:
            return
        self._recorder.moved(await self._steps.expire(tenure, self._state.clock.now()))
        for tenant_id, run_id in await self._steps.overdue(tenure):
            now = self._state.clock.now()
            self._recorder.moved(await self._steps.stop(tenure, tenant_id, run_id, "deadline", now))
