"""Workers that speak the protocol by hand, and nodes in this process for them to speak to."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self
from uuid import uuid4

import aiohttp

from mainspring.config import Config
from mainspring.store.keys import NewKey
from mainspring.wiring.server import Server
from support.client import Client, Unacknowledged
from support.cluster import Node, Tenant
from support.waiting import eventually

KEY = "work:all"
Json = dict[str, Any]


def work(name: str = "work", **fields: Any) -> Json:
    """A task for a worker."""
    return {"target": {"type": "handler", "name": name}, **fields}


@dataclass
class RawWorker:
    """A worker of one handler, which does what the test says."""

    client: Client
    name: str = "w1"
    handlers: Iterable[str] = ("work",)
    incarnation: str = field(default_factory=lambda: uuid4().hex)
    offers: Json = field(default_factory=dict)

    def restarted(self) -> "RawWorker":
        """The same worker in another process."""
        return RawWorker(self.client, self.name, self.handlers, offers=self.offers)

    async def lease(self, most: int = 10, wait: float = 5.0, **more: Any) -> list[Json]:
        body = {**self._name, "handlers": list(self.handlers), "max": most, "wait": wait}
        answer = await self.client.post("/v1/leases", {**body, **self.offers, **more})
        assert answer.status == 200, answer.body
        tasks: list[Json] = answer.json()["tasks"]
        return tasks

    async def beat(self, *tasks: Json, progress: object = None, **more: Any) -> list[Json]:
        held = [{"id": t["id"], "fence": t["fence"], "progress": progress, **more} for t in tasks]
        answer = await self.client.post("/v1/leases/heartbeat", {**self._name, "running": held})
        assert answer.status == 200, answer.body
        pulses: list[Json] = answer.json()["tasks"]
        return pulses

    async def report(self, *tasks: Json, status: str = "succeeded", **more: Any) -> list[str]:
        outcomes = [{"id": t["id"], "fence": t["fence"], "status": status, **more} for t in tasks]
        answer = await self.client.post("/v1/leases/report", {"outcomes": outcomes})
        assert answer.status == 200, answer.body
        return [outcome["status"] for outcome in answer.json()["outcomes"]]

    @property
    def _name(self) -> Json:
        return {"worker": self.name, "incarnation": self.incarnation}


class PollingWorkers:
    """Workers that poll nodes until those are dead, send a heartbeat, and report what they got."""

    def __init__(self, tenant: Tenant) -> None:
        self._tenant = tenant
        self._loops: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_problem: object) -> None:
        for loop in self._loops:
            loop.cancel()
        await asyncio.wait(self._loops)

    def serve(self, node: Node) -> None:
        self._loops.append(asyncio.create_task(self._serve(node)))

    async def _serve(self, node: Node) -> None:
        worker = RawWorker(node.client(self._tenant), f"worker-{node.name}")
        while node.alive:
            try:
                tasks = await worker.lease(most=5, wait=0.3)
                if tasks:
                    await worker.beat(*tasks)
                    await worker.report(*tasks)
            except (Unacknowledged, AssertionError):
                await asyncio.sleep(0.05)


@dataclass
class LocalNode:
    """A node in this process, and a client of its tenant."""

    server: Server
    client: Client
    session: aiohttp.ClientSession

    def worker(self, name: str = "w1", **more: Any) -> RawWorker:
        return RawWorker(self.client, name, **more)

    async def create(self, name: str = "work", **fields: Any) -> str:
        return str(await self.client.create(work(name, **fields)))

    async def task(self, task_id: str) -> Json:
        task: Json = (await self.client.get(f"/v1/tasks/{task_id}")).json()
        return task

    async def until(self, task_id: str, *states: str, within: float = 10.0) -> Json:
        async def found() -> Json | None:
            task = await self.task(task_id)
            return task if task["state"] in states else None

        task: Json | None = await eventually(found, within=within, what=f"the task is {states}")
        assert task is not None
        return task

    def polled_by(self, workers: int) -> Callable[[], Awaitable[bool]]:
        async def waiting() -> bool:
            gauge = self.server.metrics.registry.get_sample_value("mainspring_polls_waiting")
            return gauge == workers

        return waiting

    async def executions(self, task_id: str) -> list[Json]:
        answer = await self.client.get(f"/v1/tasks/{task_id}/executions")
        executions: list[Json] = answer.json()["items"]
        return executions


@asynccontextmanager
async def open_local_node(database_url: str, **settings: Any) -> AsyncIterator[LocalNode]:
    quick = {"heartbeat": 0.2, "node_ttl": 1.0, "grace": 1.0}
    config = Config(database_url=database_url, port=0, **{**quick, **settings})
    server = Server(config)
    await server.start()
    tenant = await server.keys.ensure_tenant("workshop")
    scopes = frozenset({"read", "write", "work", "admin"})
    if await server.keys.find(KEY) is None:
        await server.keys.add(NewKey("work-all", KEY, tenant, scopes))
    try:
        async with aiohttp.ClientSession() as session:
            await eventually(_is_ready(server), within=10, what="the node is ready")
            yield LocalNode(server, Client(session, server.url, KEY), session)
    finally:
        await server.stop()


def _is_ready(server: Server) -> Any:
    async def ready() -> bool:
        # A node that says it is ready may be about to take more partitions: wait for some.
        return server.node.ready() and bool(server.node.ownership().partitions)

    return ready
