"""What every request gets: an id, a limit on its body, a problem document if it fails, a count.

One plain ASGI layer, because every layer costs time on every request.
"""

import re
from collections.abc import Callable, Mapping
from functools import partial
from random import Random

from prometheus_client import Counter
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mainspring.api.http.fast_path import (
    FastHandler,
    ResponseSink,
    ServeFast,
)
from mainspring.api.http.problems import answer_to
from mainspring.clock import monotonic
from mainspring.errors import MalformedRequest, RequestError, StoreUnavailable, TooLarge
from mainspring.observe.metrics import Distribution, Metrics

ROUTE = "mainspring.route"
"""Scope key: where a resource leaves its path template in the scope, for the metrics."""

HEADERS = "mainspring.headers"
"""Scope key: where a resource leaves headers that every answer to the request shall carry."""

FIELDS = "mainspring.fields"
"""Scope key: where a resource finds the request's headers by name."""

EXCHANGE = "mainspring.exchange"
"""Scope key: where a resource finds the way to answer in one piece."""

CYCLE = "mainspring.cycle"
"""Scope key: where the server offers, if it does, to take a whole answer at once."""

_ONE_OFF = frozenset(
    {
        b"expect",
        b"idempotency-key",
        b"traceparent",
        b"transfer-encoding",
        b"upgrade",
        b"x-request-id",
    }
)
"""Headers whose request is not repeated alike, or needs the full path."""

_SANE_ID = re.compile(rb"[A-Za-z0-9_.:/+=@-]{1,128}")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


CompileHeaders = Callable[[Mapping[bytes, bytes]], FastHandler | None]


class RequestMiddleware:
    """The outermost layer of the API."""

    def __init__(
        self,
        app: ASGIApp,
        fast_paths: Mapping[str, CompileHeaders] | None = None,
        *,
        metrics: Metrics,
        rng: Random,
        max_body: int,
    ) -> None:
        self._app = app
        self._fast_paths = fast_paths or {}
        self._metrics = metrics
        self._rng = rng
        self._max_body = max_body
        # Finding a series by its labels costs more than counting: each is looked up once.
        self._series: dict[tuple[str, str, int], tuple[Counter, Distribution]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = monotonic()
        headers = scope[FIELDS] = dict(scope["headers"])
        exchange = scope[EXCHANGE] = Exchange(scope, self._request_id(headers), send)
        try:
            if not _declares_length(headers, self._max_body):
                receive = _limited(receive, self._max_body)
            await self._app(scope, receive, exchange.send)
        except ClientDisconnect:
            exchange.status = 499
        except Exception as error:
            if exchange.started:
                raise  # half an answer is out: the server must break the connection
            await exchange.answer(self._answer_to(error, scope["path"], exchange.request_id))
        finally:
            self._end(exchange, started)

    def compile_fast_path(self, scope: Scope) -> ServeFast | None:
        """Return how requests with this head are served on the fast path, if they can be."""
        compile_fast_path = self._fast_paths.get(scope["path"])
        if compile_fast_path is None or scope["method"] != "POST" or scope["query_string"]:
            return None
        fields: dict[bytes, bytes] = dict(scope["headers"])
        if not _ONE_OFF.isdisjoint(fields):
            return None
        try:
            known_length = _declares_length(fields, self._max_body)
            handle = compile_fast_path(fields) if known_length else None
        except RequestError:
            return None
        return None if handle is None else partial(self._serve_fast, scope["path"], handle)

    def _serve_fast(self, path: str, handle: FastHandler, body: bytes, reply: ResponseSink) -> bool:
        started = monotonic()
        try:
            admitted = handle(body)
        except Exception:
            return False  # the full path comes to the same end, and says what is wrong
        if admitted is None:
            return False
        pending, headers = admitted

        def answer(_done: object) -> None:
            request_id = self._new_id()
            try:
                response = pending.answer()
            except Exception as error:
                response = self._answer_to(error, path, request_id)
            response.raw_headers.append((b"x-request-id", request_id.encode("ascii")))
            response.raw_headers.extend(headers)
            reply.answer_now(response)
            self._count(path, "POST", response.status_code, monotonic() - started)

        pending.done.add_done_callback(answer)
        return True

    def _answer_to(self, error: Exception, path: str, request_id: str) -> Response:
        if isinstance(error, StoreUnavailable):
            self._metrics.database_errors.inc()
        return answer_to(error, path=path, request_id=request_id)

    def _new_id(self) -> str:
        return f"{self._rng.getrandbits(128):032x}"

    def _request_id(self, headers: dict[bytes, bytes]) -> str:
        given = headers.get(b"x-request-id")
        if given is not None and _SANE_ID.fullmatch(given):
            return given.decode("ascii")
        return self._new_id()

    def _end(self, exchange: "Exchange", started: float) -> None:
        scope = exchange.scope
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._count(scope.get(ROUTE, "unknown"), method, exchange.status, monotonic() - started)
        # They refer to the scope and it to them: broken up here, because each request would leave a
        # cycle of objects to the garbage collector.
        scope.pop(EXCHANGE, None)
        scope.pop(CYCLE, None)

    def _count(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count a request. Labels come from a fixed set: a caller must not make new series."""
        series = (route, method, status)
        found = self._series.get(series)
        if found is None:
            counter = self._metrics.http_requests.labels(*series)
            found = self._series[series] = (counter, self._metrics.http_seconds.labels(route))
        found[0].inc()
        found[1].observe(seconds)


class Exchange:
    """Puts the request's id on the answer and remembers how far the answer got."""

    def __init__(self, scope: Scope, request_id: str, send: Send) -> None:
        self.scope = scope
        self.request_id = request_id
        self.started = False
        self.status = 500
        self._send = send

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            self.status = message["status"]
            message["headers"].append((b"x-request-id", self.request_id.encode("ascii")))
            message["headers"].extend(self.scope.get(HEADERS, ()))
        await self._send(message)

    async def answer(self, response: Response) -> None:
        """Send a whole answer in one write, as writes to a socket are expensive."""
        cycle = self.scope.get(CYCLE)
        if cycle is None:
            await response(self.scope, _nothing_comes, self.send)
            return
        self.started = True
        self.status = response.status_code
        response.raw_headers.append((b"x-request-id", self.request_id.encode("ascii")))
        response.raw_headers.extend(self.scope.get(HEADERS, ()))
        await cycle.answer(response)


async def _nothing_comes() -> Message:
    raise AssertionError("a whole answer asks for nothing more")


def _limited(receive: Receive, most: int) -> Receive:
    """Count the bytes of a body as they come, for callers who did not declare its length."""
    seen = 0

    async def count() -> Message:
        nonlocal seen
        message = await receive()
        if message["type"] == "http.request":
            seen += len(message.get("body", b""))
            if seen > most:
                raise _too_large(most)
        return message

    return count


def _declares_length(headers: dict[bytes, bytes], most: int) -> bool:
    """Whether the length is declared; the server then reads no more bytes than that."""
    declared = headers.get(b"content-length")
    if declared is None:
        return False
    if not declared.isdigit():
        raise MalformedRequest("Content-Length is not a number")
    if len(declared) > 18 or int(declared) > most:
        raise _too_large(most)
    return b"transfer-encoding" not in headers


def _too_large(most: int) -> TooLarge:
    return TooLarge(f"the body is larger than {most} bytes")
