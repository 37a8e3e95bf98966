"""Reports of workers about the executions they run: heartbeats and reports, recorded by any node.

What a report needs to know of its task is remembered for tasks that were leased here, and read from
the database for others.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple
from uuid import UUID

from mainspring import crash_points
from mainspring.domain.execution import Execution, Outcome, Report, TaskError, believed
from mainspring.engine.demand import WorkerSession
from mainspring.node.recorder import Recorder
from mainspring.node.state import NodeState
from mainspring.node.workers.registry import WorkerRegistry
from mainspring.store.leases import HeldHeartbeat, LeaseStore

Action = Literal["continue", "cancel", "lost"]
Verdict = Literal["accepted", "fenced", "unknown"]

_MOST_REMEMBERED = 50_000
_LARGE = 512
"""A payload beyond this is not remembered: nobody reads it again."""
_TIMEOUT_GRACE = 2.0
"""Seconds after their timeout at which we end executions that their worker has not ended."""
_LONGER = 2
"""Factor for the leases of executions that heartbeat: these are long, and need fewer beats."""


class WorkerReport(NamedTuple):
    """A worker's report about an execution."""

    id: UUID
    fence: int
    outcome: Outcome
    started: float | None = None
    finished: float | None = None
    result: bytes | None = None
    error: TaskError | None = None
    retryable: bool = True
    retry_after: float | None = None


class HeartbeatAnswer(NamedTuple):
    """The answer to a heartbeat about one execution."""

    id: UUID
    lease_end: float | None
    action: Action


class _KnownLease(NamedTuple):
    """What is remembered of a lease that was given here."""

    execution: Execution
    holder: WorkerSession
    leased: float
    """When, by the steady clock."""


@dataclass(eq=False)
class WorkerReports:
    """Extends leases and records outcomes on behalf of workers."""

    _state: NodeState
    _store: LeaseStore
    _recorder: Recorder
    _registry: WorkerRegistry
    _remembered: OrderedDict[tuple[UUID, int], _KnownLease] = field(
        default_factory=OrderedDict, init=False
    )

    def remember(self, execution: Execution, holder: WorkerSession) -> None:
        """Remember a task that was leased here."""
        name = (execution.id, execution.fence)
        self._registry.leased(holder, 1)
        if len(execution.payload) > _LARGE:
            execution = execution._replace(payload=b"")
        self._remembered[name] = _KnownLease(execution, holder, self._state.clock.steady())
        if len(self._remembered) > _MOST_REMEMBERED:
            self._remembered.popitem(last=False)

    def unreported(self, executions: Sequence[tuple[UUID, int]]) -> list[tuple[UUID, int]]:
        """Return those of them that were leased here and not reported here."""
        return [name for name in executions if name in self._remembered]

    # Heartbeats ------------------------------------------------------------------------------

    async def beat(
        self,
        holder: WorkerSession,
        beats: Sequence[HeldHeartbeat],
        about: Mapping[str, object] | None = None,
    ) -> list[HeartbeatAnswer]:
        """Extend the leases of a worker that is alive. Return what to do about each."""
        for offer in self._registry.heard(holder, about):
            self._state.engine.workers.touch(holder.tenant_id, offer, self._state.clock.now())
        kept = await self._store.extend_for(
            *holder, beats, lease=_LONGER * self._state.config.worker_lease, grace=_TIMEOUT_GRACE
        )
        crash_points.reach("lease.extended")
        fences = {beat.id: beat.fence for beat in beats}
        overdue = [(item.id, fences[item.id]) for item in kept if item.overdue]
        if overdue:
            await self._time_out(holder.tenant_id, overdue)
        pulses = {}
        for item in kept:
            if item.overdue:
                continue
            self._state.engine.running.confirm(item.id, fences[item.id], item.lease_end)
            action: Action = "cancel" if item.cancel_requested else "continue"
            pulses[item.id] = HeartbeatAnswer(item.id, item.lease_end, action)
        return [pulses.get(beat.id) or HeartbeatAnswer(beat.id, None, "lost") for beat in beats]

    async def _time_out(self, tenant_id: int, executions: Sequence[tuple[UUID, int]]) -> None:
        """The hard timeout: saying "busy" for ever does not keep a task for ever."""
        now = self._state.clock.now()
        held = await self._store.held(tenant_id, executions)
        reports = []
        for execution, cancelled in held:
            seconds = execution.spec.timeout
            error = TaskError("timeout", f"not done within {seconds:g} s")
            outcome = Outcome.CANCELLED if cancelled else Outcome.TIMED_OUT
            finished = max(now, execution.picked)
            reports.append(Report(execution, outcome, execution.picked, finished, error=error))
        await self._recorder.record(reports)

    # Reports ---------------------------------------------------------------------------------

    async def report(self, tenant_id: int, said: Sequence[WorkerReport]) -> list[Verdict]:
        """Record what workers say. Return "accepted", "fenced" or "unknown" for each."""
        crash_points.reach("report.received")
        ours: list[tuple[int, WorkerReport, _KnownLease]] = []
        others: dict[int, WorkerReport] = {}
        for index, one in enumerate(said):
            known = self._remembered.get((one.id, one.fence))
            # Only the database knows whether one that did not succeed was asked to cancel.
            if (
                known is None
                or one.outcome is not Outcome.SUCCEEDED
                or known.execution.tenant_id != tenant_id
            ):
                others[index] = one
            else:
                ours.append((index, one, known))
        now = self._state.clock.now()
        reports = await self._read(tenant_id, others, now) if others else {}
        for index, one, known in ours:
            self._forget(known.execution, one.outcome)
            reports[index] = self._report_of(one, known.execution, False, known, now)
        told = sorted(reports)  # of two reports of an execution the first counts
        first: dict[tuple[UUID, int], Outcome] = {}
        for index in told:
            first.setdefault((said[index].id, said[index].fence), said[index].outcome)
        accepted = await self._recorder.record([reports[index] for index in told])
        done = {
            index
            for index, good in zip(told, accepted, strict=True)
            if good and said[index].outcome is first[said[index].id, said[index].fence]
        }
        refused = [index for index in range(len(said)) if index not in done]
        judged = await self._judge(tenant_id, [said[index] for index in refused])
        verdicts = dict(zip(refused, judged, strict=True))
        return [verdicts.get(index, "accepted") for index in range(len(said))]

    async def _read(
        self, tenant_id: int, said: Mapping[int, WorkerReport], now: float
    ) -> dict[int, Report]:
        """Reports of executions as the database has them; those that are not there are left out."""
        executions = [(one.id, one.fence) for one in said.values()]
        held = {
            (task.id, task.fence): (task, cancelled)
            for task, cancelled in await self._store.held(tenant_id, executions)
        }
        reports = {}
        for index, one in said.items():
            if (one.id, one.fence) in held:
                task, cancelled = held[one.id, one.fence]
                known = self._forget(task, one.outcome)
                reports[index] = self._report_of(one, task, cancelled, known, now)
        return reports

    def _forget(self, execution: Execution, outcome: Outcome) -> _KnownLease | None:
        known = self._remembered.pop((execution.id, execution.fence), None)
        if known is not None:
            self._registry.reported(known.holder, outcome)
        return known

    def _report_of(
        self,
        said: WorkerReport,
        execution: Execution,
        cancelled: bool,
        known: _KnownLease | None,
        now: float,
    ) -> Report:
        """A worker's clock may be wrong: what it says happened between the claim and now."""
        held = now - execution.picked
        if known is not None:
            # The database's clock may stand still for us, after it jumped back.
            held = max(held, self._state.clock.steady() - known.leased)
        started, finished = believed(execution.picked, held, said.started, said.finished)
        outcome = said.outcome
        if cancelled and outcome is not Outcome.SUCCEEDED:
            outcome = Outcome.CANCELLED
        return Report(
            execution, outcome, started, finished, said.result, said.error, said.retryable,
            said.retry_after,
        )  # fmt: skip

    async def _judge(self, tenant_id: int, said: Sequence[WorkerReport]) -> list[Verdict]:
        if not said:
            return []
        executions = [(one.id, one.fence, one.outcome) for one in said]
        verdicts: dict[tuple[UUID, int, str], Verdict] = {}
        for judged in await self._store.judge(tenant_id, executions):
            # An execution that is recorded was reported before: only the answer was lost.
            refused: Verdict = "fenced" if judged.known else "unknown"
            name = (judged.id, judged.fence, judged.outcome)
            verdicts[name] = "accepted" if judged.recorded else refused
        return [verdicts[task_id, fence, outcome.value] for task_id, fence, outcome in executions]
