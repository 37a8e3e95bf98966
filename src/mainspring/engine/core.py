"""The engine: one synchronous core without I/O.

Drivers tell it what was loaded, changed, claimed and finished; it says what to claim, what to load
and when to look again. The same core runs in production and, with a manual clock, in simulations.

A row may reach the engine late, twice or out of order. Its rev decides: an older one is ignored.
What slips through does no harm, because a claim is checked against the database once more.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from math import inf
from uuid import UUID

from mainspring.domain.capability import Offer, takes_slot
from mainspring.domain.execution import Execution
from mainspring.domain.rows import TaskRow
from mainspring.domain.tenant import TenantLimits
from mainspring.engine.demand import (
    Poll,
    RemoteDemand,
    WorkerSession,
    lease_holder_of,
)
from mainspring.engine.entry import Entry, Phase
from mainspring.engine.explain import Situation
from mainspring.engine.fair import Accepts, FairQueue, NeedsWorker
from mainspring.engine.gates import expired
from mainspring.engine.leases import (
    HeldLease,
    HeldLeases,
    RunningTask,
    RunningTasks,
)
from mainspring.engine.set_aside import SetAside
from mainspring.engine.settings import EngineSettings
from mainspring.engine.slot_quota import SlotQuota
from mainspring.engine.timer import Timer
from mainspring.engine.window import Refill, Window


class Engine:
    """Decides for the partitions a node owns which tasks start when."""

    def __init__(
        self, settings: EngineSettings, needs_worker: NeedsWorker = lambda _capability: False
    ) -> None:
        self._settings = settings
        self._needs_worker = needs_worker
        self._owned: dict[int, float] = {}
        """Our partitions, and since when we act for them."""
        self._window = Window(stream_cap=settings.stream_cap, tenant_cap=settings.tenant_cap)
        self._timer: Timer[Entry] = Timer()
        self._queue = FairQueue(needs_worker, settings.there_for)
        self._running = RunningTasks()
        self._held = HeldLeases(settings.lease)
        self._claiming: Counter[int] = Counter()
        """Tasks of each tenant that were picked and not yet leased: they will need slots, too."""
        self.set_aside = SetAside()
        self._given_up: dict[Entry, None] = {}
        """What was being claimed when its partition was given up: it counts until that is over."""
        self.horizon = 0.0

    # What is there ---------------------------------------------------------------------------

    @property
    def partitions(self) -> frozenset[int]:
        return frozenset(self._owned)

    @property
    def waiting(self) -> int:
        return len(self._window)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def held(self) -> int:
        return len(self._held)

    @property
    def slots_held(self) -> int:
        """How many slots of our own executors are taken."""
        return self._held.slots

    def running_in(self, partition: int) -> list[tuple[int, UUID]]:
        """What we believe to be running in a partition, for comparing with the database."""
        return [(t.tenant_id, t.id) for t in self._running if t.partition == partition]

    def overdue_in(self, partitions: Collection[int], now: float) -> list[tuple[int, UUID]]:
        """What waits in partitions though its time is over, for the same."""
        waiting = (entry for entry in self._window if entry.row.partition in partitions)
        return [(e.row.tenant_id, e.row.id) for e in waiting if expired(e, now)]

    def situation(self, row: TaskRow, now: float) -> Situation:
        """What surrounds a task of ours, for `explain`; of others' tasks we know nothing."""
        around = Situation()
        if self._needs_worker(row.capability):
            can_run, free = self._queue.workers_for(row)
            around = Situation(can_run=can_run, free_slots=free if can_run else None)
        if row.partition not in self._owned:
            return replace(around, free_slots=None)
        entry = self._window.get(row.id)
        around = self._queue.situation(row, entry, around)
        if entry is not None or row.state != "scheduled" or row.due > now:
            return around
        # Due and not in the window: it started since the row was read, or there was no room.
        if self._running.get(row.id) is not None:
            return replace(around, started=True)
        return replace(around, crowded_out=self._window.crowded(row))

    # Partitions ------------------------------------------------------------------------------

    def own(self, partitions: Collection[int], rows: Sequence[TaskRow], now: float) -> None:
        """Begin to act for partitions. The rows are what was found in them: what is running is
        counted before anything is started."""
        for partition in partitions:
            self._owned.setdefault(partition, now)
        self.saw(rows, now)

    def disown(self, partitions: Collection[int], now: float) -> None:
        """Stop acting for partitions. What our executors run goes on: those leases are ours."""
        for partition in partitions:
            self._owned.pop(partition, None)
        if not self._owned:
            self._running.forget_ends()
        self.set_aside.forget(partitions)
        for entry in self._window.remove_partitions(partitions):
            if entry.phase is Phase.CLAIMING:
                self._given_up[entry] = None
            else:
                self._queue.forget(entry, now)
        for task in self._running.remove_partitions(partitions):
            self._queue.ended(task, now)

    def set_limits(self, limits: Mapping[int, TenantLimits], now: float) -> None:
        """What tenants may use, whenever that may have changed."""
        for tenant_id, tenant_limits in limits.items():
            if not self._queue.set_limits(tenant_id, tenant_limits, now):
                continue
            entries = [entry for entry in self._window if entry.row.tenant_id == tenant_id]
            running = [t.partition for t in self._running if t.tenant_id == tenant_id and t.slot]
            claiming = (e for e in (*entries, *self._given_up) if e.phase is Phase.CLAIMING)
            running += [e.partition for e in claiming if e.tenant_id == tenant_id and e.slot]
            self._queue.recount(tenant_id, running)
            for entry in entries:
                if entry.phase is Phase.READY:
                    self._queue.push(entry, now)

    # Rows ------------------------------------------------------------------------------------

    def look_ahead_to(self, horizon: float) -> None:
        """Tasks due by then are wanted from now on; later ones will be loaded when their time
        comes nearer. To be called before they are read, so that none slips in between."""
        self.horizon = horizon

    def reading(self) -> AbstractContextManager[None]:
        """To be entered before rows are read, and left when we were told of them."""
        return self._running.reading()

    def saw(self, rows: Sequence[TaskRow], now: float) -> list[HeldLease]:
        """Take note of tasks as they are in the database. Answers which of the tries our executors
        run were asked to cancel."""
        for row in rows:
            if row.partition not in self._owned:
                self._forget(row.id, now, row.rev)
            elif row.state == "running":
                if row.cancel_requested and self.is_claiming(row.id):
                    self._held.cancel_when_taken(row.id, row.fence)
                self._saw_running(row, now)
            else:
                self._saw_waiting(row, now)
        for entry in self._window.displaced():
            self._queue.forget(entry, now)
            self.set_aside.note(entry)
        return self._held.find(row.id for row in rows if row.cancel_requested)

    def gone(self, ids: Sequence[UUID], now: float) -> list[HeldLease]:
        """These tasks are no longer unfinished. Answers which of them our executors still run."""
        for task_id in ids:
            if (running := self._running.get(task_id)) is not None:
                self.ended(task_id, running.fence, now)
            self._running.note_gone(task_id)
            self._forget(task_id, now)
            self.set_aside.ended(task_id)
        return self._held.find(ids)

    # Starting --------------------------------------------------------------------------------

    def pick(
        self,
        now: float,
        slots: int,
        accepts: Accepts,
        *,
        free: int | None = None,
        slotless: int | None = None,
    ) -> list[Entry]:
        """Tasks to claim now, at most as many as there are slots. Answer with `claimed`.

        `free` is how many slots our own executors have left, when these are what is on offer: then
        no tenant may take them all. `slotless` is how many they take in that need none.
        """
        self._ring(now)
        if slots <= 0:
            return []
        picked: list[Entry] = []
        found = True
        while found and not picked:
            room = None
            if free is not None:
                room = SlotQuota(free, self._held.by_tenant, self._claiming, slotless=slotless)
            picked = self._queue.pick(now, slots, accepts, room)
            found = bool(picked)
            if any(expired(entry, now) for entry in picked):
                for entry in [entry for entry in picked if expired(entry, now)]:
                    self._unclaim(entry, now)
                picked = [entry for entry in picked if entry.phase is Phase.CLAIMING]
        self.reserve(entry.tenant_id for entry in picked if entry.slot)
        return picked

    def nobody_waits(self, tenant_id: int) -> bool:
        """Whether a task of a tenant that comes now would be the next of it, and may start."""
        return self._queue.nobody_waits(tenant_id)

    def is_claiming(self, task_id: UUID) -> bool:
        """Whether a claim of it is on its way to the database, or back."""
        entry = self._window.get(task_id)
        return entry is not None and entry.phase is Phase.CLAIMING

    def deadline(self, due: float, priority: int) -> float:
        """Who has the earliest is the next of its tenant."""
        return due - priority * self._settings.aging_step

    def reserve(self, tenants: Iterable[int]) -> None:
        """These count as being claimed, for the room that is left to their tenants."""
        self._claiming.update(tenants)

    def unreserve(self, tenants: Iterable[int]) -> None:
        for tenant_id, count in Counter(tenants).items():
            self._claiming[tenant_id] -= count
            if not self._claiming[tenant_id]:
                del self._claiming[tenant_id]

    def leased_eagerly(self, row: TaskRow, now: float) -> None:
        """A task was leased to our executors as it was released or created, without queueing."""
        slot = takes_slot(row.capability)
        self._held.take(HeldLease(row.tenant_id, row.id, row.fence, slot=slot))
        if row.partition in self._owned:
            self._saw_running(row, now)

    def match(self, now: float, most: int) -> list[Entry]:
        """Tasks to claim now for workers that wait. Answer with `claimed`."""
        self._ring(now)
        picked = self._queue.match(now, most)
        for entry in self._queue.dropped():
            self._window.remove(entry)
            self.set_aside.note(entry)
        return picked

    def claimed(
        self, picked: Sequence[Entry], executions: Iterable[Execution], now: float
    ) -> list[tuple[int, UUID]]:
        """What came of a claim. Answers the tasks that were not leased: look at those again."""
        self.unreserve(e.tenant_id for e in picked if e.taker is None and e.slot)
        leased = {execution.id: execution for execution in executions}
        refused = []
        for entry in picked:
            self._given_up.pop(entry, None)
            execution = leased.get(entry.row.id)
            if execution is None:
                refused.append((entry.row.tenant_id, entry.row.id))
                self._unclaim(entry, now)
            else:
                self._start(entry, execution, now)
        return refused

    def cancelled_meanwhile(self, picked: Iterable[Entry]) -> list[HeldLease]:
        """Which tries that came of a claim were asked to cancel before its answer came."""
        return self._held.cancelled_meanwhile(entry.row.id for entry in picked)

    # Workers ---------------------------------------------------------------------------------

    def open(self, poll: Poll, now: float) -> None:
        """A worker waits for tasks."""
        self._queue.open(poll, now)

    def close(self, poll: Poll) -> None:
        """It waits no longer; what is being claimed for it still comes."""
        self._queue.close(poll)

    def left(self, poll: Poll) -> None:
        """Its worker went away without an answer."""
        self._queue.left(poll)

    def know(self, tenant_id: int, offer: Offer, now: float) -> None:
        """A worker that offers this is there, if only a busy one."""
        self._queue.know(tenant_id, offer, now)

    def add_remote_node(
        self, node: UUID, tenant_id: int, offer: Offer, now: float, ttl: float
    ) -> None:
        """A worker that offers this waits at another node."""
        self._queue.add_remote_node(node, tenant_id, offer, now, ttl)

    def awaits(self, tenant_id: int, offer: Offer, now: float) -> bool:
        """Whether tasks wait here that such a worker could run, limits aside."""
        return self._queue.awaits(tenant_id, offer, now)

    def calls(self) -> list[RemoteDemand]:
        """Which nodes to tell that tasks wait here for workers there."""
        return self._queue.calls()

    def confirm(self, task_id: UUID, fence: int) -> None:
        """A task that was claimed for a worker of another node has reached that node."""
        running = self._running.get(task_id)
        if running is not None and running.fence == fence:
            running.confirmed = True

    def held_by_workers(self) -> dict[tuple[int, str], int]:
        """How many tasks of our partitions each worker, by tenant and name, holds."""
        return self._running.by_worker()

    def held_by_former(self, current: WorkerSession) -> list[RunningTask]:
        """What earlier incarnations of a worker hold in our partitions."""
        return self._running.of_former(current)

    # Ending ----------------------------------------------------------------------------------

    def holds(self, task_id: UUID, fence: int) -> bool:
        """Whether an executor of ours has this try, as far as we know."""
        return self._held.has(task_id, fence)

    def reported(self, task_id: UUID, fence: int) -> None:
        """An executor of ours is done with this try; the outcome is about to be recorded."""
        self._held.drop(task_id, fence)

    def ended(self, task_id: UUID, fence: int, now: float) -> None:
        """An outcome was recorded, or refused because the try was no longer the current one."""
        running = self._running.get(task_id)
        if running is not None and running.fence == fence:
            self._end(running, now)

    def to_extend(self, steady: float, limit: int) -> list[HeldLease]:
        """Leases of ours whose turn it is, by the node's steady clock; to be asked at every look,
        for turns count from the first."""
        return self._held.to_extend(steady, limit)

    def next_extension(self) -> float | None:
        """When the next of them has its turn, by the steady clock."""
        return self._held.next_turn()

    def extended(self, task_id: UUID, fence: int, lease_end: float) -> None:
        running = self._running.get(task_id)
        if running is not None and running.fence == fence:
            running.lease_end = max(running.lease_end, lease_end)
            running.confirmed = True

    def ended_leases(self, now: float, limit: int = 2000) -> list[RunningTask]:
        """Leases of others that seem to have ended."""
        return self._running.ended_leases(now, limit)

    # Loading ---------------------------------------------------------------------------------

    @property
    def wants_more(self) -> bool:
        """Whether there is room again for what had to be turned away."""
        return self._window.wants_more

    @property
    def limits_wanted(self) -> bool:
        """Whether tasks wait because their tenant's limits are not known yet."""
        return bool(self._queue.unknown)

    def refills(self) -> list[Refill]:
        return self._window.refills()

    def refilled(self, refill: Refill, rows: Sequence[TaskRow], now: float) -> None:
        self.saw(rows, now)
        self._window.refilled(refill, rows)

    def not_refilled(self, refill: Refill) -> None:
        self._window.not_refilled(refill)

    def next_wake(self) -> float | None:
        """When something happens by itself: a task becomes due, or a lease ends."""
        moments = (self._timer.next_at(), self._running.next_end())
        known = [moment for moment in moments if moment is not None]
        return min(known) if known else None

    # Details ---------------------------------------------------------------------------------

    def _saw_running(self, row: TaskRow, now: float) -> None:
        entry = self._window.get(row.id)
        if entry is not None:
            if entry.phase is Phase.CLAIMING or row.rev <= entry.row.rev:
                return  # our own claim's answer is on its way, or the row is an old one
            self._drop(entry, now)
        running = self._running.get(row.id)
        lease_end = row.lease_end or now
        if running is not None:
            if row.rev < running.rev:
                return
            if row.fence == running.fence and row.partition == running.partition:
                running.confirmed |= lease_end > running.lease_end
                running.rev, running.lease_end = row.rev, max(running.lease_end, lease_end)
                return
            self._stop(running, now)
        if self._running.has_ended(row.id, row.fence):
            return
        task = RunningTask(
            row.tenant_id, row.id, row.partition, row.concurrency_key, row.rev, row.fence,
            lease_end, lease_holder_of(row), confirmed=False, slot=takes_slot(row.capability),
        )  # fmt: skip
        self._running.add(task, ours=self._held.has(row.id, row.fence))
        self._queue.started(task)

    def _saw_waiting(self, row: TaskRow, now: float) -> None:
        entry = self._window.get(row.id)
        if entry is not None:
            if entry.phase is Phase.CLAIMING or row.rev <= entry.row.rev:
                return
            self._drop(entry, now)
        running = self._running.get(row.id)
        if running is not None:
            if row.rev <= running.rev:
                return
            self._end(running, now)
        if row.state != "scheduled" or row.due > self.horizon:
            return
        if self._running.has_ended(row.id, row.fence + 1):
            return  # the try for which it waits in this row
        admitted = self._window.admit(row, self.deadline(row.due, row.priority))
        if admitted is not None:
            if row.due <= now:
                self.set_aside.take_up(admitted, self._owned[row.partition])
                self._queue.push(admitted, now)
            else:
                self._timer.add(row.due, admitted)

    def _start(self, entry: Entry, execution: Execution, now: float) -> None:
        row, taker, slot = entry.row, entry.taker, entry.slot
        if entry.poll is not None:
            entry.poll.in_flight -= 1
        if taker is None:
            self._held.take(HeldLease(row.tenant_id, row.id, execution.fence, slot=slot))
        if self._window.get(row.id) is not entry:
            # The partition was given away while the claim was in flight; its new owner counts it.
            self._queue.ended(entry, now)
            if row.partition in self._owned:
                # It is ours again, and was read before the claim was written: we are that owner.
                found = row._replace(
                    rev=row.rev + 1, state="running", fence=execution.fence,
                    lease_end=execution.lease_end,
                    worker=taker.holder.worker if taker else None,
                    incarnation=taker.holder.incarnation if taker else None,
                )  # fmt: skip
                self._saw_running(found, now)
            return
        self._window.remove(entry)
        task = RunningTask(
            row.tenant_id, row.id, row.partition, row.concurrency_key, row.rev + 1,
            execution.fence, execution.lease_end, taker,
            confirmed=entry.poll is None or entry.poll.here, slot=slot,
            presumed_begun=entry.poll is not None and self._queue.presumes_begun(entry.poll),
        )  # fmt: skip
        self._running.add(task, ours=taker is None)

    def _unclaim(self, entry: Entry, now: float) -> None:
        entry.phase = Phase.FORGOTTEN
        if entry.poll is not None:
            entry.poll.in_flight -= 1
        if self._window.get(entry.row.id) is entry:
            self._window.remove(entry)
            self.set_aside.note(entry)
        self._queue.ended(entry, now)

    def _drop(self, entry: Entry, now: float) -> None:
        self._window.remove(entry)
        self._queue.forget(entry, now)
        self.set_aside.note(entry)

    def _end(self, running: RunningTask, now: float) -> None:
        """Its try is over for good: what was read before that says otherwise in vain."""
        self._running.note_end(running)
        self._stop(running, now)

    def _stop(self, running: RunningTask, now: float) -> None:
        self._running.remove(running.id)
        self._queue.ended(running, now)

    def _ring(self, now: float) -> None:
        for entry in self._timer.pop_due(now):
            if entry.phase is Phase.TIMED:
                self._queue.push(entry, now)

    def _forget(self, task_id: UUID, now: float, rev: float = inf) -> None:
        """Unless what we know of it is newer than this."""
        entry = self._window.get(task_id)
        if entry is not None and entry.phase is not Phase.CLAIMING and entry.row.rev <= rev:
            self._drop(entry, now)
        running = self._running.get(task_id)
        if running is not None and running.rev <= rev:
            self._stop(running, now)
