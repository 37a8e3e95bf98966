"""Tasks that run a workflow: the handler `mainspring.workflow`.

Such a task starts a run and lasts as long as it does. So whatever counts tasks counts runs: overlap
policies, concurrency keys; cancelling the task cancels the run. Only the slots of the node and the
tenant's limit are left to the steps, or a run might wait for itself. The run has the task's own id:
a task that is retried, because its node died, finds the run it started.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated
from uuid import UUID

import msgspec
import structlog

from mainspring.clock import Clock, StartTime
from mainspring.domain.capability import takes_slot
from mainspring.domain.execution import Execution, Outcome, Report, TaskError
from mainspring.errors import StoreUnavailable
from mainspring.execution.port import ReportSink
from mainspring.node.signals import Announcer
from mainspring.node.state import NodeState
from mainspring.postgres.database import REFUSED
from mainspring.workflows.task_runs import TaskRuns

log = structlog.get_logger()

_EVERY = 0.25
# Who waits here has left the fair queue: only so many that there is always one to begin.
_MOST_TO_START = 256
_AT_ONCE = 4
_MOST_ASKED = 1000
_OUTCOMES = {"completed": Outcome.SUCCEEDED, "cancelled": Outcome.CANCELLED}


class RunRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The payload of such a task."""

    workflow: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.-]{1,100}(?!\n)$")]
    input: dict[str, msgspec.Raw] = msgspec.field(default_factory=dict)


@dataclass(slots=True)
class _RunExecution:
    """An execution whose run goes on."""

    execution: Execution
    start: StartTime
    started_by: UUID | None = None
    """The node's id when its run was started: under another one there may be no such run."""
    cancelling: bool = False


class _RoundRobin:
    """Executions in line, one of each tenant in turn: a flood of one tenant's delays no other's."""

    def __init__(self) -> None:
        self._lines: dict[int, deque[_RunExecution]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, found: _RunExecution) -> None:
        self._lines.setdefault(found.execution.tenant_id, deque()).append(found)
        self._count += 1

    def take(self, most: int) -> list[_RunExecution]:
        taken: list[_RunExecution] = []
        while self._lines and len(taken) < most:
            tenant_id = next(iter(self._lines))
            line = self._lines.pop(tenant_id)
            taken.append(line.popleft())
            if line:
                self._lines[tenant_id] = line
        self._count -= len(taken)
        return taken


@dataclass(eq=False)
class RunStarter:
    """An executor that starts runs, and reports their ends."""

    _clock: Clock
    _state: NodeState
    _runs: TaskRuns
    _announcer: Announcer
    _report: ReportSink
    _executions: dict[tuple[UUID, int], _RunExecution] = field(default_factory=dict, init=False)
    _to_start: _RoundRobin = field(default_factory=_RoundRobin, init=False)
    _started: _RoundRobin = field(default_factory=_RoundRobin, init=False)
    _to_cancel: deque[_RunExecution] = field(default_factory=deque, init=False)
    _look_at: float = field(default=0.0, init=False)
    _wanted: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _loop: asyncio.Task[None] | None = field(default=None, init=False)

    def can_run(self, capability: str) -> bool:
        return not takes_slot(capability)

    def room(self) -> int:
        return max(0, _MOST_TO_START - len(self._to_start))

    def start(self, executions: Sequence[Execution]) -> None:
        now = self._clock.now()
        for execution in executions:
            found = _RunExecution(execution, StartTime.now(self._clock, max(now, execution.picked)))
            self._executions[execution.id, execution.fence] = found
            self._to_start.add(found)
        self._wanted.set()
        if self._loop is None:
            self._loop = asyncio.create_task(self._keep_running())

    def has(self, task_id: UUID, fence: int) -> bool:
        return (task_id, fence) in self._executions

    def cancel(self, task_id: UUID, fence: int) -> None:
        found = self._executions.get((task_id, fence))
        if found is not None and not found.cancelling:
            found.cancelling = True
            if found.started_by is not None:
                self._to_cancel.append(found)
                self._wanted.set()

    def holds_back(self, task_id: UUID, fence: int) -> str | None:
        found = self._executions.get((task_id, fence))
        if found is None or found.started_by is not None:
            return None  # what it runs waits for steps, and the run tells for which
        return f"{len(self._to_start)} runs are about to begin"

    async def stop(self, grace: float) -> None:
        """Release the tasks. Their runs go on: the next execution of each waits for the end."""
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)
        for found in list(self._executions.values()):
            self._report_end(found, Outcome.RELEASED)

    async def _keep_running(self) -> None:
        while True:
            self._wanted.clear()
            more = await self._guarded(self._start_some)
            await self._guarded(self._cancel_some)
            await self._guarded(self._look_for_ends)
            if not more:
                await self._rest()

    async def _guarded(self, part: Callable[[], Awaitable[bool | None]]) -> bool | None:
        """Run one part of the loop; a failure of it ends neither the loop nor the other parts."""
        try:
            return await part()
        except StoreUnavailable as problem:
            log.warning("runs wait", action="run.failed", problem=str(problem))
            self._state.mark_stale(self._state.engine.partitions)
        except Exception:
            log.exception("runs wait", action="run.failed")
        return False

    async def _rest(self) -> None:
        try:
            async with asyncio.timeout_at(self._look_at if self._executions else None):
                await self._wanted.wait()
        except TimeoutError:
            pass

    async def _start_some(self) -> bool:
        """Begin a few runs, so that ends are noticed in between. Return whether more wait."""
        taken = self._to_start.take(_AT_ONCE)
        came = await asyncio.gather(*map(self._begin, taken), return_exceptions=True)
        if taken:
            self._state.request_dispatch()  # there is room for others
        problems = [problem for problem in came if problem is not None]
        for found, problem in zip(taken, came, strict=True):
            if problem is not None:
                self._to_start.add(found)
        if problems:
            raise problems[0]
        return bool(self._to_start)

    async def _cancel_some(self) -> None:
        for _ in range(len(self._to_cancel)):
            found = self._to_cancel.popleft()
            try:
                await self._cancel(found)
            except Exception:
                self._to_cancel.append(found)
                raise

    async def _look_for_ends(self) -> None:
        """Ask for the ends of some runs, in turn: thousands of them may go on for days."""
        now = asyncio.get_running_loop().time()
        if now < self._look_at:
            return
        self._look_at = now + _EVERY
        asked = list(filter(self._is_open, self._started.take(_MOST_ASKED)))
        waiting = {found.execution.id: found for found in asked}
        try:
            if asked:
                for run_id, state in await self._runs.ended([t.execution for t in asked]):
                    self._end(waiting[run_id], state)
        finally:
            node = self._state.node_id
            for found in filter(self._is_open, asked):
                # To start again what has started does nothing.
                (self._started if found.started_by == node else self._to_start).add(found)

    def _is_open(self, found: _RunExecution) -> bool:
        return self.has(found.execution.id, found.execution.fence)

    async def _begin(self, found: _RunExecution) -> None:
        execution, node = found.execution, self._state.node_id
        try:
            wanted = msgspec.json.decode(execution.payload, type=RunRequest)
        except (msgspec.MsgspecError, RecursionError) as problem:
            self._report_end(found, Outcome.FAILED, TaskError("bad-payload", str(problem)[:300]))
            return
        try:
            moved = await self._runs.begin(
                self._state.ownership(), execution, wanted.workflow, wanted.input
            )
        except REFUSED as problem:
            # Asking again is of no use, and the others wait.
            self._report_end(found, Outcome.FAILED, TaskError("bad-payload", str(problem)[:300]))
            return
        if moved is None:
            text = f"there is no workflow {wanted.workflow[:100]!r}"
            self._report_end(found, Outcome.FAILED, TaskError("no-workflow", text))
            return
        found.started_by = node
        self._started.add(found)
        if found.cancelling:
            self._to_cancel.append(found)
        self._announcer.announce_runs(moved)

    async def _cancel(self, found: _RunExecution) -> None:
        if not self._is_open(found):
            return
        execution = found.execution
        try:
            moved = await self._runs.cancel(self._state.ownership(), execution, self._clock.now())
        except REFUSED:
            # Whoever extends its lease asks again; the others do not wait for that.
            log.exception("a run is not cancelled", action="run.failed", run=str(execution.id))
            found.cancelling = False
            return
        found.cancelling = False
        if moved is None:
            self._report_end(found, Outcome.RELEASED)
        else:
            self._announcer.announce_runs(moved)

    def _end(self, found: _RunExecution, state: str) -> None:
        outcome = _OUTCOMES.get(state, Outcome.FAILED)
        error = None
        if outcome is Outcome.FAILED:
            error = TaskError("run-failed", f"the run {found.execution.id} has failed")
        result = msgspec.json.encode({"workflow_run_id": str(found.execution.id), "state": state})
        self._report_end(found, outcome, error, result)

    def _report_end(
        self,
        found: _RunExecution,
        outcome: Outcome,
        error: TaskError | None = None,
        result: bytes | None = None,
    ) -> None:
        execution, start = found.execution, found.start
        del self._executions[execution.id, execution.fence]
        finished = start.end(self._clock)
        report = Report(execution, outcome, start.at, finished, result, error, retryable=False)
        self._report([report])
