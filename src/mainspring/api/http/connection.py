"""Connections: what each may ask of the server, and the requests that come over it.

uvicorn has no limits on headers, on how long a request takes to arrive, or on how long an answer
takes to be taken. What is checked here costs next to nothing while a request arrives in one piece,
as nearly all do.
"""

import asyncio
import re
import ssl
from asyncio import TimerHandle, Transport
from typing import Any, NamedTuple, cast
from urllib.parse import unquote

import httptools
import uvicorn
from starlette.types import ASGIApp, Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from mainspring.api.http.draining import IDLE_FOR, Draining, has_unread
from mainspring.api.http.fast_path import CompileFastPath, HeaderCache
from mainspring.api.http.middleware import CYCLE
from mainspring.api.http.problems import answer_to
from mainspring.api.http.request_cycle import Cycle, closing_bytes
from mainspring.errors import (
    Crowded,
    HeadTooLarge,
    MalformedRequest,
    NotReady,
    RequestError,
    TooSlow,
)
from mainspring.observe.metrics import Metrics

_UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)
_MAYBE_UPGRADE = b"pgrade"

_ANSWERED_OVER_LIMIT = 256
"""Maximum connections beyond the limit that get an answer; more are closed without one."""


class ConnectionLimits(NamedTuple):
    """Limits of connections and of the requests on them."""

    connections: int
    """Maximum that are open at a time."""
    headers: int
    """Maximum number in a request."""
    head: int
    """Maximum bytes of the URL and all headers of a request."""
    timeout: float
    """Seconds in which a request must arrive, and an answer must be taken."""


class HttpConfig(uvicorn.Config):
    """Settings of the server, and of its connections."""

    def __init__(
        self,
        app: ASGIApp,
        limits: ConnectionLimits,
        metrics: Metrics,
        *,
        keep_alive: float,
        fast_path: CompileFastPath | None = None,
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
        self.heads = HeaderCache(fast_path)


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
        self._fast_cycle: Cycle | None = None
        self._answered_request: Cycle | None = None
        """The request that is being answered, or was last."""
        self._arriving_request: Cycle | None = None
        """The request that arrives, if its head is complete."""
        self._over_limit = False
        self._in_head = False
        self._in_message = False
        self._messages_begun = 0
        self._head_size = 0
        self._read_timer: TimerHandle | None = None
        self._write_timer: TimerHandle | None = None
        self._refusal: RequestError | None = None
        self._final_error: RequestError | None = None
        """Sent before the end, after the answers that are under way."""
        self._keep_alive_timer: TimerHandle | None = None
        self._answered_at = 0.0

    # Open and close ----------------------------------------------------------------------------

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._answered_at = self.loop.time()
        beyond = len(self.connections) - self._limits.connections
        self._over_limit = beyond > 0
        if beyond > _ANSWERED_OVER_LIMIT:
            self._metrics.connections_refused.labels(Crowded.code).inc()
            transport.abort()
        else:
            self._start_read_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._keep_alive_timer is not None:
            self._keep_alive_timer.cancel()
        self._stop_read_timer()
        self._stop_write_timer()
        super().connection_lost(exc)
        if self._answered_request is not None and not self._answered_request.response_complete:
            # Requests may wait behind it, and uvicorn only looks at the last one.
            self._answered_request.disconnected = True
            self._answered_request.message_event.set()
        if self._fast_cycle is not None:
            # A reference in each direction would leave both to the garbage collector.
            self._fast_cycle.disconnected = True
            self._fast_cycle.on_response = lambda: None
        self._answered_request = self._arriving_request = None

    # Requests ----------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._final_error is not None:
            return
        if self._is_idle() and self._serve_fast(data):
            return
        in_head_before, whole, self._messages_begun = self._in_head, not self._in_message, 0
        if whole and _MAYBE_UPGRADE in data:
            data, whole = _without_upgrade(data), False
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
            self._start_read_timer()
        elif whole and self._messages_begun == 1 and self.cycle.keep_alive:
            self._heads.note(data, cast("Scope", self.cycle.scope))

    def _is_idle(self) -> bool:
        """Whether no request or answer is in progress on this connection."""
        if self._in_message or self._over_limit or self.flow.write_paused:
            return False
        return self.cycle is None or self.cycle.response_complete

    def _serve_fast(self, data: bytes) -> bool:
        """Serve the data on the fast path, which leaves the parser's state unchanged."""
        known = self._heads.find(data)
        if known is None:
            return False
        serve, body = known
        cycle = self._fast_cycle or self._new_cycle({"method": "POST"}, keep_alive=True)
        if not serve(body, cycle):
            return False
        cycle.response_started = cycle.response_complete = False
        cycle.default_headers = self.server_state.default_headers  # the date among them
        self.cycle = self._fast_cycle = self._answered_request = cycle
        self._stop_read_timer()
        return True

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._arriving_request = None
        self._in_head = self._in_message = True
        self._messages_begun += 1
        self._head_size = 0

    def on_headers_complete(self) -> None:
        """Check the head; raising stops the parser before the application sees the request."""
        self._in_head = False
        version = self.parser.get_http_version()
        self._refusal = self._problem_of_head(version)
        if self._refusal is not None:
            raise self._refusal
        self._begin(version)

    def _problem_of_head(self, version: str) -> RequestError | None:
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if len(self.headers) > self._limits.headers or size > self._limits.head:
            return _head_too_large(self._limits)
        if self._over_limit:
            return Crowded(f"{self._limits.connections} connections are open already")
        if self.parser.should_upgrade() and self._declares_body():
            # The parser would take the body for the other protocol's: it must not come to be taken
            # for the next request.
            return MalformedRequest("send a body without offering another protocol")
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts > 1 or (hosts == 0 and version != "1.0"):
            return MalformedRequest("a request has one Host header, and only one")
        return None

    def _declares_body(self) -> bool:
        return any(
            name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0 \t"))
            for name, value in self.headers
        )

    def _begin(self, version: str) -> None:
        """Serve the request after those before it: as uvicorn does, with a cycle of our own, and
        without other protocols, a root path or a limit of requests."""
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
        self.cycle = self._arriving_request = scope[CYCLE] = cycle
        if before is not None and not before.response_complete:
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, self.app))
        else:
            self._answered_request = cycle
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
        self._arriving_request = None
        self._in_message = False
        self._stop_read_timer()

    # Answers -----------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(self._limits.timeout, self._write_timed_out)

    def resume_writing(self) -> None:
        self._stop_write_timer()
        super().resume_writing()

    def on_response_complete(self) -> None:
        """As in uvicorn, with one keep-alive timer for the whole connection."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        self._answered_at = self.loop.time()
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._answered_request = cast(Cycle, cycle)
            self._start_asgi_task(cycle, app)
        elif self._final_error is not None:
            self._answer_and_close(self._final_error)
        elif self._keep_alive_timer is None:
            self._start_keep_alive_timer(self.timeout_keep_alive)

    def _start_keep_alive_timer(self, seconds: float) -> None:
        self._keep_alive_timer = self.loop.call_later(seconds, self._keep_alive_ended)

    def _keep_alive_ended(self) -> None:
        left = self._answered_at + self.timeout_keep_alive - self.loop.time()
        if not self._is_idle():
            self._start_keep_alive_timer(self.timeout_keep_alive)
        elif left > 0:
            self._start_keep_alive_timer(left)
        else:
            self.transport.close()

    # Timeouts ----------------------------------------------------------------------------------

    def _start_read_timer(self) -> None:
        """Limit the time in which a request must arrive whole."""
        if self._read_timer is None:
            self._read_timer = self.loop.call_later(self._limits.timeout, self._read_timed_out)

    def _stop_read_timer(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    def _read_timed_out(self) -> None:
        self._read_timer = None
        if self._in_message:
            self._refuse(TooSlow(f"it took more than {self._limits.timeout:g} s"))
        else:
            self.transport.close()

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _write_timed_out(self) -> None:
        self._write_timer = None
        self._metrics.connections_refused.labels("answer-not-taken").inc()
        self.transport.abort()

    def _refuse(self, error: RequestError) -> None:
        """Answer with the error and close, after the answers to the requests before it."""
        if self.transport.is_closing() or self._final_error is not None:
            return
        self._metrics.connections_refused.labels(error.code).inc()
        if self.pipeline and self.pipeline[0][0] is self._arriving_request:
            self.pipeline.popleft()  # it is the one that is refused
        if self._is_answering() and self._answered_request is not self._arriving_request:
            self._final_error = error
            self._stop_read_timer()
        else:
            self._answer_and_close(error)

    def _answer_and_close(self, error: RequestError) -> None:
        """Send the error, unless a part of an answer is out, and close."""
        answering = self._answered_request if self._is_answering() else None
        if answering is None or not answering.response_started:
            self.transport.write(closing_bytes(answer_to(error, path="*", request_id="none")))
        self.transport.close()

    def _is_answering(self) -> bool:
        return self._answered_request is not None and not self._answered_request.response_complete

    # Draining ----------------------------------------------------------------------------------

    def close_if_idle(self) -> None:
        """Close it unless something is under way, or was until a moment ago."""
        if self.transport.is_closing():
            return  # its descriptor may be another's by now
        idle = not self._in_message and not self._is_answering()
        lately = self.loop.time() < self._answered_at + IDLE_FOR
        if idle and not lately and not has_unread(self.transport):
            self.transport.close()

    def cut_off(self) -> None:
        """Close it, with an error if nothing was answered yet."""
        if self._in_message or self._is_answering():
            self._arriving_request = self._answered_request
            self._refuse(NotReady("this node has stopped; ask another one"))
        else:
            self.transport.abort()


def _without_upgrade(data: bytes) -> bytes:
    """Return the data with the header Upgrade under another name: no other protocol is served, and
    the parser would read neither the body nor what comes after it."""
    head, end, rest = data.partition(b"\r\n\r\n")
    return _UPGRADE.sub(b"\r\nx-upgrade:", head) + end + rest


def _head_too_large(limits: ConnectionLimits) -> HeadTooLarge:
    return HeadTooLarge(f"at most {limits.headers} headers, {limits.head} bytes in all")
