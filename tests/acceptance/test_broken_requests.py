"""Valid requests with garbage behind them, at a real node."""

import asyncio

import msgspec

from support.client import Client, noop
from support.cluster import Cluster, Node, Tenant
from support.http_server import HttpConnection

GARBAGE = b"\x00\x01 garbage\r\n\r\n"
CREATE = msgspec.json.encode(noop(delay=3600))


def create(tenant: Tenant) -> bytes:
    head = (
        "POST /v1/tasks HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {tenant.key}\r\nContent-Length: {len(CREATE)}\r\n\r\n"
    )
    return head.encode() + CREATE


async def connect(node: Node) -> HttpConnection:
    host, port = node.url.removeprefix("http://").split(":")
    return HttpConnection(*await asyncio.open_connection(host, int(port)))


async def test_creates_before_garbage_are_answered(cluster: Cluster) -> None:
    """What is committed is told, in order and without a traceback in the log."""
    node, tenant = await cluster.start(), await cluster.tenant()
    told = 0
    for count in [1, 2, 3] * 7:
        connection = await connect(node)
        for _ in range(count - 1):  # the head is known from the second one on
            connection.send(create(tenant))
            assert (await connection.read_response())[0] == 201
        connection.send(create(tenant) * count + GARBAGE)
        for _ in range(count):
            status, _, body = await connection.read_response()
            assert status == 201, body
        await connection.read_refusal(400, "malformed-request")
        await connection.close()
        told += 2 * count - 1
    assert len(await tasks(node.client(tenant))) == told
    assert "Traceback" not in node.output()


async def tasks(client: Client) -> list[object]:
    answer = await client.get("/v1/tasks?limit=1000")
    return list(answer.json()["items"])
