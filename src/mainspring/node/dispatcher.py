"""The dispatcher: claims what the engine picks and hands it to executors; keeps leases alive."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from uuid import UUID

import structlog

from mainspring import crash_points
from mainspring.domain.capability import takes_slot
from mainspring.domain.execution import Execution, Report, cannot_be_read, not_started, released
from mainspring.domain.rows import TaskRow
from mainspring.engine.demand import WorkerSession, lease_holder_of
from mainspring.engine.entry import Entry
from mainspring.engine.leases import HeldLease
from mainspring.errors import NothingSent, StoreUnavailable
from mainspring.execution.port import Executor
from mainspring.lifecycle import BackgroundTasks
from mainspring.node.eager_leases import EagerLeases
from mainspring.node.lease_maintenance import LeaseMaintenance
from mainspring.node.recorder import Recorder
from mainspring.node.retrying import until_answered, wait_at_most
from mainspring.node.state import NodeState
from mainspring.node.workers.lease_service import LeaseService
from mainspring.store.claims import EngineStore
from mainspring.store.task_refs import TaskRef

log = structlog.get_logger()

_LONGEST_SLEEP = 1.0
_CLAIMS_IN_FLIGHT = 2
# Seconds until a task that the database refused to start is read again.
_REST = 0.01


@dataclass(slots=True)
class _ClaimQueue:
    """The claims of one kind, for our executors or for workers: few in flight at a time."""

    pick: Callable[[float], list[Entry]]
    lease: Callable[[Sequence[Entry]], Awaitable[list[Execution]]]
    hand_out: Callable[[Sequence[Entry], Sequence[Execution]], None]
    in_flight: int = 0
    tasks: int = 0

    @property
    def free(self) -> bool:
        return self.in_flight < _CLAIMS_IN_FLIGHT


class Dispatcher:
    """Claims whenever something is due or a dispatch is requested. It never waits for the database:
    few statements run at a time, each in a task of its own, so that batches form by themselves."""

    def __init__(self, state: NodeState, store: EngineStore, recorder: Recorder) -> None:
        self._state = state
        self._store = store
        self._recorder = recorder
        self._config, self._metrics = state.config, state.metrics
        self._executors: list[Executor] = []
        self._own = _ClaimQueue(self._pick, self._lease, self._hand_out)
        self._queues = [self._own]
        self._lease_service: LeaseService | None = None
        self._background_tasks = BackgroundTasks(of="dispatch")
        self.closed = False
        self.lease_maintenance = LeaseMaintenance(
            state, store, recorder, self.cancel, self.interrupt_polls
        )
        self.eager_leases = EagerLeases(state, store, self)
        recorder.eager_leases = self.eager_leases

    def add_executor(self, executor: Executor) -> None:
        self._executors.append(executor)

    def serve_workers(self, lease_service: LeaseService) -> None:
        """Claim for workers too, and let this service hand out what was claimed."""
        self._lease_service = lease_service
        match = partial(self._state.engine.match, most=self._config.claim_batch)
        self._queues.append(_ClaimQueue(match, lease_service.claim, lease_service.hand_out))

    @property
    def free_slots(self) -> int:
        return (
            self._config.slots
            - self._state.engine.leases.slots
            - self._own.tasks
            - self.eager_leases.reserved
        )

    def room_for(self, row: TaskRow) -> int:
        """Return how many tasks that need the same could be started here now."""
        free = self.free_slots
        return free if takes_slot(row.capability) else int(min(free, self._free_runs))

    @property
    def _free_runs(self) -> float:
        """How many tasks that need no slot may be claimed. Those of a claim in flight are not yet
        counted by their executor: a few hundred more do no harm."""
        rooms = [room for each in self._executors if (room := each.room()) is not None]
        return min(rooms, default=inf)

    def close(self) -> None:
        """Start nothing any more; running executions keep their leases all the same."""
        self.closed = True

    async def run(self) -> None:
        engine, clock = self._state.engine, self._state.clock
        while True:
            self._state.dispatch_wanted.clear()
            now = clock.now()
            self._start_claims(now)
            self.lease_maintenance.turn()
            if engine.wants_limits:
                self._state.load_wanted.set()
            if engine.window.wants_more:
                self._state.partitions_wanted.set()
            # What is due and could not be dealt with waits for a statement that is in flight: its
            # end asks for a dispatch. Looking again at once would only keep the event loop busy.
            rest = _LONGEST_SLEEP
            if (next_wake := engine.next_wake()) is not None and next_wake > now:
                rest = min(rest, next_wake - clock.now())
            if (turn := self.lease_maintenance.next_turn()) is not None:
                rest = min(rest, turn - clock.steady())
            await wait_at_most(self._state.dispatch_wanted, rest)

    # Claiming --------------------------------------------------------------------------------

    def _start_claims(self, now: float) -> None:
        for queue in self._queues:
            while queue.free and not self.closed and (picked := queue.pick(now)):
                queue.in_flight += 1
                queue.tasks += len(picked)
                self._background_tasks.start(self._claim(queue, picked))
        if self._lease_service is not None:
            self._lease_service.tell_remote_nodes()

    def _pick(self, now: float) -> list[Entry]:
        free = self.free_slots
        batch = min(free, self._config.claim_batch)
        pick = self._state.engine.pick
        return pick(now, batch, self.accepts, free=free, slotless=self._free_runs)

    async def _claim(self, queue: _ClaimQueue, picked: Sequence[Entry]) -> None:
        try:
            executions = await queue.lease(picked)
        except BaseException:
            # Nothing is being claimed any more; the rotating reload finds these tasks again.
            self._state.engine.finish_claim(picked, (), self._state.clock.now())
            self._state.engine.leases.cancelled_during_claim(e.row.id for e in picked)
            queue.hand_out(picked, ())
            raise
        finally:
            queue.in_flight -= 1
            queue.tasks -= len(picked)
            self._state.request_dispatch()
        refused = self._state.engine.finish_claim(picked, executions, self._state.clock.now())
        queue.hand_out(picked, executions)
        claimed = (entry.row.id for entry in picked)
        self.cancel(self._state.engine.leases.cancelled_during_claim(claimed))
        if refused:
            await self._look_again(refused)

    async def _look_again(self, refused: Sequence[tuple[int, UUID]]) -> None:
        """Read again what the database refused to start: it has changed, or is not due yet by its
        clock, which may have jumped back behind ours."""
        ahead = self._state.clock.now() - self._state.clock.measured()
        await asyncio.sleep(min(_REST + ahead, _LONGEST_SLEEP))
        with self._state.engine.running.reading():
            seen = await until_answered(lambda: self._store.look_at(refused), self._metrics)
            self.cancel(self._state.apply(seen.rows, seen.gone))

    async def _lease(self, picked: Sequence[Entry]) -> list[Execution]:
        refs = [TaskRef(e.tenant_id, e.row.id, e.row.rev, e.lateness(e.ready_at)) for e in picked]
        # The incarnation that picked them: under another one limits are counted anew.
        ownership, worker = self._state.ownership(), self._state.worker
        crash_points.reach("claim.before_commit")
        lease = self._config.lease
        try:
            # What was picked keeps its place meanwhile: to read it would take a connection, too.
            executions = await until_answered(
                lambda: self._store.claim(ownership, refs, worker=worker, lease=lease),
                self._metrics,
                retry_on=NothingSent,
            )
        except StoreUnavailable:
            # The claim may have been written all the same: read it again, never assume.
            executions = await until_answered(
                lambda: self._store.claimed_by(refs, worker=worker), self._metrics
            )
        crash_points.reach("claim.committed")
        self._metrics.claim_batch.observe(len(picked))
        self._metrics.tasks_claimed.inc(len(executions))
        return executions

    def _hand_out(self, picked: Sequence[Entry], executions: Sequence[Execution]) -> None:
        self.eager_leases.forget([execution.id for execution in executions])
        entries = {entry.row.id: entry for entry in picked}
        self.give_out((entries[a.id].row.capability, a) for a in executions)
        crash_points.reach("claim.handed_out")

    def give_out(self, leased: Iterable[tuple[str, Execution]]) -> None:
        """Give leased tasks to executors, and release what may not start any more."""
        now = self._state.clock.now()
        over: list[Report] = []
        by_capability: dict[str, list[Execution]] = {}
        for capability, execution in leased:
            if self.closed or execution.lease_end <= self._state.clock.measured():
                over.append(released(execution, now))
            elif execution.unreadable is not None:
                over.append(cannot_be_read(execution, now))
            else:
                self._metrics.start_delay.observe(now - execution.due)
                by_capability.setdefault(capability, []).append(execution)
        for capability, batch in by_capability.items():
            executor = self._executor_for(capability)
            if executor is None:
                over += [released(execution, now) for execution in batch]
            else:
                self._start(executor, batch)
        if over:
            self._recorder.report(over)

    def _start(self, executor: Executor, batch: Sequence[Execution]) -> None:
        """Start executions, also if the executor raises: what it has not taken in would be ours for
        ever, with a lease that is extended and nobody at work."""
        try:
            executor.start(batch)
        except Exception:
            log.exception("tasks could not be started", action="dispatch.failed")
            now, engine = self._state.clock.now(), self._state.engine
            # What is no longer held was reported already.
            nobodys = [
                not_started(a, now)
                for a in batch
                if engine.leases.has(a.id, a.fence) and not executor.has(a.id, a.fence)
            ]
            self._recorder.report(nobodys)

    def accepts(self, capability: str) -> bool:
        """Whether something here can run tasks of a capability."""
        return self._executor_for(capability) is not None

    def _executor_for(self, capability: str) -> Executor | None:
        return next((each for each in self._executors if each.can_run(capability)), None)

    # Leases ----------------------------------------------------------------------------------

    def cancel(self, executions: Sequence[HeldLease]) -> None:
        """Tell executors to stop executions that were asked to cancel or are no longer ours."""
        for held in executions:
            for executor in self._executors:
                executor.cancel(held.id, held.fence)

    def interrupt_workers(self, rows: Sequence[TaskRow]) -> None:
        """Let workers hear at once which of these tasks were asked to cancel."""
        asked = {
            holder.session
            for row in rows
            if row.cancel_requested and (holder := lease_holder_of(row))
        }
        self.interrupt_polls(asked)

    def interrupt_polls(self, holders: Collection[WorkerSession]) -> None:
        """Answer the polls of these workers, so that they ask again at once."""
        if holders and self._lease_service is not None:
            self._lease_service.interrupt_polls(holders)
