"""The HTTP server: connections that ask for too much, take too long, or are too many."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mainspring.api.http.connection import ConnectionLimits, HttpConfig
from mainspring.api.http.middleware import CYCLE
from mainspring.api.http.server import HttpServer
from mainspring.errors import ServerError
from mainspring.observe.metrics import Metrics
from support.http_server import LIMITS as LONG_LIMITS
from support.http_server import SOON, HttpConnection, HttpListener, open_http_server
from support.waiting import eventually

pytestmark = pytest.mark.slow

LIMITS = LONG_LIMITS._replace(timeout=0.3)


@dataclass
class RecordingApp:
    """An application that remembers what reached it and answers as it is told."""

    answer: bytes = b"hello"
    read_body: bool = True
    bodies: list[bytes] = field(default_factory=list)
    gone: int = 0

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        if self.read_body and not await self._read(receive):
            return
        length = str(len(self.answer)).encode()
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]}
        )
        await send({"type": "http.response.body", "body": self.answer})

    async def _read(self, receive: Receive) -> bool:
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.gone += 1
                return False
            body, more = body + message["body"], message["more_body"]
        self.bodies.append(body)
        return True


@dataclass
class ServerUnderTest:
    """A server, its application and its metrics."""

    app: RecordingApp
    metrics: Metrics
    listener: HttpListener

    async def connect(self) -> HttpConnection:
        return await self.listener.connect()

    def refused(self, reason: str) -> float:
        return (
            self.metrics.registry.get_sample_value(
                "mainspring_connections_refused_total", {"reason": reason}
            )
            or 0.0
        )


@asynccontextmanager
async def open_server(
    limits: ConnectionLimits = LIMITS, app: RecordingApp | None = None, keep_alive: float = 75
) -> AsyncIterator[ServerUnderTest]:
    app, metrics = app or RecordingApp(), Metrics()
    opened = open_http_server(app, limits=limits, metrics=metrics, keep_alive=keep_alive)
    async with opened as listener:
        yield ServerUnderTest(app, metrics, listener)


GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"


# --- the usual ---------------------------------------------------------------------------------


async def test_good_clients_notice_nothing() -> None:
    async with open_server() as under_test:
        connection = await under_test.connect()
        for _ in range(3):
            connection.send(GET)
            assert (await connection.read_response())[::2] == (200, b"hello")
        connection.send(GET * 3)
        assert [(await connection.read_response())[0] for _ in range(3)] == [200] * 3
        connection.send(POST % 200_000)
        for _ in range(4):
            connection.send(b"x" * 50_000)
            await connection.writer.drain()
        assert (await connection.read_response())[0] == 200
        assert under_test.app.bodies[-1] == b"x" * 200_000


class SingleSendApp(RecordingApp):
    """An application that hands over its answers in one piece."""

    def __init__(self, *answers: Response) -> None:
        super().__init__()
        self.answers = list(answers)

    async def __call__(self, scope: Scope, _receive: Receive, _send: Send) -> None:
        await scope[CYCLE].answer(self.answers.pop(0))


async def test_an_unexpected_end_of_the_server_is_reported() -> None:
    async with open_server() as under_test:
        under_test.listener.server.should_exit = True
        with pytest.raises(ServerError, match="the API is served no more"):
            await under_test.listener.server.ended()


async def test_a_server_that_cannot_listen_is_reported() -> None:
    shut = socket.socket()
    shut.close()
    server = HttpServer(HttpConfig(RecordingApp(), LONG_LIMITS, Metrics(), keep_alive=5))
    with pytest.raises(ServerError, match="the API is served no more"):
        await server.open(shut)


async def test_whole_answers_leave_as_they_are() -> None:
    """With what HTTP asks of them: no body for HEAD, and an end where one was asked for."""
    whole = SingleSendApp(
        Response(b"one", 201, {"x": "y"}),
        Response(b"two"),
        Response(status_code=204),
        Response(b"bye"),
    )
    async with open_server(app=whole) as under_test:
        connection = await under_test.connect()
        connection.send(GET)
        status, headers, body = await connection.read_response()
        assert (status, headers["x"], body) == (201, "y", b"one")
        connection.send(GET.replace(b"GET", b"HEAD") + GET)
        connection.send(GET.replace(b"Host", b"Connection: close\r\nHost"))
        rest = await connection.read_to_end()
    head, empty, bye = rest.split(b"HTTP/1.1 ")[1:]
    assert head.startswith(b"200 OK")
    assert b"content-length: 3\r\n" in head
    assert head.endswith(b"\r\n\r\n")
    assert empty.startswith(b"204 No Content")
    assert b"connection: close" in bye
    assert bye.endswith(b"\r\n\r\nbye")


async def test_an_answer_that_says_it_is_the_last_is() -> None:
    whole = SingleSendApp(Response(b"no", 413, {"Connection": "close"}))
    async with open_server(app=whole) as under_test:
        connection = await under_test.connect()
        connection.send(POST % 9)
        received = await connection.read_to_end()
    assert received.lower().count(b"connection: close") == 1


@pytest.mark.parametrize("value", ["a\nb: c", "a\r\nb: c", "a\rb"])
async def test_no_header_of_an_answer_breaks_its_line(value: str) -> None:
    """Whatever a handler lets through: better no answer than two."""
    answer = Response(b"x")
    answer.raw_headers.append((b"x", value.encode()))
    async with open_server(app=SingleSendApp(answer)) as under_test:
        connection = await under_test.connect()
        connection.send(GET)
        assert await connection.read_to_end() == b""


async def test_the_timeout_is_for_each_request_anew() -> None:
    """A connection that is used for longer than the limit is not cut off."""
    async with open_server(LIMITS._replace(timeout=0.2)) as under_test:
        connection = await under_test.connect()
        for _ in range(4):
            connection.send(GET[:10])
            await asyncio.sleep(0.08)
            connection.send(GET[10:])
            assert (await connection.read_response())[0] == 200


async def test_an_offer_of_another_protocol_is_passed_over() -> None:
    async with open_server() as under_test:
        connection = await under_test.connect()
        for _ in range(2):
            connection.send(GET[:-2] + OFFER)
            assert (await connection.read_response())[0] == 200
        connection.send((POST % len(GET))[:-2] + OFFER + GET)
        assert (await connection.read_response())[0] == 200
        assert under_test.app.bodies[-1] == GET
        connection.send((POST % len(GET))[:-2] + OFFER)
        connection.send(GET)
        assert (await connection.read_response())[0] == 200
        assert under_test.app.bodies[-1] == GET


async def test_a_body_after_a_split_upgrade_offer_is_not_a_request() -> None:
    """The parser leaves it to the other protocol, which we do not know."""
    async with open_server(LONG_LIMITS) as under_test:
        connection = await under_test.connect()
        connection.send((POST % len(GET))[:-2])
        await connection.writer.drain()
        await asyncio.sleep(0.05)  # nothing tells that a piece of a head has arrived
        connection.send(OFFER + GET)
        await connection.read_refusal(400, "malformed-request")
        assert under_test.app.bodies == []


async def test_an_idle_connection_is_closed() -> None:
    async with open_server(LONG_LIMITS, keep_alive=1) as under_test:
        connection = await under_test.connect()
        connection.send(GET)
        assert (await connection.read_response())[0] == 200
        assert await connection.read_to_end() == b""


# --- too much ----------------------------------------------------------------------------------


async def test_too_many_headers() -> None:
    async with open_server(LONG_LIMITS) as under_test:
        connection = await under_test.connect()
        connection.send(GET[:-2] + b"".join(b"x%d: y\r\n" % n for n in range(20)) + b"\r\n")
        await connection.read_refusal(431, "head-too-large")
        assert under_test.app.bodies == []
        assert under_test.refused("head-too-large") == 1


async def test_as_many_headers_as_allowed() -> None:
    async with open_server(LONG_LIMITS) as under_test:
        connection = await under_test.connect()
        connection.send(GET[:-2] + b"".join(b"x%d: y\r\n" % n for n in range(19)) + b"\r\n")
        assert (await connection.read_response())[0] == 200


@pytest.mark.parametrize(
    "head",
    [
        GET[:-2] + b"x: " + b"y" * 5000 + b"\r\n\r\n",
        b"GET /?" + b"y" * 5000 + GET[5:],
        GET[:-2] + b"y" * 5000 + b": x\r\n\r\n",
    ],
)
async def test_a_large_head(head: bytes) -> None:
    async with open_server(LONG_LIMITS) as under_test:
        connection = await under_test.connect()
        connection.send(head)
        await connection.read_refusal(431, "head-too-large")


@pytest.mark.parametrize("start", [GET[:-2] + b"x: ", b"GET /", GET[:-2]])
async def test_a_head_without_an_end(start: bytes) -> None:
    """It is refused while it comes: memory is bounded however long it would go on."""
    async with open_server(LONG_LIMITS) as under_test:
        connection = await under_test.connect()
        connection.send(start)
        dripping = asyncio.create_task(connection.send_slowly(b"y" * 2000))
        await connection.read_refusal(431, "head-too-large")
        dripping.cancel()


@pytest.mark.parametrize(
    "request_head",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
        b"HELO\r\n\r\n",
        b"GET \xff HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",  # a request has exactly one host: RFC 9112 §3.2
        b"GET / HTTP/1.1\r\nHost: x\r\nhost: y\r\n\r\n",
        b"GET / HTTP/1.0\r\nHost: x\r\nHost: x\r\n\r\n",
    ],
)
async def test_nonsense_is_a_problem_too(request_head: bytes) -> None:
    async with open_server(LONG_LIMITS) as under_test:
        connection = await under_test.connect()
        connection.send(request_head)
        await connection.read_refusal(400, "malformed-request")


async def test_a_request_may_have_an_empty_host_or_be_old() -> None:
    """HTTP/1.0 knew no such header."""
    async with open_server(LONG_LIMITS) as under_test:
        for fine in (b"GET / HTTP/1.0\r\n\r\n", b"GET / HTTP/1.1\r\nHost:\r\n\r\n"):
            connection = await under_test.connect()
            connection.send(fine)
            assert (await connection.read_response())[0] == 200


# --- too slow ----------------------------------------------------------------------------------


async def test_a_body_that_does_not_come() -> None:
    async with open_server() as under_test:
        connection = await under_test.connect()
        connection.send(POST % 1000 + b"some")
        await connection.read_refusal(408, "too-slow")
        await eventually(lambda: _is(under_test.app.gone == 1), within=SOON, what="it sees the end")
        assert under_test.app.bodies == []


@pytest.mark.parametrize("start", [GET[:-2], POST % 1_000_000, GET + POST % 1_000_000])
async def test_dripping_does_not_help(start: bytes) -> None:
    """The time is for the whole request, not for its next byte."""
    async with open_server() as under_test:
        connection = await under_test.connect()
        connection.send(start)
        if start.startswith(GET):
            assert (await connection.read_response())[0] == 200
        dripping = asyncio.create_task(connection.send_slowly(b"x"))
        await connection.read_refusal(408, "too-slow")
        dripping.cancel()


async def test_a_client_that_sends_nothing() -> None:
    async with open_server() as under_test:
        connection = await under_test.connect()
        assert await connection.read_to_end() == b""


async def test_a_body_after_the_answer_must_end_too() -> None:
    async with open_server(app=RecordingApp(read_body=False)) as under_test:
        connection = await under_test.connect()
        connection.send(POST % 1_000_000)
        assert (await connection.read_response())[0] == 200
        dripping = asyncio.create_task(connection.send_slowly(b"x"))
        await connection.read_refusal(408, "too-slow")
        dripping.cancel()


async def test_an_answer_that_is_not_taken() -> None:
    async with open_server(app=RecordingApp(answer=b"x" * 50_000_000)) as under_test:
        connection = await under_test.connect()
        connection.send(GET)
        await eventually(
            lambda: _is(under_test.refused("answer-not-taken") == 1),
            within=SOON,
            what="the connection is given up",
        )


# --- too many ----------------------------------------------------------------------------------


async def test_too_many_connections() -> None:
    async with open_server(LONG_LIMITS._replace(connections=2)) as under_test:
        early = [await under_test.connect() for _ in range(2)]
        for connection in early:
            connection.send(GET)
            assert (await connection.read_response())[0] == 200
        late = await under_test.connect()
        late.send(GET)
        headers = await late.read_refusal(503, "crowded")
        assert headers["retry-after"] == "1"
        for connection in early:
            connection.send(GET)
            assert (await connection.read_response())[0] == 200, "who is in stays in"
        await early[0].close()
        await eventually(lambda: _gets_in(under_test), within=SOON, what="there is room again")


async def _gets_in(under_test: ServerUnderTest) -> bool:
    connection = await under_test.connect()
    connection.send(GET)
    status, _, _ = await connection.read_response()
    await connection.close()
    return status == 200


async def _is(truth: bool) -> bool:
    return truth
