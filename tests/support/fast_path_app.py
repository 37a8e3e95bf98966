"""An application that can serve on the fast path, and connections to it without sockets."""

import asyncio
from asyncio import AbstractEventLoop, Event, Transport
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from mainspring.api.http.connection import ConnectionLimits, HttpConfig, LimitedHttpProtocol
from mainspring.api.http.fast_path import ResponseSink, ServeFast
from mainspring.api.http.middleware import CYCLE
from mainspring.observe.metrics import Metrics
from support.http_server import LIMITS, SOON

FAST, ORDINARY = "fast", "ordinary"


def post(body: bytes, *more: bytes, path: bytes = b"/", version: bytes = b"1.1") -> bytes:
    lines = [b"POST %b HTTP/%b" % (path, version), b"Host: x", b"Content-Length: %d" % len(body)]
    return b"\r\n".join([*lines, *more, b"", body])


@dataclass
class FastPathApp:
    """An application that answers with the path of a request and its body, at once or when told to.

    Its fast path is `/` alone, and for `/early` it waits for no body.
    """

    served: list[tuple[str, bytes]] = field(default_factory=list)
    declines: set[bytes] = field(default_factory=set)
    closed: bool = False
    answer: bytes = b""
    _held: list[Callable[[], None]] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, _send: Send) -> None:
        if scope["path"] == "/early":
            await scope[CYCLE].answer(self._response(ORDINARY, b"early"))
            return
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body, more = body + message["body"], message["more_body"]
        self.served.append((ORDINARY, body))
        if self.closed:
            opening = Event()
            self._held.append(opening.set)
            await opening.wait()
        await scope[CYCLE].answer(self._response(ORDINARY, body))

    def compile_fast_path(self, scope: Scope) -> ServeFast | None:
        return self._serve if scope["method"] == "POST" and scope["path"] == "/" else None

    def _serve(self, body: bytes, reply: ResponseSink) -> bool:
        if body in self.declines:
            return False
        self.served.append((FAST, body))
        answer = partial(reply.answer_now, self._response(FAST, body))
        if self.closed:
            self._held.append(answer)
        else:
            asyncio.get_running_loop().call_soon(answer)
        return True

    def open(self) -> None:
        """Give all the answers that are held back, and hold back no more."""
        self.closed = False
        while self._held:
            self._held.pop(0)()

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self.served]

    def _response(self, path: str, body: bytes) -> Response:
        return Response(b"%b:%b%b" % (path.encode(), body, self.answer))


class MemoryTransport(Transport):
    """What the server writes to; what is sent while it does not read waits."""

    def __init__(self, config: HttpConfig, state: ServerState, loop: AbstractEventLoop) -> None:
        super().__init__()
        self.protocol = LimitedHttpProtocol(config, state, {}, loop)
        self._loop = loop
        self._inbox: deque[bytes] = deque()
        self._received = self.head = b""
        self._changed = Event()
        self._closing = self._paused = False
        self.protocol.connection_made(self)

    def send(self, *pieces: bytes) -> None:
        self._inbox.extend(pieces)
        self._deliver()

    def hang_up(self) -> None:
        self._closing = True
        self.protocol.connection_lost(None)
        del self.protocol  # as real ones let go of theirs

    async def read_response(self) -> tuple[int, bytes]:
        """The status and the body of the next answer."""
        async with asyncio.timeout(SOON):
            while b"\r\n\r\n" not in self._received:
                assert not self._closing, "it was closed without an answer"
                self._changed.clear()
                await self._changed.wait()
        head, _, rest = self._received.partition(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        length = next(int(line[15:]) for line in lines if line.startswith(b"content-length"))
        self._received, self.head = rest[length:], head
        return int(lines[0].split()[1]), rest[:length]

    async def wait_closed(self) -> float:
        """When it was closed."""
        async with asyncio.timeout(SOON):
            while not self._closing:
                self._changed.clear()
                await self._changed.wait()
        return self._loop.time()

    @property
    def silent(self) -> bool:
        return not self._received

    def _deliver(self) -> None:
        while self._inbox and not self._paused and not self._closing:
            self.protocol.data_received(self._inbox.popleft())

    # What the server calls ----------------------------------------------------------------

    def write(self, data: Any) -> None:
        assert not self._closing, "it is closed"
        self._received += bytes(data)
        self._changed.set()

    def close(self) -> None:
        self._closing = True
        self._changed.set()

    abort = close

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        self._loop.call_soon(self._deliver)

    def get_extra_info(self, _name: str, default: Any = None) -> Any:
        return default


class TransportFactory:
    """Connections to one application."""

    def __init__(self, app: FastPathApp, limits: ConnectionLimits = LIMITS) -> None:
        fast_path = app.compile_fast_path
        self.config = HttpConfig(app, limits, Metrics(), keep_alive=75, fast_path=fast_path)
        self.state = ServerState()
        self.app = app

    def connect(self) -> MemoryTransport:
        return MemoryTransport(self.config, self.state, asyncio.get_running_loop())
