"""Connections of the SDK: one that still owes a part of its request is not used again."""

import asyncio

from mainspring.sdk.environment import Address
from mainspring.sdk.http1 import Request
from mainspring.sdk.transport import AsyncTransport

REFUSAL = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\n{}"


async def test_an_early_answer_ends_the_connection() -> None:
    connections: list[asyncio.StreamWriter] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer every head, and never read a body."""
        connections.append(writer)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(REFUSAL)

    server = await asyncio.start_server(refuse, "127.0.0.1", 0, limit=2**10)
    port = server.sockets[0].getsockname()[1]
    transport = AsyncTransport(Address(f"http://127.0.0.1:{port}", "key"))
    large = Request("POST", "/", {}, b"x" * 32 * 2**20)
    async with server:
        for turn in (1, 2):
            assert (await transport.send(large, 5.0)).status == 401
            assert len(connections) == turn
        await transport.close()
        for connection in connections:
            connection.transport.abort()
