"""Both ways to drive libcurl, on a thread and on the event loop: the same promises."""

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import count
from uuid import UUID

import pytest

from mainspring.execution.egress_guard import EgressRules, parse_networks
from mainspring.execution.sender import LoopSender, Sender, ThreadSender
from mainspring.execution.transfers import (
    Key,
    SenderSettings,
    TransferReply,
    TransferRequest,
    Transfers,
)
from support.waiting import eventually

LOCAL = EgressRules(parse_networks("127.0.0.0/8"))


async def until(condition: Callable[[], bool], what: str) -> None:
    async def asked() -> bool:
        return condition()

    await eventually(asked, within=10, what=what)


class Receiver:
    """A server that answers each request at once, unless its path says to wait for ever."""

    port = 0
    open = 0

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        self.open += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(2)
                if b" /wait" in head:
                    await asyncio.Event().wait()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass  # the caller left, or the test is over
        finally:
            self.open -= 1
            writer.close()


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    made = Receiver()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0, backlog=1024)
    made.port = server.sockets[0].getsockname()[1]
    yield made
    server.close()


class SendRecorder:
    """Sends, and keeps what came back."""

    def __init__(self, kind: Callable[..., Sender], receiver: Receiver) -> None:
        self._loop = asyncio.get_running_loop()
        self._receiver = receiver
        self._numbers = count(1)
        self.replies: dict[Key, TransferReply] = {}
        self.calls = 0
        self.sender = kind(SenderSettings(connect_timeout=2), self._deliver)

    def _deliver(self, replies: Sequence[TransferReply]) -> None:
        self._loop.call_soon_threadsafe(self._keep, replies)

    def _keep(self, replies: Sequence[TransferReply]) -> None:
        self.calls += 1
        for reply in replies:
            assert reply.key not in self.replies, "a request was answered twice"
            self.replies[reply.key] = reply

    def send(self, how_many: int = 1, path: str = "/", timeout: float = 10) -> list[Key]:
        keys = [(UUID(int=next(self._numbers)), 1) for _ in range(how_many)]
        url = f"http://127.0.0.1:{self._receiver.port}{path}"
        self.sender.send(
            [TransferRequest(key, url, "POST", [], b"{}", timeout, LOCAL) for key in keys]
        )
        return keys

    async def outcomes(self, keys: Sequence[Key]) -> list[str | int]:
        await until(lambda: all(k in self.replies for k in keys), what="all are answered")
        return [self.replies[k].trouble or self.replies[k].status for k in keys]


@pytest.fixture(params=[ThreadSender, LoopSender])
async def recorder(
    request: pytest.FixtureRequest, receiver: Receiver
) -> AsyncIterator[SendRecorder]:
    made = SendRecorder(request.param, receiver)
    yield made
    made.sender.stop()


async def test_each_request_has_one_reply(recorder: SendRecorder) -> None:
    assert set(await recorder.outcomes(recorder.send(300))) == {200}
    assert recorder.calls < 300, "replies come together"


async def test_a_receiver_that_never_answers_is_given_up(recorder: SendRecorder) -> None:
    assert await recorder.outcomes(recorder.send(2, "/wait", timeout=0.3)) == ["timeout"] * 2


async def test_a_request_can_be_broken_off(recorder: SendRecorder, receiver: Receiver) -> None:
    broken, kept = recorder.send(1, "/wait"), recorder.send(1, "/wait", timeout=0.5)
    await until(lambda: receiver.open == 2, what="both are under way")
    recorder.sender.cancel(broken[0])
    recorder.sender.cancel((UUID(int=10**6), 1))  # nobody's
    assert await recorder.outcomes(broken) == ["cancelled"]
    assert await recorder.outcomes(kept) == ["timeout"]


async def test_breaking_off_at_once_overtakes_nothing(recorder: SendRecorder) -> None:
    (key,) = recorder.send(1, "/wait")
    recorder.sender.cancel(key)
    assert await recorder.outcomes([key]) == ["cancelled"]


async def test_a_fault_of_the_sender_leaves_nobody_waiting(
    recorder: SendRecorder, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = recorder.send(3, "/wait")
    await until(lambda: receiver.open == 3, what="they are under way")

    def fail(_self: Transfers) -> list[TransferReply]:
        monkeypatch.undo()
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(Transfers, "collect", fail)
    next_ones = recorder.send(1, "/wait", timeout=5)
    assert set(await recorder.outcomes([*waiting, *next_ones])) == {"cancelled"}
    assert await recorder.outcomes(recorder.send(2)) == [200, 200]


async def test_stopping_answers_requests_that_were_not_sent(receiver: Receiver) -> None:
    recorder = SendRecorder(LoopSender, receiver)
    keys = recorder.send(100)
    recorder.sender.stop()
    assert set(await recorder.outcomes(keys)) == {"cancelled"}


async def test_others_have_their_turn_between_two_portions(receiver: Receiver) -> None:
    recorder, turns = SendRecorder(LoopSender, receiver), 0
    keys = recorder.send(640)
    while len(recorder.replies) < len(keys):
        turns += 1
        await asyncio.sleep(0)
    assert turns >= 10
    recorder.sender.stop()
