"""Nodes and partitions: who is alive, who owns what, and how that changes hands."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

import asyncpg

from mainspring import timezones
from mainspring.domain.placement import Ownership
from mainspring.postgres import named_sql as queries
from mainspring.postgres.database import Database
from mainspring.postgres.rows import read_row, read_rows

SQL = queries.load("cluster")


@dataclass(frozen=True, slots=True)
class Member:
    """A node as the others see it; `silent` is the time since its last heartbeat."""

    id: UUID
    name: str
    url: str | None
    epoch: int
    silent: float


@dataclass(frozen=True, slots=True)
class NodeRecord:
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


@dataclass(frozen=True, slots=True)
class PartitionRecord:
    """Who owns a partition; nobody, for a moment, while it changes hands."""

    partition: int
    owner: UUID | None
    epoch: int


@dataclass(frozen=True, slots=True)
class ScheduleHealth:
    """Schedules of the whole installation that stand undecided, since when, and those whose next
    time came from another tz database; both are counted up to ten thousand."""

    overdue: int
    since: datetime | None
    outdated: int


class NodeHeartbeat(NamedTuple):
    """The answer to a heartbeat: the database's time, and how many were counted."""

    now: float
    beats: int


class Fenced(NamedTuple):
    """What an operator's word changed that the database was set back: fences of tasks created
    before a moment are `floor` at least, nodes were declared dead, and partitions' epochs rose."""

    floor: int
    before: datetime
    nodes: int
    epoch: int


class Topology:
    """The whole cluster, to look at."""

    _MOST_NODES = 1000

    def __init__(self, database: Database) -> None:
        self._database = database

    async def nodes(self) -> list[NodeRecord]:
        rows = await self._database.fetch(*SQL["nodes"](limit=self._MOST_NODES))
        return read_rows(NodeRecord, rows)

    async def partitions(self) -> list[PartitionRecord]:
        return read_rows(PartitionRecord, await self._database.fetch(*SQL["partitions"]()))

    async def standing(self, overdue_after: float) -> ScheduleHealth:
        row = await self._database.fetch_row(
            *SQL["standing"](overdue_after=overdue_after, tzdata=timezones.version())
        )
        assert row is not None
        return read_row(ScheduleHealth, row)

    async def restore_fence(self) -> Fenced:
        """Issue no fence and no epoch again, whatever the database was set back to."""
        row = await self._database.fetch_row(*SQL["restore_fence"]())
        assert row is not None
        return read_row(Fenced, row)


class ClusterStore:
    """Membership on connections of its own: heartbeats must never wait behind other work."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection

    async def join(
        self,
        node_id: UUID,
        name: str,
        url: str | None,
        version: str,
        *,
        former: UUID | None = None,
    ) -> int:
        """Enter the cluster, and raise the floor of fences; return the node's first epoch. A node
        that was a member before gives its `former` id, which ends."""
        epoch: int = await self._connection.fetchval(
            *SQL["join_cluster"](
                node_id=node_id, name=name, url=url, version=version, former=former
            )
        )
        return epoch

    async def beat(self, node_id: UUID, epoch: int, beats: int = 0) -> NodeHeartbeat | None:
        """Say "alive"; None when the node was declared dead, when the server is not the one that it
        joined, or when fewer `beats` are counted than the node knows of."""
        rows = await self._connection.fetch(*SQL["beat"](node_id=node_id, epoch=epoch, beats=beats))
        return read_row(NodeHeartbeat, rows[0]) if rows else None

    async def members(self) -> list[Member]:
        return read_rows(Member, await self._connection.fetch(*SQL["members"]()))

    async def ownership(self) -> dict[UUID | None, list[int]]:
        """Owner → partitions; None for those nobody owns."""
        rows = await self._connection.fetch(*SQL["ownership"]())
        return {row["owner"]: row["partitions"] for row in rows}

    async def declare_dead(self, node_id: UUID, ttl: float) -> bool:
        """Fence a node that was silent for `ttl` seconds. False: it was not, or what it has in
        flight is not over yet."""
        return (
            await self._connection.fetchval(*SQL["declare_dead"](node_id=node_id, ttl=ttl))
            is not None
        )

    async def take_over(self, node_id: UUID, epoch: int, wanted: Collection[int]) -> list[int]:
        """Take partitions that nobody living owns; return those we got."""
        rows = await self._connection.fetch(
            *SQL["take_over"](node_id=node_id, epoch=epoch, partitions=list(wanted))
        )
        return [row["partition"] for row in rows]

    async def hand_over(
        self, ownership: Ownership, gifts: Mapping[int, UUID | None], *, leaving: bool = False
    ) -> int | None:
        """Give partitions to others (or to nobody); return our new epoch, None when fenced."""
        epoch: int | None = await self._connection.fetchval(
            *SQL["hand_over"](
                node_id=ownership.node_id,
                epoch=ownership.epoch,
                partitions=list(gifts.keys()),
                heirs=list(gifts.values()),
                state="left" if leaving else "active",
            )
        )
        return epoch
