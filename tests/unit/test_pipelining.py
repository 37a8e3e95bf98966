"""Several requests in one write, the last of them broken: each is answered, in order."""

import asyncio

import pytest
from starlette.types import Receive, Scope, Send

from support.fast_path_app import FAST, FastPathApp, MemoryTransport, TransportFactory, post
from support.http_server import SOON, open_http_server
from support.waiting import eventually

A, B, C = b"aaaa", b"bbbb", b"cccc"
GARBAGE = b"\x00\x01 garbage\r\n\r\n"
BROKEN_CHUNK = b"POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"


@pytest.fixture
def transports() -> TransportFactory:
    return TransportFactory(FastPathApp())


async def held(transports: TransportFactory, count: int) -> None:
    """Wait until the application holds so many requests."""

    async def reached() -> bool:
        return len(transports.app.served) == count

    await eventually(reached, within=5, what="the requests are being served")


async def refused(transport: MemoryTransport) -> None:
    status, body = await transport.read_response()
    assert status == 400, body
    assert b"malformed-request" in body
    assert transport.is_closing()


async def test_garbage_is_refused_after_the_answer_before_it(transports: TransportFactory) -> None:
    transport = transports.connect()
    transport.send(post(A) + GARBAGE)
    assert await transport.read_response() == (200, b"ordinary:aaaa")
    await refused(transport)


async def test_garbage_waits_for_an_answer_on_the_fast_path(transports: TransportFactory) -> None:
    transport = transports.connect()
    transport.send(post(A))
    await transport.read_response()
    transports.app.closed = True
    transport.send(post(B), GARBAGE)
    assert transports.app.served[-1] == (FAST, B)
    assert not transport.is_closing()
    transports.app.open()
    assert await transport.read_response() == (200, b"fast:bbbb")
    await refused(transport)


async def test_every_request_before_the_garbage_is_answered(transports: TransportFactory) -> None:
    transports.app.closed = True
    transport = transports.connect()
    transport.send(post(A) + post(B) + post(C) + GARBAGE, GARBAGE)
    await held(transports, 1)
    transports.app.open()
    for body in (A, B, C):
        assert await transport.read_response() == (200, b"ordinary:" + body)
    await refused(transport)


async def test_a_queued_request_that_breaks_is_refused_in_turn(
    transports: TransportFactory,
) -> None:
    transports.app.closed = True
    transport = transports.connect()
    transport.send(post(A) + BROKEN_CHUNK)
    await held(transports, 1)
    transports.app.open()
    assert await transport.read_response() == (200, b"ordinary:aaaa")
    await refused(transport)
    assert len(transports.app.served) == 1


async def test_a_broken_body_alone_is_refused_at_once(transports: TransportFactory) -> None:
    transport = transports.connect()
    transport.send(BROKEN_CHUNK)
    await refused(transport)


async def test_an_answer_after_the_end_is_dropped_in_silence(
    transports: TransportFactory, caplog: pytest.LogCaptureFixture
) -> None:
    """The application may answer after the connection was closed, and before it hears of it."""
    transports.app.closed = True
    transport = transports.connect()
    transport.send(post(A, path=b"/other"))
    await held(transports, 1)
    transport.close()
    transports.app.open()

    async def served() -> bool:
        return not transports.state.tasks

    await eventually(served, within=5, what="the application has answered")
    assert transport.silent
    assert not caplog.records


async def test_a_request_with_others_behind_it_sees_the_disconnect() -> None:
    """A long poll must not wait for a client that left, whatever else that one had sent."""
    waits, left = asyncio.Event(), asyncio.Event()

    async def poll(_scope: Scope, receive: Receive, _send: Send) -> None:
        await receive()
        waits.set()
        while (await receive())["type"] != "http.disconnect":
            pass
        left.set()

    async with open_http_server(poll) as listener:
        connection = await listener.connect()
        connection.send(post(A) + post(B))
        async with asyncio.timeout(SOON):
            await waits.wait()
            await connection.close()
            await left.wait()
