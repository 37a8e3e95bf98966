"""Every route of the document with every header that it lists, and others that HTTP knows: each
request is answered, long polls included, and a node that answers one goes on answering others."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any
from uuid import UUID

import msgspec
import pytest

from support.cluster import Cluster, Node
from support.http_server import HttpConnection

WAIT = 1
ANSWERED_WITHIN = 20.0
AT_ONCE = 24
METHODS = ("get", "put", "post", "patch", "delete")
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

HEADERS: Mapping[str, Sequence[str]] = {
    "Accept": ("*/*", "text/html", "application/json;q=0.5, */*;q=0"),
    "Accept-Encoding": ("gzip, br",),
    "Connection": ("close", "keep-alive", "Upgrade"),
    "Content-Encoding": ("gzip",),
    "Expect": ("100-continue", "nonsense"),
    "Idempotency-Key": ("{new}", ""),
    "If-Match": ('"1"', "*"),
    "If-Modified-Since": ("Thu, 01 Jan 2026 00:00:00 GMT",),
    "If-None-Match": ('"1"', "*"),
    "Prefer": ("respond-async, wait=5",),
    "Range": ("bytes=0-9",),
    "TE": ("trailers",),
    "Upgrade": ("websocket", "h2c"),
    "X-Request-Id": ("an-id", "not an id"),
    "traceparent": (TRACE, "nonsense"),
    "tracestate": ("a=b",),
}
"""Values for each header; one that the document lists and this does not gets `VALUES`."""

VALUES = ("x", "1")
TOGETHER = {
    "Connection": "Upgrade, close",
    "Expect": "100-continue",
    "Idempotency-Key": "{new}",
    "If-Match": "*",
    "If-None-Match": "*",
    "Prefer": "wait=5",
    "traceparent": TRACE,
}

Headers = Mapping[str, str]


@dataclass(frozen=True)
class Route:
    """One operation, a body that it takes, and the headers that the document lists for it."""

    method: str
    path: str
    body: bytes
    listed: Sequence[str]

    def variants(self) -> Iterator[Headers]:
        """Each header alone, with each of its values, and many at once."""
        yield {}
        for name in {**HEADERS, **dict.fromkeys(self.listed)}:
            for value in HEADERS.get(name, VALUES):
                yield {name: value}
        yield {"Connection": "Upgrade", "Upgrade": "websocket"}
        yield {"Transfer-Encoding": "chunked"}
        yield TOGETHER


def routes_of(document: Mapping[str, Any]) -> Iterator[Route]:
    for path, operations in document["paths"].items():
        for method in METHODS:
            if operation := operations.get(method):
                parameters = [*operations.get("parameters", ()), *operation.get("parameters", ())]
                listed = [p["name"] for p in parameters if p.get("in") == "header"]
                filled = path.replace("{id}", str(UUID(int=7)))
                yield Route(method.upper(), filled, _example(operation), listed)


def _example(operation: Mapping[str, Any]) -> bytes:
    """The first body that the document shows; a poll waits for a second."""
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    examples = [example["value"] for example in content.get("examples", {}).values()]
    if not examples:
        return b""
    body = examples[0]
    return msgspec.json.encode({**body, "wait": WAIT} if "incarnation" in body else body)


@dataclass
class Walk:
    """Requests with a key that may do everything."""

    node: Node
    key: str
    numbers: "count[int]" = field(default_factory=count)
    statuses: dict[str, set[int]] = field(default_factory=dict)

    async def connect(self) -> HttpConnection:
        host, port = self.node.url.removeprefix("http://").split(":")
        return HttpConnection(*await asyncio.open_connection(host, int(port)))

    async def ask(self, route: Route, headers: Headers) -> int:
        """Send one request over a connection of its own; return the status of its answer."""
        connection = await self.connect()
        try:
            connection.send(self._request(route, headers))
            status, _, body = await connection.read_response(ANSWERED_WITHIN)
        except TimeoutError:
            pytest.fail(f"no answer to {route.method} {route.path} with {dict(headers)}")
        finally:
            await connection.close()
        name = f"{route.method} {route.path}"
        assert 200 <= status < 500, (name, headers, status, body)
        self.statuses.setdefault(name, set()).add(status)
        return status

    def _request(self, route: Route, headers: Headers) -> bytes:
        chunked = "Transfer-Encoding" in headers
        lines = [f"{route.method} {route.path} HTTP/1.1", "Host: x"]
        lines.append(f"Authorization: Bearer {self.key}")
        lines += [f"{n}: {v.format(new=next(self.numbers))}" for n, v in headers.items()]
        if not chunked:
            lines.append(f"Content-Length: {len(route.body)}")
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(route.body), route.body) if chunked else route.body
        if chunked and not route.body:
            body = b"0\r\n\r\n"
        return "\r\n".join([*lines, "", ""]).encode() + body

    async def all(self, asked: Sequence[tuple[Route, Headers]]) -> None:
        room = asyncio.Semaphore(AT_ONCE)

        async def one(route: Route, headers: Headers) -> None:
            async with room:
                await self.ask(route, headers)

        async with asyncio.TaskGroup() as group:
            for route, headers in asked:
                group.create_task(one(route, headers))

    async def probe(self, enough: asyncio.Event) -> int:
        """Ask for the health over one connection again and again; return how often."""
        connection, probes = await self.connect(), 0
        try:
            while not enough.is_set():
                connection.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
                status, _, body = await connection.read_response()
                assert status == 200, body
                probes += 1
                await asyncio.sleep(0.01)
        finally:
            await connection.close()
        return probes


@pytest.mark.slow
async def test_every_header_on_every_route_is_answered(cluster: Cluster) -> None:
    node, key = await cluster.start(acquire_timeout=ANSWERED_WITHIN), await cluster.operator()
    answer = await node.client(key).get("/openapi.json")
    routes = list(routes_of(answer.json()))
    polls = [route for route in routes if route.path == "/v1/leases"]
    assert len(routes) > 60
    assert [msgspec.json.decode(poll.body)["wait"] for poll in polls] == [WAIT]
    at_once = [replace(p, body=p.body.replace(b'"wait":1', b'"wait":0')) for p in polls]
    asked = [(route, headers) for route in (*routes, *at_once) for headers in route.variants()]

    walk, enough = Walk(node, key.key), asyncio.Event()
    probing = asyncio.create_task(walk.probe(enough))
    try:
        await walk.all(asked)
    finally:
        enough.set()
    assert await probing > 10
    assert len(walk.statuses) == len(routes)
    assert walk.statuses["POST /v1/leases"] > {200}
    assert "loop.stalled" not in node.output()
    assert "Traceback" not in node.output()
    node.terminate()
    assert await node.ended() == 0
