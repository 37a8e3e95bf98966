"""The engine: one synchronous core without I/O.

Drivers tell it what was loaded, changed, claimed and finished; it returns what to claim, what to
load and when to look again. The same core runs in production and, on a manual clock, in
simulations.

A row may reach the engine late, twice or out of order. Its rev decides: an older one is ignored.
What slips through does no harm, because a claim is checked against the database once more.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf
from typing import NamedTuple
from uuid import UUID

from mainspring.domain.capability import THERE_FOR, takes_slot
from mainspring.domain.execution import Execution
from mainspring.domain.rows import TaskRow
from mainspring.domain.tenant import TenantLimits
from mainspring.engine.demand import lease_holder_of
from mainspring.engine.entry import Entry, Phase
from mainspring.engine.explain import Situation
from mainspring.engine.fair import Accepts, FairQueue, NeedsWorker
from mainspring.engine.gates import expired
from mainspring.engine.leases import HeldLease, HeldLeases
from mainspring.engine.running import RunningTask, RunningTasks
from mainspring.engine.shares import SlotQuota
from mainspring.engine.timer import Timer
from mainspring.engine.wait_history import WaitHistory
from mainspring.engine.window import Window


class EngineSettings(NamedTuple):
    """The engine's bounds. Durations in seconds."""

    lease: float = 15.0
    aging_step: float = 60.0
    stream_cap: int = 256
    tenant_cap: int = 1024
    there_for: float = THERE_FOR
    """Seconds for which workers count as present after they were last heard of."""


class Engine:
    """Decides for the partitions a node owns which tasks start when.

    Drivers call its methods, and those of its parts: `window` (waiting tasks), `running` (running
    tasks of our partitions), `leases` (what our executors hold), `workers` (workers that wait here
    or at other nodes) and `waits` (what tasks had waited for that left the window).
    """

    def __init__(
        self, settings: EngineSettings, needs_worker: NeedsWorker = lambda _capability: False
    ) -> None:
        self._settings = settings
        self._needs_worker = needs_worker
        self._owned: dict[int, float] = {}
        """Our partitions, and since when we act for them."""
        self._timer: Timer[Entry] = Timer()
        self._queue = FairQueue(needs_worker, settings.there_for)
        self._claiming: Counter[int] = Counter()
        """Tasks of each tenant that were picked and not yet leased: they will need slots, too."""
        self._given_up: dict[Entry, None] = {}
        """Tasks being claimed when their partition was given up: they count until that is over."""
        self.window = Window(stream_cap=settings.stream_cap, tenant_cap=settings.tenant_cap)
        self.running = RunningTasks()
        self.leases = HeldLeases(settings.lease)
        self.workers = self._queue.workers
        self.waits = WaitHistory()
        self.horizon = 0.0
        """Tasks due by then are taken in; later ones are loaded when their time comes nearer."""

    # Partitions ------------------------------------------------------------------------------

    @property
    def partitions(self) -> frozenset[int]:
        return frozenset(self._owned)

    def own(self, partitions: Collection[int], rows: Sequence[TaskRow], now: float) -> None:
        """Begin to act for partitions. The rows are all that was found in them: running tasks are
        counted before any task starts."""
        for partition in partitions:
            self._owned.setdefault(partition, now)
        self.update(rows, now)

    def disown(self, partitions: Collection[int], now: float) -> None:
        """Stop acting for partitions. What our executors run goes on: those leases are ours."""
        for partition in partitions:
            self._owned.pop(partition, None)
        if not self._owned:
            self.running.forget_ends()
        self.waits.forget(partitions)
        for entry in self.window.remove_partitions(partitions):
            if entry.phase is Phase.CLAIMING:
                self._given_up[entry] = None
            else:
                self._queue.forget(entry, now)
        for task in self.running.remove_partitions(partitions):
            self._queue.ended(task, now)

    def set_limits(self, limits: Mapping[int, TenantLimits], now: float) -> None:
        """Change what tenants may use."""
        for tenant_id, tenant_limits in limits.items():
            if not self._queue.set_limits(tenant_id, tenant_limits, now):
                continue
            entries = [entry for entry in self.window if entry.row.tenant_id == tenant_id]
            running = [t.partition for t in self.running if t.tenant_id == tenant_id and t.slot]
            claiming = (e for e in (*entries, *self._given_up) if e.phase is Phase.CLAIMING)
            running += [e.partition for e in claiming if e.tenant_id == tenant_id and e.slot]
            self._queue.recount(tenant_id, running)
            for entry in entries:
                if entry.phase is Phase.READY:
                    self._queue.push(entry, now)

    @property
    def wants_limits(self) -> bool:
        """Whether tasks wait because their tenant's limits are not known yet."""
        return bool(self._queue.unknown)

    # Rows ------------------------------------------------------------------------------------

    def extend_horizon(self, until: float) -> None:
        """Accept tasks due by then. To be called before they are read, so that none is missed."""
        self.horizon = until

    def update(self, rows: Sequence[TaskRow], now: float) -> list[HeldLease]:
        """Take in tasks as they are in the database. Return our executions that were cancelled."""
        for row in rows:
            if row.partition not in self._owned:
                self._forget(row.id, now, row.rev)
            elif row.state == "running":
                if row.cancel_requested and self.window.is_claiming(row.id):
                    self.leases.cancel_once_claimed(row.id, row.fence)
                self._update_running(row, now)
            else:
                self._update_waiting(row, now)
        for entry in self.window.displaced():
            self._queue.forget(entry, now)
            self.waits.save(entry)
        return self.leases.find(row.id for row in rows if row.cancel_requested)

    def remove(self, ids: Sequence[UUID], now: float) -> list[HeldLease]:
        """Drop tasks that are finished. Return which of them our executors still run."""
        for task_id in ids:
            if (running := self.running.get(task_id)) is not None:
                self.end(task_id, running.fence, now)
            self.running.note_end(task_id)
            self._forget(task_id, now)
            self.waits.end(task_id)
        return self.leases.find(ids)

    # Starting --------------------------------------------------------------------------------

    def pick(
        self, now: float, slots: int, accepts: Accepts, *, free: float = inf, slotless: float = inf
    ) -> list[Entry]:
        """Return tasks to claim now, at most `slots`; `finish_claim` must follow.

        `free` is how many slots our own executors have left: no tenant may take them all.
        `slotless` is how many tasks they take in that need no slot.
        """
        self._queue_due(now)
        if slots <= 0:
            return []
        while True:
            quota = SlotQuota(free, self.leases.by_tenant, self._claiming, slotless=slotless)
            picked = self._queue.pick(now, slots, accepts, quota)
            late = [entry for entry in picked if expired(entry, now)]
            if not late:
                break
            for entry in late:
                self._unclaim(entry, now)
            picked = [entry for entry in picked if entry.phase is Phase.CLAIMING]
            if picked:
                break
        self.reserve(entry.tenant_id for entry in picked if entry.slot)
        return picked

    def may_skip_queue(self, tenant_id: int) -> bool:
        """Whether a new task of a tenant would be its next one, and may start."""
        return self._queue.may_skip_queue(tenant_id)

    def deadline(self, due: float, priority: int) -> float:
        """Return the virtual deadline: of a tenant's tasks the one with the earliest is next."""
        return due - priority * self._settings.aging_step

    def reserve(self, tenants: Iterable[int]) -> None:
        """Count tasks of these tenants as being claimed, in the quota of slots."""
        self._claiming.update(tenants)

    def unreserve(self, tenants: Iterable[int]) -> None:
        for tenant_id, count in Counter(tenants).items():
            self._claiming[tenant_id] -= count
            if not self._claiming[tenant_id]:
                del self._claiming[tenant_id]

    def add_eager_lease(self, row: TaskRow, now: float) -> None:
        """Take in a task that was leased to our executors by the statement that wrote it."""
        slot = takes_slot(row.capability)
        self.leases.add(HeldLease(row.tenant_id, row.id, row.fence, slot=slot))
        if row.partition in self._owned:
            self._update_running(row, now)

    def match(self, now: float, most: int) -> list[Entry]:
        """Return tasks to claim now for workers that wait; `finish_claim` must follow."""
        self._queue_due(now)
        picked = self._queue.match(now, most)
        for entry in self._queue.dropped():
            self.window.remove(entry)
            self.waits.save(entry)
        return picked

    def finish_claim(
        self, picked: Sequence[Entry], executions: Iterable[Execution], now: float
    ) -> list[tuple[int, UUID]]:
        """Start what was leased of a claim. Return the other tasks, to be read again."""
        self.unreserve(e.tenant_id for e in picked if e.holder is None and e.slot)
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

    # Ending and asking -----------------------------------------------------------------------

    def end(self, task_id: UUID, fence: int, now: float) -> None:
        """Note that an outcome was recorded, or refused because its execution was not current."""
        running = self.running.get(task_id)
        if running is not None and running.fence == fence:
            self._end(running, now)

    def next_wake(self) -> float | None:
        """Return when something happens by itself: a task becomes due, or a lease ends."""
        moments = (self._timer.next_at(), self.running.next_end())
        known = [moment for moment in moments if moment is not None]
        return min(known) if known else None

    def situation(self, row: TaskRow, now: float) -> Situation:
        """Return what surrounds a task, for `explain`; little is known of tasks of other owners."""
        around = Situation()
        if self._needs_worker(row.capability):
            pools = self.workers.pools_for(row.tenant_id, row.queue, row.capability)
            free = sum(pool.free for pool in pools) if pools else None
            around = Situation(can_run=bool(pools), free_slots=free)
        if row.partition not in self._owned:
            return around._replace(free_slots=None)
        entry = self.window.get(row.id)
        around = self._queue.situation(row, entry, around)
        if entry is not None or row.state != "scheduled" or row.due > now:
            return around
        # Due and not in the window: it started since the row was read, or there was no room.
        if self.running.get(row.id) is not None:
            return around._replace(started=True)
        return around._replace(crowded_out=self.window.turned_away(row))

    # Details ---------------------------------------------------------------------------------

    def _update_running(self, row: TaskRow, now: float) -> None:
        entry = self.window.get(row.id)
        if entry is not None:
            if entry.phase is Phase.CLAIMING or row.rev <= entry.row.rev:
                return  # our own claim's answer is on its way, or the row is an old one
            self._drop(entry, now)
        running = self.running.get(row.id)
        lease_end = row.lease_end or now
        if running is not None:
            if row.rev < running.rev:
                return
            if row.fence == running.fence and row.partition == running.partition:
                running.confirmed |= lease_end > running.lease_end
                running.rev, running.lease_end = row.rev, max(running.lease_end, lease_end)
                return
            self._stop(running, now)
        if self.running.has_ended(row.id, row.fence):
            return
        task = RunningTask(
            row.tenant_id, row.id, row.partition, row.concurrency_key, row.rev, row.fence,
            lease_end, lease_holder_of(row), confirmed=False, slot=takes_slot(row.capability),
        )  # fmt: skip
        self.running.add(task, ours=self.leases.has(row.id, row.fence))
        self._queue.started(task)

    def _update_waiting(self, row: TaskRow, now: float) -> None:
        entry = self.window.get(row.id)
        if entry is not None:
            if entry.phase is Phase.CLAIMING or row.rev <= entry.row.rev:
                return
            self._drop(entry, now)
        running = self.running.get(row.id)
        if running is not None:
            if row.rev <= running.rev:
                return
            self._end(running, now)
        if row.state != "scheduled" or row.due > self.horizon:
            return
        if self.running.has_ended(row.id, row.fence + 1):
            return  # the execution for which it waits in this row
        admitted = self.window.admit(row, self.deadline(row.due, row.priority))
        if admitted is not None:
            if row.due <= now:
                self.waits.restore(admitted, self._owned[row.partition])
                self._queue.push(admitted, now)
            else:
                self._timer.add(row.due, admitted)

    def _start(self, entry: Entry, execution: Execution, now: float) -> None:
        row, holder, slot = entry.row, entry.holder, entry.slot
        if entry.poll is not None:
            entry.poll.in_flight -= 1
        if holder is None:
            self.leases.add(HeldLease(row.tenant_id, row.id, execution.fence, slot=slot))
        if self.window.get(row.id) is not entry:
            # The partition was given away while the claim was in flight; its new owner counts it.
            self._queue.ended(entry, now)
            if row.partition in self._owned:
                # It is ours again, and was read before the claim was written: we are that owner.
                found = row._replace(
                    rev=row.rev + 1, state="running", fence=execution.fence,
                    lease_end=execution.lease_end,
                    worker=holder.session.worker if holder else None,
                    incarnation=holder.session.incarnation if holder else None,
                )  # fmt: skip
                self._update_running(found, now)
            return
        self.window.remove(entry)
        task = RunningTask(
            row.tenant_id, row.id, row.partition, row.concurrency_key, row.rev + 1,
            execution.fence, execution.lease_end, holder,
            confirmed=entry.poll is None or entry.poll.here, slot=slot,
            presumed_started=entry.poll is not None and self.workers.presumes_started(entry.poll),
        )  # fmt: skip
        self.running.add(task, ours=holder is None)

    def _unclaim(self, entry: Entry, now: float) -> None:
        entry.phase = Phase.FORGOTTEN
        if entry.poll is not None:
            entry.poll.in_flight -= 1
        if self.window.get(entry.row.id) is entry:
            self.window.remove(entry)
            self.waits.save(entry)
        self._queue.ended(entry, now)

    def _drop(self, entry: Entry, now: float) -> None:
        self.window.remove(entry)
        self._queue.forget(entry, now)
        self.waits.save(entry)

    def _end(self, running: RunningTask, now: float) -> None:
        """End an execution for good: rows that were read before do not bring it back."""
        self.running.note_end(running.id, running.fence)
        self._stop(running, now)

    def _stop(self, running: RunningTask, now: float) -> None:
        self.running.remove(running.id)
        self._queue.ended(running, now)

    def _queue_due(self, now: float) -> None:
        for entry in self._timer.pop_due(now):
            if entry.phase is Phase.TIMED:
                self._queue.push(entry, now)

    def _forget(self, task_id: UUID, now: float, rev: float = inf) -> None:
        """Forget a task, unless what we know of it is newer than this rev."""
        entry = self.window.get(task_id)
        if entry is not None and entry.phase is not Phase.CLAIMING and entry.row.rev <= rev:
            self._drop(entry, now)
        running = self.running.get(task_id)
        if running is not None and running.rev <= rev:
            self._stop(running, now)
