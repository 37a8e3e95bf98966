"""The desk where workers lease tasks, say that they are alive, and report.

A poll waits here until the engine has picked tasks for it and they are claimed. What is claimed for
a worker that went away meanwhile is released at once. Reports and heartbeats are recorded by any
node: what they need to know is remembered for tasks that were leased here, and read for others.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple
from uuid import UUID

import structlog

from mainspring import crash
from mainspring.config import Config
from mainspring.domain.capability import Offer
from mainspring.domain.execution import Assignment, Outcome, Report, TaskError
from mainspring.engine.demand import Holder, Poll
from mainspring.engine.entry import Entry
from mainspring.engine.leases import Running
from mainspring.engine.ledger import Cause
from mainspring.errors import StoreUnavailable
from mainspring.node.patience import until_answered
from mainspring.node.recorder import Recorder
from mainspring.node.roster import Roster, superseded
from mainspring.node.state import NodeState
from mainspring.observe.metrics import Metrics
from mainspring.store.leases import Beat, Leased, LeaseStore, WorkerPick
from mainspring.store.workers import Workers

log = structlog.get_logger()

Action = Literal["continue", "cancel", "lost"]
Verdict = Literal["accepted", "fenced", "unknown"]

_MOST_REMEMBERED = 50_000
_TIMEOUT_GRACE = 2.0
"""A worker ends its tries by itself when their time is over; so long after it, we do."""
_WORTH_TELLING = 0.01
_WRITE_EVERY = 1.0
_SHORTEST_WAIT = 0.1
"""What is there already must be claimed, too."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a worker asks for."""

    holder: Holder
    offer: Offer
    most: int
    wait: float
    about: Mapping[str, object] | None = None
    running: frozenset[tuple[UUID, int]] | None = None
    """What it holds, if it says so."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a worker says about a try."""

    id: UUID
    fence: int
    outcome: Outcome
    started: float | None = None
    finished: float | None = None
    result: bytes | None = None
    error: TaskError | None = None
    retryable: bool = True
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class Pulse:
    """The answer to a heartbeat about one try."""

    id: UUID
    lease_end: float | None
    action: Action


class _Lease(NamedTuple):
    """What is remembered of a lease that was given here."""

    assignment: Assignment
    lateness: Mapping[str, float]
    holder: Holder


@dataclass(slots=True)
class _Waiting:
    """A poll, and what has come for it."""

    poll: Poll
    slots: int
    answer: asyncio.Future[list[Leased]]
    got: list[Leased] = field(default_factory=list)
    over: bool = False
    """Whether it takes nothing new."""


class LeaseDesk:
    """What the API and the dispatcher ask of the node on behalf of workers."""

    def __init__(
        self,
        config: Config,
        state: NodeState,
        store: LeaseStore,
        recorder: Recorder,
        metrics: Metrics,
        workers: Workers,
        lose: Callable[[Sequence[Running]], Coroutine[Any, Any, None]],
    ) -> None:
        self._config = config
        self._state = state
        self._store = store
        self._recorder = recorder
        self._metrics = metrics
        self._lose = lose
        self._closed = False
        self._roster = Roster(state, workers, self._began)
        self._background: set[asyncio.Task[None]] = set()
        self._waiting: dict[Poll, _Waiting] = {}
        self._leased: dict[UUID, Leased] = {}
        """Tasks between their claim and their hand-out."""
        self._remembered: OrderedDict[tuple[UUID, int], _Lease] = OrderedDict()
        metrics.polls_waiting.set_function(lambda: len(self._waiting))
        metrics.worker_held.set_function(lambda: sum(state.engine.held_by_workers().values()))

    # Leases ----------------------------------------------------------------------------------

    async def lease(self, wish: Wish) -> list[Leased]:
        """Wait for tasks, at most as long as the worker wants to; empty when none came."""
        if self._closed:
            raise StoreUnavailable("this node is stopping")
        await self._roster.admit(wish.holder, wish.offer, wish.about)
        poll = Poll(wish.holder, wish.offer, wish.most, idle=not wish.running)
        waiting = _Waiting(poll, wish.most, asyncio.get_running_loop().create_future())
        self._waiting[poll] = waiting
        self._state.engine.open(poll, self._state.clock.now())
        self._state.poke()
        try:
            return await self._wait(waiting, wish.wait)
        except BaseException:
            # The worker went away: what was or is being claimed for it goes back.
            waiting.answer.add_done_callback(self._give_back)
            self._end(waiting)
            raise

    async def _wait(self, waiting: _Waiting, seconds: float) -> list[Leased]:
        try:
            return await asyncio.wait_for(
                asyncio.shield(waiting.answer), max(seconds, _SHORTEST_WAIT)
            )
        except TimeoutError:
            self._end(waiting)
            # If something is being claimed for it, that takes but a moment.
            return await asyncio.shield(waiting.answer)

    def _end(self, waiting: _Waiting) -> None:
        waiting.over = True
        self._state.engine.close(waiting.poll)
        self._conclude(waiting)

    def _conclude(self, waiting: _Waiting) -> None:
        """Answer a poll unless something is still under way to it."""
        if waiting.poll.in_flight == 0 and not waiting.answer.done():
            del self._waiting[waiting.poll]
            waiting.answer.set_result(waiting.got)

    def _give_back(self, answer: "asyncio.Future[list[Leased]]") -> None:
        if answer.cancelled() or not answer.result():
            return
        now = self._state.clock.now()
        self._recorder.report(
            [
                Report(a, Outcome.RELEASED, max(now, a.picked), max(now, a.picked))
                for a, *_ in answer.result()
            ]
        )

    # Claims, for the dispatcher --------------------------------------------------------------

    async def claim(self, picked: Sequence[Entry]) -> list[Assignment]:
        """Claim what was picked for workers."""
        picks = [_pick(entry) for entry in picked]
        crash.reach("lease.before_commit")
        lease = self._config.worker_lease
        try:
            leased = await self._store.claim_for(self._state.tenure(), picks, lease=lease)
        except StoreUnavailable:
            # The claim may have been written all the same: read it again, never assume.
            leased = await until_answered(lambda: self._store.claimed_for(picks), self._metrics)
        crash.reach("lease.committed")
        self._metrics.claim_batch.observe(len(picked))
        self._metrics.tasks_claimed.inc(len(leased))
        self._metrics.leases_given.inc(len(leased))
        self._leased.update((task.assignment.id, task) for task in leased)
        return [task.assignment for task in leased]

    def hand_out(self, picked: Sequence[Entry], assignments: Sequence[Assignment]) -> None:
        """Give what was claimed to the polls it was picked for."""
        engine, now = self._state.engine, self._state.clock.now()
        got = {assignment.id for assignment in assignments}
        polls: dict[Poll, None] = {}
        for entry in picked:
            assert entry.poll is not None
            polls[entry.poll] = None
            if entry.row.id in got:
                leased = self._leased.pop(entry.row.id)
                self._remember(leased.assignment, engine.lateness(entry, now), entry.poll.holder)
                self._metrics.start_delay.observe(now - leased.assignment.due)
                self._waiting[entry.poll].got.append(leased)
        for poll in polls:
            self._arrived(self._waiting[poll], now)

    def _arrived(self, waiting: _Waiting, now: float) -> None:
        if waiting.poll.in_flight:
            return
        engine = self._state.engine
        engine.close(waiting.poll)
        if waiting.got or waiting.over:
            self._conclude(waiting)
        else:
            self._spawn(self._reconsider(waiting))

    async def _reconsider(self, waiting: _Waiting) -> None:
        """Everything that was picked for a poll was refused: it waits on, unless its worker is not
        the one any more that goes by its name."""
        holder = waiting.poll.holder
        current = await until_answered(lambda: self._roster.is_current(holder), self._metrics)
        if waiting.answer.done() or waiting.over:
            self._conclude(waiting)
        elif current:
            waiting.poll.free = waiting.slots
            self._state.engine.open(waiting.poll, self._state.clock.now())
            self._state.poke()
        else:
            self._roster.forget(holder)
            self._turn_away(waiting)

    def _turn_away(self, waiting: _Waiting) -> None:
        del self._waiting[waiting.poll]
        waiting.answer.set_exception(superseded(waiting.poll.holder))

    # Restarts --------------------------------------------------------------------------------

    def _began(self, holder: Holder) -> None:
        """A worker's process began here: what earlier ones hold is free."""
        self.replaced(holder)

    def replaced(self, current: Holder) -> None:
        """A worker's process began: nobody waits any more for the ones before it, and what they
        hold in our partitions is free."""
        self._roster.replaced(current)
        for waiting in list(self._waiting.values()):
            holder = waiting.poll.holder
            if holder[:2] == current[:2] and holder != current and not waiting.answer.done():
                self._state.engine.close(waiting.poll)
                waiting.over = True
                if not waiting.poll.in_flight:
                    self._turn_away(waiting)
        former = self._state.engine.held_by_former(current)
        if former:
            self._spawn(self._lose(former))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def close(self) -> None:
        """The node stops: whoever waits here asks another one."""
        self._closed = True
        for waiting in list(self._waiting.values()):
            self._end(waiting)

    def loops(self) -> dict[str, Callable[[], Coroutine[Any, Any, None]]]:
        return {"roster": self._keep_roster}

    async def _keep_roster(self) -> None:
        while True:
            await asyncio.sleep(_WRITE_EVERY)
            try:
                await self._roster.write()
            except StoreUnavailable as problem:
                self._metrics.database_errors.inc()
                log.warning("workers were not noted", action="roster.failed", problem=str(problem))

    def call_others(self) -> None:
        self._state.engine.calls()

    def _remember(
        self, assignment: Assignment, lateness: Mapping[str, float], holder: Holder
    ) -> None:
        name = (assignment.id, assignment.fence)
        self._roster.leased(holder, 1)
        self._remembered[name] = _Lease(assignment._replace(payload=b""), lateness, holder)
        if len(self._remembered) > _MOST_REMEMBERED:
            self._remembered.popitem(last=False)

    # Heartbeats ------------------------------------------------------------------------------

    async def beat(
        self,
        holder: Holder,
        beats: Sequence[Beat],
        about: Mapping[str, object] | None = None,
    ) -> list[Pulse]:
        """A worker is alive and runs these: extend its leases, and say what to do about each."""
        offer = self._roster.heard(holder, about)
        if offer is not None:
            self._state.engine.know(holder.tenant_id, offer, self._state.clock.now())
        kept = await self._store.extend_for(
            *holder, beats, lease=self._config.worker_lease, grace=_TIMEOUT_GRACE
        )
        crash.reach("lease.extended")
        fences = {beat.id: beat.fence for beat in beats}
        overdue = [(item.id, fences[item.id]) for item in kept if item.overdue]
        if overdue:
            await self._time_out(holder.tenant_id, overdue)
        pulses = {}
        for item in kept:
            if item.overdue:
                continue
            self._state.engine.extended(item.id, fences[item.id], item.lease_end)
            action: Action = "cancel" if item.cancel_requested else "continue"
            pulses[item.id] = Pulse(item.id, item.lease_end, action)
        return [pulses.get(beat.id) or Pulse(beat.id, None, "lost") for beat in beats]

    async def _time_out(self, tenant_id: int, tries: Sequence[tuple[UUID, int]]) -> None:
        """The hard timeout: saying "busy" for ever does not keep a task for ever."""
        now = self._state.clock.now()
        held = await self._store.held(tenant_id, tries)
        reports = []
        for assignment, cancelled in held:
            seconds = assignment.spec.timeout
            error = TaskError("timeout", f"not done within {seconds:g} s")
            outcome = Outcome.CANCELLED if cancelled else Outcome.TIMED_OUT
            finished = max(now, assignment.picked)
            reports.append(Report(assignment, outcome, assignment.picked, finished, error=error))
        await self._recorder.record(reports)

    # Reports ---------------------------------------------------------------------------------

    async def report(self, tenant_id: int, said: Sequence[Said]) -> list[Verdict]:
        """Record what workers say; answers "accepted", "fenced" or "unknown" for each."""
        crash.reach("report.received")
        present = await self._present(tenant_id, said)
        reports: dict[int, Report] = {}
        for index, one in enumerate(said):
            found = present.get((one.id, one.fence))
            if found is not None:
                reports[index] = self._report_of(one, *found)
        accepted = await self._recorder.record(list(reports.values()))
        done = {index for index, good in zip(reports, accepted, strict=True) if good}
        refused = [(one.id, one.fence) for index, one in enumerate(said) if index not in done]
        verdicts = await self._judge(tenant_id, refused) if refused else {}
        return [
            "accepted" if index in done else verdicts[one.id, one.fence]
            for index, one in enumerate(said)
        ]

    async def _present(
        self, tenant_id: int, said: Sequence[Said]
    ) -> dict[tuple[UUID, int], tuple[Assignment, bool, Mapping[str, float] | None]]:
        """The tries as they were leased, whether their end was asked for, and their lateness."""
        found: dict[tuple[UUID, int], tuple[Assignment, bool, Mapping[str, float] | None]] = {}
        unknown = []
        for one in said:
            name = (one.id, one.fence)
            known = self._remembered.get(name)
            if known is None or known.assignment.tenant_id != tenant_id:
                unknown.append(name)
            elif one.outcome is Outcome.SUCCEEDED:
                found[name] = (known.assignment, False, known.lateness)
            else:
                unknown.append(name)  # only the database knows whether it was asked to cancel
        for assignment, cancelled in await self._held(tenant_id, unknown):
            name = (assignment.id, assignment.fence)
            known = self._remembered.get(name)
            found[name] = (assignment, cancelled, known.lateness if known else None)
        return found

    async def _held(
        self, tenant_id: int, tries: Sequence[tuple[UUID, int]]
    ) -> Sequence[tuple[Assignment, bool]]:
        return await self._store.held(tenant_id, tries) if tries else ()

    def _report_of(
        self,
        said: Said,
        assignment: Assignment,
        cancelled: bool,
        lateness: Mapping[str, float] | None,
    ) -> Report:
        """A worker's clock may be wrong: what it says happened between the claim and now."""
        known = self._remembered.pop((said.id, said.fence), None)
        if known is not None:
            self._roster.reported(known.holder, said.outcome)
        now = max(self._state.clock.now(), assignment.picked)
        started = min(max(said.started or assignment.picked, assignment.picked), now)
        finished = min(max(said.finished or now, started), now)
        if lateness is not None:
            waited = started - assignment.picked
            if waited > _WORTH_TELLING:
                lateness = {**lateness, Cause.WORKER_QUEUE.value: round(waited, 6)}
            self._recorder.expect(assignment, lateness)
        outcome = said.outcome
        if cancelled and outcome is not Outcome.SUCCEEDED:
            outcome = Outcome.CANCELLED
        return Report(
            assignment, outcome, started, finished, said.result, said.error, said.retryable,
            said.retry_after,
        )  # fmt: skip

    async def _judge(
        self, tenant_id: int, tries: Sequence[tuple[UUID, int]]
    ) -> dict[tuple[UUID, int], Verdict]:
        verdicts: dict[tuple[UUID, int], Verdict] = {}
        for judged in await self._store.judge(tenant_id, tries):
            # A try that is recorded was reported before: only the answer was lost.
            refused: Verdict = "fenced" if judged.known else "unknown"
            verdicts[judged.id, judged.fence] = "accepted" if judged.recorded else refused
        return verdicts


def _pick(entry: Entry) -> WorkerPick:
    assert entry.poll is not None
    row, holder = entry.row, entry.poll.holder
    return WorkerPick(row.tenant_id, row.id, row.rev, holder.worker, holder.incarnation)
