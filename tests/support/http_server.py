"""An HTTP server, and connections to it over real sockets, byte by byte."""

import asyncio
import socket
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import msgspec
from starlette.types import ASGIApp

from mainspring.api.http.connection import ConnectionLimits, HttpConfig
from mainspring.api.http.fast_path import CompileFastPath
from mainspring.api.http.server import HttpServer
from mainspring.observe.metrics import Metrics

LIMITS = ConnectionLimits(connections=100, headers=20, head=4096, timeout=30)
SOON = 10.0


@dataclass
class HttpConnection:
    """One connection."""

    reader: StreamReader
    writer: StreamWriter

    def send(self, text: bytes) -> None:
        self.writer.write(text)

    async def read_response(self, within: float = SOON) -> tuple[int, dict[str, str], bytes]:
        """One whole answer, after a `100 Continue` if there is one."""
        async with asyncio.timeout(within):
            head = "HTTP/1.1 100"
            while head.startswith("HTTP/1.1 100"):
                head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
            status, *lines = head.strip().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in lines)
            body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return int(status.split()[1]), headers, body

    async def read_to_end(self) -> bytes:
        """Read until the server closes the connection."""
        async with asyncio.timeout(SOON):
            with suppress(ConnectionError):
                return await self.reader.read()
            return b""

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()

    async def send_slowly(self, text: bytes) -> None:
        """Send a text again and again until the connection is closed."""
        with suppress(ConnectionError):
            while not self.writer.is_closing():
                self.send(text)
                await self.writer.drain()
                await asyncio.sleep(0.02)

    async def read_refusal(self, status: int, code: str) -> dict[str, str]:
        """Read the problem that the server sends before it closes the connection."""
        found, headers, body = await self.read_response()
        assert found == status, body
        assert headers["content-type"] == "application/problem+json"
        assert headers["connection"] == "close"
        assert msgspec.json.decode(body)["type"] == f"urn:mainspring:problem:{code}"
        assert await self.read_to_end() == b""
        return headers


@dataclass
class HttpListener:
    """A server that listens; its connections are closed at the end."""

    server: HttpServer
    port: int
    connections: list[HttpConnection] = field(default_factory=list)

    async def connect(self) -> HttpConnection:
        connection = HttpConnection(*await asyncio.open_connection("127.0.0.1", self.port))
        self.connections.append(connection)
        return connection


@asynccontextmanager
async def open_http_server(
    app: ASGIApp,
    *,
    limits: ConnectionLimits = LIMITS,
    metrics: Metrics | None = None,
    keep_alive: float = 75,
    fast_path: CompileFastPath | None = None,
) -> AsyncIterator[HttpListener]:
    listening = socket.create_server(("127.0.0.1", 0))
    config = HttpConfig(
        app, limits, metrics or Metrics(), keep_alive=keep_alive, fast_path=fast_path
    )
    server = HttpServer(config)
    await server.open(listening)
    listener = HttpListener(server, listening.getsockname()[1])
    try:
        yield listener
    finally:
        for connection in listener.connections:
            await connection.close()
        await server.close()
