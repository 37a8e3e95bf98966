"""The door: what a connection may ask of us before anybody looks at what it wants.

The HTTP server has no bounds of its own on headers, on how long a request takes to arrive, or on
how long an answer takes to be taken. Everything here costs next to nothing while a request arrives
in one piece, as nearly all do.
"""

import asyncio
import re
import socket
import ssl
from asyncio import TimerHandle, Transport
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NoReturn, cast
from urllib.parse import unquote

import httptools
import uvicorn
from starlette.types import ASGIApp, Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from mainspring.api.http.cycle import Cycle, closing_bytes
from mainspring.api.http.draining import (
    IDLE_FOR,
    Draining,
    drained,
    has_unread,
    refuse_connections,
)
from mainspring.api.http.fast_path import FastPathCompiler, HeaderCache
from mainspring.api.http.middleware import CYCLE
from mainspring.api.http.problems import answer_to
from mainspring.errors import (
    ConfigError,
    Crowded,
    HeadTooLarge,
    MalformedRequest,
    NotReady,
    RequestError,
    ServerError,
    TooSlow,
)
from mainspring.observe.metrics import Metrics

_OFFER = re.compile(rb"\r\nupgrade:", re.IGNORECASE)
_MAYBE_OFFER = b"pgrade"

_BACKLOG = 2048
"""So many connections wait to be accepted."""

_ACCEPTED_WITHIN = 0.1
"""Seconds in which connections that wait to be accepted are, when the server stops."""

_DRAINED_WITHIN = 5.0
"""Seconds that requests may take to be answered after that."""

_STANDING_ROOM = 256
"""So many connections beyond the limit are told so; more are closed without a word."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What a connection may ask of us."""

    connections: int
    headers: int
    head: int
    patience: float


class HttpConfig(uvicorn.Config):
    """The server's settings, and the door's."""

    def __init__(
        self,
        app: ASGIApp,
        limits: ConnectionLimits,
        metrics: Metrics,
        *,
        keep_alive: float,
        compiler: FastPathCompiler | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(
            app,
            loop="none",
            http=LimitedHttpProtocol,
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=max(1, round(keep_alive)),
            ssl_context_factory=None if tls is None else lambda _config, _default: tls,
        )
        self.limits = limits
        self.metrics = metrics
        self.draining = Draining()
        self.heads = HeaderCache(compiler)


class HttpServer(uvicorn.Server):
    """The server without its own handling of signals: the process stops in our order."""

    def __init__(self, config: HttpConfig) -> None:
        super().__init__(config)
        self._settings = config
        self._opened = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None

    async def open(self, listening: socket.socket) -> None:
        """Serve, from now on, what comes in here."""
        self._serving = asyncio.create_task(self.serve(sockets=[listening]))
        opened = asyncio.create_task(self._opened.wait())
        await asyncio.wait({self._serving, opened}, return_when=asyncio.FIRST_COMPLETED)
        opened.cancel()
        if self._serving.done():
            await self.ended()

    async def ended(self) -> NoReturn:
        """Wait for an end that nobody asked for, and raise."""
        assert self._serving is not None, "the door has not been opened"
        await asyncio.wait({self._serving})
        problem = self._serving.exception()
        reason = f": {problem!r}" if problem else ""
        raise ServerError(f"the API is served no more{reason}") from problem

    def drain(self) -> None:
        """Serve on, and end each connection with its next answer."""
        self._settings.draining.began = True

    async def close(self) -> None:
        """Let requests finish, and serve no more of them."""
        self.drain()
        self.should_exit = True
        if self._serving is not None:
            await asyncio.wait({self._serving})

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._opened.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """In place of the server's own, which resets who connects or asks at this moment."""
        self.drain()
        for listening in sockets or ():
            refuse_connections(listening)
        await asyncio.sleep(_ACCEPTED_WITHIN)
        for server in self.servers:
            server.close()
        for listening in sockets or ():
            listening.close()
        state = self.server_state
        connections = cast("set[LimitedHttpProtocol]", state.connections)
        await drained(connections, state.tasks, _DRAINED_WITHIN)

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()


def listen(host: str, port: int) -> socket.socket:
    """A socket at which the door can open, or a word about why there can be none."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        # Several may bind to a port at which nobody listens: one of them can listen.
        listening.listen(_BACKLOG)
    except OSError as problem:
        listening.close()
        raise ConfigError([f"cannot listen on {host} port {port}: {problem.strerror}"]) from problem
    listening.set_inheritable(False)
    return listening


class LimitedHttpProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(
        self,
        config: HttpConfig,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._draining = config.draining
        self._limits = config.limits
        self._metrics = config.metrics
        self._heads = config.heads
        self._spot: Cycle | None = None
        self._active: Cycle | None = None
        """The request that is being answered, or was last."""
        self._current: Cycle | None = None
        """The request that arrives, if its head is complete."""
        self._crowded = False
        self._in_head = False
        self._in_message = False
        self._begun = 0
        self._head_size = 0
        self._arriving: TimerHandle | None = None
        self._leaving: TimerHandle | None = None
        self._refusal: RequestError | None = None
        self._last_word: RequestError | None = None
        """What is said, before the end, after the answers that are under way."""
        self._resting: TimerHandle | None = None
        self._answered_at = 0.0

    # How a connection begins and ends ----------------------------------------------------------

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._answered_at = self.loop.time()
        beyond = len(self.connections) - self._limits.connections
        self._crowded = beyond > 0
        if beyond > _STANDING_ROOM:
            self._metrics.connections_refused.labels(Crowded.code).inc()
            transport.abort()
        else:
            self._expect_more()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._resting is not None:
            self._resting.cancel()
        self._expect_nothing()
        self._stop_leaving()
        super().connection_lost(exc)
        if self._active is not None and not self._active.response_complete:
            # Others may wait behind it, of whom alone the server's own tells.
            self._active.disconnected = True
            self._active.message_event.set()
        if self._spot is not None:
            # It shall not hold us, who hold it: only the collector would find the two.
            self._spot.disconnected = True
            self._spot.on_response = _nothing
        self._active = self._current = None

    # What arrives ------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._last_word is not None:
            return
        if self._at_rest() and self._serve_on_the_spot(data):
            return
        in_head_before, whole, self._begun = self._in_head, not self._in_message, 0
        if whole and _MAYBE_OFFER in data:
            data, whole = _without_offer(data), False
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            return  # it came in pieces: the request is served, but the parser reads no other
        except httptools.HttpParserError:
            self._refuse(self._refusal or MalformedRequest("this is not a valid HTTP request"))
            return
        if in_head_before and self._in_head:
            self._head_size += len(data)
            if self._head_size > self._limits.head:
                self._refuse(_head_too_large(self._limits))
                return
        if self._in_message:
            self._expect_more()
        elif whole and self._begun == 1 and self.cycle.keep_alive:
            self._heads.note(data, cast("Scope", self.cycle.scope))

    def _at_rest(self) -> bool:
        """Whether nothing is under way on this connection."""
        if self._in_message or self._crowded or self.flow.write_paused:
            return False
        return self.cycle is None or self.cycle.response_complete

    def _serve_on_the_spot(self, data: bytes) -> bool:
        """The short way, without the parser, which finds itself where it was afterwards."""
        known = self._heads.find(data)
        if known is None:
            return False
        serve, body = known
        spot = self._spot or self._new_cycle({"method": "POST"}, keep_alive=True)
        if not serve(body, spot):
            return False
        spot.response_started = spot.response_complete = False
        spot.default_headers = self.server_state.default_headers  # the date among them
        self.cycle = self._spot = self._active = spot
        self._expect_nothing()
        return True

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._current = None
        self._in_head = self._in_message = True
        self._begun += 1
        self._head_size = 0

    def on_headers_complete(self) -> None:
        """Raising here makes the parser stop: nothing of the request reaches the application."""
        self._in_head = False
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if len(self.headers) > self._limits.headers or size > self._limits.head:
            self._refusal = _head_too_large(self._limits)
            raise self._refusal
        if self._crowded:
            self._refusal = Crowded(f"{self._limits.connections} connections are open already")
            raise self._refusal
        if self.parser.should_upgrade() and self._declares_body():
            # The parser would take the body for the other protocol's: it must not come to be taken
            # for the next request.
            self._refusal = MalformedRequest("send a body without offering another protocol")
            raise self._refusal
        version = self.parser.get_http_version()
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts > 1 or (hosts == 0 and version != "1.0"):
            self._refusal = MalformedRequest("a request has one Host header, and only one")
            raise self._refusal
        self._begin(version)

    def _declares_body(self) -> bool:
        return any(
            name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0 \t"))
            for name, value in self.headers
        )

    def _begin(self, version: str) -> None:
        """Serve the request, after those that came before it. As the server's own, with a cycle of
        ours, and without what we do not use: other protocols, a root path, a limit of its own."""
        url = httptools.parse_url(self.url)
        path = url.path.decode("ascii")
        scope = cast("dict[str, Any]", self.scope)
        scope["method"] = self.parser.get_method().decode("ascii")
        scope["http_version"] = version
        scope["path"] = unquote(path) if "%" in path else path
        scope["raw_path"] = url.path
        scope["query_string"] = url.query or b""
        before = self.cycle
        keep_alive = version != "1.0" and self.parser.should_keep_alive()
        cycle = self._new_cycle(self.scope, keep_alive=keep_alive)
        self.cycle = self._current = scope[CYCLE] = cycle
        if before is not None and not before.response_complete:
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, self.app))
        else:
            self._active = cycle
            self._start_asgi_task(cycle, self.app)

    def _new_cycle(self, scope: Any, *, keep_alive: bool) -> Cycle:
        made = Cycle(
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=keep_alive,
            on_response=self.on_response_complete,
        )
        made.draining, made.behind = self._draining, self.pipeline
        return made

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._current = None
        self._in_message = False
        self._expect_nothing()

    # What leaves -------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._leaving is None:
            self._leaving = self.loop.call_later(self._limits.patience, self._never_left)

    def resume_writing(self) -> None:
        self._stop_leaving()
        super().resume_writing()

    def on_response_complete(self) -> None:
        """As the server's own, with one timer for all the rests of a connection, not one each."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        self._answered_at = self.loop.time()
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._active = cast(Cycle, cycle)
            self._start_asgi_task(cycle, app)
        elif self._last_word is not None:
            self._say(self._last_word)
        elif self._resting is None:
            self._rest_for(self.timeout_keep_alive)

    def _rest_for(self, seconds: float) -> None:
        self._resting = self.loop.call_later(seconds, self._rested)

    def _rested(self) -> None:
        left = self._answered_at + self.timeout_keep_alive - self.loop.time()
        if not self._at_rest():
            self._rest_for(self.timeout_keep_alive)
        elif left > 0:
            self._rest_for(left)
        else:
            self.transport.close()

    # Patience ----------------------------------------------------------------------------------

    def _expect_more(self) -> None:
        """A request must arrive whole within this time, however slowly it drips."""
        if self._arriving is None:
            self._arriving = self.loop.call_later(self._limits.patience, self._never_arrived)

    def _expect_nothing(self) -> None:
        if self._arriving is not None:
            self._arriving.cancel()
            self._arriving = None

    def _never_arrived(self) -> None:
        self._arriving = None
        if self._in_message:
            self._refuse(TooSlow(f"it took more than {self._limits.patience:g} s"))
        else:
            self.transport.close()

    def _stop_leaving(self) -> None:
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None

    def _never_left(self) -> None:
        self._leaving = None
        self._metrics.connections_refused.labels("answer-not-taken").inc()
        self.transport.abort()

    def _refuse(self, error: RequestError) -> None:
        """Say why and close, after the answers to the requests that came before."""
        if self.transport.is_closing() or self._last_word is not None:
            return
        self._metrics.connections_refused.labels(error.code).inc()
        if self.pipeline and self.pipeline[0][0] is self._current:
            self.pipeline.popleft()  # it is the one that is refused
        if self._is_answering() and self._active is not self._current:
            self._last_word = error
            self._expect_nothing()
        else:
            self._say(error)

    def _say(self, error: RequestError) -> None:
        """The last word, unless there is half an answer out."""
        if not (self._is_answering() and self._active and self._active.response_started):
            self.transport.write(closing_bytes(answer_to(error, path="*", request_id="none")))
        self.transport.close()

    def _is_answering(self) -> bool:
        return self._active is not None and not self._active.response_complete

    # The end of the server ---------------------------------------------------------------------

    def close_if_idle(self) -> None:
        if self.transport.is_closing():
            return  # its descriptor may be another's by now
        idle = not self._in_message and not self._is_answering()
        lately = self.loop.time() < self._answered_at + IDLE_FOR
        if idle and not lately and not has_unread(self.transport):
            self.transport.close()

    def cut_off(self) -> None:
        if self._in_message or self._is_answering():
            self._current = self._active
            self._refuse(NotReady("this node has stopped; ask another one"))
        else:
            self.transport.abort()


def _without_offer(data: bytes) -> bytes:
    """We know no other protocol. An offer of one shall be a header like any other to the parser,
    which else would read neither the body nor what comes after it."""
    head, end, rest = data.partition(b"\r\n\r\n")
    return _OFFER.sub(b"\r\nx-upgrade:", head) + end + rest


def _nothing() -> None:
    pass


def _head_too_large(limits: ConnectionLimits) -> HeadTooLarge:
    return HeadTooLarge(f"at most {limits.headers} headers, {limits.head} bytes in all")
