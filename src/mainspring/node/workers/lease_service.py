"""The desk where workers wait for tasks.

A poll waits here until the engine has picked tasks for it and they are claimed, here or by another
node. What is claimed for a worker that went away meanwhile is released at once.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import structlog

from mainspring import crash
from mainspring.config import Config
from mainspring.domain.capability import Offer, there_for
from mainspring.domain.execution import Execution, cannot_be_read, released
from mainspring.engine.demand import Poll, WorkerSession
from mainspring.engine.entry import Entry
from mainspring.engine.leases import RunningTask
from mainspring.errors import NothingSent, NotReady, StoreUnavailable
from mainspring.lifecycle import BackgroundTasks
from mainspring.node.recorder import Recorder
from mainspring.node.retrying import until_answered
from mainspring.node.state import NodeState
from mainspring.node.workers.mailbox import (
    ExecutionKey,
    Kind,
    Mailbox,
    SlotGrant,
)
from mainspring.node.workers.registry import WorkerRegistry, superseded
from mainspring.node.workers.remote_workers import RemoteWorkers
from mainspring.node.workers.reports import (
    HeartbeatAnswer,
    Verdict,
    WorkerReport,
    WorkerReports,
)
from mainspring.observe.metrics import Metrics
from mainspring.store.leases import (
    HeldHeartbeat,
    LeasedTask,
    LeaseStore,
    WorkerPick,
)
from mainspring.store.workers import WorkerStore

log = structlog.get_logger()

_WRITE_EVERY = 1.0
_SHORTEST_WAIT = 0.1
"""What is there already must be claimed, too."""


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """What a worker asks for."""

    holder: WorkerSession
    offer: Offer
    most: int
    wait: float
    about: Mapping[str, object] | None = None
    running: frozenset[ExecutionKey] | None = None
    """What it holds, if it says so."""
    announces: bool = False
    """Whether it tells of what it begins."""


@dataclass(slots=True)
class _WaitingPoll:
    """A poll, and what has come for it."""

    poll: Poll
    slots: int
    answer: asyncio.Future[list[LeasedTask]]
    ours: bool = True
    """Whether its worker waits here, and not at another node."""
    got: list[LeasedTask] = field(default_factory=list)
    over: bool = False
    """Whether it takes nothing new."""


class LeaseService:
    """What the API and the dispatcher ask of the node on behalf of workers."""

    def __init__(
        self,
        config: Config,
        state: NodeState,
        store: LeaseStore,
        recorder: Recorder,
        metrics: Metrics,
        workers: WorkerStore,
        post: Mailbox,
        expire_leases: Callable[[Sequence[RunningTask]], Coroutine[Any, Any, None]],
    ) -> None:
        self._config = config
        self._state = state
        self._store = store
        self._recorder = recorder
        self._metrics = metrics
        self._lose = expire_leases
        self._closed = False
        self._registry = WorkerRegistry(state, workers, self._began, there_for(config.worker_lease))
        self._reporting = WorkerReports(config, state, store, recorder, self._registry)
        self._forwarding = RemoteWorkers(state, post, self)
        self._background_tasks = BackgroundTasks(of="lease")
        self._waiting: dict[Poll, _WaitingPoll] = {}
        self._asking: Counter[WorkerSession] = Counter()
        """How many polls of each worker wait for their answer."""
        self._leased: dict[UUID, LeasedTask] = {}
        """Tasks between their claim and their hand-out."""
        self._answered: dict[WorkerSession, dict[ExecutionKey, LeasedTask]] = {}
        """What each worker was answered and did not mention yet: should an answer be lost, it gets
        it again."""
        metrics.polls_waiting.set_function(lambda: len(self._waiting))
        metrics.worker_held.set_function(lambda: sum(state.engine.held_by_workers().values()))

    # Leases ----------------------------------------------------------------------------------

    async def lease(self, wish: LeaseRequest) -> list[LeasedTask]:
        """Wait for tasks, at most as long as the worker wants to; empty when none came."""
        if self._closed:
            raise NotReady("this node is stopping; ask another one")
        await self._registry.admit(wish.holder, wish.offer, wish.about)
        leased = await self._not_arrived(wish)
        if not leased:
            poll = Poll(
                wish.holder, wish.offer, wish.most, idle=not wish.running, announces=wish.announces
            )
            leased = await self._wait(self._open(poll), wish.wait)
        given = self._answered.setdefault(wish.holder, {})
        given.update(((task.execution.id, task.execution.fence), task) for task in leased)
        crash.reach("lease.answered")
        return leased

    async def _not_arrived(self, wish: LeaseRequest) -> list[LeasedTask]:
        """What answers gave the worker and it does not hold: such an answer was lost."""
        if wish.running is None:
            self._answered.pop(wish.holder, None)
            return []
        given = self._answered.get(wish.holder, {})
        missing = {name: task for name, task in given.items() if name not in wish.running}
        unreported = self._reporting.open_tries(list(missing))
        held: set[ExecutionKey] = set()
        if unreported:
            tries = await self._store.held(wish.holder.tenant_id, unreported)
            held = {(task.execution.id, task.execution.fence) for task in tries}
        for name in (given.keys() & wish.running) | (missing.keys() - held):
            given.pop(name, None)
        return [missing[name] for name in missing if name in held][: wish.most]

    def _open(self, poll: Poll, *, ours: bool = True) -> _WaitingPoll:
        answer = asyncio.get_running_loop().create_future()
        waiting = self._waiting[poll] = _WaitingPoll(poll, poll.free, answer, ours)
        self._state.engine.open(poll, self._state.clock.now())
        self._state.request_dispatch()
        if ours:
            self._forwarding.waits(poll)
        return waiting

    async def _wait(self, waiting: _WaitingPoll, seconds: float) -> list[LeasedTask]:
        answer, holder = waiting.answer, waiting.poll.holder
        self._asking[holder] += 1
        try:
            # Not `wait_for`: that would return a result, and not heed the cancel that came with it.
            done, _ = await asyncio.wait([answer], timeout=max(seconds, _SHORTEST_WAIT))
            if not done:
                self._end(waiting)
                # If something is being claimed for it, that takes but a moment.
                await asyncio.wait([answer])
            return answer.result()
        except asyncio.CancelledError:
            # The worker went away: what was or is being claimed for it goes back.
            waiting.answer.add_done_callback(self._give_back)
            self._state.engine.left(waiting.poll)
            self._end(waiting)
            if self._asking[holder] == 1:
                self._registry.left(holder)
            raise
        finally:
            self._asking[holder] -= 1
            if not self._asking[holder]:
                del self._asking[holder]

    def _end(self, waiting: _WaitingPoll) -> None:
        waiting.over = True
        self._state.engine.close(waiting.poll)
        self._conclude(waiting)

    def _conclude(self, waiting: _WaitingPoll) -> None:
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
        crash.reach("lease.before_commit")
        lease = self._config.worker_lease
        try:
            leased = await self._store.claim_for(self._state.ownership(), picks, lease=lease)
        except NothingSent:
            return []
        except StoreUnavailable:
            # The claim may have been written all the same: read it again, never assume.
            leased = await until_answered(lambda: self._store.claimed_for(picks), self._metrics)
        crash.reach("lease.committed")
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
                if waiting.ours:
                    self._reporting.remember(leased.execution, entry.poll.holder)
                self._metrics.start_delay.observe(now - leased.execution.due)
                waiting.got.append(leased)
        for poll in polls:
            self._arrived(self._waiting[poll])

    def _readable(self, leased: LeasedTask) -> LeasedTask | None:
        """What no worker could read has failed, and goes to none."""
        if leased.execution.unreadable is None:
            return leased
        self._recorder.report([cannot_be_read(leased.execution, self._state.clock.now())])
        return None

    def _arrived(self, waiting: _WaitingPoll) -> None:
        if waiting.poll.in_flight:
            return
        self._state.engine.close(waiting.poll)
        if waiting.got or waiting.over:
            self._conclude(waiting)
        else:
            self._background_tasks.start(self._reconsider(waiting))

    async def _reconsider(self, waiting: _WaitingPoll) -> None:
        """Everything that was picked for a poll was refused: it waits on, unless its worker is not
        the one that goes by its name. Then it was replaced, or the database was set back to before
        it began: if it is there, it asks again, and hears which of the two it is."""
        holder = waiting.poll.holder
        current = await until_answered(lambda: self._registry.is_current(holder), self._metrics)
        if waiting.answer.done() or waiting.over:
            self._conclude(waiting)
        elif current:
            waiting.poll.free, waiting.poll.shared = waiting.slots, False
            self._state.engine.open(waiting.poll, self._state.clock.now())
            self._state.request_dispatch()
            if waiting.ours:
                self._forwarding.waits(waiting.poll)
        else:
            self._registry.forget(holder)
            self._end(waiting)

    def _turn_away(self, waiting: _WaitingPoll) -> None:
        del self._waiting[waiting.poll]
        waiting.answer.set_exception(superseded(waiting.poll.holder))

    def interrupt_polls(self, holders: Collection[WorkerSession]) -> None:
        self.polls_interrupted(holders)
        self._forwarding.interrupt_polls(holders)

    def polls_interrupted(self, holders: Collection[WorkerSession]) -> None:
        """An answer that is empty too soon makes a worker ask about the tries it holds. One that
        is frozen does not ask, and gets nothing more."""
        for waiting in list(self._waiting.values()):
            if waiting.ours and waiting.poll.holder in holders:
                self._end(waiting)

    # Other nodes -----------------------------------------------------------------------------

    def call_others(self) -> None:
        """Tell nodes whose workers could run what waits here."""
        self._forwarding.call(self._state.engine.calls())

    def polls(self) -> Iterable[Poll]:
        """The workers that wait here."""
        return [w.poll for w in self._waiting.values() if w.ours and not w.over]

    def kinds(self) -> Iterable[Kind]:
        """The kinds of workers that are here."""
        waiting = [(poll.holder.tenant_id, poll.offer) for poll in self.polls()]
        return {*waiting, *self._registry.kinds()}

    async def claim_for(self, grant: SlotGrant) -> list[ExecutionKey]:
        """Claim tasks for a worker that waits at another node, which keeps its slots until it hears
        of them: so at once if there are none."""
        engine, now = self._state.engine, self._state.clock.now()
        if self._closed or not engine.awaits(grant.holder.tenant_id, grant.offer, now):
            return []
        poll = Poll(
            grant.holder, grant.offer, grant.slots, idle=grant.idle, here=False,
            announces=grant.announces, shared=grant.shared,
        )  # fmt: skip
        leased = await self._wait(self._open(poll, ours=False), 0)
        return [(task.execution.id, task.execution.fence) for task in leased]

    async def claimed_elsewhere(
        self, poll: Poll, slots: int, tasks: Sequence[ExecutionKey]
    ) -> None:
        """Another node claimed these for a worker that waits here, or did until now."""
        tenant_id = poll.holder.tenant_id
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
            self._reporting.remember(task.execution, poll.holder)
            waiting.got.append(task)
        self._arrived(waiting)

    # Restarts --------------------------------------------------------------------------------

    def _began(self, holder: WorkerSession) -> None:
        """A worker's process began here."""
        self._forwarding.began(holder)
        self.replaced(holder)

    def replaced(self, current: WorkerSession) -> None:
        """A worker's process began: nobody waits any more for the ones before it, and what they
        hold in our partitions is free."""
        self._registry.replaced(current)
        for waiting in list(self._waiting.values()):
            holder = waiting.poll.holder
            if holder[:2] == current[:2] and holder != current and not waiting.answer.done():
                self._state.engine.close(waiting.poll)
                waiting.over = True
                if not waiting.poll.in_flight:
                    self._turn_away(waiting)
        former = self._state.engine.held_by_former(current)
        if former:
            self._background_tasks.start(self._lose(former))

    # What workers say ------------------------------------------------------------------------

    async def beat(
        self,
        holder: WorkerSession,
        beats: Sequence[HeldHeartbeat],
        about: Mapping[str, object] | None = None,
    ) -> list[HeartbeatAnswer]:
        return await self._reporting.beat(holder, beats, about)

    async def report(self, tenant_id: int, said: Sequence[WorkerReport]) -> list[Verdict]:
        return await self._reporting.report(tenant_id, said)

    # The node's way in -----------------------------------------------------------------------

    def close(self) -> None:
        """The node stops: whoever waits here asks another one."""
        self._closed = True
        for waiting in list(self._waiting.values()):
            self._end(waiting)

    def loops(self) -> dict[str, Callable[[], Coroutine[Any, Any, None]]]:
        return {"roster": self._keep_roster, **self._forwarding.loops()}

    async def _keep_roster(self) -> None:
        while True:
            await asyncio.sleep(_WRITE_EVERY)
            try:
                await self._registry.write()
            except StoreUnavailable as problem:
                self._metrics.database_errors.inc()
                log.warning("workers were not noted", action="roster.failed", problem=str(problem))
            for holder in [h for h in self._answered if not self._registry.knows(h)]:
                del self._answered[holder]


def _pick(entry: Entry) -> WorkerPick:
    assert entry.poll is not None
    row, holder, waited = entry.row, entry.poll.holder, entry.lateness(entry.ready_at)
    return WorkerPick(row.tenant_id, row.id, row.rev, holder.worker, holder.incarnation, waited)
