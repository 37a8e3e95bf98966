"""The short way at the door: what is served on the spot, what is not, and that none can tell."""

import asyncio
import gc
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.types import Scope

from mainspring.api.http.connection import LimitedHttpProtocol
from mainspring.api.http.cycle import Cycle
from mainspring.api.http.fast_path import HeaderCache, ServeFast
from support.door import LIMITS
from support.shop import ORDINARY, SPOT, Exchange, Shop, Wire, post

A, B, C = b"aaaa", b"bbbb", b"cccc"


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def exchange(shop: Shop) -> Exchange:
    return Exchange(shop)


async def tell(wire: Wire, *pieces: bytes) -> bytes:
    wire.say(*pieces)
    status, body = await wire.hear()
    assert status == 200
    return body


async def known(exchange: Exchange) -> Wire:
    """A wire on which the head of `post` with four bytes was seen."""
    wire = exchange.wire()
    assert await tell(wire, post(A)) == b"ordinary:aaaa"
    return wire


# --- what is served on the spot ----------------------------------------------------------------


async def test_a_head_that_was_seen_before(exchange: Exchange) -> None:
    wire = await known(exchange)
    assert await tell(wire, post(B)) == b"spot:bbbb"
    assert await tell(wire, post(C)) == b"spot:cccc"


async def test_a_head_that_was_seen_on_another_connection(exchange: Exchange) -> None:
    await known(exchange)
    assert await tell(exchange.wire(), post(B)) == b"spot:bbbb"


async def test_a_connection_goes_both_ways_in_turn(exchange: Exchange) -> None:
    wire = await known(exchange)
    for _ in range(3):
        assert await tell(wire, post(B)) == b"spot:bbbb"
        assert await tell(wire, post(B, path=b"/other")) == b"ordinary:bbbb"
    assert exchange.state.total_requests == 7


async def test_the_date_of_an_answer_is_todays(exchange: Exchange) -> None:
    """The server sets it anew every second."""
    wire = await known(exchange)
    for day in (b"monday", b"tuesday"):
        exchange.state.default_headers = [(b"date", day)]
        assert await tell(wire, post(B)) == b"spot:bbbb"
        assert b"\r\ndate: %b\r\n" % day in wire.head


async def test_a_body_that_is_none(exchange: Exchange) -> None:
    wire = exchange.wire()
    assert await tell(wire, post(b"")) == b"ordinary:"
    assert await tell(wire, post(b"")) == b"spot:"


async def test_a_body_that_looks_like_a_head(exchange: Exchange) -> None:
    """Whatever it says, as many bytes as the head declares are the body."""
    wire, body = exchange.wire(), b"\r\n\r\n" + post(A)
    assert await tell(wire, post(body)) == b"ordinary:" + body
    assert await tell(wire, post(body)) == b"spot:" + body


# --- what is not -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pieces",
    [
        [post(B)[:-4], post(B)[-4:]],
        [post(B)[:-1], post(B)[-1:]],
        [post(B)[:1], post(B)[1:]],
        [post(B)[:30], post(B)[30:]],
        [b"\r\n" + post(B)],
        [b"\r\n\r\n" + post(B)],
        [post(B).replace(b"Host", b"HOST")],
        [post(B).replace(b": 4", b": 04")],
    ],
    ids=range(8),
)
async def test_what_looks_otherwise_goes_the_ordinary_way(
    exchange: Exchange, pieces: list[bytes]
) -> None:
    wire = await known(exchange)
    assert await tell(wire, *pieces) == b"ordinary:bbbb"
    assert await tell(wire, post(C)) == b"spot:cccc", "and the parser finds itself where it was"


@pytest.mark.parametrize(
    "request_",
    [
        post(A, version=b"1.0"),
        post(A, b"Connection: keep-alive", version=b"1.0"),
        post(A, b"Connection: close"),
        post(A, b"Connection: x, close"),
        post(A).replace(b"POST", b"PUT"),
        post(A, path=b"/other"),
        post(b"", b"Connection: Upgrade", b"Upgrade: h2c"),
        post(A).replace(b"Content-Length: 4", b"Transfer-Encoding: chunked")[:-4]
        + b"4\r\naaaa\r\n0\r\n\r\n",
    ],
    ids=range(8),
)
async def test_heads_that_are_not_noted(exchange: Exchange, shop: Shop, request_: bytes) -> None:
    for _ in range(2):
        await tell(exchange.wire(), request_)
    assert shop.ways == [ORDINARY, ORDINARY]


@pytest.mark.parametrize(
    "pieces",
    [
        [post(A) + post(A)],
        [post(A)[:9], post(A)[9:]],
        [post(A) + post(A)[:9], post(A)[9:]],
        [post(A)[:9], post(A)[9:] + post(A)],
        [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + post(A)],
        [post(b"", path=b"/other") + post(A)],
    ],
    ids=range(6),
)
async def test_only_a_piece_with_one_whole_request_is_noted(
    exchange: Exchange, shop: Shop, pieces: list[bytes]
) -> None:
    wire = exchange.wire()
    wire.say(*pieces)
    for _ in range(b"".join(pieces).count(b"HTTP/")):
        assert (await wire.hear())[0] == 200
    assert await tell(wire, post(B)) == b"ordinary:bbbb"
    assert set(shop.ways) == {ORDINARY}


async def test_more_than_one_request_in_a_piece(exchange: Exchange, shop: Shop) -> None:
    wire = await known(exchange)
    wire.say(post(B) + post(C))
    assert [await wire.hear() for _ in range(2)] == [(200, b"ordinary:" + x) for x in (B, C)]
    wire.say(post(B) + post(C)[:20], post(C)[20:] + post(A))
    assert [body for _, body in [await wire.hear() for _ in range(3)]] == [
        b"ordinary:" + x for x in (B, C, A)
    ]
    assert SPOT not in shop.ways


async def test_a_request_within_the_head_of_another_is_none(exchange: Exchange, shop: Shop) -> None:
    wire = await known(exchange)
    assert await tell(wire, b"POST /other HTTP/1.1\r\nX: ", post(B)) == b"ordinary:bbbb"
    assert SPOT not in shop.ways


@pytest.mark.parametrize("path", [b"/other", b"/early"])
async def test_a_request_within_the_body_of_another_is_none(
    exchange: Exchange, shop: Shop, path: bytes
) -> None:
    wire = await known(exchange)
    outer = post(post(B), path=path)
    assert outer.endswith(post(B))
    wire.say(outer[: -len(post(B))])
    if path == b"/early":
        assert (await wire.hear())[1] == b"ordinary:early"
    wire.say(post(B))
    if path == b"/other":
        assert (await wire.hear())[1] == b"ordinary:" + post(B)
    assert SPOT not in shop.ways
    assert await tell(wire, post(C)) == b"spot:cccc"


async def test_the_end_of_a_body_is_no_part_of_a_head(exchange: Exchange) -> None:
    """Or else who sends the same bytes afresh would be misunderstood."""
    wire, disguise = exchange.wire(), b"POST /other HTTP/1.1\r\nX: "
    outer = post(disguise, path=b"/other")
    wire.say(outer[: -len(disguise)], disguise + post(A))
    assert [(await wire.hear())[0] for _ in range(2)] == [200, 200]
    assert await tell(exchange.wire(), disguise + post(B)) == b"ordinary:bbbb"


async def test_a_request_that_is_declined_is_served_once(exchange: Exchange, shop: Shop) -> None:
    wire = await known(exchange)
    shop.declines.add(B)
    assert await tell(wire, post(B)) == b"ordinary:bbbb"
    assert await tell(wire, post(C)) == b"spot:cccc"
    assert await tell(wire, post(B)) == b"ordinary:bbbb"
    assert shop.served == [(ORDINARY, A), (ORDINARY, B), (SPOT, C), (ORDINARY, B)]


async def test_a_crowd_is_told_so(shop: Shop) -> None:
    exchange = Exchange(shop, replace(LIMITS, connections=1))
    await known(exchange)
    late = exchange.wire()
    late.say(post(B))
    assert (await late.hear())[0] == 503
    assert shop.ways == [ORDINARY]


async def test_who_does_not_take_answers_is_not_served_on_the_spot(
    exchange: Exchange, shop: Shop
) -> None:
    wire = await known(exchange)
    wire.door.pause_writing()
    wire.say(post(B))
    assert shop.ways == [ORDINARY], "it begins as a task"
    wire.door.resume_writing()
    assert (await wire.hear())[1] == b"ordinary:bbbb"
    assert await tell(wire, post(C)) == b"spot:cccc"


# --- order, and what comes in between ----------------------------------------------------------


async def test_who_comes_while_an_answer_is_under_way_waits_for_it(
    exchange: Exchange, shop: Shop
) -> None:
    wire = await known(exchange)
    assert await tell(wire, post(A)) == b"spot:aaaa"
    shop.closed = True
    wire.say(post(B), post(C), post(A))
    assert shop.served[2:] == [(SPOT, B)]
    assert wire.silent
    shop.open()
    said = [(await wire.hear())[1] for _ in range(3)]
    assert said == [b"spot:bbbb", b"ordinary:cccc", b"ordinary:aaaa"]
    assert await tell(wire, post(B)) == b"spot:bbbb"


async def test_who_comes_behind_an_ordinary_request_waits_too(
    exchange: Exchange, shop: Shop
) -> None:
    wire = await known(exchange)
    shop.closed = True
    wire.say(post(B, path=b"/other"), post(C))
    shop.open()
    assert [(await wire.hear())[1] for _ in range(2)] == [b"ordinary:bbbb", b"ordinary:cccc"]


@pytest.mark.parametrize("stray", [b"\r\n", b"\r\n\r\n", b"\n"])
async def test_a_stray_line_break_between_requests(
    exchange: Exchange, shop: Shop, stray: bytes
) -> None:
    """RFC 9112, 2.2: some clients send one after a body; it means nothing."""
    wire = await known(exchange)
    shop.closed = True
    wire.say(post(B), stray)
    shop.open()
    assert (await wire.hear())[1] == b"spot:bbbb"
    assert await tell(wire, stray, post(C)) == b"spot:cccc"
    assert await tell(wire, stray, post(A, path=b"/other"), stray) == b"ordinary:aaaa"
    assert await tell(wire, post(C)) == b"spot:cccc"


async def test_nonsense_after_an_answer_under_way(exchange: Exchange, shop: Shop) -> None:
    """The request that was begun is not begun again, not even when its client leaves."""
    wire = await known(exchange)
    shop.closed = True
    wire.say(post(B), b"nonsense\r\n\r\n")
    assert wire.silent
    wire.hang_up()
    shop.open()
    assert shop.served[1:] == [(SPOT, B)]


async def test_who_hangs_up_is_not_answered(exchange: Exchange, shop: Shop) -> None:
    wire = await known(exchange)
    shop.closed = True
    wire.say(post(B), post(C))
    wire.hang_up()
    shop.open()  # to write now would be an error
    assert shop.served[1:] == [(SPOT, B)], "and who waited behind is not served"


_REQUESTS = st.sampled_from(
    [
        (post(A), A),
        (post(B), B),
        (post(b"longer"), b"longer"),
        (post(b""), b""),
        (post(A, path=b"/other"), A),
        (post(A, b"X: y"), A),
        (b"\r\n" + post(C), C),
        (post(C) + b"\r\n", C),
        (post(b"\r\n\r\n"), b"\r\n\r\n"),
        (post(b"POST"), b"POST"),
    ]
)


@settings(deadline=None)
@given(requests=st.lists(_REQUESTS, max_size=8), cuts=st.sets(st.integers(1, 600)) | st.none())
async def test_nobody_can_tell_which_way_was_taken(
    requests: list[tuple[bytes, bytes]], cuts: set[int] | None
) -> None:
    """However the bytes are cut, all requests are served, once each and in their order."""
    shop = Shop(declines={B}, closed=cuts is not None)
    wire = Exchange(shop).wire()
    pieces = [text for text, _ in requests]
    if cuts is not None:
        stream, at = b"".join(pieces), [0, *sorted(cuts), 10_000]
        pieces = [stream[i:j] for i, j in pairwise(at) if stream[i:j]]
    wire.say(*pieces)
    shop.open()
    bodies = [body for _, body in requests]
    assert [(await wire.hear())[1].partition(b":")[2] for _ in requests] == bodies
    assert [body for _, body in shop.served] == bodies


# --- patience ----------------------------------------------------------------------------------


async def test_who_rests_too_long_is_shown_out(exchange: Exchange) -> None:
    """Counted from the last answer, whichever way it came, with one timer for all of them."""
    await known(exchange)
    exchange.config.timeout_keep_alive = 0.4  # type: ignore[assignment]
    wire, loop = exchange.wire(), asyncio.get_running_loop()
    for _ in range(2):
        assert await tell(wire, post(B)) == b"spot:bbbb"
        answered_at = loop.time()
        await asyncio.sleep(0.1)
    rested = await wire.hear_the_end() - answered_at
    assert rested > 0.39


async def test_nobody_is_shown_out_whose_answer_is_under_way(
    exchange: Exchange, shop: Shop
) -> None:
    await known(exchange)
    exchange.config.timeout_keep_alive = 0.05  # type: ignore[assignment]
    wire = exchange.wire()
    assert await tell(wire, post(B)) == b"spot:bbbb"
    shop.closed = True
    wire.say(post(C))
    await asyncio.sleep(0.2)
    assert not wire.is_closing()
    shop.open()
    assert (await wire.hear())[1] == b"spot:cccc"
    await wire.hear_the_end()


async def test_a_request_served_on_the_spot_has_arrived(shop: Shop) -> None:
    """The patience with who says nothing ends when something was said."""
    exchange = Exchange(shop, replace(LIMITS, timeout=0.05))
    await known(exchange)
    wire, silent = exchange.wire(), exchange.wire()
    assert await tell(wire, post(B)) == b"spot:bbbb"
    await silent.hear_the_end()
    await asyncio.sleep(0.05)
    assert not wire.is_closing()
    assert await tell(wire, post(C)) == b"spot:cccc"


# --- what is kept ------------------------------------------------------------------------------


class Anything:
    def compile_fast_path(self, _scope: Scope) -> ServeFast:
        return lambda _body, _reply: True


def noted(heads: HeaderCache, request: bytes) -> None:
    heads.note(request, {"headers": [(b"content-length", b"4")]})


def test_so_many_heads_are_known_and_no_more() -> None:
    heads = HeaderCache(Anything())
    for n in range(3000):
        noted(heads, post(A, b"X: %d" % n))
    assert heads.find(post(B, b"X: 1975")) is None
    assert sum(heads.find(post(B, b"X: %d" % n)) is not None for n in range(3000)) == 1024


def test_a_head_that_is_noted_again_crowds_out_no_other() -> None:
    heads = HeaderCache(Anything())
    for n in range(1024):
        noted(heads, post(A, b"X: %d" % n))
    for _ in range(2000):
        noted(heads, post(A, b"X: 7"))
    assert all(heads.find(post(B, b"X: %d" % n)) for n in range(1024))


def test_of_a_head_only_its_digest_is_kept() -> None:
    heads = HeaderCache(Anything())
    noted(heads, post(A, b"Authorization: Bearer hush-hush"))
    assert heads.find(post(A, b"Authorization: Bearer hush-hush"))
    gc.collect()
    for thing in gc.get_referents(heads.__dict__, *gc.get_referents(heads)):
        assert b"hush" not in repr(thing).encode()


def test_a_length_that_is_not_that_of_the_body() -> None:
    heads = HeaderCache(Anything())
    noted(heads, post(b"longer"))
    assert heads.find(post(b"longer")) is None
    noted(heads, post(A))
    assert heads.find(post(A)) is not None
    assert heads.find(post(A) + b"!") is None
    assert heads.find(post(A)[:-1]) is None
    assert heads.find(b"POST ") is None


async def test_without_a_learner_nothing_is_known(shop: Shop) -> None:
    exchange = Exchange(shop)
    exchange.config.heads = HeaderCache(None)
    wire = await known(exchange)
    assert await tell(wire, post(B)) == b"ordinary:bbbb"


async def test_a_connection_leaves_no_ring_behind(exchange: Exchange) -> None:
    """Only the collector finds rings, when all of it has grown cold."""
    await known(exchange)
    gc.collect()
    gc.disable()
    try:
        for _ in range(5):
            wire = exchange.wire()
            await tell(wire, post(B))
            wire.hang_up()
        del wire
        left = [
            thing for thing in gc.get_objects() if isinstance(thing, (LimitedHttpProtocol, Cycle))
        ]
        assert len(left) <= 2, "those of the connection that is open"
    finally:
        gc.enable()
