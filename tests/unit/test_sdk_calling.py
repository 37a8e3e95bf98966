"""How the clients call: what is tried again, under which key, and what is told when it fails.

The other end is a socket that answers as the test has it; the same tests run with both faces.
"""

import asyncio
import pickle
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mainspring import (
    AsyncClient,
    Client,
    Conflict,
    InvalidRequest,
    NotFound,
    Unavailable,
    Unreachable,
)
from mainspring.errors import ConfigError, RequestError
from mainspring.sdk.http1 import ResponseReader

TASK = (
    b'{"id":"01a1e170-40be-706a-9c6e-50040828df4d","state":"scheduled","target":{"type":"http"},'
    b'"run_at":"2027-01-01T00:00:00Z","due_at":"2027-01-01T00:00:00Z",'
    b'"created_at":"2027-01-01T00:00:00Z"}'
)
ID = "01a1e170-40be-706a-9c6e-50040828df4d"
HANG_UP = b""


def answer(status: int, body: bytes = b"", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} x", f"content-length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


@dataclass
class Script:
    """A server that answers requests one after the other, over as many connections as it takes."""

    answers: list[bytes]
    url: str = ""
    requests: list[bytes] = field(default_factory=list)
    connections: int = 0

    def serve(self, listening: socket.socket) -> None:
        while self.answers:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            self.connections += 1
            with connection:
                self._converse(connection)

    def _converse(self, connection: socket.socket) -> None:
        while self.answers:
            received = b""
            while not complete(received):
                chunk = connection.recv(65536)
                if not chunk:
                    return
                received += chunk
            self.requests.append(received)
            reply = self.answers.pop(0)
            if reply == HANG_UP:
                return
            connection.sendall(reply)

    def headers(self, name: str) -> list[str]:
        lines = [line for r in self.requests for line in r.decode("latin-1").split("\r\n")]
        wanted = name.lower() + ":"
        return [line.partition(":")[2].strip() for line in lines if line.lower().startswith(wanted)]


def complete(request: bytes) -> bool:
    head, end, body = request.partition(b"\r\n\r\n")
    if not end:
        return False
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return len(body) >= int(line.split(b":")[1])
    return True


@contextmanager
def scripted(*answers: bytes) -> Iterator[Script]:
    script = Script(list(answers))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        script.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        thread = threading.Thread(target=script.serve, args=(listening,), daemon=True)
        thread.start()
        yield script
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(5)


Call = Callable[[Any], Awaitable[Any] | Any]


async def in_awaiting(url: str, call: Call, seconds: float) -> Any:
    async with AsyncClient(url, "key", timeout=seconds) as client:
        return await call(client)


async def in_blocking(url: str, call: Call, seconds: float) -> Any:
    def work() -> Any:
        with Client(url, "key", timeout=seconds) as client:
            return call(client)

    return await asyncio.to_thread(work)


@pytest.fixture(params=[in_awaiting, in_blocking], ids=["async", "sync"])
def through(request: pytest.FixtureRequest) -> Callable[..., Any]:
    def go(script: Script, call: Call, timeout: float = 10.0) -> Any:
        return request.param(script.url, call, timeout)

    return go


def create(client: Any) -> Any:
    return client.tasks.create({"type": "http", "url": "https://x.example"}, payload=None)


class TestTryingAgain:
    async def test_a_lost_answer_is_asked_for_again_under_the_same_key(self, through: Any) -> None:
        with scripted(HANG_UP, answer(503, retry_after="0"), answer(201, TASK)) as script:
            task = await through(script, create)
        assert str(task.id) == ID
        assert len(script.requests) == 3
        keys = script.headers("idempotency-key")
        assert len(keys) == 3
        assert len(set(keys)) == 1
        assert len({request.partition(b"\r\n\r\n")[2] for request in script.requests}) == 1

    async def test_two_calls_have_two_keys(self, through: Any) -> None:
        with scripted(answer(201, TASK), answer(201, TASK)) as script:
            await through(script, create)
            await through(script, create)
        assert len(set(script.headers("idempotency-key"))) == 2

    @pytest.mark.slow
    async def test_retry_after_is_honoured(self, through: Any) -> None:
        loop = asyncio.get_running_loop()
        with scripted(answer(429, retry_after="1"), answer(200, TASK)) as script:
            began = loop.time()
            await through(script, lambda client: client.tasks.get(ID))
            assert loop.time() - began >= 1.0

    async def test_retrying_ends_at_the_timeout(self, through: Any) -> None:
        with scripted(answer(503, retry_after="60")) as script, pytest.raises(Unavailable) as told:
            await through(script, lambda client: client.tasks.get(ID), timeout=0.5)
        assert (told.value.status, told.value.retry_after) == (503, 60.0)

    async def test_nobody_listens(self, through: Any) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        with pytest.raises(Unreachable):
            await through(
                Script([], f"http://127.0.0.1:{port}"), lambda c: c.tasks.get(ID), timeout=0.3
            )

    async def test_a_repeated_delete_that_had_succeeded(self, through: Any) -> None:
        with scripted(HANG_UP, answer(404, b"{}")) as script:
            assert await through(script, lambda client: client.tasks.delete(ID)) is None

    async def test_a_500_is_not_retried(self, through: Any) -> None:
        problem = b'{"title": "Something went wrong", "request_id": "abc"}'
        with (
            scripted(answer(500, problem)) as script,
            pytest.raises(Unavailable, match="Something went wrong") as told,
        ):
            await through(script, lambda client: client.tasks.get(ID))
        assert told.value.request_id == "abc"
        assert len(script.requests) == 1

    async def test_connections_are_kept(self, through: Any) -> None:
        async def twice(client: Any) -> None:
            for _ in range(2):
                found = client.tasks.get(ID)
                if asyncio.iscoroutine(found):
                    await found

        def both(client: Any) -> Any:
            if isinstance(client, AsyncClient):
                return twice(client)
            return [client.tasks.get(ID), client.tasks.get(ID)]

        with scripted(answer(200, TASK), answer(200, TASK)) as script:
            await through(script, both)
        assert script.connections == 1


class TestProblems:
    @pytest.mark.parametrize(
        ("status", "kind"), [(404, NotFound), (409, Conflict), (422, InvalidRequest), (418, None)]
    )
    async def test_each_has_its_class(self, through: Any, status: int, kind: Any) -> None:
        body = b'{"title": "T", "detail": "why", "errors": [{"pointer": "/a", "detail": "bad"}]}'
        with scripted(answer(status, body)) as script, pytest.raises(kind or RequestError) as told:
            await through(script, lambda client: client.tasks.get(ID))
        assert told.value.detail == "why"
        assert [(p.pointer, p.detail) for p in told.value.problems] == [("/a", "bad")]
        assert str(told.value) == "why: /a: bad"
        assert not hasattr(told.value, "__notes__"), "a traceback would say it twice"

    async def test_many_problems_are_reported_in_one_line(self, through: Any) -> None:
        problems = [{"pointer": f"/{n}", "detail": "two\n lines"} for n in range(10)]
        body = msgspec.json.encode({"detail": "so many", "errors": problems})
        with scripted(answer(422, body)) as script, pytest.raises(InvalidRequest) as told:
            await through(script, lambda client: client.tasks.get(ID))
        assert str(told.value) == (
            "so many: /0: two lines; /1: two lines; /2: two lines; … and 7 more"
        )
        assert len(told.value.problems) == 10
        again = pickle.loads(pickle.dumps(told.value))
        assert (str(again), again.detail) == (str(told.value), "so many")

    @pytest.mark.slow
    async def test_an_answer_that_is_not_http(self, through: Any) -> None:
        with (
            scripted(*[b"SSH-2.0 hello\r\n\r\n"] * 9) as script,
            pytest.raises(Unreachable, match="not HTTP"),
        ):
            await through(script, lambda client: client.tasks.get(ID), timeout=0.3)

    async def test_a_redirect_is_not_followed(self, through: Any) -> None:
        with (
            scripted(answer(307, location="http://elsewhere.example/")) as script,
            pytest.raises(Unavailable, match="elsewhere"),
        ):
            await through(script, lambda client: client.tasks.delete(ID))
        assert len(script.requests) == 1


class TestPages:
    async def test_a_list_goes_on_where_the_page_ends(self, through: Any) -> None:
        first = b'{"items": [' + TASK + b'], "next_cursor": "abc"}'
        last = b'{"items": [' + TASK + b'], "next_cursor": null}'

        async def gather(client: Any) -> int:
            return len([task async for task in client.tasks.list(state="scheduled")])

        def count(client: Any) -> Any:
            if isinstance(client, AsyncClient):
                return gather(client)
            return len(list(client.tasks.list(state="scheduled")))

        with scripted(answer(200, first), answer(200, last)) as script:
            assert await through(script, count) == 2
        assert b"cursor=abc" in script.requests[1]
        assert b"state=scheduled" in script.requests[1]


def test_a_bad_address_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MAINSPRING_URL", "MAINSPRING_API_KEY", "MAINSPRING_API_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError) as told:
        Client("ftp://x")
    assert len(told.value.problems) == 2
    assert "key" not in repr(Client("http://x", "hidden").address) or "hidden" not in repr(
        Client("http://x", "hidden").address
    )


@pytest.mark.parametrize("url", ["http://:80", "http://x:port", "http://x:99999", "https://[::1"])
def test_an_address_without_a_host_is_no_address(url: str) -> None:
    with pytest.raises(ConfigError, match="names no host"):
        Client(url, "key")


def test_an_empty_file_holds_no_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("\n")
    monkeypatch.delenv("MAINSPRING_API_KEY", raising=False)
    monkeypatch.setenv("MAINSPRING_API_KEY_FILE", str(tmp_path / "key"))
    with pytest.raises(ConfigError, match="api_key is not set"):
        Client("http://x")


def test_a_key_cannot_smuggle_headers() -> None:
    with pytest.raises(ConfigError):
        Client("http://x", "key\r\nX-Evil: 1")


def test_an_interim_answer_is_not_the_answer() -> None:
    found = ResponseReader()
    done = []
    for data in (b"HTTP/1.1 103 Early\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"):
        found.feed(data)
        done.append(found.done)
    assert done == [False, True]
    assert found.response().body == b"hi"
