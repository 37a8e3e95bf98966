"""Tasks that run a workflow: the handler `mainspring.workflow`.

Such a task begins a run and lasts as long as it does. So whatever counts tasks counts runs: overlap
policies, concurrency keys; cancelling the task cancels the run. Only the slots of the node and the
tenant's limit are left to the steps, or a run might wait for itself. The run has the task's own id:
a task that is tried again, because its node died, finds the run it began.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any
from uuid import UUID

import msgspec
import structlog

from mainspring.clock import Clock
from mainspring.domain.capability import takes_slot
from mainspring.domain.execution import Assignment, Outcome, Report, TaskError
from mainspring.errors import StoreUnavailable
from mainspring.execution.port import ReportSink
from mainspring.node.recorder import Recorder
from mainspring.node.state import NodeState
from mainspring.store.database import REFUSED
from mainspring.store.task_runs import TaskRuns

log = structlog.get_logger()

_EVERY = 0.25
_OUTCOMES = {"completed": Outcome.SUCCEEDED, "cancelled": Outcome.CANCELLED}


class RunRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The payload of such a task."""

    workflow: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.-]{1,100}(?!\n)$")]
    input: dict[str, msgspec.Raw] = msgspec.field(default_factory=dict)


@dataclass(slots=True)
class _Try:
    """A task whose run goes on."""

    assignment: Assignment
    started: float
    begun: bool = False
    cancelling: bool = False


class RunStarter:
    """An executor: begins runs, and reports their ends."""

    def __init__(
        self,
        clock: Clock,
        state: NodeState,
        runs: TaskRuns,
        recorder: Recorder,
        report: ReportSink,
    ) -> None:
        self._clock = clock
        self._state = state
        self._runs = runs
        self._recorder = recorder
        self._report = report
        self._tries: dict[tuple[UUID, int], _Try] = {}
        self._wanted = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None

    def can_run(self, capability: str) -> bool:
        return not takes_slot(capability)

    def start(self, assignments: Sequence[Assignment]) -> None:
        now = self._clock.now()
        for assignment in assignments:
            key = (assignment.id, assignment.fence)
            self._tries[key] = _Try(assignment, max(now, assignment.picked))
        self._wanted.set()
        if self._loop is None:
            self._loop = asyncio.create_task(self._keep_looking())

    def has(self, task_id: UUID, fence: int) -> bool:
        return (task_id, fence) in self._tries

    def cancel(self, task_id: UUID, fence: int) -> None:
        found = self._tries.get((task_id, fence))
        if found is not None:
            found.cancelling = True
            self._wanted.set()

    def holds_back(self, task_id: UUID, fence: int) -> str | None:
        return None  # what it runs waits for steps, and the run tells for which

    async def stop(self, grace: float) -> None:
        """The runs go on without us: whoever claims the tasks next waits for their ends."""
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)
        for found in list(self._tries.values()):
            self._conclude(found, Outcome.RELEASED)

    async def _keep_looking(self) -> None:
        while True:
            self._wanted.clear()
            try:
                await self._look()
            except StoreUnavailable as problem:
                log.warning("runs wait", action="run.failed", problem=str(problem))
                self._state.doubt(self._state.engine.partitions)
            except Exception:
                # Nobody begins this loop anew, and every tenant's runs wait for it.
                log.exception("runs wait", action="run.failed")
            try:
                async with asyncio.timeout(_EVERY if self._tries else None):
                    await self._wanted.wait()
            except TimeoutError:
                pass

    async def _look(self) -> None:
        for found in [t for t in self._tries.values() if not t.begun]:
            await self._begin(found)
        for found in [t for t in self._tries.values() if t.begun and t.cancelling]:
            await self._cancel(found)
        waiting = {t.assignment.id: t for t in self._tries.values() if t.begun}
        if not waiting:
            return
        for run_id, state in await self._runs.ended([t.assignment for t in waiting.values()]):
            self._end(waiting[run_id], state)

    async def _begin(self, found: _Try) -> None:
        assignment = found.assignment
        try:
            wanted = msgspec.json.decode(assignment.payload, type=RunRequest)
        except (msgspec.MsgspecError, RecursionError) as problem:
            self._conclude(found, Outcome.FAILED, TaskError("bad-payload", str(problem)[:300]))
            return
        try:
            moved = await self._runs.begin(
                self._state.tenure(), assignment, wanted.workflow, wanted.input
            )
        except REFUSED as problem:
            # Asking again is of no use, and the others wait.
            self._conclude(found, Outcome.FAILED, TaskError("bad-payload", str(problem)[:300]))
            return
        if moved is None:
            text = f"there is no workflow {wanted.workflow[:100]!r}"
            self._conclude(found, Outcome.FAILED, TaskError("no-workflow", text))
            return
        found.begun = True
        self._recorder.moved(moved)

    async def _cancel(self, found: _Try) -> None:
        found.cancelling = False
        assignment = found.assignment
        try:
            moved = await self._runs.cancel(self._state.tenure(), assignment, self._clock.now())
        except StoreUnavailable:
            found.cancelling = True
            raise
        except REFUSED:
            # Whoever extends its lease asks again; the others do not wait for that.
            log.exception("a run is not cancelled", action="run.failed", run=str(assignment.id))
            return
        if moved is None:
            self._conclude(found, Outcome.RELEASED)
        else:
            self._recorder.moved(moved)

    def _end(self, found: _Try, state: str) -> None:
        outcome = _OUTCOMES.get(state, Outcome.FAILED)
        error = None
        if outcome is Outcome.FAILED:
            error = TaskError("run-failed", f"the run {found.assignment.id} has failed")
        result = msgspec.json.encode({"workflow_run_id": str(found.assignment.id), "state": state})
        self._conclude(found, outcome, error, result)

    def _conclude(
        self,
        found: _Try,
        outcome: Outcome,
        error: TaskError | None = None,
        result: bytes | None = None,
    ) -> None:
        assignment = found.assignment
        del self._tries[assignment.id, assignment.fence]
        finished = max(found.started, self._clock.now())
        fields: dict[str, Any] = {"result": result, "error": error, "retryable": False}
        self._report([Report(assignment, outcome, found.started, finished, **fields)])
