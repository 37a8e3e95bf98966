"""What becomes of connections when the server stops."""

import asyncio
import socket
import sys

import pytest
from starlette.types import Receive, Scope, Send

from mainspring.api.http import connection as connections
from mainspring.api.http import draining
from mainspring.api.http import server as door
from mainspring.api.http.connection import LimitedHttpProtocol
from support.door import SOON, Doorway, Visitor, opened_door
from support.waiting import eventually

HEAD = b"GET / HTTP/1.1\r\nHost: x\r\n"
GET = HEAD + b"\r\n"


async def hello(_scope: Scope, _receive: Receive, send: Send) -> None:
    headers = [(b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"hi"})


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "_DRAINED_WITHIN", 1.0)
    monkeypatch.setattr(connections, "IDLE_FOR", 0.3)


async def accepted(doorway: Doorway, count: int) -> None:
    async def reached() -> bool:
        return len(doorway.server.server_state.connections) == count

    await eventually(reached, within=5, what="the connections are accepted")


async def stopped_listening(doorway: Doorway) -> None:
    async def closed() -> bool:
        return not any(server.is_serving() for server in doorway.server.servers)

    await eventually(closed, within=5, what="the server listens no more")


async def test_streamed_answers_end_connections_too() -> None:
    async with opened_door(hello) as doorway:
        visitor = await doorway.visit()
        visitor.say(GET)
        assert "connection" not in (await visitor.hear())[1]
        doorway.server.drain()
        visitor.say(GET)
        assert (await visitor.hear())[1]["connection"] == "close"
        assert await visitor.hear_the_end() == b""


async def test_new_connection_may_send_its_first_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its request may be on the way when the server stops."""
    monkeypatch.setattr(door, "_DRAINED_WITHIN", SOON)
    monkeypatch.setattr(connections, "IDLE_FOR", SOON)
    async with opened_door(hello) as doorway:
        visitor = await doorway.visit()
        await accepted(doorway, 1)
        closing = asyncio.create_task(doorway.server.close())
        await stopped_listening(doorway)
        visitor.say(GET)
        assert (await visitor.hear())[0] == 200
        await closing


async def test_idle_connection_does_not_hold_up_the_stop() -> None:
    async with opened_door(hello) as doorway:
        visitor = await doorway.visit()
        visitor.say(GET)
        await visitor.hear()
        await doorway.server.close()
        assert await visitor.hear_the_end() == b""


async def test_half_a_request_is_told_that_the_node_stops() -> None:
    async with opened_door(hello) as doorway:
        visitor = await doorway.visit()
        visitor.say(HEAD)
        await accepted(doorway, 1)
        closing = asyncio.create_task(doorway.server.close())
        await visitor.refusal(503, "not-ready")
        await closing


async def test_unanswered_request_is_told_that_the_node_stops() -> None:
    async def never(_scope: Scope, _receive: Receive, _send: Send) -> None:
        await asyncio.Event().wait()

    async with opened_door(never) as doorway:
        visitor = await doorway.visit()
        visitor.say(GET)
        await accepted(doorway, 1)
        closing = asyncio.create_task(doorway.server.close())
        await visitor.refusal(503, "not-ready")
        await closing


async def test_unread_bytes_keep_a_connection_from_being_idle() -> None:
    """They are a request that the loop has not come to read: closing would reset its sender."""
    async with opened_door(hello) as doorway:
        visitor = await doorway.visit()
        await accepted(doorway, 1)
        [connection] = doorway.server.server_state.connections
        assert isinstance(connection, LimitedHttpProtocol)
        assert not draining.has_unread(connection.transport)
        _send_now(visitor, GET)  # the loop has no turn between this and the next line
        assert draining.has_unread(connection.transport)
        connection._answered_at -= 60
        connection.close_if_idle()
        assert (await visitor.hear())[0] == 200


def _send_now(visitor: Visitor, data: bytes) -> None:
    found = visitor.writer.get_extra_info("socket")
    with socket.socket(fileno=socket.dup(found.fileno())) as plain:
        plain.send(data)


@pytest.mark.skipif(sys.platform != "linux", reason="needs a socket filter of Linux")
def test_connections_in_the_backlog_survive_the_refusal_of_others() -> None:
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
