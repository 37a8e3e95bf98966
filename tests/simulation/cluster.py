"""The statements about nodes and who owns what, in memory: the contract suite binds them to SQL."""

from collections.abc import Callable, Collection, Mapping
from copy import deepcopy
from dataclasses import replace
from itertools import count
from math import ceil
from uuid import UUID

from mainspring.domain.partitions import Ownership
from mainspring.store.cluster import Member, NodeHeartbeat
from simulation.tables import NodeRow, PartitionRow, Tables

_FENCES_SINCE = 1_735_689_600.0
"""2025-01-01, from which the seconds are counted that the floor of fences follows."""


class MemoryCluster:
    """The tables, their clock, and the statements about nodes. `committed` is called after each one
    that may have written."""

    def __init__(
        self,
        clock: Callable[[], float],
        partitions: Collection[int],
        *,
        near: float,
        committed: Callable[[str], None] = lambda _statement: None,
    ) -> None:
        self._clock = clock
        self.near = near
        self.committed = committed
        self.writer: Ownership | None = None
        """Who wrote last, for those who check that the right ones are told."""
        self.begun_unheard: set[UUID] = set()
        """Tasks that were leased as they were created, after their creator had given up: it may
        have looked for them already, and then nobody runs them until their lease ends."""
        self.tables = Tables(partitions={p: PartitionRow() for p in partitions})
        self.server = 0
        """Which start of the server this is."""

    def now(self) -> float:
        """The database's clock, in whole microseconds as PostgreSQL has it."""
        return round(self._clock(), 6)

    def join(self, node_id: UUID, name: str, former: UUID | None) -> int:
        row = self.tables.fence_floor
        changed = row.server not in (None, self.server)
        margin = 60 if changed or former is not None else 0
        seconds = ceil(self.now() - _FENCES_SINCE) + 1
        row.floor = max(row.floor + changed, seconds + margin)
        row.before = max(row.before, self.now() + margin)
        row.server = self.server
        for node in self.tables.nodes.values():
            if node.state == "active" and (node.id == former or node.server != self.server):
                node.state, node.epoch = "dead", node.epoch + 1
        for partition in self.tables.partitions.values() if changed else ():
            partition.epoch = max(partition.epoch + 1, row.floor)
        self.tables.nodes[node_id] = NodeRow(node_id, name, self.now(), self.server)
        self.committed("join")
        return 1

    def save(self) -> Tables:
        """A backup, to be used once."""
        next_wake = next(self.tables.wake_ids)
        self.tables.wake_ids = count(next_wake)
        saved = deepcopy(replace(self.tables, wake_ids=iter(())))
        saved.wake_ids = count(next_wake)
        return saved

    def set_back(self, saved: Tables) -> None:
        """As after a restore: all since the backup is lost, and the server was started again."""
        for name in self.tables.__slots__:
            setattr(self.tables, name, getattr(saved, name))
        self.server += 1

    def next_fence(self, fence: int, created: float) -> int:
        """The fence of the next lease of a task."""
        row = self.tables.fence_floor
        return max(fence + 1, row.floor if created < row.before else 0)

    def beat(self, node_id: UUID, epoch: int, beats: int) -> list[NodeHeartbeat]:
        node = self.tables.nodes.get(node_id)
        if node is None or node.epoch != epoch or node.state != "active":
            return []
        if node.server != self.server or node.beats < beats:
            return []
        node.heartbeat, node.beats = self.now(), node.beats + 1
        return [NodeHeartbeat(node.heartbeat, node.beats)]

    def members(self) -> list[Member]:
        return [
            Member(node.id, node.name, None, node.epoch, self.now() - node.heartbeat)
            for node in sorted(self.tables.nodes.values(), key=lambda n: n.id)
            if node.state == "active"
        ]

    def ownership(self) -> dict[UUID | None, list[int]]:
        owners: dict[UUID | None, list[int]] = {}
        for number, row in sorted(self.tables.partitions.items()):
            owners.setdefault(row.owner, []).append(number)
        return owners

    def declare_dead(self, node_id: UUID, ttl: float) -> bool:
        node = self.tables.nodes.get(node_id)
        if node is None or node.state != "active" or node.heartbeat >= self.now() - ttl:
            return False
        node.epoch, node.state = node.epoch + 1, "dead"
        self.committed("declare_dead")
        return True

    def take_over(
        self, node_id: UUID, epoch: int, wanted: Collection[int], beats: int = 0
    ) -> list[int]:
        node = self.tables.nodes.get(node_id)
        if node is None or node.epoch != epoch or node.state != "active":
            return []
        if node.server != self.server or node.beats < beats:
            return []
        free = [p for p in sorted(wanted) if not self._has_living_owner(p)]
        for partition in free:
            self._give(partition, node_id)
        self.committed("take_over")
        return free

    def hand_over(
        self, ownership: Ownership, gifts: Mapping[int, UUID | None], *, leaving: bool = False
    ) -> int | None:
        giver = self.tables.nodes.get(ownership.node_id)
        if giver is None or giver.epoch != ownership.epoch or giver.beats < ownership.beats:
            return None
        for partition, heir in gifts.items():
            if self.tables.partitions[partition].owner == ownership.node_id:
                self._give(partition, heir)
        node = self.tables.nodes[ownership.node_id]
        node.epoch, node.state = node.epoch + 1, "left" if leaving else "active"
        self.committed("hand_over")
        return node.epoch

    def is_valid(self, ownership: Ownership) -> bool:
        node = self.tables.nodes.get(ownership.node_id)
        return (
            node is not None
            and node.epoch == ownership.epoch
            and node.beats >= ownership.beats
            and node.server == self.server
        )

    def _has_living_owner(self, partition: int) -> bool:
        owner = self.tables.partitions[partition].owner
        node = self.tables.nodes.get(owner) if owner is not None else None
        return node is not None and node.state == "active"

    def _give(self, partition: int, heir: UUID | None) -> None:
        row = self.tables.partitions[partition]
        row.owner, row.epoch = heir, row.epoch + 1
