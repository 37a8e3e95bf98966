"""The fair queue: who goes next.

Between tenants: the one that uses the fewest slots for its weight, so that a tenant of slow
receivers cannot hold every slot. Inside a tenant: the earliest virtual deadline, which is due time
minus priority times the aging step; a task that waits long enough beats any priority, so nothing
starves.
"""

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush, heapreplace

from mainspring.domain.rows import TaskRow
from mainspring.domain.tenant import TenantLimits
from mainspring.engine.entry import Entry, Phase
from mainspring.engine.explain import Situation
from mainspring.engine.gates import KeyGate, RunningGate, place_in
from mainspring.engine.ledger import Bucket, Cause
from mainspring.engine.room import Room

UNKNOWN = TenantLimits(max_running=0)
"""Until a tenant's limits are known none of its tasks starts: they might be one too many."""

Accepts = Callable[[str, str], bool]
"""Whether the slots on offer can run tasks of (queue, capability)."""


class _Group:
    """The due tasks of one queue and capability behind the same running gate: a ledger bucket."""

    __slots__ = ("_heap", "_sequence", "bucket", "capability", "gate", "queue")

    def __init__(self, queue: str, capability: str, gate: RunningGate | None, now: float) -> None:
        self.queue = queue
        self.capability = capability
        self.gate = gate
        self.bucket = Bucket(Cause.FAIR_SHARE, now)
        self._heap: list[tuple[float, int, Entry]] = []
        self._sequence = 0

    def push(self, entry: Entry, now: float) -> None:
        entry.entered = self.bucket.enter(now)
        self._sequence += 1
        heappush(self._heap, (entry.deadline, self._sequence, entry))

    def first(self) -> Entry | None:
        while self._heap and self._heap[0][2].phase is not Phase.READY:
            heappop(self._heap)
        return self._heap[0][2] if self._heap else None

    def take(self) -> Entry:
        return heappop(self._heap)[2]

    def place_of(self, entry: Entry) -> int | None:
        return place_in(self._heap, entry)


class _Tenant:
    """One tenant's share and its due tasks."""

    __slots__ = ("gates", "groups", "keys", "limits", "running", "served", "waiting")

    def __init__(self, limits: TenantLimits) -> None:
        self.limits = limits
        self.running = 0
        self.served = 0
        self.waiting = 0
        self.groups: dict[tuple[int, str, str], _Group] = {}
        self.gates: dict[int, RunningGate] = {}
        self.keys: dict[str, KeyGate] = {}

    @property
    def share(self) -> float:
        return self.running / self.limits.weight

    def gate(self, partition: int) -> RunningGate | None:
        limit = self.limits.running_per_partition
        if limit is None:
            return None
        gate = self.gates.get(partition)
        if gate is None:
            gate = self.gates[partition] = RunningGate(limit)
        return gate

    def group(self, entry: Entry, now: float) -> _Group:
        gate = self.gate(entry.row.partition)
        # Only a limited tenant needs its partitions apart: each has a gate of its own.
        name = (-1 if gate is None else entry.row.partition, entry.row.queue, entry.row.capability)
        group = self.groups.get(name)
        if group is None:
            group = self.groups[name] = _Group(name[1], name[2], gate, now)
        return group


class FairQueue:
    """All due tasks of a node, by tenant."""

    def __init__(self) -> None:
        self._tenants: dict[int, _Tenant] = {}
        self._limits: dict[int, TenantLimits] = {}
        self.unknown: set[int] = set()
        self._served = 0

    def set_limits(self, tenant_id: int, limits: TenantLimits) -> bool:
        """Change a tenant's limits. True when the tenant must be counted, and its due tasks be
        pushed, anew, because its gates are others now."""
        self._limits[tenant_id] = limits
        self.unknown.discard(tenant_id)
        tenant = self._tenants.get(tenant_id)
        if tenant is None or tenant.limits == limits:
            return False
        tenant.limits = limits
        return True

    def recount(self, tenant_id: int, running: Iterable[int]) -> None:
        """Forget who waits and count what is running: the partition of each running task."""
        tenant = self._tenants[tenant_id]
        tenant.waiting = 0
        tenant.gates.clear()
        tenant.groups.clear()
        for key in tenant.keys.values():
            key.clear()
        for partition in running:
            gate = tenant.gate(partition)
            if gate is not None:
                gate.running += 1

    def push(self, entry: Entry, now: float) -> None:
        """A task is due."""
        entry.phase, entry.ready_at = Phase.READY, now
        tenant = self._tenant(entry.row.tenant_id)
        tenant.waiting += 1
        key = entry.row.concurrency_key
        if key is None:
            tenant.group(entry, now).push(entry, now)
        else:
            self._key(tenant, key).join(entry, lambda e: self._offer(tenant, e, now))

    def forget(self, entry: Entry, now: float) -> None:
        """A waiting task is no longer ours to start. Its heap entry is skipped when it surfaces."""
        was_ready = entry.phase is Phase.READY
        entry.phase = Phase.FORGOTTEN
        tenant = self._tenants.get(entry.row.tenant_id)
        if tenant is None or not was_ready:
            return
        tenant.waiting -= 1
        gate = tenant.keys.get(entry.row.concurrency_key or "")
        if gate is not None:
            gate.forget(entry, lambda e: self._offer(tenant, e, now))
            self._tidy(tenant, entry.row.concurrency_key)

    def pick(
        self, now: float, slots: int, accepts: Accepts, room: Room | None = None
    ) -> list[Entry]:
        """The next tasks to start, at most `slots`; they count as running from here on."""
        order = [
            (tenant.share, tenant.served, tenant_id)
            for tenant_id, tenant in self._tenants.items()
            if tenant.waiting
        ]
        heapify(order)
        picked: list[Entry] = []
        while order and len(picked) < slots:
            tenant_id = order[0][2]
            tenant = self._tenants[tenant_id]
            crowded = room is not None and not room.admits(tenant_id, tenant.limits.weight)
            entry = None if crowded else self._take(tenant, now, accepts)
            if entry is None:
                heappop(order)
                continue
            picked.append(entry)
            if room is not None:
                room.take(tenant_id)
            self._served += 1
            tenant.served = self._served
            heapreplace(order, (tenant.share, tenant.served, tenant_id))
        return picked

    def started(self, tenant_id: int, partition: int, key: str | None) -> None:
        """Count a task that was found running (claimed before we became the owner)."""
        tenant = self._tenant(tenant_id)
        tenant.running += 1
        gate = tenant.gate(partition)
        if gate is not None:
            gate.running += 1
        if key is not None:
            self._key(tenant, key).running += 1

    def ended(self, tenant_id: int, partition: int, key: str | None, now: float) -> None:
        """A task that counted as running is over, or was not started after all."""
        tenant = self._tenants[tenant_id]
        tenant.running -= 1
        gate = tenant.gates.get(partition)
        if gate is not None:
            gate.running = max(0, gate.running - 1)
        if key is not None:
            tenant.keys[key].freed(lambda e: self._offer(tenant, e, now))
            self._tidy(tenant, key)
        if not tenant.running and not tenant.waiting:
            del self._tenants[tenant_id]

    def situation(self, row: TaskRow, entry: Entry | None) -> Situation:
        """What surrounds a task: for people who ask, not for the way of a task."""
        tenant = self._tenants.get(row.tenant_id)
        limits = self._limits.get(row.tenant_id, UNKNOWN)
        if tenant is None:
            return Situation(
                owned=True,
                tenant_running=0,
                tenant_limit=limits.running_per_partition,
                key_running=0,
            )
        gate = tenant.gates.get(row.partition)
        key = tenant.keys.get(row.concurrency_key or "")
        # A task that is being claimed counts as running, but it is not in its own way.
        itself = entry is not None and entry.phase is Phase.CLAIMING
        return Situation(
            owned=True,
            tenant_running=max(0, gate.running - itself) if gate else 0,
            tenant_limit=limits.running_per_partition,
            key_running=max(0, key.running - itself) if key else 0,
            place=None if entry is None else _place(tenant, key, entry),
        )

    def _take(self, tenant: _Tenant, now: float, accepts: Accepts) -> Entry | None:
        while True:
            best = self._best_group(tenant, now, accepts)
            if best is None:
                return None
            entry = best.take()
            key = entry.row.concurrency_key
            self._leave_bucket(entry, best, now)
            if key is not None and not tenant.keys[key].may_pass(entry):
                tenant.keys[key].turned_back(entry)
                continue
            tenant.waiting -= 1
            tenant.running += 1
            entry.phase = Phase.CLAIMING
            if best.gate is not None:
                best.gate.running += 1
            if key is not None:
                tenant.keys[key].passed(entry, lambda e: self._offer(tenant, e, now))
            return entry

    def _best_group(self, tenant: _Tenant, now: float, accepts: Accepts) -> _Group | None:
        best: _Group | None = None
        earliest = float("inf")
        for group in tenant.groups.values():
            first = group.first()
            if first is None:
                continue
            closed = group.gate.closed() if group.gate else None
            if closed is None and not accepts(group.queue, group.capability):
                closed = Cause.NO_WORKER
            group.bucket.switch(closed or Cause.FAIR_SHARE, now)
            if closed is None and first.deadline < earliest:
                best, earliest = group, first.deadline
        return best

    def _leave_bucket(self, entry: Entry, group: _Group, now: float) -> None:
        assert entry.entered is not None
        for cause, seconds in group.bucket.leave(entry.entered, now).items():
            entry.add_wait(cause, seconds)
        entry.ready_at = now

    def _offer(self, tenant: _Tenant, entry: Entry, now: float) -> None:
        """A task passed its key and competes now: what it waited so far was for the key."""
        if now > entry.ready_at:
            entry.add_wait(Cause.CONCURRENCY_KEY, now - entry.ready_at)
        tenant.group(entry, now).push(entry, now)

    def _tenant(self, tenant_id: int) -> _Tenant:
        tenant = self._tenants.get(tenant_id)
        if tenant is None:
            limits = self._limits.get(tenant_id, UNKNOWN)
            if limits is UNKNOWN:
                self.unknown.add(tenant_id)
            tenant = self._tenants[tenant_id] = _Tenant(limits)
        return tenant

    def _key(self, tenant: _Tenant, key: str) -> KeyGate:
        gate = tenant.keys.get(key)
        if gate is None:
            gate = tenant.keys[key] = KeyGate()
        return gate

    def _tidy(self, tenant: _Tenant, key: str | None) -> None:
        if key is not None and key in tenant.keys and tenant.keys[key].idle:
            del tenant.keys[key]


def _place(tenant: _Tenant, key: KeyGate | None, entry: Entry) -> int | None:
    behind_key = key.place_of(entry) if key is not None else None
    if behind_key is not None:
        return behind_key
    places = (group.place_of(entry) for group in tenant.groups.values())
    return next((place for place in places if place is not None), None)
