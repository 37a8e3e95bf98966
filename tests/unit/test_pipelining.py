"""Several requests in one write, the last of them broken: each is answered, in order."""

import asyncio

import pytest
from starlette.types import Receive, Scope, Send

from support.door import SOON, opened_door
from support.shop import SPOT, Exchange, Shop, Wire, post
from support.waiting import eventually

A, B, C = b"aaaa", b"bbbb", b"cccc"
GARBAGE = b"\x00\x01 garbage\r\n\r\n"
BROKEN_CHUNK = b"POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def exchange(shop: Shop) -> Exchange:
    return Exchange(shop)


async def held(exchange: Exchange, count: int) -> None:
    """Wait until the application holds so many requests."""

    async def reached() -> bool:
        return len(exchange.shop.served) == count

    await eventually(reached, within=5, what="the requests are being served")


async def refused(wire: Wire) -> None:
    status, body = await wire.hear()
    assert status == 400, body
    assert b"malformed-request" in body
    assert wire.is_closing()


async def test_garbage_is_refused_after_the_answer_before_it(exchange: Exchange) -> None:
    wire = exchange.wire()
    wire.say(post(A) + GARBAGE)
    assert await wire.hear() == (200, b"ordinary:aaaa")
    await refused(wire)


async def test_garbage_waits_for_an_answer_on_the_fast_path(exchange: Exchange) -> None:
    wire = exchange.wire()
    wire.say(post(A))
    await wire.hear()
    exchange.shop.closed = True
    wire.say(post(B), GARBAGE)
    assert exchange.shop.served[-1] == (SPOT, B)
    assert not wire.is_closing()
    exchange.shop.open()
    assert await wire.hear() == (200, b"spot:bbbb")
    await refused(wire)


async def test_every_request_before_the_garbage_is_answered(exchange: Exchange) -> None:
    exchange.shop.closed = True
    wire = exchange.wire()
    wire.say(post(A) + post(B) + post(C) + GARBAGE, GARBAGE)
    await held(exchange, 1)
    exchange.shop.open()
    for body in (A, B, C):
        assert await wire.hear() == (200, b"ordinary:" + body)
    await refused(wire)


async def test_a_queued_request_that_breaks_is_refused_in_turn(exchange: Exchange) -> None:
    exchange.shop.closed = True
    wire = exchange.wire()
    wire.say(post(A) + BROKEN_CHUNK)
    await held(exchange, 1)
    exchange.shop.open()
    assert await wire.hear() == (200, b"ordinary:aaaa")
    await refused(wire)
    assert len(exchange.shop.served) == 1


async def test_a_broken_body_alone_is_refused_at_once(exchange: Exchange) -> None:
    wire = exchange.wire()
    wire.say(BROKEN_CHUNK)
    await refused(wire)


async def test_an_answer_after_the_end_is_dropped_in_silence(
    exchange: Exchange, caplog: pytest.LogCaptureFixture
) -> None:
    """The application may answer after the connection was closed, and before it hears of it."""
    exchange.shop.closed = True
    wire = exchange.wire()
    wire.say(post(A, path=b"/other"))
    await held(exchange, 1)
    wire.close()
    exchange.shop.open()

    async def served() -> bool:
        return not exchange.state.tasks

    await eventually(served, within=5, what="the application has answered")
    assert wire.silent
    assert not caplog.records


async def test_a_request_with_others_behind_it_hears_of_the_end() -> None:
    """A long poll must not wait for a client that left, whatever else that one had sent."""
    waits, left = asyncio.Event(), asyncio.Event()

    async def poll(_scope: Scope, receive: Receive, _send: Send) -> None:
        await receive()
        waits.set()
        while (await receive())["type"] != "http.disconnect":
            pass
        left.set()

    async with opened_door(poll) as doorway:
        visitor = await doorway.visit()
        visitor.say(post(A) + post(B))
        async with asyncio.timeout(SOON):
            await waits.wait()
            await visitor.leave()
            await left.wait()
