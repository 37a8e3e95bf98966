"""What becomes of connections when the server stops."""

import asyncio
import socket
import sys

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from mainspring.api.http import connection as http_connection
from mainspring.api.http import draining
from mainspring.api.http import server as http_server
from mainspring.api.http.connection import LimitedHttpProtocol
from support.http_server import SOON, HttpConnection, HttpListener, open_http_server
from support.waiting import eventually

HEAD = b"GET / HTTP/1.1\r\nHost: x\r\n"
GET = HEAD + b"\r\n"


async def hello(_scope: Scope, _receive: Receive, send: Send) -> None:
    headers = [(b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"hi"})


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_DRAINED_WITHIN", 1.0)
    monkeypatch.setattr(http_connection, "IDLE_FOR", 0.3)


async def accepted(listener: HttpListener, count: int) -> None:
    async def reached() -> bool:
        return len(listener.server.server_state.connections) == count

    await eventually(reached, within=5, what="the connections are accepted")


async def stopped_listening(listener: HttpListener) -> None:
    async def closed() -> bool:
        return not any(server.is_serving() for server in listener.server.servers)

    await eventually(closed, within=5, what="the server listens no more")


async def test_streamed_answers_end_connections_too() -> None:
    async with open_http_server(hello) as listener:
        connection = await listener.connect()
        connection.send(GET)
        assert "connection" not in (await connection.read_response())[1]
        listener.server.drain()
        connection.send(GET)
        assert (await connection.read_response())[1]["connection"] == "close"
        assert await connection.read_to_end() == b""


async def test_new_connection_may_send_its_first_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its request may be on the way when the server stops."""
    monkeypatch.setattr(http_server, "_DRAINED_WITHIN", SOON)
    monkeypatch.setattr(http_connection, "IDLE_FOR", SOON)
    async with open_http_server(hello) as listener:
        connection = await listener.connect()
        await accepted(listener, 1)
        closing = asyncio.create_task(listener.server.close())
        await stopped_listening(listener)
        connection.send(GET)
        assert (await connection.read_response())[0] == 200
        await closing


async def test_idle_connection_does_not_hold_up_the_stop() -> None:
    async with open_http_server(hello) as listener:
        connection = await listener.connect()
        connection.send(GET)
        await connection.read_response()
        await listener.server.close()
        assert await connection.read_to_end() == b""


async def assert_told_of_the_stop(app: ASGIApp, sent: bytes) -> None:
    async with open_http_server(app) as listener:
        connection = await listener.connect()
        connection.send(sent)
        await accepted(listener, 1)
        closing = asyncio.create_task(listener.server.close())
        await connection.read_refusal(503, "not-ready")
        await closing


async def test_half_a_request_is_told_that_the_node_stops() -> None:
    await assert_told_of_the_stop(hello, HEAD)


async def test_unanswered_request_is_told_that_the_node_stops() -> None:
    async def never(_scope: Scope, _receive: Receive, _send: Send) -> None:
        await asyncio.Event().wait()

    await assert_told_of_the_stop(never, GET)


async def test_unread_bytes_keep_a_connection_from_being_idle() -> None:
    """They are a request that the loop has not come to read: closing would reset its sender."""
    async with open_http_server(hello) as listener:
        connection = await listener.connect()
        await accepted(listener, 1)
        [accepting] = listener.server.server_state.connections
        assert isinstance(accepting, LimitedHttpProtocol)
        assert not draining.has_unread(accepting.transport)
        _send_now(connection, GET)  # the loop has no turn between this and the next line
        assert draining.has_unread(accepting.transport)
        accepting._answered_at -= 60
        accepting.close_if_idle()
        assert (await connection.read_response())[0] == 200


def _send_now(connection: HttpConnection, data: bytes) -> None:
    found = connection.writer.get_extra_info("socket")
    with socket.socket(fileno=socket.dup(found.fileno())) as plain:
        plain.send(data)


@pytest.mark.skipif(sys.platform != "linux", reason="needs a socket filter of Linux")
def test_connections_in_the_backlog_survive_others_refusal() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = listening.getsockname()
        with socket.create_connection(address) as waiting:
            draining.refuse_connections(listening)
            with pytest.raises(TimeoutError):
                socket.create_connection(address, timeout=0.2)
            served, _ = listening.accept()
            with served:
                waiting.sendall(b"ping")
                assert served.recv(4) == b"ping"
                served.sendall(b"pong")
                assert waiting.recv(4) == b"pong"
