"""Nodes and the locks of those that stand still: a silent node is fenced at once, and replaced when
the server has ended what it left open; nobody's heartbeat waits for that, nor for a handover."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import cast
from uuid import UUID

import asyncpg
import pytest

from mainspring.clock import DatabaseClock
from mainspring.config import Config
from mainspring.domain.capability import needs_worker
from mainspring.domain.partitions import PARTITIONS
from mainspring.engine.core import Engine, EngineSettings
from mainspring.errors import StoreUnavailable
from mainspring.lifecycle import Supervisor
from mainspring.node.membership import Membership
from mainspring.node.partition_loader import PartitionLoader
from mainspring.node.signals import Signals
from mainspring.node.state import NodeState
from mainspring.observe.metrics import Metrics
from mainspring.postgres.database import (
    CONNECTION_LOST,
    Database,
    DatabaseOptions,
    connect,
)
from mainspring.store.cluster import SQL, ClusterStore
from support.waiting import eventually

IDLE = 3.0
TTL = 1.0
CONFIG = Config(heartbeat=0.2, node_ttl=TTL)
EVERYTHING = list(range(PARTITIONS))

_HOLD = "SELECT id FROM nodes WHERE id = $1 AND epoch = $2 FOR KEY SHARE"
_JOIN = """
INSERT INTO nodes (id, name, version, heartbeat_at)
VALUES (gen_random_uuid(), 'silent', 'test', clock_timestamp() - interval '1 minute') RETURNING id
"""
_IS_OPEN = "SELECT count(*) FROM pg_stat_activity WHERE pid = $1"

Dial = Callable[[], Awaitable[asyncpg.Connection]]


@pytest.fixture
async def dial(database_url: str) -> AsyncIterator[Dial]:
    """Connections like those of nodes, only that less time is given to who stands still."""
    options = DatabaseOptions(database_url, statement_timeout=TTL, idle_timeout=IDLE)
    made: list[asyncpg.Connection] = []

    async def dial() -> asyncpg.Connection:
        made.append(await connect(options))
        return made[-1]

    yield dial
    for connection in made:
        connection.terminate()


@pytest.fixture
async def eyes(dial: Dial) -> asyncpg.Connection:
    """To look at the database with."""
    return await dial()


class _NoPartitionLoader:
    """What is owned is not looked into."""

    def __init__(self, state: NodeState) -> None:
        self._engine = state.engine

    def load(self, partitions: Collection[int]) -> None:
        self._engine.own(partitions, [], 0.0)

    def give_up(self, partitions: Collection[int]) -> None:
        self._engine.disown(partitions, 0.0)


class _NoSignals:
    async def cluster_changed(self) -> None:
        pass


class MemberNode:
    """A node that does nothing but be a member."""

    def __init__(self, dial: Dial) -> None:
        clock = DatabaseClock()
        self.metrics = Metrics()
        self.state = NodeState(Engine(EngineSettings(), needs_worker), clock, CONFIG, self.metrics)
        partition_loader, signals = (
            cast(PartitionLoader, _NoPartitionLoader(self.state)),
            cast(Signals, _NoSignals()),
        )
        self._membership = Membership(self.state, dial, clock, partition_loader, signals, "test")
        self._supervisor = Supervisor()

    async def start(self) -> None:
        await self._membership.join(None)
        for name, loop in self._membership.loops().items():
            self._supervisor.start(name, loop)

    async def stop(self) -> None:
        await self._supervisor.stop()
        await self._membership.close()

    @property
    def share(self) -> int:
        return len(self.state.engine.partitions)

    @property
    def times_fenced(self) -> float:
        return float(self.metrics.node_fenced._value.get())


@pytest.fixture
async def node(dial: Dial) -> AsyncIterator[Callable[[], Awaitable[MemberNode]]]:
    started: list[MemberNode] = []

    async def start() -> MemberNode:
        started.append(MemberNode(dial))
        await started[-1].start()
        return started[-1]

    yield start
    for living in started:
        await living.stop()


async def silent_node(eyes: asyncpg.Connection) -> UUID:
    """One that owns everything and has not been heard of for long."""
    silent: UUID = await eyes.fetchval(_JOIN)
    assert len(await ClusterStore(eyes).take_over(silent, 1, EVERYTHING)) == PARTITIONS
    return silent


async def stand_still(dial: Dial, node_id: UUID, epoch: int = 1) -> asyncpg.Connection:
    """What a node leaves behind that is frozen between two statements of a transaction."""
    frozen = await dial()
    await frozen.execute("BEGIN")
    assert await frozen.fetchval(_HOLD, node_id, epoch) == node_id
    return frozen


async def test_a_frozen_node_is_fenced_at_once_and_declared_dead_later(
    dial: Dial, eyes: asyncpg.Connection
) -> None:
    cluster, silent = ClusterStore(eyes), await silent_node(eyes)
    heir: UUID = await eyes.fetchval(_JOIN)
    frozen = await stand_still(dial, silent)
    assert not await cluster.declare_dead(silent, TTL)
    assert await _state(eyes, silent) == (2, "active")
    assert await (await dial()).fetchval(_HOLD, silent, 1) is None, "it can begin nothing more"
    assert await cluster.beat(silent, 1) is None
    assert await cluster.take_over(heir, 1, [3]) == [], "something of it may yet be written"
    await frozen.execute("COMMIT")
    assert await cluster.declare_dead(silent, TTL)
    assert await _state(eyes, silent) == (3, "dead")
    assert await cluster.take_over(heir, 1, [3]) == [3]


async def test_takeover_follows_once_the_server_ends_open_transactions(
    dial: Dial,
    eyes: asyncpg.Connection,
    node: Callable[[], Awaitable[MemberNode]],
) -> None:
    silent = await silent_node(eyes)
    await stand_still(dial, silent)
    living = [await node(), await node(), await node()]
    ids = {one.state.node_id for one in living}
    longest = 0.0

    async def taken() -> bool:
        nonlocal longest
        members = await ClusterStore(eyes).members()
        longest = max([longest, *(m.silent for m in members if m.id in ids)])
        return sum(one.share for one in living) == PARTITIONS

    await eventually(taken, within=IDLE + 5, what="the partitions of the silent one are taken")
    assert longest < TTL
    assert [one.times_fenced for one in living] == [0.0] * 3
    assert (await _state(eyes, silent))[1] == "dead"


async def test_a_waiting_handover_delays_no_heartbeat(
    dial: Dial, eyes: asyncpg.Connection, node: Callable[[], Awaitable[MemberNode]]
) -> None:
    """It waits for what the giver has in flight, longer than a node may be silent."""
    giver = await node()
    await eventually(_has(giver, PARTITIONS), within=5, what="a node alone has everything")
    frozen = await stand_still(dial, giver.state.node_id, giver.state.epoch)
    newcomer = await node()
    ids = {giver.state.node_id, newcomer.state.node_id}
    beats: dict[UUID, set[float]] = {node_id: set() for node_id in ids}
    longest = 0.0

    async def many_beats() -> bool:
        nonlocal longest
        for member in await ClusterStore(eyes).members():
            longest = max(longest, member.silent)
        for row in await eyes.fetch("SELECT id, heartbeat_at FROM nodes"):
            beats[row["id"]].add(row["heartbeat_at"].timestamp())
        return all(max(seen) - min(seen) > 2 * TTL for seen in beats.values())

    await eventually(many_beats, within=IDLE + 5, what="both have beaten for long")
    assert await eyes.fetchval(_IS_OPEN, frozen.get_server_pid()) == 1
    assert longest < TTL
    await frozen.execute("COMMIT")

    await eventually(lambda: _share(giver, newcomer), within=5, what="they share")
    assert (giver.times_fenced, newcomer.times_fenced) == (0.0, 0.0)
    assert {giver.state.node_id, newcomer.state.node_id} == ids


class _DelayedHandover:
    """A connection that keeps the answer to a handover back until a later heartbeat was answered,
    on whichever connection that is sent."""

    def __init__(self, connection: asyncpg.Connection, refused: asyncio.Event) -> None:
        self._connection = connection
        self._refused = refused
        self.is_closed, self.terminate = connection.is_closed, connection.terminate

    async def fetch(self, sql: str, *args: object) -> list[asyncpg.Record]:
        rows = await self._connection.fetch(sql, *args)
        if sql == SQL["beat"].sql and not rows:
            self._refused.set()
        return rows

    async def fetchval(self, sql: str, *args: object) -> object:
        answer: object = await self._connection.fetchval(sql, *args)
        if sql == SQL["hand_over"].sql:
            await self._refused.wait()
        return answer


async def test_a_nodes_own_handover_does_not_look_like_its_death(
    dial: Dial, node: Callable[[], Awaitable[MemberNode]]
) -> None:
    refused = asyncio.Event()

    async def delayed() -> asyncpg.Connection:
        return cast(asyncpg.Connection, _DelayedHandover(await dial(), refused))

    giver = MemberNode(delayed)
    await giver.start()
    try:
        await eventually(_has(giver, PARTITIONS), within=5, what="a node alone has everything")
        before = giver.state.node_id
        newcomer = await node()
        await asyncio.wait_for(refused.wait(), 5)
        await eventually(lambda: _share(giver, newcomer), within=5, what="they share")

        async def is_over() -> bool:
            return bool(giver.state.epoch > 1 or giver.times_fenced)

        await eventually(is_over, within=5, what="the handover was answered")
        assert (giver.state.node_id, giver.times_fenced) == (before, 0.0)
    finally:
        await giver.stop()


@pytest.mark.parametrize("prepared", [True, False], ids=["direct", "as behind a pooler"])
async def test_the_server_ends_an_idle_transaction(
    database_url: str, eyes: asyncpg.Connection, prepared: bool
) -> None:
    options = DatabaseOptions(database_url, connections=1, idle_timeout=0.2, prepared=prepared)
    database = Database(options)
    await database.open()

    async def work(connection: asyncpg.Connection) -> None:
        pid = await connection.fetchval("SELECT pg_backend_pid()")
        await eventually(
            lambda: _is_gone(eyes, pid), within=5, what="the server has ended the transaction"
        )
        await connection.fetchval("SELECT 1")

    with pytest.raises(StoreUnavailable):
        await database.transact(work)
    assert await database.fetch_row("SELECT 1 AS works") is not None, "the pool goes on"
    await database.close()


async def test_the_server_ends_the_statement_of_a_frozen_client(
    dial: Dial,
) -> None:
    """Who is frozen cannot send that it has given up."""
    waiting = await dial()
    with pytest.raises(CONNECTION_LOST):
        await waiting.execute("SELECT pg_sleep(60)", timeout=60)


async def _share(giver: MemberNode, newcomer: MemberNode) -> bool:
    return giver.share + newcomer.share == PARTITIONS and newcomer.share > 0


async def _state(eyes: asyncpg.Connection, node_id: UUID) -> tuple[int, str]:
    row = await eyes.fetchrow("SELECT epoch, state FROM nodes WHERE id = $1", node_id)
    assert row is not None
    return row["epoch"], row["state"]


def _has(living: MemberNode, share: int) -> Callable[[], Awaitable[bool]]:
    async def has() -> bool:
        return living.share == share

    return has


async def _is_gone(eyes: asyncpg.Connection, pid: int) -> bool:
    return not await eyes.fetchval(_IS_OPEN, pid)
