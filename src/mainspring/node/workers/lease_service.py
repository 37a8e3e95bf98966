"""The lease service, where workers wait for tasks.

A poll waits here until the engine has picked tasks for it and they are claimed, here or by another
node. What is claimed for a worker that went away meanwhile is released at once.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

import structlog

from mainspring import crash_points
from mainspring.domain.capability import Offer, there_for
from mainspring.domain.execution import Execution, cannot_be_read, released
from mainspring.engine.demand import Poll, WorkerSession
from mainspring.engine.entry import Entry
from mainspring.engine.running import RunningTask
from mainspring.errors import NothingSent, NotReady, StoreUnavailable
from mainspring.lifecycle import BackgroundTasks
from mainspring.node.recorder import Recorder
from mainspring.node.retrying import repeat, until_answered
from mainspring.node.state import NodeState
from mainspring.node.workers.heartbeats_and_reports import WorkerReports
from mainspring.node.workers.mailbox import ExecutionKey, Kind, Mailbox, SlotGrant
from mainspring.node.workers.registry import WorkerRegistry, superseded
from mainspring.node.workers.remote_workers import RemoteWorkers
from mainspring.store.leases import LeasedTask, LeaseStore
from mainspring.store.task_refs import WorkerPick
from mainspring.store.workers import WorkerStore

log = structlog.get_logger()

_WRITE_EVERY = 1.0
_SHORTEST_WAIT = 0.1
"""What is there already must be claimed, too."""


class LeaseRequest(NamedTuple):
    """What a worker asks for."""

    holder: WorkerSession
    offer: Offer
    most: int
    wait: float
    about: Mapping[str, object] | None = None
    running: frozenset[ExecutionKey] | None = None
    """What it holds, if it says so."""
    announces: bool = False
    """Whether it announces what it starts."""


@dataclass(slots=True)
class _OpenPoll:
    """A poll, and what has come for it."""

    poll: Poll
    slots: int
    answer: asyncio.Future[list[LeasedTask]]
    got: list[LeasedTask] = field(default_factory=list)
    over: bool = False
    """Whether it takes nothing new."""


@dataclass(eq=False)
class LeaseService:
    """What the API and the dispatcher ask of the node on behalf of workers."""

    _state: NodeState
    _store: LeaseStore
    _recorder: Recorder
    _workers: WorkerStore
    _mailbox: Mailbox
    _expire_leases: Callable[[Sequence[RunningTask]], Coroutine[Any, Any, None]]
    _closed: bool = field(default=False, init=False)
    _waiting: dict[Poll, _OpenPoll] = field(default_factory=dict, init=False)
    _poll_counts: Counter[WorkerSession] = field(default_factory=Counter, init=False)
    """How many polls of each worker wait for their answer."""
    _leased: dict[UUID, LeasedTask] = field(default_factory=dict, init=False)
    """Tasks between their claim and their hand-out."""
    _unconfirmed: dict[WorkerSession, dict[ExecutionKey, LeasedTask]] = field(
        default_factory=dict, init=False
    )
    """Leases that each worker was given and did not confirm yet: an answer may be lost."""

    def __post_init__(self) -> None:
        state, metrics = self._state, self._state.metrics
        self._metrics = metrics
        lasts = there_for(state.config.worker_lease)
        self._registry = WorkerRegistry(state, self._workers, self._began, lasts)
        self._reports = WorkerReports(state, self._store, self._recorder, self._registry)
        # What workers say of executions they run does not concern those that wait.
        self.beat, self.report = self._reports.beat, self._reports.report
        self._remote = RemoteWorkers(state, self._mailbox, self)
        self._background_tasks = BackgroundTasks(of="lease")
        metrics.polls_waiting.set_function(lambda: len(self._waiting))
        metrics.worker_held.set_function(lambda: sum(state.engine.running.by_worker().values()))

    # Leases ----------------------------------------------------------------------------------

    async def lease(self, request: LeaseRequest) -> list[LeasedTask]:
        """Wait for tasks, at most as long as the worker wants to; empty when none came."""
        if self._closed:
            raise NotReady("this node is stopping; ask another one")
        await self._registry.admit(request.holder, request.offer, request.about)
        leased = await self._lost_in_answers(request)
        if not leased:
            poll = Poll(
                request.holder,
                request.offer,
                request.most,
                idle=not request.running,
                announces=request.announces,
            )
            leased = await self._wait(self._open(poll), request.wait)
        given = self._unconfirmed.setdefault(request.holder, {})
        given.update(((task.execution.id, task.execution.fence), task) for task in leased)
        crash_points.reach("lease.answered")
        return leased

    async def _lost_in_answers(self, request: LeaseRequest) -> list[LeasedTask]:
        """Return what answers gave the worker and it does not hold: such an answer was lost."""
        if request.running is None:
            self._unconfirmed.pop(request.holder, None)
            return []
        given = self._unconfirmed.get(request.holder, {})
        missing = {name: task for name, task in given.items() if name not in request.running}
        unreported = self._reports.unreported(list(missing))
        held: set[ExecutionKey] = set()
        if unreported:
            executions = await self._store.held(request.holder.tenant_id, unreported)
            held = {(task.execution.id, task.execution.fence) for task in executions}
        for name in (given.keys() & request.running) | (missing.keys() - held):
            given.pop(name, None)
        return [missing[name] for name in missing if name in held][: request.most]

    def _open(self, poll: Poll) -> _OpenPoll:
        answer = asyncio.get_running_loop().create_future()
        waiting = self._waiting[poll] = _OpenPoll(poll, poll.free, answer)
        self._offer(waiting)
        return waiting

    def _offer(self, waiting: _OpenPoll) -> None:
        """Let tasks be picked for a poll, here and at other nodes."""
        self._state.engine.workers.open(waiting.poll, self._state.clock.now())
        self._state.request_dispatch()
        if waiting.poll.here:
            self._remote.waits(waiting.poll)

    async def _wait(self, waiting: _OpenPoll, seconds: float) -> list[LeasedTask]:
        answer, holder = waiting.answer, waiting.poll.session
        self._poll_counts[holder] += 1
        try:
            # Not `wait_for`: that would return a result, and not heed the cancel that came with it.
            done, _ = await asyncio.wait([answer], timeout=max(seconds, _SHORTEST_WAIT))
            if not done:
                self._end_poll(waiting)
                # If something is being claimed for it, that takes but a moment.
                await asyncio.wait([answer])
            return answer.result()
        except asyncio.CancelledError:
            # The worker went away: what was or is being claimed for it goes back.
            waiting.answer.add_done_callback(self._give_back)
            self._state.engine.workers.disconnect(waiting.poll)
            self._end_poll(waiting)
            if self._poll_counts[holder] == 1:
                self._registry.left(holder)
            raise
        finally:
            self._poll_counts[holder] -= 1
            if not self._poll_counts[holder]:
                del self._poll_counts[holder]

    def _end_poll(self, waiting: _OpenPoll) -> None:
        waiting.over = True
        self._state.engine.workers.close(waiting.poll)
        self._answer(waiting)

    def _answer(self, waiting: _OpenPoll) -> None:
        """Answer a poll unless something is still under way to it."""
        if waiting.poll.in_flight == 0 and not waiting.answer.done():
            del self._waiting[waiting.poll]
            waiting.answer.set_result(waiting.got)

    def _give_back(self, answer: "asyncio.Future[list[LeasedTask]]") -> None:
        if not answer.cancelled() and answer.exception() is None:
            self._release(answer.result())

    def _release(self, leased: Sequence[LeasedTask]) -> None:
        now = self._state.clock.now()
        self._recorder.report([released(task.execution, now) for task in leased])

    # Claims, for the dispatcher --------------------------------------------------------------

    async def claim(self, picked: Sequence[Entry]) -> list[Execution]:
        """Claim what was picked for workers."""
        picks = [_pick(entry) for entry in picked]
        crash_points.reach("lease.before_commit")
        lease = self._state.config.worker_lease
        try:
            leased = await self._store.claim_for(self._state.ownership(), picks, lease=lease)
        except NothingSent:
            return []
        except StoreUnavailable:
            # The claim may have been written all the same: read it again, never assume.
            leased = await until_answered(lambda: self._store.claimed_for(picks), self._metrics)
        crash_points.reach("lease.committed")
        self._metrics.claim_batch.observe(len(picked))
        self._metrics.tasks_claimed.inc(len(leased))
        self._metrics.leases_given.inc(len(leased))
        self._leased.update((task.execution.id, task) for task in leased)
        return [task.execution for task in leased]

    def hand_out(self, picked: Sequence[Entry], executions: Sequence[Execution]) -> None:
        """Give what was claimed to the polls it was picked for."""
        now = self._state.clock.now()
        got = {execution.id for execution in executions}
        polls: dict[Poll, None] = {}
        for entry in picked:
            assert entry.poll is not None
            polls[entry.poll] = None
            if entry.row.id in got and (leased := self._readable(self._leased.pop(entry.row.id))):
                waiting = self._waiting[entry.poll]
                if entry.poll.here:
                    self._reports.remember(leased.execution, entry.poll.session)
                self._metrics.start_delay.observe(now - leased.execution.due)
                waiting.got.append(leased)
        for poll in polls:
            self._claim_arrived(self._waiting[poll])

    def _readable(self, leased: LeasedTask) -> LeasedTask | None:
        """Return a leased task, unless no worker could read it: such a one has failed."""
        if leased.execution.unreadable is None:
            return leased
        self._recorder.report([cannot_be_read(leased.execution, self._state.clock.now())])
        return None

    def _claim_arrived(self, waiting: _OpenPoll) -> None:
        if waiting.poll.in_flight:
            return
        self._state.engine.workers.close(waiting.poll)
        if waiting.got or waiting.over:
            self._answer(waiting)
        else:
            self._background_tasks.start(self._reconsider(waiting))

    async def _reconsider(self, waiting: _OpenPoll) -> None:
        """Let a poll wait on whose claims were all refused, unless its worker is not current: then
        it was replaced, or the database was set back to before it began. Its poll ends, and it
        hears which of the two it is when it asks again."""
        holder = waiting.poll.session
        current = await until_answered(lambda: self._registry.is_current(holder), self._metrics)
        if waiting.answer.done() or waiting.over:
            self._answer(waiting)
        elif current:
            waiting.poll.free, waiting.poll.shared = waiting.slots, False
            self._offer(waiting)
        else:
            self._registry.forget(holder)
            self._end_poll(waiting)

    def interrupt_polls(self, holders: Collection[WorkerSession]) -> None:
        self.interrupt_local_polls(holders)
        self._remote.interrupt_polls(holders)

    def interrupt_local_polls(self, holders: Collection[WorkerSession]) -> None:
        """Answer polls before their time: it makes workers ask about what they hold. One that is
        frozen does not ask, and gets nothing more."""
        for waiting in list(self._waiting.values()):
            if waiting.poll.here and waiting.poll.session in holders:
                self._end_poll(waiting)

    # Other nodes -----------------------------------------------------------------------------

    def tell_remote_nodes(self) -> None:
        """Tell nodes whose workers could run what waits here."""
        self._remote.call(self._state.engine.workers.take_remote_demand())

    def polls(self) -> Iterable[Poll]:
        """Return the polls of our own workers."""
        return [w.poll for w in self._waiting.values() if w.poll.here and not w.over]

    def kinds(self) -> Iterable[Kind]:
        """Return the kinds of workers that are here."""
        return {*(poll.kind for poll in self.polls()), *self._registry.kinds()}

    async def claim_for(self, grant: SlotGrant) -> list[ExecutionKey]:
        """Claim tasks for a worker of another node, which keeps its slots until it gets an answer:
        so at once if there are none."""
        engine, now = self._state.engine, self._state.clock.now()
        if self._closed or not engine.workers.has_tasks_for(
            grant.holder.tenant_id, grant.offer, now
        ):
            return []
        poll = Poll(
            grant.holder, grant.offer, grant.slots, idle=grant.idle, here=False,
            announces=grant.announces, shared=grant.shared,
        )  # fmt: skip
        leased = await self._wait(self._open(poll), 0)
        return [(task.execution.id, task.execution.fence) for task in leased]

    async def claimed_elsewhere(
        self, poll: Poll, slots: int, tasks: Sequence[ExecutionKey]
    ) -> None:
        """Take in what another node claimed for some slots of a poll that waits here, or did."""
        tenant_id = poll.session.tenant_id
        leased: Sequence[LeasedTask] = ()
        try:
            if tasks:
                leased = await until_answered(
                    lambda: self._store.leased(tenant_id, tasks), self._metrics
                )
        finally:
            # Not before they are read: until then the poll may not be opened anew.
            poll.in_flight -= slots
        waiting = self._waiting.get(poll)
        if waiting is None:
            self._release(leased)
            return
        for task in filter(self._readable, leased):
            self._reports.remember(task.execution, poll.session)
            waiting.got.append(task)
        self._claim_arrived(waiting)

    # Restarts --------------------------------------------------------------------------------

    def _began(self, holder: WorkerSession) -> None:
        """Note that a worker's process began here, and tell the other nodes."""
        self._remote.began(holder)
        self.replaced(holder)

    def replaced(self, current: WorkerSession) -> None:
        """Note that a worker's process began: end the polls of those before it, and their leases in
        our partitions."""
        self._registry.replaced(current)
        for waiting in list(self._waiting.values()):
            holder = waiting.poll.session
            if holder[:2] == current[:2] and holder != current and not waiting.answer.done():
                self._state.engine.workers.close(waiting.poll)
                waiting.over = True
                if not waiting.poll.in_flight:
                    del self._waiting[waiting.poll]
                    waiting.answer.set_exception(superseded(holder))
        former = self._state.engine.running.of_former_sessions(current)
        if former:
            self._background_tasks.start(self._expire_leases(former))

    # The node's way in -----------------------------------------------------------------------

    def close(self) -> None:
        """Answer all polls, for the node stops: the workers ask another one."""
        self._closed = True
        for waiting in list(self._waiting.values()):
            self._end_poll(waiting)

    def loops(self) -> dict[str, Callable[[], Coroutine[Any, Any, None]]]:
        return {"worker_registry": self._keep_registry, **self._remote.loops()}

    async def _keep_registry(self) -> None:
        await repeat(
            self._write_registry, self._metrics, "workers were not noted", action="registry.failed"
        )

    async def _write_registry(self) -> None:
        await asyncio.sleep(_WRITE_EVERY)
        for holder in [h for h in self._unconfirmed if not self._registry.knows(h)]:
            del self._unconfirmed[holder]
        await self._registry.write()


def _pick(entry: Entry) -> WorkerPick:
    assert entry.poll is not None
    row, holder, waited = entry.row, entry.poll.session, entry.lateness(entry.ready_at)
    return WorkerPick(row.tenant_id, row.id, row.rev, holder.worker, holder.incarnation, waited)
