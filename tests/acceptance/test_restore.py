"""The database is set back, by a restore or a failover to a replica that lagged behind: no fence is
issued twice, no report from before is taken for another's, and all that is there is run.

RESTORE_RUNS=10 runs each of them so often.
"""

import asyncio
import os
import socket
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import pytest

from mainspring.postgres.migrate import migrate
from mainspring.sdk.resources.tasks import Task
from support import worker_app
from support.client import Client, Unacknowledged
from support.cluster import Cluster, Node, Tenant
from support.receivers import Received, Receiver, answer, receiver
from support.restoring import (
    ReplicatedServer,
    RestorableServer,
    SetBackServer,
    set_back_server,
)
from support.sdk_workers import Workers
from support.waiting import eventually
from support.workers import Json, RawWorker, work

RUNS = int(os.environ.get("RESTORE_RUNS", "1"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.parametrize("run", range(RUNS)),
]

KEY = "one-at-a-time"
SETTINGS = {"egress_allow": "127.0.0.0/8", "worker_lease": 5}
QUICK_ASKS = 15.0
"""Requests for leases that a worker may make in a second: it has two pollers for each node."""


@dataclass
class RestorableCluster:
    """Nodes, workers of the SDK, a receiver of webhooks, and a database that can be set back."""

    server: SetBackServer
    cluster: Cluster
    tenant: Tenant
    nodes: list[Node]
    workers: Workers
    hooks: Receiver
    directory: Path
    fences: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Of each task the fences of its webhooks, in the order of their arrival."""

    @property
    def client(self) -> Client:
        return self.nodes[0].client(self.tenant)

    def raw(self, name: str) -> RawWorker:
        return RawWorker(self.client, name)

    async def chain(self, count: int, seconds: float) -> list[Task]:
        """Tasks for workers of which one may run at a time."""
        limit = {"concurrency": {"key": KEY, "limit": 1}}
        return [await self.workers.send(worker_app.nap, seconds, **limit) for _ in range(count)]

    async def hooks_for(self, count: int, delay: float) -> list[UUID]:
        target = {"type": "http", "url": self.hooks.url()}
        return await self.client.batch([{"target": target, "delay": delay}] * count)

    async def started(self, tasks: list[Task]) -> None:
        for task in tasks:
            await self.workers.until(task, "begin")

    async def leased(self, worker: RawWorker, within: float = 30.0) -> Json:
        """The next task that a worker gets; the nodes may be busy finding themselves."""
        deadline = asyncio.get_running_loop().time() + within
        while asyncio.get_running_loop().time() < deadline:
            try:
                tasks = await worker.lease(most=1, wait=1)
            except (AssertionError, Unacknowledged):
                await asyncio.sleep(0.1)
                continue
            if tasks:
                return tasks[0]
        raise AssertionError(f"nothing was leased within {within:g} s")

    async def leases_anew(self, contested: str, old: RawWorker, lost: Json) -> None:
        """A lease that a restore undid is fenced: another worker has the task, and reports it."""
        again = await self.leased(self.raw("after"))
        assert again["id"] == contested
        assert again["fence"] > lost["fence"]
        for status in ("failed", "released", "succeeded"):
            assert await old.report(lost, status=status) == ["fenced"]
        assert await self.raw("after").report(again) == ["accepted"]

    async def asks(self) -> float:
        """How often nodes were asked for leases since they began."""
        name = 'http_requests_total{method="POST",route="/v1/leases"'
        return sum([await self.cluster.metric(node, name) for node in self.nodes])

    async def is_sound(self, ids: list[UUID]) -> None:
        """What the restored database holds ends within 30 s, once and one at a time."""
        await self.cluster.evidence.all_finished(ids, within=30)
        assert await self.cluster.evidence.value("SELECT count(*) FROM dead_letters") == 0
        assert await self.cluster.evidence.overlaps(KEY) == []
        await self.cluster.evidence.sound(ids)
        for task, fences in self.fences.items():
            assert fences == sorted(set(fences)), f"{task} was called with fences {fences}"
        assert all(process.alive for process in self.workers.processes)


@asynccontextmanager
async def restorable_cluster(
    directory: Path, kind: type[RestorableServer] | type[ReplicatedServer] = RestorableServer
) -> AsyncIterator[RestorableCluster]:
    fences: dict[str, list[int]] = defaultdict(list)

    async def note(request: Received, writer: asyncio.StreamWriter) -> None:
        task, fence = request.headers["webhook-id"], request.headers["x-mainspring-fence"]
        fences[task].append(int(fence))
        # The first call of each is refused: so there are executions on both sides of the restore.
        writer.write(answer(200 if len(fences[task]) > 1 else 503))

    with set_back_server(kind) as server:
        url = await server.start()
        await migrate(url)
        async with receiver(note) as hooks, Cluster(url, directory) as cluster:
            tenant = await cluster.tenant()
            ports = [free_port(), free_port()]
            nodes = [cluster.spawn(port=port, **SETTINGS) for port in ports]
            for node in nodes:
                await node.ready()
            await cluster.balanced(*nodes)
            workers = Workers(nodes[0], tenant, directory)
            try:
                yield RestorableCluster(
                    server, cluster, tenant, nodes, workers, hooks, directory, fences
                )
            finally:
                await workers.close()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@pytest.mark.parametrize(
    ("kind", "seconds"),
    [(RestorableServer, 0.9), (RestorableServer, 10.0), (ReplicatedServer, 3.0)],
    ids=["restored by 0.9 s", "restored by 10 s", "failed over to a replica that lags by 3 s"],
)
async def test_a_database_set_back_under_running_nodes(
    tmp_path: Path,
    kind: type[RestorableServer] | type[ReplicatedServer],
    seconds: float,
    run: int,
) -> None:
    async with restorable_cluster(tmp_path, kind) as restorable:
        for name in ("ann", "bob"):
            await restorable.workers.start("--name", name, "--concurrency", "20")
        held = [await restorable.workers.send(worker_app.nap, 6.0) for _ in range(6)]
        chain = await restorable.chain(5, 0.6)
        waiting = [await restorable.workers.send(worker_app.nap, 0.1, delay=0.5) for _ in range(20)]
        hooks = await restorable.hooks_for(10, 0.3)
        [contested] = [str(i) for i in await restorable.client.batch([work()])]
        await restorable.started([*held, chain[0]])
        backup = await restorable.server.back_up()
        # All of this will not have been.
        old = restorable.raw("before")
        [lost] = [task for task in await old.lease(most=1) if task["id"] == contested]
        made = [await restorable.workers.send(worker_app.nap, 0.1) for _ in range(5)]
        await restorable.started(made)
        await asyncio.sleep(seconds)
        await restorable.server.set_back(backup)
        asked, since = await asks_when_ready(restorable), asyncio.get_running_loop().time()
        await restorable.leases_anew(contested, old, lost)
        ids = [task.id for task in [*held, *chain, *waiting]] + hooks + [UUID(contested)]
        await restorable.is_sound(ids)
        rate = (await restorable.asks() - asked) / (asyncio.get_running_loop().time() - since) / 2
        assert rate < QUICK_ASKS, f"{rate:.0f} requests for leases a second and worker"


async def asks_when_ready(restorable: RestorableCluster) -> float:
    async def ready() -> bool:
        return all([await node.is_ready() for node in restorable.nodes])

    await eventually(ready, within=15, what="the nodes are ready again")
    return await restorable.asks()


async def test_a_database_restored_while_nodes_are_stopped(tmp_path: Path, run: int) -> None:
    """Workers are left running, and one of them holds tasks."""
    async with restorable_cluster(tmp_path) as restorable:
        await restorable.workers.start("--name", "ann", "--concurrency", "20")
        chain = await restorable.chain(4, 0.6)
        waiting = [await restorable.workers.send(worker_app.nap, 0.1, delay=0.5) for _ in range(20)]
        hooks = await restorable.hooks_for(10, 0.3)
        [contested] = [str(i) for i in await restorable.client.batch([work()])]
        await restorable.started([chain[0]])
        backup = await restorable.server.back_up()
        old = restorable.raw("before")
        [lost] = [task for task in await old.lease(most=1) if task["id"] == contested]
        long = [await restorable.workers.send(worker_app.nap, 20.0) for _ in range(3)]
        await restorable.started([*waiting, *chain, *long])
        ports = [int(node.url.rsplit(":", 1)[1]) for node in restorable.nodes]
        for node in restorable.nodes:
            node.kill()
        await restorable.server.set_back(backup)
        restorable.nodes[:] = [restorable.cluster.spawn(port=port, **SETTINGS) for port in ports]
        for node in restorable.nodes:
            await node.ready()
        asked, since = await restorable.asks(), asyncio.get_running_loop().time()
        old.client = restorable.client
        await restorable.leases_anew(contested, old, lost)
        ids = [task.id for task in [*chain, *waiting]] + hooks + [UUID(contested)]
        await restorable.is_sound(ids)
        rate = (await restorable.asks() - asked) / (asyncio.get_running_loop().time() - since)
        assert rate < QUICK_ASKS, f"{rate:.0f} requests for leases a second and worker"
