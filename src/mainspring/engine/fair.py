"""The fair queue: who goes next.

Between tenants: the one that uses the fewest slots for its weight, so that a tenant of slow
receivers cannot hold every slot. Inside a tenant: the earliest virtual deadline, which is due time
minus priority times the aging step; a task that waits long enough beats any priority, so nothing
starves.

Tasks for workers wait in groups of their own and compete for their tenant's workers only; `pools`
knows these workers.
"""

from collections.abc import Callable, Collection, Iterable
from heapq import heapify, heappop, heapreplace
from itertools import chain

from mainspring.domain.capability import THERE_FOR, takes_slot
from mainspring.domain.lateness import Cause
from mainspring.domain.rows import TaskRow
from mainspring.domain.tenant import TenantLimits
from mainspring.engine.demand import LeaseHolder
from mainspring.engine.entry import Entry, Phase
from mainspring.engine.explain import Situation
from mainspring.engine.gates import KeyGate, RunningGate, expired
from mainspring.engine.pools import Group, WorkerDemand, WorkerPool
from mainspring.engine.running import RunningTask
from mainspring.engine.shares import SlotQuota, TenantShare

UNKNOWN = TenantLimits(max_running=0)
"""Until a tenant's limits are known none of its tasks starts: they might be one too many."""

Accepts = Callable[[str], bool]
"""Whether the slots on offer can run tasks of a capability."""
NeedsWorker = Callable[[str], bool]
"""Whether tasks of this capability are for workers."""
CountedTask = Entry | RunningTask
"""A task that is being claimed, or runs: it counts for its tenant, for its key, and for the worker
that took it."""


class FairQueue:
    """All due tasks of a node, by tenant."""

    def __init__(
        self, needs_worker: NeedsWorker = lambda _capability: False, there_for: float = THERE_FOR
    ) -> None:
        self._needs_worker = needs_worker
        self._tenants: dict[int, TenantShare] = {}
        self._limits: dict[int, TenantLimits] = {}
        self.unknown: set[int] = set()
        self._served = 0
        self.workers = WorkerDemand(there_for, self._worker_groups)
        self._dropped: list[Entry] = []

    def set_limits(self, tenant_id: int, limits: TenantLimits, now: float) -> bool:
        """Change a tenant's limits. Return whether `recount` and new pushes of its tasks must
        follow, because its gates are others now."""
        self._limits[tenant_id] = limits
        self.unknown.discard(tenant_id)
        tenant = self._tenants.get(tenant_id)
        if tenant is None or tenant.limits == limits:
            return False
        waiting: Iterable[Iterable[Entry]] = (*tenant.all_groups(), *tenant.keys.values())
        for entry in chain.from_iterable(waiting):
            self._note_wait(tenant, entry, now)
        tenant.limits = limits
        return True

    def _note_wait(self, tenant: TenantShare, entry: Entry, now: float) -> None:
        """Note what a task has waited for so far, in a group or for its key."""
        if tenant.limits is UNKNOWN:  # it waited for no limit
            return
        if entry.entered is None:
            entry.add_wait(Cause.CONCURRENCY_KEY, now - entry.ready_at)
        elif (group := tenant.group_of(entry)) is not None:
            self._leave_bucket(entry, group, now)

    def recount(self, tenant_id: int, running: Iterable[int]) -> None:
        """Forget who waits and count what is running: the partition of each running task."""
        tenant = self._tenants[tenant_id]
        tenant.waiting = tenant.waiting_for_workers = 0
        tenant.held_back = False
        tenant.gates.clear()
        tenant.groups.clear()
        tenant.worker_groups.clear()
        self.workers.forget_groups(tenant_id)
        for key in tenant.keys.values():
            key.clear()
        for partition in running:
            gate = tenant.gate(partition)
            if gate is not None:
                gate.running += 1

    def push(self, entry: Entry, now: float) -> None:
        """Queue a task that is due."""
        entry.phase, entry.ready_at = Phase.READY, now
        entry.entered = None  # what it waited for before, if it was queued, is accounted for
        tenant = self._tenant(entry.row.tenant_id)
        self._count_waiting(tenant, entry, 1)
        key = entry.row.concurrency_key
        if key is None:
            self._add_ready(tenant, entry, now)
        else:
            tenant.key_gate(key).join(entry, lambda e: self._offer(tenant, e, now))
        if entry.was_turned_away:
            self._explain_absence(tenant, entry, now)

    def _explain_absence(self, tenant: TenantShare, entry: Entry, now: float) -> None:
        """Account for a task that had no room in the window: it waited as those before it did."""
        entry.was_turned_away = False
        group = tenant.group_of(entry) if entry.entered is not None else None
        cause = Cause.CONCURRENCY_KEY if group is None else group.bucket.cause
        entry.add_wait(cause, max(0.0, entry.unaccounted(now)))

    def may_skip_queue(self, tenant_id: int) -> bool:
        """Whether a new task of a tenant would be its next: it has no limit, and no task waits."""
        limits = self._limits.get(tenant_id, UNKNOWN)
        tenant = self._tenants.get(tenant_id)
        return limits.max_running is None and (tenant is None or not tenant.waiting)

    def forget(self, entry: Entry, now: float) -> None:
        """Drop a waiting task. Its heap entry is skipped when it surfaces."""
        was_ready = entry.phase is Phase.READY
        entry.phase = Phase.FORGOTTEN
        tenant = self._tenants.get(entry.row.tenant_id)
        if tenant is None or not was_ready:
            return
        self._count_waiting(tenant, entry, -1)
        self._note_wait(tenant, entry, now)
        gate = tenant.keys.get(entry.row.concurrency_key or "")
        if gate is not None:
            gate.forget(entry, lambda e: self._offer(tenant, e, now))
            self._drop_idle_key(tenant, entry.row.concurrency_key)

    def pick(
        self, now: float, slots: int, accepts: Accepts, quota: SlotQuota | None = None
    ) -> list[Entry]:
        """Return the next tasks to start, at most `slots`; they count as running from here on."""
        order = [
            (tenant.share, tenant.served, tenant_id)
            for tenant_id, tenant in self._tenants.items()
            if tenant.waiting and not tenant.held_back
        ]
        heapify(order)
        quota = quota or SlotQuota()
        picked: list[Entry] = []
        while order and len(picked) < slots:
            tenant_id = order[0][2]
            tenant = self._tenants[tenant_id]
            entry = None
            if quota.admits(tenant_id, tenant.limits.weight):
                entry = self._take(tenant, now, accepts, slotless=quota.admits_slotless)
            if entry is None:
                heappop(order)
                continue
            picked.append(entry)
            quota.take(tenant_id, slot=entry.slot)
            self._served += 1
            tenant.served = self._served
            heapreplace(order, (tenant.share, tenant.served, tenant_id))
        return picked

    def started(self, task: CountedTask) -> None:
        """Count a task that was found running (claimed before we became the owner)."""
        tenant = self._tenant(task.tenant_id)
        self._count_running(tenant, task, 1)
        gate = tenant.gate(task.partition) if task.slot else None
        if gate is not None:
            gate.running += 1
        if task.concurrency_key is not None:
            tenant.key_gate(task.concurrency_key).running += 1

    def ended(self, task: CountedTask, now: float) -> None:
        """Stop counting a task that is over, or was not started after all."""
        tenant_id, key = task.tenant_id, task.concurrency_key
        tenant = self._tenants[tenant_id]
        self._count_running(tenant, task, -1)
        gate = tenant.gates.get(task.partition) if task.slot else None
        if gate is not None:
            gate.running = max(0, gate.running - 1)
            tenant.held_back = False
            if tenant.waiting_for_workers and gate.running == gate.limit - 1:
                self._gate_turned(tenant_id, tenant, gate, now)
        if key is not None:
            tenant.keys[key].freed(lambda e: self._offer(tenant, e, now))
            self._drop_idle_key(tenant, key)
        if tenant.idle:
            del self._tenants[tenant_id]
            self.workers.forget_groups(tenant_id)

    # Workers ---------------------------------------------------------------------------------

    def match(self, now: float, most: int) -> list[Entry]:
        """Return tasks for workers that wait, each with its poll; they count as running now."""
        self.workers.sweep(now)
        picked: list[Entry] = []
        for pool in self.workers.dirty():
            self._serve(pool, now, most, picked)
            if len(picked) >= most:
                self.workers.mark_dirty(pool)
                break
        return picked

    def dropped(self) -> list[Entry]:
        """Return what expired in front of a worker since the last time: forgotten here already."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def _serve(self, pool: WorkerPool, now: float, most: int, picked: list[Entry]) -> None:
        tenant = self._tenants.get(pool.tenant_id)
        if tenant is None:
            return
        held_back: list[Group] = []
        while len(picked) < most and pool.polls and (group := pool.next_group()) is not None:
            entry = self._hand_to_worker(tenant, pool, group, now)
            if entry is not None:
                picked.append(entry)
            else:
                pool.leave_out(group)
                held_back.append(group)
        for group in held_back:
            pool.enqueue(group)
        if pool.remote_nodes:
            ready = (group for group in tenant.worker_groups.values() if group in pool.ready)
            waiting = sum(len(group) for group in ready if not group.closed())
            self.workers.demand_remotely(pool, waiting, now)

    def _hand_to_worker(
        self, tenant: TenantShare, pool: WorkerPool, group: Group, now: float
    ) -> Entry | None:
        """Return the next task of a group for the next worker of a pool, if both are there."""
        if group.closed():
            return None
        while (first := group.first()) is not None:
            if expired(first, now):
                # Before a poll is touched: it would pay for it with a slot.
                self.forget(first, now)
                self._dropped.append(first)
                continue
            poll = self.workers.next_poll(pool, alone=group.alone)
            if poll is None:
                return None
            entry = self._take_first(tenant, group, now)
            if entry is None:
                continue
            # Who must be alone gets the worker whole.
            poll.free = 0 if group.alone else poll.free - 1
            poll.in_flight += 1
            entry.poll, entry.holder = poll, LeaseHolder(poll.session, group.alone)
            self._let_pass(tenant, group, entry, now)
            return entry
        return None

    def _worker_groups(self, tenant_id: int) -> Collection[Group]:
        tenant = self._tenants.get(tenant_id)
        return () if tenant is None else tenant.worker_groups.values()

    def _add_ready(self, tenant: TenantShare, entry: Entry, now: float) -> None:
        """Let a task compete."""
        row = entry.row
        if not self._needs_worker(row.capability):
            tenant.group(entry, now).push(entry, now)
            tenant.held_back = False
            return
        name = tenant.name_of(entry)
        group = tenant.worker_groups.get(name)
        if group is None:
            tenant.drop_empty_groups()
            group = Group(row.queue, row.capability, tenant.gate(row.partition), now)
            group.pools = self.workers.pools_for(row.tenant_id, row.queue, row.capability)
            group.review(now)
            tenant.worker_groups[name] = group
        group.push(entry, now)
        self.workers.task_added(group)

    def _gate_turned(
        self, tenant_id: int, tenant: TenantShare, gate: RunningGate, now: float
    ) -> None:
        """Review the groups behind a gate that opened or closed."""
        for group in tenant.worker_groups.values():
            if group.gate is gate:
                group.review(now)
        self.workers.limit_lifted(tenant_id)

    def _count_waiting(self, tenant: TenantShare, entry: Entry, change: int) -> None:
        if self._needs_worker(entry.row.capability):
            tenant.waiting_for_workers += change
        else:
            tenant.waiting += change

    def _count_running(self, tenant: TenantShare, task: CountedTask, change: int) -> None:
        if task.holder is None and task.slot:
            tenant.running += change
        else:
            tenant.without_slot += change
        if task.holder is not None:
            count = self.workers.add_lease if change > 0 else self.workers.remove_lease
            count(task.holder)

    # Details ---------------------------------------------------------------------------------

    def situation(self, row: TaskRow, entry: Entry | None, known: Situation) -> Situation:
        """Return what is known of a task, and what surrounds it here: only for `explain`."""
        limits = self._limits.get(row.tenant_id, UNKNOWN)
        tenant = self._tenants.get(row.tenant_id) or TenantShare(limits)
        gate = tenant.gates.get(row.partition) if takes_slot(row.capability) else None
        key = tenant.keys.get(row.concurrency_key or "")
        # A task that is being claimed counts as running, but it is not in its own way.
        itself = entry is not None and entry.phase is Phase.CLAIMING
        return known._replace(
            owned=True,
            tenant_running=max(0, gate.running - itself) if gate else 0,
            tenant_limit=limits.running_per_partition,
            key_running=max(0, key.running - itself) if key else 0,
            place=None if entry is None else _place(tenant, key, entry),
        )

    def _take(
        self, tenant: TenantShare, now: float, accepts: Accepts, *, slotless: bool
    ) -> Entry | None:
        while (best := self._best_group(tenant, now, accepts, slotless)) is not None:
            entry = self._take_first(tenant, best, now)
            if entry is not None:
                self._let_pass(tenant, best, entry, now)
                return entry
        return None

    def _take_first(self, tenant: TenantShare, group: Group, now: float) -> Entry | None:
        """Take the first task of a group; None if its key has filled up, so that it waits again."""
        entry = group.take()
        key = entry.row.concurrency_key
        self._leave_bucket(entry, group, now)
        if key is not None and not tenant.keys[key].may_pass(entry):
            tenant.keys[key].turned_back(entry)
            return None
        return entry

    def _let_pass(self, tenant: TenantShare, group: Group, entry: Entry, now: float) -> None:
        self._count_waiting(tenant, entry, -1)
        self._count_running(tenant, entry, 1)
        entry.phase = Phase.CLAIMING
        key = entry.row.concurrency_key
        if group.gate is not None and entry.slot:
            group.gate.running += 1
            if tenant.waiting_for_workers and group.gate.running == group.gate.limit:
                self._gate_turned(entry.row.tenant_id, tenant, group.gate, now)
        if key is not None:
            tenant.keys[key].passed(entry, lambda e: self._offer(tenant, e, now))

    def _best_group(
        self, tenant: TenantShare, now: float, accepts: Accepts, slotless: bool
    ) -> Group | None:
        best: Group | None = None
        earliest = float("inf")
        tenant.held_back = True
        for group in tenant.groups.values():
            first = group.first()
            if first is None:
                continue
            closed = group.closed()
            if closed is None:
                # Whether somebody can run it may change without a word to us; a gate never does.
                tenant.held_back = False
                if not accepts(group.capability):
                    closed = Cause.NO_WORKER
            group.bucket.switch(closed or Cause.FAIR_SHARE, now)
            turned_away = closed is not None or not (slotless or takes_slot(group.capability))
            if not turned_away and first.deadline < earliest:
                best, earliest = group, first.deadline
        return best

    def _leave_bucket(self, entry: Entry, group: Group, now: float) -> None:
        assert entry.entered is not None
        for cause, seconds in group.bucket.leave(entry.entered, now).items():
            entry.add_wait(cause, seconds)
        entry.entered, entry.ready_at = None, now

    def _offer(self, tenant: TenantShare, entry: Entry, now: float) -> None:
        """Let a task compete that passed its key: what it waited so far was for the key."""
        if now > entry.ready_at:
            entry.add_wait(Cause.CONCURRENCY_KEY, now - entry.ready_at)
        self._add_ready(tenant, entry, now)

    def _tenant(self, tenant_id: int) -> TenantShare:
        tenant = self._tenants.get(tenant_id)
        if tenant is None:
            limits = self._limits.get(tenant_id, UNKNOWN)
            if limits is UNKNOWN:
                self.unknown.add(tenant_id)
            tenant = self._tenants[tenant_id] = TenantShare(limits)
        return tenant

    def _drop_idle_key(self, tenant: TenantShare, key: str | None) -> None:
        if key is not None and key in tenant.keys and tenant.keys[key].idle:
            del tenant.keys[key]


def _place(tenant: TenantShare, key: KeyGate | None, entry: Entry) -> int | None:
    behind_key = key.place_of(entry) if key is not None else None
    if behind_key is not None:
        return behind_key
    places = (group.place_of(entry) for group in tenant.all_groups())
    return next((place for place in places if place is not None), None)
