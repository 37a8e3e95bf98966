"""The dispatcher: claims what the engine picks and hands it to executors; keeps leases alive."""

import asyncio
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from functools import partial
from heapq import nsmallest
from typing import Protocol
from uuid import UUID

import structlog

from mainspring import crash
from mainspring.config import Config
from mainspring.domain.capability import takes_slot
from mainspring.domain.execution import (
    Execution,
    cannot_be_read,
    not_started,
    released,
)
from mainspring.domain.rows import TaskRow
from mainspring.engine.demand import WorkerSession, lease_holder_of
from mainspring.engine.entry import Entry
from mainspring.engine.leases import HeldLease, RunningTask
from mainspring.errors import StoreUnavailable
from mainspring.execution.port import Executor
from mainspring.lifecycle import BackgroundTasks
from mainspring.node.lease_maintenance import LeaseMaintenance
from mainspring.node.recorder import Recorder
from mainspring.node.retrying import until_answered, until_sent
from mainspring.node.state import NodeState
from mainspring.observe.metrics import Metrics
from mainspring.store.claims import EngineStore
from mainspring.store.creation import (
    NO_EAGER_LEASE,
    EagerLeaseOffer,
    NewTask,
    started_task,
)
from mainspring.store.task_refs import TaskRef
from mainspring.store.workflow.step_rows import NO_STEP_LEASES, StepLeaseOffer

log = structlog.get_logger()

_LONGEST_SLEEP = 1.0
_CLAIMS_IN_FLIGHT = 2
# How long a task rests that the database refused to start: it is not due there yet, or changed.
_REST = 0.01
_CLOCK_ERROR = 0.01
# Of one transaction; enough for a fan-out that is not shared among the nodes.
_MOST_RELAYED = 64


Begun = tuple[TaskRow, Execution]
"""A task that was leased in the statement that created or released it."""


class WorkerLeases(Protocol):
    """Claims and hands out what the engine picked for workers."""

    async def claim(self, picked: Sequence[Entry]) -> list[Execution]: ...

    def hand_out(self, picked: Sequence[Entry], executions: Sequence[Execution]) -> None: ...

    def call_others(self) -> None:
        """Tell nodes whose workers could run what waits here."""
        ...

    def interrupt_polls(self, holders: Collection[WorkerSession]) -> None:
        """Answer the polls of these workers before their time: whoever is there asks again."""
        ...


@dataclass(slots=True)
class _ClaimQueue:
    """Claims of one kind: few at a time."""

    lease: Callable[[Sequence[Entry]], Awaitable[list[Execution]]]
    hand_out: Callable[[Sequence[Entry], Sequence[Execution]], None]
    in_flight: int = 0
    tasks: int = 0

    @property
    def free(self) -> bool:
        return self.in_flight < _CLAIMS_IN_FLIGHT


class Dispatcher:
    """Wakes up when something is due or somebody pokes, and never waits for the database itself:
    every statement runs in a task of its own, few at a time, so that batches form by themselves."""

    def __init__(
        self,
        config: Config,
        state: NodeState,
        store: EngineStore,
        recorder: Recorder,
        metrics: Metrics,
    ) -> None:
        self._config = config
        self._state = state
        self._store = store
        self._recorder = recorder
        self._metrics = metrics
        self._executors: list[Executor] = []
        self._own = _ClaimQueue(self._lease, self._hand_out)
        self._for_workers: _ClaimQueue | None = None
        self._lease_service: WorkerLeases | None = None
        self._doubted: dict[str, dict[UUID, NewTask]] = {}
        """New tasks of which nobody knows yet whether they were leased, by the worker they would
        be leased to; their slots are kept."""
        self._looking: asyncio.Task[None] | None = None
        self._background_tasks = BackgroundTasks(of="dispatch")
        self._upkeep = LeaseMaintenance(config, state, store, recorder, metrics, self)
        self._closed = False
        recorder.relay_to(self)

    def add_executor(self, executor: Executor) -> None:
        self._executors.append(executor)

    def serve_workers(self, lease_service: WorkerLeases) -> None:
        """Claim for workers too, and give to this desk what came of it."""
        self._lease_service = lease_service
        self._for_workers = _ClaimQueue(lease_service.claim, lease_service.hand_out)

    @property
    def free_slots(self) -> int:
        return self._config.slots - self._state.engine.slots_held - self._own.tasks

    def room_for(self, row: TaskRow) -> int:
        """How many tasks that need the same could be started here now."""
        runs = None if takes_slot(row.capability) else self._free_runs
        return self.free_slots if runs is None else min(runs, self.free_slots)

    @property
    def _free_runs(self) -> int | None:
        """How many tasks that need no slot may be claimed. Those of a claim in flight are not yet
        counted by whoever begins them: a few hundred more do no harm."""
        rooms = [room for each in self._executors if (room := each.room()) is not None]
        return min(rooms, default=None)

    def can_run(self, row: TaskRow) -> bool:
        """Whether something here can run a task."""
        return self._accepts(row.capability)

    def offer_step_leases(self) -> StepLeaseOffer:
        """How many steps may be leased as they are released, without queueing: only of the slots
        beyond the half that nobody uses, so that nobody has to wait for one because of it."""
        most = min(_MOST_RELAYED, self._spare_slots)
        if most <= 0:
            return NO_STEP_LEASES
        self._own.tasks += most
        return StepLeaseOffer(most, self._state.worker, self._config.lease)

    def end_step_leases(self, relay: StepLeaseOffer, begun: Sequence[Begun]) -> None:
        """What came of the offer is started; what cannot be any more goes back."""
        self._own.tasks -= relay.most
        self._begin(begun)

    def offer_eager_lease(self, tasks: Iterable[NewTask]) -> EagerLeaseOffer:
        """Which new tasks may be leased as they are written, by the same rule. They go before
        nobody: none of their tenant waits, and where slots are short the most urgent get them."""
        # What is due is for the database to say; our clock may be a little slow.
        spare, soon = self._spare_slots, self._state.clock.now() + _CLOCK_ERROR
        free: dict[tuple[int, str], bool] = {}
        chosen: list[NewTask] = []
        for task in tasks if spare > 0 else ():
            if task.due > soon or task.expires is not None or task.concurrency_key is not None:
                continue
            kind = (task.tenant_id, task.capability)
            if kind not in free:
                free[kind] = self._may_go_ahead(*kind)
            if free[kind]:
                chosen.append(task)
        if not chosen:
            return NO_EAGER_LEASE
        engine = self._state.engine
        if len(chosen) > spare:
            chosen = nsmallest(spare, chosen, key=lambda t: engine.deadline(t.due, t.priority))
        self._own.tasks += len(chosen)
        engine.reserve(task.tenant_id for task in chosen)
        return EagerLeaseOffer({t.id: t for t in chosen}, self._state.worker, self._config.lease)

    def end_eager_lease(self, start: EagerLeaseOffer, begun: Sequence[Begun] | None) -> None:
        """What came of it is started. None: nobody knows, for the answer was lost."""
        if not start.tasks:
            return
        if begun is None:
            self._doubted.setdefault(start.worker, {}).update(start.tasks)
            if self._looking is None or self._looking.done():
                self._looking = self._background_tasks.start(self._look_for_begun())
            return
        self._give_back(start.tasks)
        self._begin(begun)

    async def _look_for_begun(self) -> None:
        """Start what was leased after all, and tell the engine of what was not. One question for
        all of it, however many answers get lost while the database is away."""
        while self._doubted:
            worker, doubted = next(iter(self._doubted.items()))
            tasks = dict(doubted)
            names = [(new.tenant_id, new.id) for new in tasks.values()]
            ask = partial(self._store.leased_to, names, worker=worker)
            leased = await until_answered(ask, self._metrics)
            seen = await until_answered(partial(self._store.look_at, names), self._metrics)
            engine = self._state.engine
            begun = [
                started_task(tasks[a.id], a.partition, a.picked, a.lease_end)
                for a in leased
                # Else it was not leased then: it was found, and claimed like any other.
                if a.fence == 1 and a.id in doubted and not engine.is_claiming(a.id)
            ]
            self._no_more_doubt(worker, tasks)
            self._begin(begun)
            engine.saw(seen.rows, self._state.clock.now())

    def _no_more_doubt(self, worker: str, tasks: Iterable[UUID]) -> None:
        doubted = self._doubted.get(worker, {})
        known = {i: task for i in tasks if (task := doubted.pop(i, None)) is not None}
        if not doubted:
            self._doubted.pop(worker, None)
        self._give_back(known)

    def _give_back(self, tasks: Mapping[UUID, NewTask]) -> None:
        """Slots that were reserved for these are free; those who wait may take them."""
        self._own.tasks -= len(tasks)
        self._state.engine.unreserve(task.tenant_id for task in tasks.values())
        self._state.request_dispatch()

    @property
    def _spare_slots(self) -> int:
        """Slots beyond the half that is kept for whoever queues."""
        return 0 if self._closed else self.free_slots - self._config.slots // 2

    def _may_go_ahead(self, tenant_id: int, capability: str) -> bool:
        engine = self._state.engine
        return (
            takes_slot(capability) and self._accepts(capability) and engine.nobody_waits(tenant_id)
        )

    def _begin(self, begun: Sequence[Begun]) -> None:
        """Start what was leased without queueing."""
        now = self._state.clock.now()
        for row, _ in begun:
            self._state.engine.leased_eagerly(row, now)
        self._give_out((row.capability, execution) for row, execution in begun)
        self._metrics.tasks_claimed.inc(len(begun))

    def close(self) -> None:
        """Start nothing any more; leases that are held are kept alive all the same."""
        self._closed = True

    async def run(self) -> None:
        engine, clock = self._state.engine, self._state.clock
        while True:
            self._state.dispatch_wanted.clear()
            now = clock.now()
            self._start_claims(now)
            self._upkeep.turn()
            if engine.limits_wanted:
                self._state.load_wanted.set()
            if engine.wants_more:
                self._state.partitions_wanted.set()
            # What is due and could not be dealt with waits for a statement that is in flight: its
            # end pokes. Looking again at once would only keep the event loop busy.
            rest = _LONGEST_SLEEP
            if (next_wake := engine.next_wake()) is not None and next_wake > now:
                rest = min(rest, next_wake - clock.now())
            if (turn := self._upkeep.next_turn()) is not None:
                rest = min(rest, turn - clock.steady())
            await self._rest(rest)

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._state.dispatch_wanted.wait()
        except TimeoutError:
            pass

    # Claiming --------------------------------------------------------------------------------

    def _start_claims(self, now: float) -> None:
        engine = self._state.engine
        while self._own.free and not self._closed:
            free = self.free_slots
            batch = min(free, self._config.claim_batch)
            picked = engine.pick(now, batch, self._accepts, free=free, slotless=self._free_runs)
            if not picked:
                break
            self._start_claim(self._own, picked)
        lane, lease_service = self._for_workers, self._lease_service
        if lane is None or lease_service is None:
            return
        while lane.free and not self._closed:
            picked = engine.match(now, self._config.claim_batch)
            if not picked:
                break
            self._start_claim(lane, picked)
        lease_service.call_others()

    def _start_claim(self, lane: _ClaimQueue, picked: Sequence[Entry]) -> None:
        lane.in_flight += 1
        lane.tasks += len(picked)
        self._background_tasks.start(self._claim(lane, picked))

    async def _claim(self, lane: _ClaimQueue, picked: Sequence[Entry]) -> None:
        try:
            executions = await lane.lease(picked)
        except BaseException:
            # Nothing is being claimed any more; the rotating reload finds these tasks again.
            self._state.engine.claimed(picked, (), self._state.clock.now())
            self._state.engine.cancelled_meanwhile(picked)
            lane.hand_out(picked, ())
            raise
        finally:
            lane.in_flight -= 1
            lane.tasks -= len(picked)
            self._state.request_dispatch()
        refused = self._state.engine.claimed(picked, executions, self._state.clock.now())
        lane.hand_out(picked, executions)
        self.cancel(self._state.engine.cancelled_meanwhile(picked))
        if refused:
            await self._look_again(refused)

    async def _look_again(self, refused: Sequence[tuple[int, UUID]]) -> None:
        """What the database refused to start has changed, or is not due yet by its clock, which may
        have jumped back behind ours."""
        ahead = self._state.clock.now() - self._state.clock.measured()
        await asyncio.sleep(min(_REST + ahead, _LONGEST_SLEEP))
        engine = self._state.engine
        with engine.reading():
            seen = await until_answered(lambda: self._store.look_at(refused), self._metrics)
            now = self._state.clock.now()
            self.cancel(engine.saw(seen.rows, now))
            self.cancel(engine.gone(seen.gone, now))
        self._state.request_dispatch()

    async def _lease(self, picked: Sequence[Entry]) -> list[Execution]:
        refs = [TaskRef(e.tenant_id, e.row.id, e.row.rev, e.lateness(e.ready_at)) for e in picked]
        # As whom they were picked: once we are another, our limits are counted anew.
        ownership, worker = self._state.ownership(), self._state.worker
        crash.reach("claim.before_commit")
        lease = self._config.lease
        try:
            # Who was picked keeps its place meanwhile: to look at it would take a connection, too.
            executions = await until_sent(
                lambda: self._store.claim(ownership, refs, worker=worker, lease=lease),
                self._metrics,
            )
        except StoreUnavailable:
            # The claim may have been written all the same: read it again, never assume.
            executions = await until_answered(
                lambda: self._store.claimed_by(refs, worker=worker), self._metrics
            )
        crash.reach("claim.committed")
        self._metrics.claim_batch.observe(len(picked))
        self._metrics.tasks_claimed.inc(len(executions))
        return executions

    def _hand_out(self, picked: Sequence[Entry], executions: Sequence[Execution]) -> None:
        for worker in list(self._doubted):
            self._no_more_doubt(worker, [execution.id for execution in executions])
        entries = {entry.row.id: entry for entry in picked}
        self._give_out((entries[a.id].row.capability, a) for a in executions)
        crash.reach("claim.handed_out")

    def _give_out(self, leased: Iterable[tuple[str, Execution]]) -> None:
        """Give leased tasks to executors. What may not begin any more goes back."""
        now = self._state.clock.now()
        back: list[Execution] = []
        unreadable: list[Execution] = []
        by_capability: dict[str, list[Execution]] = {}
        for capability, execution in leased:
            if self._closed or execution.lease_end <= self._state.clock.measured():
                back.append(execution)
            elif execution.unreadable is not None:
                unreadable.append(execution)
            else:
                self._metrics.start_delay.observe(now - execution.due)
                by_capability.setdefault(capability, []).append(execution)
        for capability, batch in by_capability.items():
            executor = self._executor_for(capability)
            if executor is None:
                back += batch
            else:
                self._start(executor, batch)
        over = [released(a, now) for a in back] + [cannot_be_read(a, now) for a in unreadable]
        if over:
            self._recorder.report(over)

    def _start(self, executor: Executor, batch: Sequence[Execution]) -> None:
        """Also if an executor breaks its word and raises: what it has taken in it reports, and what
        it has not taken would be ours for ever, with a lease that is extended and nobody at work.
        """
        try:
            executor.start(batch)
        except Exception:
            log.exception("tasks could not be started", action="dispatch.failed")
            now, engine = self._state.clock.now(), self._state.engine
            # What is no longer held was reported already.
            nobodys = [
                not_started(a, now)
                for a in batch
                if engine.holds(a.id, a.fence) and not executor.has(a.id, a.fence)
            ]
            self._recorder.report(nobodys)

    def _accepts(self, capability: str) -> bool:
        return self._executor_for(capability) is not None

    def _executor_for(self, capability: str) -> Executor | None:
        return next((each for each in self._executors if each.can_run(capability)), None)

    # Leases ----------------------------------------------------------------------------------

    def cancel(self, tries: Sequence[HeldLease]) -> None:
        """Tell executors to stop tries that were asked to cancel or are no longer ours."""
        for held in tries:
            for executor in self._executors:
                executor.cancel(held.id, held.fence)

    def interrupt_workers(self, rows: Sequence[TaskRow]) -> None:
        """Of these tasks some may run at workers and were asked to cancel: let those hear of it
        before their next heartbeat."""
        asked = {
            taker.holder for row in rows if row.cancel_requested and (taker := lease_holder_of(row))
        }
        self.interrupt_polls(asked)

    def interrupt_polls(self, holders: Collection[WorkerSession]) -> None:
        """Let these workers ask again at once."""
        if holders and self._lease_service is not None:
            self._lease_service.interrupt_polls(holders)

    async def expire_leases(self, ended: Sequence[RunningTask]) -> None:
        """End leases that seem to have ended."""
        await self._upkeep.expire_leases(ended)
