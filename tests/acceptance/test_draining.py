"""A node that stops under load: every connection that it accepted gets its answers."""

import asyncio
import socket
from dataclasses import dataclass, field
from random import Random

import msgspec
import pytest

from support.client import noop, sleep
from support.cluster import Cluster, Node, Tenant
from support.http_server import SOON, HttpConnection
from support.waiting import eventually

CREATE = msgspec.json.encode(noop(delay=3600))
HEALTHZ = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


def create(tenant: Tenant, *more: str) -> bytes:
    lines = (
        "POST /v1/tasks HTTP/1.1",
        "Host: x",
        f"Authorization: Bearer {tenant.key}",
        f"Content-Length: {len(CREATE)}",
        *more,
    )
    return "\r\n".join([*lines, "", ""]).encode() + CREATE


def port_of(node: Node) -> int:
    return int(node.url.rpartition(":")[2])


async def connect(port: int) -> HttpConnection:
    return HttpConnection(*await asyncio.open_connection("127.0.0.1", port))


async def test_answers_of_a_draining_node_end_connections(cluster: Cluster) -> None:
    """On both paths, on connections old and new; one that is idle stays open until it is used."""
    node, tenant = await cluster.start(), await cluster.tenant()
    await node.client(tenant).create(sleep(60))  # it keeps the node draining
    ordinary, fast, idle = [await connect(port_of(node)) for _ in range(3)]
    for _ in range(3):
        ordinary.send(create(tenant, "X-Request-Id: one-off"))
        fast.send(create(tenant))
        idle.send(HEALTHZ)
        for connection in (ordinary, fast, idle):
            assert "connection" not in (await connection.read_response())[1]
    node.terminate()

    async def draining() -> bool:
        return not await node.is_ready()

    await eventually(draining, within=SOON, what="the node drains")
    fast.send(create(tenant))
    ordinary.send(create(tenant, "X-Request-Id: one-off"))
    new = await connect(port_of(node))
    new.send(HEALTHZ)
    idle.send(HEALTHZ * 2)
    for connection, status in ((fast, 201), (ordinary, 201), (new, 200)):
        told, headers, _ = await connection.read_response()
        assert (told, headers["connection"]) == (status, "close")
        assert await connection.read_to_end() == b""
    assert (
        "connection" not in (await idle.read_response())[1]
    )  # another request is there to be answered
    assert (await idle.read_response())[1]["connection"] == "close"
    for connection in (ordinary, fast, idle, new):
        await connection.close()
    assert await node.ended() == 0


@dataclass
class Load:
    """Clients that honour `Connection: close` and repeat nothing."""

    port: int
    tenant: Tenant
    created: int = 0
    refused: int = 0
    broken: list[str] = field(default_factory=list)
    over: bool = False

    async def run(self, number: int) -> None:
        rng = Random(number)
        while not self.over:
            try:
                connection = await connect(self.port)
            except OSError:
                self.refused += 1
                await asyncio.sleep(0.02)
                continue
            try:
                await self._use(connection, rng, number)
            except (OSError, EOFError) as problem:
                self.broken.append(f"client {number}: {problem!r}")
            await connection.close()

    async def _use(self, connection: HttpConnection, rng: Random, number: int) -> None:
        headers: dict[str, str] = {}
        while headers.get("connection") != "close" and not self.over:
            await asyncio.sleep(rng.random() * 0.02 * (number % 3))
            once = ["Connection: close"] if number % 4 == 0 else []
            connection.send(create(self.tenant, *once))
            status, headers, body = await connection.read_response()
            assert status == 201, body
            self.created += 1


async def restarted(cluster: Cluster, load: Load) -> None:
    """A node that serves the load and is stopped while it does."""
    node, before = await cluster.start(port=load.port), load.created

    async def busy() -> bool:
        return load.created > before + 300

    await eventually(busy, within=30, what="creates are answered")
    node.terminate()
    assert await node.ended() == 0


@pytest.mark.slow
async def test_no_connection_is_reset_over_restarts(cluster: Cluster) -> None:
    """Refused connections are expected while no node runs; a reset or an end in place of an answer
    is not."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    load = Load(port, await cluster.tenant())
    clients = [asyncio.create_task(load.run(number)) for number in range(24)]
    try:
        for _ in range(5):
            await restarted(cluster, load)
    finally:
        load.over = True
        await asyncio.gather(*clients)
    assert load.broken == []
    tasks = await cluster.evidence.rows("SELECT count(*) AS n FROM tasks")
    assert tasks[0]["n"] == load.created
