"""The shares of tenants in a node: their due tasks in groups, their gates, keys and slots."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from math import inf

from mainspring.domain.tenant import TenantLimits
from mainspring.engine.entry import Entry
from mainspring.engine.gates import KeyGate, RunningGate
from mainspring.engine.pools import Group

MAX_SHARE_RATIO = 4

_FEW = 64


@dataclass(slots=True, eq=False)
class TenantShare:
    """One tenant's share and its due tasks."""

    limits: TenantLimits
    running: int = 0
    served: int = 0
    waiting: int = 0
    without_slot: int = 0
    """What runs at workers, or takes no slot: it does not count for the node's slots."""
    waiting_for_workers: int = 0
    groups: dict[tuple[int, str, str], Group] = field(default_factory=dict)
    worker_groups: dict[tuple[int, str, str], Group] = field(default_factory=dict)
    gates: dict[int, RunningGate] = field(default_factory=dict)
    keys: dict[str, KeyGate] = field(default_factory=dict)
    held_back: bool = False
    """Whether the gates held all back when last looked, and nothing has changed since."""
    _groups_kept: int = 0
    """How many groups there were when the empty ones were last dropped."""

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

    @property
    def idle(self) -> bool:
        return not (self.running or self.waiting or self.without_slot or self.waiting_for_workers)

    def key_gate(self, key: str) -> KeyGate:
        gate = self.keys.get(key)
        if gate is None:
            gate = self.keys[key] = KeyGate()
        return gate

    def all_groups(self) -> Iterator[Group]:
        return chain(self.groups.values(), self.worker_groups.values())

    def name_of(self, entry: Entry) -> tuple[int, str, str]:
        # Only a limited tenant needs its partitions apart: each has a gate of its own.
        unlimited = self.limits.running_per_partition is None
        return (-1 if unlimited else entry.row.partition, *entry.line)

    def group_of(self, entry: Entry) -> Group | None:
        """Return the group of a task, if there is one."""
        name = self.name_of(entry)
        group = self.groups.get(name)
        return self.worker_groups.get(name) if group is None else group

    def group(self, entry: Entry, now: float) -> Group:
        name = self.name_of(entry)
        group = self.groups.get(name)
        if group is None:
            self.drop_empty_groups()
            gate = self.gate(entry.row.partition)
            if gate is not None and not entry.slot:
                gate = RunningGate(gate.limit)  # nobody counts there: it tells a limit of 0
            group = self.groups[name] = Group(entry.row.queue, entry.row.capability, gate, now)
        return group

    def drop_empty_groups(self) -> None:
        """Make room for another group, for the names of queues are free: once there are twice as
        many as were in use, the empty ones go. Those in use are not made anew with each task."""
        if len(self.groups) + len(self.worker_groups) < max(_FEW, 2 * self._groups_kept):
            return
        for kept in (self.groups, self.worker_groups):
            for name in [name for name, group in kept.items() if group.first() is None]:
                empty = kept.pop(name)
                for pool in empty.pools:
                    pool.ready.pop(empty, None)
        self._groups_kept = len(self.groups) + len(self.worker_groups)


class SlotQuota:
    """A count of free slots for one round of picking, and who holds the others.

    Fairness decides who goes next when a slot is free; it cannot help when none is, because a
    tenant of receivers that never answer took them all while nobody else was there. So a tenant may
    hold slots only as long as they are at most a few times those still free: one alone gets four
    fifths of the node, two get four ninths each, and whoever comes next finds a slot at once.
    """

    def __init__(self, free: float = inf, *held: Mapping[int, int], slotless: float = inf) -> None:
        self._free = free
        self._held = held
        self._slotless = slotless
        """How many tasks may be picked that take no slot."""
        self._taken: Counter[int] = Counter()

    def admits(self, tenant_id: int, weight: int) -> bool:
        """Whether this tenant may take one more slot."""
        holds = self._taken[tenant_id] + sum(held.get(tenant_id, 0) for held in self._held)
        return holds < MAX_SHARE_RATIO * weight * self._free

    @property
    def admits_slotless(self) -> bool:
        """Whether one more task may be picked that takes no slot."""
        return self._slotless > 0

    def take(self, tenant_id: int, *, slot: bool = True) -> None:
        if slot:
            self._taken[tenant_id] += 1
            self._free -= 1
        else:
            self._slotless -= 1
