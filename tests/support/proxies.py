"""A small HTTP proxy that opens tunnels (CONNECT) to names that only it can resolve."""

import asyncio
from asyncio import StreamReader, StreamWriter
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

_HEAD = b"\r\n\r\n"


class TunnelProxy:
    """Tunnels that were asked for are in `asked`; those to unknown names are refused."""

    def __init__(self, routes: Mapping[str, str], login: str | None) -> None:
        self._ports = {authority: urlsplit(url).port for authority, url in routes.items()}
        self._login = login
        self.asked: list[str] = []
        self.port = 0

    @property
    def url(self) -> str:
        login = f"{self._login}@" if self._login else ""
        return f"http://{login}127.0.0.1:{self.port}"

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        with suppress(OSError, EOFError):
            await self._serve(reader, writer)
        writer.close()

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        head = (await reader.readuntil(_HEAD)).decode("latin-1")
        method, authority, _version = head.split("\r\n")[0].split(" ")
        self.asked.append(authority)
        if method != "CONNECT" or authority not in self._ports:
            await _say(writer, "502 Bad Gateway", "Content-Length: 4\r\n", b"what")
        elif not self._knows(head):
            await _say(writer, "407 Proxy Authentication Required", "Content-Length: 0\r\n")
        else:
            there, onward = await asyncio.open_connection("127.0.0.1", self._ports[authority])
            await _say(writer, "200 Connection established", "X-Proxy: ours\r\n")
            async with asyncio.TaskGroup() as both:
                both.create_task(_pass_on(reader, onward))
                both.create_task(_pass_on(there, writer))

    def _knows(self, head: str) -> bool:
        if self._login is None:
            return True
        wanted = b64encode(self._login.encode()).decode()
        return f"Proxy-Authorization: Basic {wanted}" in head.split("\r\n")


async def _say(writer: StreamWriter, status: str, headers: str, body: bytes = b"") -> None:
    writer.write(f"HTTP/1.1 {status}\r\n{headers}\r\n".encode() + body)
    await writer.drain()


async def _pass_on(reader: StreamReader, writer: StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def tunnel_proxy(
    routes: Mapping[str, str], login: str | None = None
) -> AsyncIterator[TunnelProxy]:
    """A proxy that knows where these authorities (`host:port`) are; `login` is `user:password`."""
    proxy = TunnelProxy(routes, login)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
