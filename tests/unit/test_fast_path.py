"""The fast path of the HTTP server: what it serves, what not, and the same answers."""

import asyncio
import gc
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.types import Scope

from mainspring.api.http.connection import LimitedHttpProtocol
from mainspring.api.http.fast_path import HeaderCache, ServeFast
from mainspring.api.http.request_cycle import Cycle
from support.fast_path_app import (
    FAST,
    ORDINARY,
    FastPathApp,
    MemoryTransport,
    TransportFactory,
    post,
)
from support.http_server import LIMITS

A, B, C = b"aaaa", b"bbbb", b"cccc"


@pytest.fixture
def app() -> FastPathApp:
    return FastPathApp()


@pytest.fixture
def transports(app: FastPathApp) -> TransportFactory:
    return TransportFactory(app)


async def tell(transport: MemoryTransport, *pieces: bytes) -> bytes:
    transport.send(*pieces)
    status, body = await transport.read_response()
    assert status == 200
    return body


async def known(transports: TransportFactory) -> MemoryTransport:
    """A transport on which the head of `post` with four bytes was seen."""
    transport = transports.connect()
    assert await tell(transport, post(A)) == b"ordinary:aaaa"
    return transport


async def waiting(
    transports: TransportFactory, app: FastPathApp, *requests: bytes
) -> MemoryTransport:
    """A known transport on which these were sent; nothing is answered until the app opens."""
    transport = await known(transports)
    app.closed = True
    transport.send(*requests)
    return transport


# --- what is served on the fast path -----------------------------------------------------------


async def test_a_head_that_was_seen_before(transports: TransportFactory) -> None:
    transport = await known(transports)
    assert await tell(transport, post(B)) == b"fast:bbbb"
    assert await tell(transport, post(C)) == b"fast:cccc"


async def test_a_head_that_was_seen_on_another_connection(transports: TransportFactory) -> None:
    await known(transports)
    assert await tell(transports.connect(), post(B)) == b"fast:bbbb"


async def test_a_connection_goes_both_ways_in_turn(transports: TransportFactory) -> None:
    transport = await known(transports)
    for _ in range(3):
        assert await tell(transport, post(B)) == b"fast:bbbb"
        assert await tell(transport, post(B, path=b"/other")) == b"ordinary:bbbb"
    assert transports.state.total_requests == 7


async def test_the_date_of_an_answer_is_todays(transports: TransportFactory) -> None:
    """The server sets it anew every second."""
    transport = await known(transports)
    for day in (b"monday", b"tuesday"):
        transports.state.default_headers = [(b"date", day)]
        assert await tell(transport, post(B)) == b"fast:bbbb"
        assert b"\r\ndate: %b\r\n" % day in transport.head


async def test_a_body_that_is_none(transports: TransportFactory) -> None:
    transport = transports.connect()
    assert await tell(transport, post(b"")) == b"ordinary:"
    assert await tell(transport, post(b"")) == b"fast:"


async def test_a_body_that_looks_like_a_head(transports: TransportFactory) -> None:
    """Whatever it says, as many bytes as the head declares are the body."""
    transport, body = transports.connect(), b"\r\n\r\n" + post(A)
    assert await tell(transport, post(body)) == b"ordinary:" + body
    assert await tell(transport, post(body)) == b"fast:" + body


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
    transports: TransportFactory, pieces: list[bytes]
) -> None:
    transport = await known(transports)
    assert await tell(transport, *pieces) == b"ordinary:bbbb"
    assert await tell(transport, post(C)) == b"fast:cccc", (
        "and the parser finds itself where it was"
    )


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
async def test_heads_that_are_not_noted(
    transports: TransportFactory, app: FastPathApp, request_: bytes
) -> None:
    for _ in range(2):
        await tell(transports.connect(), request_)
    assert app.paths == [ORDINARY, ORDINARY]


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
    transports: TransportFactory, app: FastPathApp, pieces: list[bytes]
) -> None:
    transport = transports.connect()
    transport.send(*pieces)
    for _ in range(b"".join(pieces).count(b"HTTP/")):
        assert (await transport.read_response())[0] == 200
    assert await tell(transport, post(B)) == b"ordinary:bbbb"
    assert set(app.paths) == {ORDINARY}


async def test_more_than_one_request_in_a_piece(
    transports: TransportFactory, app: FastPathApp
) -> None:
    transport = await known(transports)
    transport.send(post(B) + post(C))
    assert [await transport.read_response() for _ in range(2)] == [
        (200, b"ordinary:" + x) for x in (B, C)
    ]
    transport.send(post(B) + post(C)[:20], post(C)[20:] + post(A))
    assert [body for _, body in [await transport.read_response() for _ in range(3)]] == [
        b"ordinary:" + x for x in (B, C, A)
    ]
    assert FAST not in app.paths


async def test_a_request_within_the_head_of_another_is_none(
    transports: TransportFactory, app: FastPathApp
) -> None:
    transport = await known(transports)
    assert await tell(transport, b"POST /other HTTP/1.1\r\nX: ", post(B)) == b"ordinary:bbbb"
    assert FAST not in app.paths


@pytest.mark.parametrize("path", [b"/other", b"/early"])
async def test_a_request_within_the_body_of_another_is_none(
    transports: TransportFactory, app: FastPathApp, path: bytes
) -> None:
    transport = await known(transports)
    outer = post(post(B), path=path)
    assert outer.endswith(post(B))
    transport.send(outer[: -len(post(B))])
    if path == b"/early":
        assert (await transport.read_response())[1] == b"ordinary:early"
    transport.send(post(B))
    if path == b"/other":
        assert (await transport.read_response())[1] == b"ordinary:" + post(B)
    assert FAST not in app.paths
    assert await tell(transport, post(C)) == b"fast:cccc"


async def test_the_end_of_a_body_is_no_part_of_a_head(transports: TransportFactory) -> None:
    """Or else who sends the same bytes afresh would be misunderstood."""
    transport, disguise = transports.connect(), b"POST /other HTTP/1.1\r\nX: "
    outer = post(disguise, path=b"/other")
    transport.send(outer[: -len(disguise)], disguise + post(A))
    assert [(await transport.read_response())[0] for _ in range(2)] == [200, 200]
    assert await tell(transports.connect(), disguise + post(B)) == b"ordinary:bbbb"


async def test_a_request_that_is_declined_is_served_once(
    transports: TransportFactory, app: FastPathApp
) -> None:
    transport = await known(transports)
    app.declines.add(B)
    assert await tell(transport, post(B)) == b"ordinary:bbbb"
    assert await tell(transport, post(C)) == b"fast:cccc"
    assert await tell(transport, post(B)) == b"ordinary:bbbb"
    assert app.served == [(ORDINARY, A), (ORDINARY, B), (FAST, C), (ORDINARY, B)]


async def test_too_many_connections_are_refused(app: FastPathApp) -> None:
    transports = TransportFactory(app, LIMITS._replace(connections=1))
    await known(transports)
    late = transports.connect()
    late.send(post(B))
    assert (await late.read_response())[0] == 503
    assert app.paths == [ORDINARY]


async def test_a_client_that_does_not_read_is_not_served_fast(
    transports: TransportFactory, app: FastPathApp
) -> None:
    transport = await known(transports)
    transport.protocol.pause_writing()
    transport.send(post(B))
    assert app.paths == [ORDINARY], "it begins as a task"
    transport.protocol.resume_writing()
    assert (await transport.read_response())[1] == b"ordinary:bbbb"
    assert await tell(transport, post(C)) == b"fast:cccc"


# --- order, and what comes in between ----------------------------------------------------------


async def test_a_request_during_an_answer_waits_for_it(
    transports: TransportFactory, app: FastPathApp
) -> None:
    transport = await known(transports)
    assert await tell(transport, post(A)) == b"fast:aaaa"
    app.closed = True
    transport.send(post(B), post(C), post(A))
    assert app.served[2:] == [(FAST, B)]
    assert transport.silent
    app.open()
    bodies = [(await transport.read_response())[1] for _ in range(3)]
    assert bodies == [b"fast:bbbb", b"ordinary:cccc", b"ordinary:aaaa"]
    assert await tell(transport, post(B)) == b"fast:bbbb"


async def test_a_request_behind_an_ordinary_one_waits_too(
    transports: TransportFactory, app: FastPathApp
) -> None:
    transport = await waiting(transports, app, post(B, path=b"/other"), post(C))
    app.open()
    assert [(await transport.read_response())[1] for _ in range(2)] == [
        b"ordinary:bbbb",
        b"ordinary:cccc",
    ]


@pytest.mark.parametrize("stray", [b"\r\n", b"\r\n\r\n", b"\n"])
async def test_a_stray_line_break_between_requests(
    transports: TransportFactory, app: FastPathApp, stray: bytes
) -> None:
    """RFC 9112, 2.2: some clients send one after a body; it means nothing."""
    transport = await waiting(transports, app, post(B), stray)
    app.open()
    assert (await transport.read_response())[1] == b"fast:bbbb"
    assert await tell(transport, stray, post(C)) == b"fast:cccc"
    assert await tell(transport, stray, post(A, path=b"/other"), stray) == b"ordinary:aaaa"
    assert await tell(transport, post(C)) == b"fast:cccc"


async def test_nonsense_after_an_answer_under_way(
    transports: TransportFactory, app: FastPathApp
) -> None:
    """The request that was begun is not begun again, not even when its client leaves."""
    transport = await waiting(transports, app, post(B), b"nonsense\r\n\r\n")
    assert transport.silent
    transport.hang_up()
    app.open()
    assert app.served[1:] == [(FAST, B)]


async def test_a_closed_connection_is_not_answered(
    transports: TransportFactory, app: FastPathApp
) -> None:
    transport = await waiting(transports, app, post(B), post(C))
    transport.hang_up()
    app.open()  # to write now would be an error
    assert app.served[1:] == [(FAST, B)], "and who waited behind is not served"


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
    app = FastPathApp(declines={B}, closed=cuts is not None)
    transport = TransportFactory(app).connect()
    pieces = [text for text, _ in requests]
    if cuts is not None:
        stream, at = b"".join(pieces), [0, *sorted(cuts), 10_000]
        pieces = [stream[i:j] for i, j in pairwise(at) if stream[i:j]]
    transport.send(*pieces)
    app.open()
    bodies = [body for _, body in requests]
    assert [(await transport.read_response())[1].partition(b":")[2] for _ in requests] == bodies
    assert [body for _, body in app.served] == bodies


# --- timeouts ----------------------------------------------------------------------------------


async def test_an_idle_connection_is_closed(transports: TransportFactory) -> None:
    """Counted from the last answer, whichever path it came, with one timer for all of them."""
    await known(transports)
    transports.config.timeout_keep_alive = 0.4  # type: ignore[assignment]
    transport, loop = transports.connect(), asyncio.get_running_loop()
    for _ in range(2):
        assert await tell(transport, post(B)) == b"fast:bbbb"
        answered_at = loop.time()
        await asyncio.sleep(0.1)
    rested = await transport.wait_closed() - answered_at
    assert rested > 0.39


async def test_no_connection_is_closed_before_its_answer(
    transports: TransportFactory, app: FastPathApp
) -> None:
    await known(transports)
    transports.config.timeout_keep_alive = 0.05  # type: ignore[assignment]
    transport = transports.connect()
    assert await tell(transport, post(B)) == b"fast:bbbb"
    app.closed = True
    transport.send(post(C))
    await asyncio.sleep(0.2)
    assert not transport.is_closing()
    app.open()
    assert (await transport.read_response())[1] == b"fast:cccc"
    await transport.wait_closed()


async def test_a_request_served_on_the_spot_has_arrived(app: FastPathApp) -> None:
    """The timeout of a silent connection ends when something was sent."""
    transports = TransportFactory(app, LIMITS._replace(timeout=0.05))
    await known(transports)
    transport, silent = transports.connect(), transports.connect()
    assert await tell(transport, post(B)) == b"fast:bbbb"
    await silent.wait_closed()
    await asyncio.sleep(0.05)
    assert not transport.is_closing()
    assert await tell(transport, post(C)) == b"fast:cccc"


# --- what is kept ------------------------------------------------------------------------------


def serve_anything(_scope: Scope) -> ServeFast:
    return lambda _body, _reply: True


def noted(heads: HeaderCache, request: bytes) -> None:
    heads.note(request, {"headers": [(b"content-length", b"4")]})


def test_so_many_heads_are_known_and_no_more() -> None:
    heads = HeaderCache(serve_anything)
    for n in range(3000):
        noted(heads, post(A, b"X: %d" % n))
    assert heads.find(post(B, b"X: 1975")) is None
    assert sum(heads.find(post(B, b"X: %d" % n)) is not None for n in range(3000)) == 1024


def test_a_head_that_is_noted_again_displaces_no_other() -> None:
    heads = HeaderCache(serve_anything)
    for n in range(1024):
        noted(heads, post(A, b"X: %d" % n))
    for _ in range(2000):
        noted(heads, post(A, b"X: 7"))
    assert all(heads.find(post(B, b"X: %d" % n)) for n in range(1024))


def test_of_a_head_only_its_digest_is_kept() -> None:
    heads = HeaderCache(serve_anything)
    noted(heads, post(A, b"Authorization: Bearer hush-hush"))
    assert heads.find(post(A, b"Authorization: Bearer hush-hush"))
    gc.collect()
    for thing in gc.get_referents(heads.__dict__, *gc.get_referents(heads)):
        assert b"hush" not in repr(thing).encode()


def test_a_length_that_is_not_that_of_the_body() -> None:
    heads = HeaderCache(serve_anything)
    noted(heads, post(b"longer"))
    assert heads.find(post(b"longer")) is None
    noted(heads, post(A))
    assert heads.find(post(A)) is not None
    assert heads.find(post(A) + b"!") is None
    assert heads.find(post(A)[:-1]) is None
    assert heads.find(b"POST ") is None


async def test_without_a_learner_nothing_is_known(app: FastPathApp) -> None:
    transports = TransportFactory(app)
    transports.config.heads = HeaderCache(None)
    transport = await known(transports)
    assert await tell(transport, post(B)) == b"ordinary:bbbb"


async def test_a_connection_leaves_no_ring_behind(transports: TransportFactory) -> None:
    """Only the collector finds rings, when all of it has grown cold."""
    await known(transports)
    gc.collect()
    gc.disable()
    try:
        for _ in range(5):
            transport = transports.connect()
            await tell(transport, post(B))
            transport.hang_up()
        del transport
        left = [
            thing for thing in gc.get_objects() if isinstance(thing, (LimitedHttpProtocol, Cycle))
        ]
        assert len(left) <= 2, "those of the connection that is open"
    finally:
        gc.enable()
