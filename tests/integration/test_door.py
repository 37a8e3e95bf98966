"""The door: what becomes of connections that ask too much, take too long, or come in crowds."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mainspring.api.http.connection import ConnectionLimits, HttpConfig
from mainspring.api.http.middleware import CYCLE
from mainspring.api.http.server import HttpServer
from mainspring.errors import ServerError
from mainspring.observe.metrics import Metrics
from support.door import LIMITS as PATIENT
from support.door import SOON, Doorway, Visitor, opened_door
from support.waiting import eventually

pytestmark = pytest.mark.slow

LIMITS = replace(PATIENT, timeout=0.3)


@dataclass
class Inside:
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
class House:
    """A server with a door."""

    inside: Inside
    metrics: Metrics
    doorway: Doorway

    async def visit(self) -> Visitor:
        return await self.doorway.visit()

    def refused(self, reason: str) -> float:
        return (
            self.metrics.registry.get_sample_value(
                "mainspring_connections_refused_total", {"reason": reason}
            )
            or 0.0
        )


@asynccontextmanager
async def opened_house(
    limits: ConnectionLimits = LIMITS, inside: Inside | None = None, keep_alive: float = 75
) -> AsyncIterator[House]:
    inside, metrics = inside or Inside(), Metrics()
    door = opened_door(inside, limits=limits, metrics=metrics, keep_alive=keep_alive)
    async with door as doorway:
        yield House(inside, metrics, doorway)


GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"


# --- the usual ---------------------------------------------------------------------------------


async def test_good_visitors_notice_nothing() -> None:
    async with opened_house() as house:
        visitor = await house.visit()
        for _ in range(3):
            visitor.say(GET)
            assert (await visitor.hear())[::2] == (200, b"hello")
        visitor.say(GET * 3)
        assert [(await visitor.hear())[0] for _ in range(3)] == [200] * 3
        visitor.say(POST % 200_000)
        for _ in range(4):
            visitor.say(b"x" * 50_000)
            await visitor.writer.drain()
        assert (await visitor.hear())[0] == 200
        assert house.inside.bodies[-1] == b"x" * 200_000


class Whole(Inside):
    """An application that hands over its answers in one piece."""

    def __init__(self, *answers: Response) -> None:
        super().__init__()
        self.answers = list(answers)

    async def __call__(self, scope: Scope, _receive: Receive, _send: Send) -> None:
        await scope[CYCLE].answer(self.answers.pop(0))


async def test_an_end_that_nobody_asked_for_is_told() -> None:
    async with opened_house() as house:
        house.doorway.server.should_exit = True
        with pytest.raises(ServerError, match="the API is served no more"):
            await house.doorway.server.ended()


async def test_a_door_that_does_not_open_is_told_of() -> None:
    shut = socket.socket()
    shut.close()
    server = HttpServer(HttpConfig(Inside(), PATIENT, Metrics(), keep_alive=5))
    with pytest.raises(ServerError, match="the API is served no more"):
        await server.open(shut)


async def test_whole_answers_leave_as_they_are() -> None:
    """With what HTTP asks of them: no body for HEAD, and an end where one was asked for."""
    whole = Whole(
        Response(b"one", 201, {"x": "y"}),
        Response(b"two"),
        Response(status_code=204),
        Response(b"bye"),
    )
    async with opened_house(inside=whole) as house:
        visitor = await house.visit()
        visitor.say(GET)
        status, headers, body = await visitor.hear()
        assert (status, headers["x"], body) == (201, "y", b"one")
        visitor.say(GET.replace(b"GET", b"HEAD") + GET)
        visitor.say(GET.replace(b"Host", b"Connection: close\r\nHost"))
        rest = await visitor.hear_the_end()
    head, empty, bye = rest.split(b"HTTP/1.1 ")[1:]
    assert head.startswith(b"200 OK")
    assert b"content-length: 3\r\n" in head
    assert head.endswith(b"\r\n\r\n")
    assert empty.startswith(b"204 No Content")
    assert b"connection: close" in bye
    assert bye.endswith(b"\r\n\r\nbye")


async def test_an_answer_that_says_it_is_the_last_is() -> None:
    whole = Whole(Response(b"no", 413, {"Connection": "close"}))
    async with opened_house(inside=whole) as house:
        visitor = await house.visit()
        visitor.say(POST % 9)
        said = await visitor.hear_the_end()
    assert said.lower().count(b"connection: close") == 1


@pytest.mark.parametrize("value", ["a\nb: c", "a\r\nb: c", "a\rb"])
async def test_no_header_of_an_answer_breaks_its_line(value: str) -> None:
    """Whatever a handler lets through: better no answer than two."""
    answer = Response(b"x")
    answer.raw_headers.append((b"x", value.encode()))
    async with opened_house(inside=Whole(answer)) as house:
        visitor = await house.visit()
        visitor.say(GET)
        assert await visitor.hear_the_end() == b""


async def test_patience_is_for_each_request_anew() -> None:
    """A connection that is used for longer than the limit is not cut off."""
    async with opened_house(replace(LIMITS, timeout=0.2)) as house:
        visitor = await house.visit()
        for _ in range(4):
            visitor.say(GET[:10])
            await asyncio.sleep(0.08)
            visitor.say(GET[10:])
            assert (await visitor.hear())[0] == 200


async def test_an_offer_of_another_protocol_is_passed_over() -> None:
    async with opened_house() as house:
        visitor = await house.visit()
        for _ in range(2):
            visitor.say(GET[:-2] + OFFER)
            assert (await visitor.hear())[0] == 200
        visitor.say((POST % len(GET))[:-2] + OFFER + GET)
        assert (await visitor.hear())[0] == 200
        assert house.inside.bodies[-1] == GET
        visitor.say((POST % len(GET))[:-2] + OFFER)
        visitor.say(GET)
        assert (await visitor.hear())[0] == 200
        assert house.inside.bodies[-1] == GET


async def test_a_body_with_an_offer_in_pieces_is_not_taken_for_a_request() -> None:
    """The parser leaves it to the other protocol, which we do not know."""
    async with opened_house(PATIENT) as house:
        visitor = await house.visit()
        visitor.say((POST % len(GET))[:-2])
        await visitor.writer.drain()
        await asyncio.sleep(0.05)  # nothing tells that a piece of a head has arrived
        visitor.say(OFFER + GET)
        await visitor.refusal(400, "malformed-request")
        assert house.inside.bodies == []


async def test_an_idle_connection_is_closed() -> None:
    async with opened_house(PATIENT, keep_alive=1) as house:
        visitor = await house.visit()
        visitor.say(GET)
        assert (await visitor.hear())[0] == 200
        assert await visitor.hear_the_end() == b""


# --- too much ----------------------------------------------------------------------------------


async def test_too_many_headers() -> None:
    async with opened_house(PATIENT) as house:
        visitor = await house.visit()
        visitor.say(GET[:-2] + b"".join(b"x%d: y\r\n" % n for n in range(20)) + b"\r\n")
        await visitor.refusal(431, "head-too-large")
        assert house.inside.bodies == []
        assert house.refused("head-too-large") == 1


async def test_as_many_headers_as_allowed() -> None:
    async with opened_house(PATIENT) as house:
        visitor = await house.visit()
        visitor.say(GET[:-2] + b"".join(b"x%d: y\r\n" % n for n in range(19)) + b"\r\n")
        assert (await visitor.hear())[0] == 200


@pytest.mark.parametrize(
    "head",
    [
        GET[:-2] + b"x: " + b"y" * 5000 + b"\r\n\r\n",
        b"GET /?" + b"y" * 5000 + GET[5:],
        GET[:-2] + b"y" * 5000 + b": x\r\n\r\n",
    ],
)
async def test_a_large_head(head: bytes) -> None:
    async with opened_house(PATIENT) as house:
        visitor = await house.visit()
        visitor.say(head)
        await visitor.refusal(431, "head-too-large")


@pytest.mark.parametrize("start", [GET[:-2] + b"x: ", b"GET /", GET[:-2]])
async def test_a_head_without_an_end(start: bytes) -> None:
    """It is refused while it comes: memory is bounded however long it would go on."""
    async with opened_house(PATIENT) as house:
        visitor = await house.visit()
        visitor.say(start)
        dripping = asyncio.create_task(visitor.drip(b"y" * 2000))
        await visitor.refusal(431, "head-too-large")
        dripping.cancel()


async def test_nonsense_is_a_problem_too() -> None:
    for nonsense in (
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
        b"HELO\r\n\r\n",
        b"GET \xff HTTP/1.1\r\n\r\n",
    ):
        async with opened_house(PATIENT) as house:
            visitor = await house.visit()
            visitor.say(nonsense)
            await visitor.refusal(400, "malformed-request")


async def test_a_request_says_once_for_whom_it_is() -> None:
    """RFC 9112 §3.2; HTTP/1.0 knew no such header."""
    for head in (
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nhost: y\r\n\r\n",
        b"GET / HTTP/1.0\r\nHost: x\r\nHost: x\r\n\r\n",
    ):
        async with opened_house(PATIENT) as house:
            visitor = await house.visit()
            visitor.say(head)
            await visitor.refusal(400, "malformed-request")
    async with opened_house(PATIENT) as house:
        for fine in (b"GET / HTTP/1.0\r\n\r\n", b"GET / HTTP/1.1\r\nHost:\r\n\r\n"):
            visitor = await house.visit()
            visitor.say(fine)
            assert (await visitor.hear())[0] == 200


# --- too slow ----------------------------------------------------------------------------------


async def test_a_body_that_does_not_come() -> None:
    async with opened_house() as house:
        visitor = await house.visit()
        visitor.say(POST % 1000 + b"some")
        await visitor.refusal(408, "too-slow")
        await eventually(lambda: _is(house.inside.gone == 1), within=SOON, what="it hears the end")
        assert house.inside.bodies == []


@pytest.mark.parametrize("start", [GET[:-2], POST % 1_000_000, GET + POST % 1_000_000])
async def test_dripping_does_not_help(start: bytes) -> None:
    """The time is for the whole request, not for its next byte."""
    async with opened_house() as house:
        visitor = await house.visit()
        visitor.say(start)
        if start.startswith(GET):
            assert (await visitor.hear())[0] == 200
        dripping = asyncio.create_task(visitor.drip(b"x"))
        await visitor.refusal(408, "too-slow")
        dripping.cancel()


async def test_a_visitor_who_says_nothing() -> None:
    async with opened_house() as house:
        visitor = await house.visit()
        assert await visitor.hear_the_end() == b""


async def test_a_body_after_the_answer_must_end_too() -> None:
    async with opened_house(inside=Inside(read_body=False)) as house:
        visitor = await house.visit()
        visitor.say(POST % 1_000_000)
        assert (await visitor.hear())[0] == 200
        dripping = asyncio.create_task(visitor.drip(b"x"))
        await visitor.refusal(408, "too-slow")
        dripping.cancel()


async def test_an_answer_that_is_not_taken() -> None:
    async with opened_house(inside=Inside(answer=b"x" * 50_000_000)) as house:
        visitor = await house.visit()
        visitor.say(GET)
        await eventually(
            lambda: _is(house.refused("answer-not-taken") == 1),
            within=SOON,
            what="the connection is given up",
        )


# --- too many ----------------------------------------------------------------------------------


async def test_a_crowd() -> None:
    async with opened_house(replace(PATIENT, connections=2)) as house:
        early = [await house.visit() for _ in range(2)]
        for visitor in early:
            visitor.say(GET)
            assert (await visitor.hear())[0] == 200
        late = await house.visit()
        late.say(GET)
        headers = await late.refusal(503, "crowded")
        assert headers["retry-after"] == "1"
        for visitor in early:
            visitor.say(GET)
            assert (await visitor.hear())[0] == 200, "who is in stays in"
        await early[0].leave()
        await eventually(lambda: _gets_in(house), within=SOON, what="there is room again")


async def _gets_in(house: House) -> bool:
    visitor = await house.visit()
    visitor.say(GET)
    status, _, _ = await visitor.hear()
    await visitor.leave()
    return status == 200


async def _is(truth: bool) -> bool:
    return truth
