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
        self._registry.leased(holder)
        if len(execution.payload) > _LARGE:
            execution = execution._replace(payload=b"")
        self._remembered[name] = _KnownLease(execution, holder, self._state.clock.steady())
        if len(self._remembered) > _MOST_REMEMBERED:
            self._remembered.popitem(last=False)

    def unreported(self, executions: Sequence[tuple[UUID, int]]) -> list[tuple[UUID, int]]:
        """Return the executions that were leased here and not reported here."""
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
        answers = {}
        for item in kept:
            if item.overdue:
                continue
            self._state.engine.running.confirm(item.id, fences[item.id], item.lease_end)
            action: Action = "cancel" if item.cancel_requested else "continue"
            answers[item.id] = HeartbeatAnswer(item.id, item.lease_end, action)
        return [answers.get(beat.id) or HeartbeatAnswer(beat.id, None, "lost") for beat in beats]

    async def _time_out(self, tenant_id: int, executions: Sequence[tuple[UUID, int]]) -> None:
        """End executions past their timeout: heartbeats do not keep a task for ever."""
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
        now = self._state.clock.now()
        known = [self._remembered.get((one.id, one.fence)) for one in said]
        found = await self._executions(tenant_id, said, known)
        reports: dict[int, Report] = {}
        first: dict[tuple[UUID, int], Outcome] = {}
        for index in sorted(found):  # of two reports of an execution the first counts
            one, (execution, cancelled) = said[index], found[index]
            first.setdefault((one.id, one.fence), one.outcome)
            reports[index] = self._report_of(one, execution, cancelled, known[index], now)
            if lease := self._remembered.pop((one.id, one.fence), None):
                self._registry.reported(lease.holder, one.outcome)
        accepted = await self._recorder.record(list(reports.values()))
        done = {
            index
            for index, good in zip(reports, accepted, strict=True)
            if good and said[index].outcome is first[said[index].id, said[index].fence]
        }
        refused = [one for index, one in enumerate(said) if index not in done]
        verdicts = await self._judge(tenant_id, refused) if refused else {}
        return [
            "accepted" if index in done else verdicts[one.id, one.fence, one.outcome.value]
            for index, one in enumerate(said)
        ]

    async def _executions(
        self,
        tenant_id: int,
        said: Sequence[WorkerReport],
        known: Sequence[_KnownLease | None],
    ) -> dict[int, tuple[Execution, bool]]:
        """Return the executions of reports that exist, by the report's index, and whether each was
        asked to cancel."""
        found: dict[int, tuple[Execution, bool]] = {}
        others: dict[int, tuple[UUID, int]] = {}
        for index, (one, lease) in enumerate(zip(said, known, strict=True)):
            ours = lease is not None and lease.execution.tenant_id == tenant_id
            # Only the database knows whether one that did not succeed was asked to cancel.
            if lease is not None and ours and one.outcome is Outcome.SUCCEEDED:
                found[index] = lease.execution, False
            else:
                others[index] = one.id, one.fence
        if others:
            read = await self._store.held(tenant_id, list(others.values()))
            held = {(task.id, task.fence): (task, cancelled) for task, cancelled in read}
            found |= {index: held[name] for index, name in others.items() if name in held}
        return found

    def _report_of(
        self,
        said: WorkerReport,
        execution: Execution,
        cancelled: bool,
        known: _KnownLease | None,
        now: float,
    ) -> Report:
        """Return a report with times between the claim and now: a worker's clock may be wrong."""
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

    async def _judge(
        self, tenant_id: int, said: Sequence[WorkerReport]
    ) -> dict[tuple[UUID, int, str], Verdict]:
        """Return verdicts about reports that were not recorded, by task, fence and outcome."""
        verdicts: dict[tuple[UUID, int, str], Verdict] = {}
        executions = [(one.id, one.fence, one.outcome) for one in said]
        for judged in await self._store.judge(tenant_id, executions):
            # An execution that is recorded was reported before: only the answer was lost.
            refused: Verdict = "fenced" if judged.known else "unknown"
            name = (judged.id, judged.fence, judged.outcome)
            verdicts[name] = "accepted" if judged.recorded else refused
        return verdicts
