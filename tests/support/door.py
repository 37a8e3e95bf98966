"""A door with visitors: connections over real sockets, byte by byte."""

import asyncio
import socket
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import msgspec
from starlette.types import ASGIApp

from mainspring.api.http.connection import ConnectionLimits, HttpConfig
from mainspring.api.http.fast_path import FastPathCompiler
from mainspring.api.http.server import HttpServer
from mainspring.observe.metrics import Metrics

LIMITS = ConnectionLimits(connections=100, headers=20, head=4096, timeout=30)
SOON = 10.0


@dataclass
class Visitor:
    """One connection."""

    reader: StreamReader
    writer: StreamWriter

    def say(self, text: bytes) -> None:
        self.writer.write(text)

    async def hear(self, within: float = SOON) -> tuple[int, dict[str, str], bytes]:
        """One whole answer, after a `100 Continue` if there is one."""
        async with asyncio.timeout(within):
            head = "HTTP/1.1 100"
            while head.startswith("HTTP/1.1 100"):
                head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
            status, *lines = head.strip().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in lines)
            body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return int(status.split()[1]), headers, body

    async def hear_the_end(self) -> bytes:
        """All there is to hear until the door is shut."""
        async with asyncio.timeout(SOON):
            with suppress(ConnectionError):
                return await self.reader.read()
            return b""

    async def leave(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()

    async def drip(self, text: bytes) -> None:
        """Send a byte now and then, until the door is shut."""
        with suppress(ConnectionError):
            while not self.writer.is_closing():
                self.say(text)
                await self.writer.drain()
                await asyncio.sleep(0.02)

    async def refusal(self, status: int, code: str) -> dict[str, str]:
        """The problem that is told before the door is shut."""
        found, headers, body = await self.hear()
        assert found == status, body
        assert headers["content-type"] == "application/problem+json"
        assert headers["connection"] == "close"
        assert msgspec.json.decode(body)["type"] == f"urn:mainspring:problem:{code}"
        assert await self.hear_the_end() == b""
        return headers


@dataclass
class Doorway:
    """A server that listens; who visits is shown out at the end."""

    server: HttpServer
    port: int
    visitors: list[Visitor] = field(default_factory=list)

    async def visit(self) -> Visitor:
        visitor = Visitor(*await asyncio.open_connection("127.0.0.1", self.port))
        self.visitors.append(visitor)
        return visitor


@asynccontextmanager
async def opened_door(
    app: ASGIApp,
    *,
    limits: ConnectionLimits = LIMITS,
    metrics: Metrics | None = None,
    keep_alive: float = 75,
    compiler: FastPathCompiler | None = None,
) -> AsyncIterator[Doorway]:
    listening = socket.create_server(("127.0.0.1", 0))
    config = HttpConfig(app, limits, metrics or Metrics(), keep_alive=keep_alive, compiler=compiler)
    server = HttpServer(config)
    await server.open(listening)
    doorway = Doorway(server, listening.getsockname()[1])
    try:
        yield doorway
    finally:
        for visitor in doorway.visitors:
            await visitor.leave()
        await server.close()
