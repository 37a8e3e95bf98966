"""The two transports of the SDK, one for event loops and one that blocks. Both reuse connections.

No redirect is ever followed: a key is for the address the user named, and for no other.
"""

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Iterator
from typing import Protocol

from mainspring.clock import monotonic
from mainspring.errors import ConfigError, Distrusted, Unreachable
from mainspring.sdk.environment import Address
from mainspring.sdk.http1 import (
    Origin,
    Proxy,
    Request,
    Response,
    ResponseReader,
    TunnelReader,
    encode_request,
)

_CHUNK = 2**18
_MAX_IDLE = 16
_CUT_OFF = (EOFError, BrokenPipeError, ConnectionResetError, ssl.SSLEOFError)


class Transport(Protocol):
    """Send a request and return the response, or raise Unreachable."""

    blocking: bool

    async def send(self, request: Request, within: float) -> Response: ...

    async def sleep(self, seconds: float) -> None: ...

    async def close(self) -> None: ...


def tls_context(address: Address) -> ssl.SSLContext | None:
    """Return the context of TLS; None for plain HTTP. Raise ConfigError for unusable files."""
    if not Origin.of(address.url).tls:
        return None
    setting = "api_ca"
    try:
        context = ssl.create_default_context(cafile=address.ca)
        if address.client_cert is not None:
            setting = f"client_cert {address.client_cert}"
            if address.client_key is not None:
                setting += f" with client_key {address.client_key}"
            context.load_cert_chain(address.client_cert, address.client_key, _no_password)
    except (OSError, ssl.SSLError) as problem:
        raise ConfigError([f"{setting}: {problem}"]) from problem
    return context


def _no_password() -> str:
    raise ConfigError(["client_key is encrypted: give a key without a password"])


class _HttpTransport:
    """The state of both transports, and what their failures mean."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self.origin = Origin.of(address.url)
        self._proxy = None if address.proxy is None else Proxy.of(address.proxy)
        self._tls = tls_context(address)
        self._answered = False

    @contextlib.contextmanager
    def _failures(self, within: float) -> Iterator[None]:
        """Raise Unreachable for what goes wrong on the way to the server and back."""
        try:
            yield
        except TimeoutError:
            url = self._address.url
            raise Unreachable(f"{url} did not answer within {within:.3g} s") from None
        except (OSError, EOFError) as problem:
            raise self._failed(problem) from problem

    def _failed(self, problem: Exception) -> Unreachable:
        url = self._address.url
        if isinstance(problem, ssl.SSLCertVerificationError):
            reason = problem.verify_message.rstrip(".")
            return Distrusted(
                f"the certificate of {url} is not trusted: {reason}"
                " (ca= and MAINSPRING_API_CA name the authority to trust)"
            )
        said = str(problem) or type(problem).__name__
        return Unreachable(f"{url} cannot be reached: {said}{self._hint(problem)}")

    def _hint(self, problem: Exception) -> str:
        """Return what to look at when TLS fails after our check of the server's certificate. Many
        servers, ours too, just close the connection when they miss the client's."""
        refused = isinstance(problem, ssl.SSLError) and "ALERT" in (problem.reason or "")
        if self._tls is None or self._answered or not (refused or isinstance(problem, _CUT_OFF)):
            return ""
        if self._address.client_cert is None:
            return (
                " (if the server requires a client certificate:"
                " client_cert= and MAINSPRING_CLIENT_CERT name it)"
            )
        return f" (does the server trust the client certificate {self._address.client_cert}?)"


class AsyncTransport(_HttpTransport):
    """For event loops. Connections belong to the loop that opened them."""

    blocking = False

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def send(self, request: Request, within: float) -> Response:
        data = encode_request(self.origin, request)
        with self._failures(within):
            async with asyncio.timeout(within):
                return await self._exchange(data)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        while self._idle:
            self._idle.pop()[1].close()

    async def _exchange(self, data: bytes) -> Response:
        stream, writer = await self._connection()
        reader = ResponseReader()
        try:
            await self._read_response(stream, writer, data, reader)
        except BaseException:
            writer.close()
            raise
        if writer.transport.get_write_buffer_size():
            writer.transport.abort()  # answered before all was sent: drop the rest
        elif reader.reusable and len(self._idle) < _MAX_IDLE:
            self._idle.append((stream, writer))
        else:
            writer.close()
        self._answered = True
        return reader.response()

    async def _read_response(
        self,
        stream: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        data: bytes,
        reader: ResponseReader,
    ) -> None:
        # Not drained: a server that finds it too large answers before all of it is sent.
        writer.write(data)
        while not reader.done:
            reader.feed(await stream.read(_CHUNK))

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._idle, self._loop = [], loop
        while self._idle:
            stream, writer = self._idle.pop()
            if not (stream.at_eof() or writer.is_closing()):
                return stream, writer
            writer.close()
        if self._proxy is not None:
            return await self._tunnel(self._proxy)
        name = self.origin.host if self._tls else None
        return await asyncio.open_connection(
            self.origin.host, self.origin.port, ssl=self._tls, server_hostname=name, limit=_CHUNK
        )

    async def _tunnel(self, proxy: Proxy) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        stream, writer = await asyncio.open_connection(proxy.host, proxy.port, limit=_CHUNK)
        try:
            reader = TunnelReader()
            await self._read_response(stream, writer, proxy.connect_request(self.origin), reader)
            reader.check()
            if self._tls is not None:
                await writer.start_tls(self._tls, server_hostname=self.origin.host)
        except BaseException:
            writer.close()
            raise
        return stream, writer


class BlockingTransport(_HttpTransport):
    """For plain code and threads. Its coroutines never suspend."""

    blocking = True

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self._idle: list[socket.socket] = []

    async def send(self, request: Request, within: float) -> Response:
        data = encode_request(self.origin, request)
        deadline = monotonic() + within
        with self._failures(within):
            return self._exchange(data, deadline)

    def connect(self, within: float) -> socket.socket:
        """Return a connection for a caller that writes and reads by itself."""
        with self._failures(within):
            return self._connection(monotonic() + within)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - it blocks, that is its purpose

    async def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _exchange(self, data: bytes, deadline: float) -> Response:
        connection = self._connection(deadline)
        reader = ResponseReader()
        try:
            self._read_response(connection, data, reader, deadline)
        except BaseException:
            connection.close()
            raise
        if reader.reusable and len(self._idle) < _MAX_IDLE:
            self._idle.append(connection)
        else:
            connection.close()
        self._answered = True
        return reader.response()

    def _read_response(
        self, connection: socket.socket, data: bytes, reader: ResponseReader, deadline: float
    ) -> None:
        connection.settimeout(_left(deadline))
        # A server that finds it too large answers, and closes, before all of it is sent.
        with contextlib.suppress(ConnectionError):
            connection.sendall(data)
        while not reader.done:
            connection.settimeout(_left(deadline))
            reader.feed(connection.recv(_CHUNK))

    def _connection(self, deadline: float) -> socket.socket:
        while self._idle:
            with contextlib.suppress(IndexError):  # another thread took the last one
                kept = self._idle.pop()
                if _is_open(kept):
                    return kept
                kept.close()
        first = self._proxy or self.origin
        plain = socket.create_connection((first.host, first.port), timeout=_left(deadline))
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._proxy is not None:
                reader = TunnelReader()
                request = self._proxy.connect_request(self.origin)
                self._read_response(plain, request, reader, deadline)
                reader.check()
            if self._tls is None:
                return plain
            plain.settimeout(_left(deadline))
            return self._tls.wrap_socket(plain, server_hostname=self.origin.host)
        except BaseException:
            plain.close()
            raise


def _left(deadline: float) -> float:
    left = deadline - monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _is_open(kept: socket.socket) -> bool:
    """Whether a kept connection can be used: one with something to read was closed meanwhile."""
    kept.settimeout(0)
    try:
        kept.recv(1)
    except (BlockingIOError, ssl.SSLWantReadError):
        return True
    except OSError:
        return False
    return False
