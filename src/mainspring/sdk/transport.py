"""The two ways to the API: one that suspends, and one that blocks. Connections are kept and reused.

No redirect is ever followed: a key is for the address the user named, and for no other.
"""

import asyncio
import contextlib
import socket
import ssl
import time
from typing import Protocol

from mainspring.clock import monotonic
from mainspring.errors import ConfigError, Distrusted, Unreachable
from mainspring.sdk.proxy import Opening, Proxy
from mainspring.sdk.wire import Answer, Origin, Request, Response, encoded

_CHUNK = 2**18
_MOST_IDLE = 16


class Transport(Protocol):
    """Sends a request and gives its answer, or raises Unreachable."""

    blocking: bool

    async def send(self, request: Request, within: float) -> Response: ...

    async def sleep(self, seconds: float) -> None: ...

    async def close(self) -> None: ...


def tls_context(origin: Origin, ca: str | None) -> ssl.SSLContext | None:
    """How the server's certificate is checked; None for plain HTTP."""
    if not origin.tls:
        return None
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as problem:
        raise ConfigError([f"api_ca: {problem}"]) from problem


def _lost(url: str, problem: Exception) -> Unreachable:
    if isinstance(problem, ssl.SSLCertVerificationError):
        reason = problem.verify_message.rstrip(".")
        return Distrusted(
            f"the certificate of {url} is not trusted: {reason}"
            " (ca= and MAINSPRING_API_CA name the authority to trust)"
        )
    return Unreachable(f"{url} cannot be reached: {problem}")


class AsyncTransport:
    """For event loops. Connections belong to the loop that opened them."""

    blocking = False

    def __init__(self, url: str, ca: str | None = None, proxy: str | None = None) -> None:
        self._url = url
        self._origin = Origin.of(url)
        self._proxy = None if proxy is None else Proxy.of(proxy)
        self._tls = tls_context(self._origin, ca)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def send(self, request: Request, within: float) -> Response:
        data = encoded(self._origin, request)
        try:
            async with asyncio.timeout(within):
                return await self._exchange(data)
        except TimeoutError:
            raise Unreachable(f"{self._url} did not answer within {within:.3g} s") from None
        except (OSError, EOFError) as problem:
            raise _lost(self._url, problem) from problem

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        while self._idle:
            self._idle.pop()[1].close()

    async def _exchange(self, data: bytes) -> Response:
        reader, writer = await self._connection()
        answer = Answer()
        try:
            await self._converse(reader, writer, data, answer)
        except BaseException:
            writer.close()
            raise
        if writer.transport.get_write_buffer_size():
            writer.transport.abort()  # it was answered before it was sent: nobody wants the rest
        elif answer.reusable and len(self._idle) < _MOST_IDLE:
            self._idle.append((reader, writer))
        else:
            writer.close()
        return answer.response()

    async def _converse(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        data: bytes,
        answer: Answer,
    ) -> None:
        # Not drained: who finds it too large answers, and closes, before all of it is sent.
        writer.write(data)
        while not answer.done:
            received = await reader.read(_CHUNK)
            if not received:
                raise EOFError("the connection was closed before the answer was complete")
            answer.feed(received)

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._idle, self._loop = [], loop
        while self._idle:
            reader, writer = self._idle.pop()
            if not (reader.at_eof() or writer.is_closing()):
                return reader, writer
            writer.close()
        if self._proxy is not None:
            return await self._tunnel(self._proxy)
        name = self._origin.host if self._tls else None
        return await asyncio.open_connection(
            self._origin.host, self._origin.port, ssl=self._tls, server_hostname=name, limit=_CHUNK
        )

    async def _tunnel(self, proxy: Proxy) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(proxy.host, proxy.port, limit=_CHUNK)
        try:
            opening = Opening()
            await self._converse(reader, writer, proxy.opening(self._origin), opening)
            opening.check()
            if self._tls is not None:
                await writer.start_tls(self._tls, server_hostname=self._origin.host)
        except BaseException:
            writer.close()
            raise
        return reader, writer


class BlockingTransport:
    """For plain code and threads. Its coroutines never suspend."""

    blocking = True

    def __init__(self, url: str, ca: str | None = None, proxy: str | None = None) -> None:
        self._url = url
        self._origin = Origin.of(url)
        self._proxy = None if proxy is None else Proxy.of(proxy)
        self._tls = tls_context(self._origin, ca)
        self._idle: list[socket.socket] = []

    async def send(self, request: Request, within: float) -> Response:
        data = encoded(self._origin, request)
        deadline = monotonic() + within
        try:
            return self._exchange(data, deadline)
        except TimeoutError:
            raise Unreachable(f"{self._url} did not answer within {within:.3g} s") from None
        except (OSError, EOFError) as problem:
            raise _lost(self._url, problem) from problem

    def connect(self, within: float) -> socket.socket:
        """A connection for who writes and reads by itself."""
        try:
            return self._connection(monotonic() + within)
        except (OSError, EOFError) as problem:
            raise _lost(self._url, problem) from problem

    def encode(self, request: Request) -> bytes:
        return encoded(self._origin, request)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - this face blocks, that is its purpose

    async def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _exchange(self, data: bytes, deadline: float) -> Response:
        connection = self._connection(deadline)
        answer = Answer()
        try:
            self._converse(connection, data, answer, deadline)
        except BaseException:
            connection.close()
            raise
        if answer.reusable and len(self._idle) < _MOST_IDLE:
            self._idle.append(connection)
        else:
            connection.close()
        return answer.response()

    def _converse(
        self, connection: socket.socket, data: bytes, answer: Answer, deadline: float
    ) -> None:
        connection.settimeout(_left(deadline))
        # Who finds it too large answers, and closes, before all of it is sent.
        with contextlib.suppress(ConnectionError):
            connection.sendall(data)
        while not answer.done:
            connection.settimeout(_left(deadline))
            received = connection.recv(_CHUNK)
            if not received:
                raise EOFError("the connection was closed before the answer was complete")
            answer.feed(received)

    def _connection(self, deadline: float) -> socket.socket:
        while self._idle:
            with contextlib.suppress(IndexError):  # another thread may have been quicker
                kept = self._idle.pop()
                if _is_open(kept):
                    return kept
                kept.close()
        first = self._proxy or self._origin
        plain = socket.create_connection((first.host, first.port), timeout=_left(deadline))
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._proxy is not None:
                opening = Opening()
                self._converse(plain, self._proxy.opening(self._origin), opening, deadline)
                opening.check()
            if self._tls is None:
                return plain
            plain.settimeout(_left(deadline))
            return self._tls.wrap_socket(plain, server_hostname=self._origin.host)
        except BaseException:
            plain.close()
            raise


def _left(deadline: float) -> float:
    left = deadline - monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _is_open(kept: socket.socket) -> bool:
    """A kept connection has nothing to read; if it has, it was closed by the other side."""
    kept.settimeout(0)
    try:
        kept.recv(1)
    except (BlockingIOError, ssl.SSLWantReadError):
        return True
    except OSError:
        return False
    return False
