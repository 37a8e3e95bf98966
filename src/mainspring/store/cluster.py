"""Nodes and partitions: which are alive, which own what, and how that changes."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

import asyncpg

from mainspring import timezones
from mainspring.domain.partitions import Ownership
from mainspring.postgres import named_sql as queries
from mainspring.postgres.database import Store
from mainspring.store.task_refs import node_of

SQL = queries.load("cluster")


class Member(NamedTuple):
    """A node as the others see it; `silent` is the time since its last heartbeat."""

    id: UUID
    name: str
    url: str | None
    epoch: int
    silent: float


class NodeRecord(NamedTuple):
    """A node as operators see it: also one that is dead or has left."""

    id: UUID
    name: str
    url: str | None
    version: str
    state: str
    epoch: int
    started_at: datetime
    silent: float
    owned: int


class PartitionRecord(NamedTuple):
    """Who owns a partition; None for a moment, while it changes owners."""

    partition: int
    owner: UUID | None
    epoch: int


class ScheduleHealth(NamedTuple):
    """Overdue schedules, and those with a next time from another tz database: up to 10,000 each."""

    overdue: int
    since: datetime | None
    outdated: int


class NodeHeartbeat(NamedTuple):
    """The response to a heartbeat: the database's time, and the number of heartbeats counted."""

    now: float
    beats: int


class Fenced(NamedTuple):
    """What `restore_fence` changed: tasks created before a moment got fences of `floor` at least,
    nodes were declared dead, and the epochs of partitions rose."""

    floor: int
    before: datetime
    nodes: int
    epoch: int


class Topology(Store):
    """The state of the whole cluster, for operators."""

    _MOST_NODES = 1000

    async def nodes(self) -> list[NodeRecord]:
        return await SQL["nodes"].rows(self._database, NodeRecord, limit=self._MOST_NODES)

    async def partitions(self) -> list[PartitionRecord]:
        return await SQL["partitions"].rows(self._database, PartitionRecord)

    async def standing(self, overdue_after: float) -> ScheduleHealth:
        return await SQL["standing"].one(
            self._database, ScheduleHealth, overdue_after=overdue_after, tzdata=timezones.version()
        )

    async def restore_fence(self) -> Fenced:
        """Raise fences and epochs above all that were issued before the database was set back."""
        return await SQL["restore_fence"].one(self._database, Fenced)


class ClusterStore:
    """Membership on connections of its own: heartbeats must never wait behind other work."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection

    async def join(
        self, node_id: UUID, name: str, url: str | None, version: str, *, former: UUID | None = None
    ) -> int:
        """Join the cluster; return the node's first epoch. Its `former` id, if it had one, ends."""
        return await SQL["join_cluster"].value(
            self._connection, int,
            node_id=node_id, name=name, url=url, version=version, former=former,
        )  # fmt: skip

    async def now(self) -> float:
        """The database's time."""
        return await SQL["database_time"].value(self._connection, float)

    async def beat(self, node_id: UUID, epoch: int, beats: int = 0) -> NodeHeartbeat | None:
        """Send a heartbeat; None when the node was declared dead, when the server is not the one
        that it joined, or when fewer `beats` are counted than the node knows of."""
        return await SQL["beat"].row(
            self._connection, NodeHeartbeat, node_id=node_id, epoch=epoch, beats=beats
        )

    async def members(self) -> list[Member]:
        return await SQL["members"].rows(self._connection, Member)

    async def ownership(self) -> dict[UUID | None, list[int]]:
        """Return owner → partitions; None for those without an owner."""
        rows = await SQL["ownership"].fetch(self._connection)
        return {row["owner"]: row["partitions"] for row in rows}

    async def declare_dead(self, node_id: UUID, ttl: float) -> bool:
        """Fence a node that was silent for `ttl` seconds; False if it was not, or is not done
        yet."""
        silenced = SQL["declare_dead"].value_or_none(
            self._connection, UUID, node_id=node_id, ttl=ttl
        )
        return await silenced is not None

    async def take_over(
        self, node_id: UUID, epoch: int, wanted: Collection[int], beats: int = 0
    ) -> list[int]:
        """Take partitions without a living owner; return those we got."""
        rows = await SQL["take_over"].fetch(
            self._connection, node_id=node_id, epoch=epoch, beats=beats, partitions=list(wanted)
        )
        return [row["partition"] for row in rows]

    async def hand_over(
        self, ownership: Ownership, gifts: Mapping[int, UUID | None], *, leaving: bool = False
    ) -> int | None:
        """Give partitions to others (or to nobody); return our new epoch, None when fenced."""
        return await SQL["hand_over"].value_or_none(
            self._connection,
            int,
            **node_of(ownership),
            partitions=list(gifts.keys()),
            heirs=list(gifts.values()),
            state="left" if leaving else "active",
        )


class MessageStore(Store):
    """Messages between nodes: each may be lost, none comes twice."""

    async def post(self, messages: Sequence[tuple[UUID, bytes]]) -> None:
        """Write messages for nodes, and notify each."""
        await SQL["post_messages"].run(
            self._database,
            node_ids=[node for node, _ in messages],
            bodies=[body for _, body in messages],
        )

    async def collect(self, node_id: UUID) -> list[bytes]:
        """Take the messages for a node, the oldest first."""
        rows = await SQL["collect_messages"].fetch(self._database, node_id=node_id)
        return [row["body"] for row in sorted(rows, key=lambda row: row["id"])]
