"""Receivers of webhooks that behave as tests want them to, down to the bytes."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class Received:
    """One request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    raw_head: bytes


Script = Callable[[Received, asyncio.StreamWriter], Awaitable[None]]


@dataclass(slots=True)
class Receiver:
    """A server on loopback; `requests` holds what it was sent."""

    port: int = 0
    requests: list[Received] = field(default_factory=list)
    connections: int = 0
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def url(self, path: str = "/hook") -> str:
        return f"http://127.0.0.1:{self.port}{path}"


def answer(status: int = 200, body: bytes = b'{"ok":true}', **headers: str) -> bytes:
    """A whole HTTP/1.1 answer."""
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def answering(data: bytes) -> Script:
    """A script that gives the same answer to everybody."""

    async def script(_request: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(data)

    return script


@asynccontextmanager
async def receiver(
    script: Script, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> AsyncIterator[Receiver]:
    """A receiver that runs the script for every request; a script may never return."""
    state = Receiver()
    open_now: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        open_now.add(task)
        state.connections += 1
        try:
            while (request := await _read(reader)) is not None:
                state.requests.append(request)
                state.arrived.set()
                await script(request, writer)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            open_now.discard(task)
            writer.close()

    server = await asyncio.start_server(serve, host, 0, limit=2**20, backlog=1024, ssl=tls)
    state.port = server.sockets[0].getsockname()[1]
    try:
        yield state
    finally:
        server.close()
        for task in list(open_now):
            task.cancel()
        await asyncio.gather(*open_now, return_exceptions=True)


async def _read(reader: asyncio.StreamReader) -> Received | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    method, path, _ = first.split(" ", 2)
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Received(method, path, headers, body, head)
