"""The database goes away, in every way it can: nodes wait, look again, and lose nothing."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import pytest

from mainspring.errors import StoreUnavailable
from mainspring.postgres.embedded import EmbeddedServer
from mainspring.postgres.migrate import migrate
from support.client import Client, Unacknowledged, fail, noop
from support.cluster import Cluster
from support.lossy_proxy import LossyProxy
from support.traffic import Traffic
from support.waiting import eventually

NODES = 2
CONNECTIONS_PER_NODE = (
    8 + 6 + 3
)  # for the API, for the engine, to beat, to move partitions and to listen
OUR_CONNECTIONS = 2

_TERMINATE = (
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
    " WHERE application_name = 'mainspring' AND datname = current_database()"
)
_CONNECTIONS = (
    "SELECT count(*) FROM pg_stat_activity"
    " WHERE application_name = 'mainspring' AND datname = current_database()"
)


@pytest.fixture
def own_server() -> Iterator[EmbeddedServer]:
    """A PostgreSQL that this test may restart."""
    with tempfile.TemporaryDirectory(prefix="mainspring-tests-") as directory:
        Path(directory).chmod(0o711)
        server = EmbeddedServer(Path(directory, "data"), settings={"shared_buffers": "64MB"})
        yield server
        server.stop()


@pytest.mark.slow
async def test_postgres_crashes_and_nobody_needs_a_restart(
    own_server: EmbeddedServer, tmp_path: Path
) -> None:
    url = await asyncio.to_thread(own_server.start)
    await migrate(url)
    async with Cluster(url, tmp_path) as cluster:
        tenant = await cluster.tenant()
        nodes = await cluster.pair()
        clients = [node.client(tenant) for node in nodes]
        async with flowing(clients) as traffic:
            for _ in range(2):
                await eventually(lambda: more_than(traffic, 100), within=10, what="traffic flows")
                await asyncio.to_thread(own_server.restart, "immediate")
                await eventually(lambda: takes_tasks(clients), within=10, what="tasks are taken")
        await traffic.send_again(clients[0])
        traffic.acknowledged.update(await clients[1].batch([noop()] * 1000))
        await cluster.evidence.all_finished(traffic.acknowledged, within=20)
        await cluster.evidence.sound(traffic.acknowledged)
        assert all(node.alive for node in nodes)


@pytest.mark.slow
async def test_backends_terminated_every_second(cluster: Cluster) -> None:
    tenant = await cluster.tenant()
    nodes = await cluster.pair()
    clients = [node.client(tenant) for node in nodes]
    killer = await asyncpg.connect(cluster.database_url)
    async with flowing(clients) as traffic:
        for _ in range(10):
            await killer.fetchval(_TERMINATE)
            await asyncio.sleep(1.0)
    await eventually(lambda: takes_tasks(clients), within=10, what="tasks are taken")
    await traffic.send_again(clients[0])
    await cluster.evidence.all_finished(traffic.acknowledged, within=20)
    await cluster.evidence.sound(traffic.acknowledged)
    left = await killer.fetchval(_CONNECTIONS)
    await killer.close()
    print(f"{len(traffic.acknowledged)} tasks acknowledged, {left} connections afterwards")
    assert left <= NODES * CONNECTIONS_PER_NODE + OUR_CONNECTIONS


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        ("create", "INSERT INTO tasks"),
        ("claim", "SET state = 'running'"),
        ("finish", "INSERT INTO task_history"),
        ("retry", "INSERT INTO executions"),
        ("wakes", "DELETE FROM wakes"),
    ],
)
async def test_an_answer_lost_after_commit_is_read_again(
    cluster: Cluster, tmp_path: Path, statement: str, text: str
) -> None:
    """The statement took effect and nobody heard: the outcome is looked up, never assumed."""
    tenant = await cluster.tenant()
    # What is due at once is leased as it is created, and not claimed.
    task = fail(attempts=2) if statement == "retry" else noop(delay=0.2 * (statement == "claim"))
    async with LossyProxy(cluster.database_url, tmp_path) as proxy:
        behind = await cluster.start(database_url=proxy.url, lease=20)
        creator = await cluster.start() if statement == "wakes" else behind
        proxy.lose_answer_to(text)
        task_ids = [await creator.client(tenant).create(task) for _ in range(8)]
        await cluster.evidence.all_finished(task_ids, within=5)
        await cluster.evidence.sound(task_ids)
        assert proxy.lost == 1
        await cluster.evidence.sound(task_ids)
        executions = await cluster.evidence.value("SELECT count(*) FROM executions")
        assert executions == len(task_ids) * (2 if statement == "retry" else 1)


async def test_an_exhausted_pool_is_reported_and_heartbeats_go_on(cluster: Cluster) -> None:
    tenant = await cluster.tenant()
    node = await cluster.start(database_connections=1, acquire_timeout=0.5)
    client = node.client(tenant)
    await client.create(noop())
    blocker = await asyncpg.connect(cluster.database_url)
    transaction = blocker.transaction()
    await transaction.start()
    # A create share-locks its tenant's row: this one waits, and keeps the only connection.
    await blocker.execute("SELECT FROM tenants FOR UPDATE")
    blocked = asyncio.create_task(client.create(noop()))
    await eventually(lambda: waits_for_lock(blocker), within=5, what="a create is blocked")
    asked = asyncio.get_running_loop().time()
    refused = await client.get("/v1/tasks")
    waited = asyncio.get_running_loop().time() - asked
    assert (refused.status, refused.headers.get("Retry-After")) == (503, "1")
    assert waited < 2.0
    assert await cluster.evidence.value(
        "SELECT count(*) FROM nodes WHERE heartbeat_at > clock_timestamp() - interval '0.6 second'"
    )
    await transaction.rollback()
    await blocker.close()
    await cluster.evidence.all_finished([await blocked], within=5)


@asynccontextmanager
async def flowing(clients: list[Client]) -> AsyncIterator[Traffic]:
    """Steady creates for as long as the block lasts."""
    traffic, stop = Traffic(), asyncio.Event()
    flow = asyncio.create_task(traffic.flow(lambda: clients, pause=0.05, stop=stop))
    try:
        yield traffic
    finally:
        stop.set()
        await flow


async def more_than(traffic: Traffic, some: int) -> bool:
    return len(traffic.acknowledged) > some


async def takes_tasks(clients: list[Client]) -> bool:
    try:
        for client in clients:
            await client.create(noop())
    except (Unacknowledged, StoreUnavailable):
        return False
    return True


async def waits_for_lock(connection: asyncpg.Connection) -> bool:
    return bool(
        await connection.fetchval(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
    )
