"""What a worker says about executions that begin, and which it does not let begin."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import msgspec
import pytest

from mainspring import App
from mainspring.clock import monotonic
from mainspring.errors import InvalidRequest, Unreachable
from mainspring.sdk.context import Context
from mainspring.sdk.environment import Address
from mainspring.sdk.http1 import Origin, Request, Response
from mainspring.sdk.worker import heartbeat_thread as heartbeat_module
from mainspring.sdk.worker import suspects
from mainspring.sdk.worker.execution import Runner, WorkerExecution
from mainspring.sdk.worker.heartbeat_thread import HeartbeatThread
from mainspring.sdk.worker.nodes import Nodes, Stream
from mainspring.sdk.worker.options import WorkerOptions
from mainspring.sdk.worker.outcomes import RELEASED, Ending, ReportedOutcome
from mainspring.sdk.worker.protocol import Leases, ServerClock
from mainspring.sdk.worker.runners import LoopRunner, ThreadRunner
from mainspring.sdk.worker.suspects import StartChannels
from mainspring.wire.workers import (
    BeatIn,
    HeartbeatIn,
    JudgedListOut,
    JudgedOut,
    LeaseIn,
    PulseOut,
    PulsesOut,
)
from support.leased_tasks import leased
from support.waiting import eventually

OPTIONS = WorkerOptions(name="w", incarnation="1")


class Recording:
    """A runner that only notes what it is told."""

    apart = False

    def __init__(self) -> None:
        self.started: list[WorkerExecution] = []
        self.stopped: list[Ending | None] = []

    def start(self, attempt: WorkerExecution) -> None:
        self.started.append(attempt)

    def stop(self, attempt: WorkerExecution) -> None:
        self.stopped.append(attempt.ending)


def attempt(
    lease: float = 15.0, runner: Runner | None = None, function: Any = None
) -> WorkerExecution:
    task = leased()
    context = Context(task.id)
    return WorkerExecution(
        task, monotonic() + lease, context, function, runner or Recording(), lambda _: None
    )


class TestExecutions:
    @pytest.mark.parametrize(("left", "begins"), [(60.0, True), (0.9, False), (-1.0, False)])
    def test_nothing_begins_when_its_lease_is_nearly_over(self, left: float, begins: bool) -> None:
        one = attempt(lease=left)
        one.margin = 1.0
        assert (one.begin(), one.begun) == (begins, begins)

    @pytest.mark.parametrize("why", ["lost", "cancelled", "released", "timeout"])
    def test_what_was_ended_does_not_begin(self, why: Ending) -> None:
        one = attempt()
        one.start()
        one.end(why)
        assert not one.begin()

    def test_withdrawing_and_starting_agree(self) -> None:
        first, second = attempt(), attempt()
        assert (first.withdraw(), first.begin()) == (True, False)
        assert (second.begin(), second.withdraw()) == (True, False)
        assert second.ending is None

    def test_what_no_runner_has_settles_when_it_is_ended(self) -> None:
        one = attempt()
        one.end("released")
        assert one.verdict == RELEASED
        one.start()
        assert one.runner.started == []  # type: ignore[attr-defined]

    def test_what_did_not_begin_does_not_time_out(self) -> None:
        one = attempt()
        one.start()
        one.end("timeout")
        one.finish(ReportedOutcome("failed", None, "failed", "CancelledError"))
        assert one.verdict == RELEASED

    def test_a_start_is_announced_before_it_happens(self) -> None:
        one, begun = attempt(), list[bool]()
        one.on_begin = lambda started: begun.append(started.begun)
        assert one.begin()
        assert begun == [True]


class TestRunners:
    @pytest.fixture
    def calls(self) -> list[str]:
        return []

    @pytest.fixture
    def app(self, calls: list[str]) -> App:
        app = App(url="http://x", api_key="key")

        @app.task(name="on_loop")
        async def on_loop() -> None:
            calls.append("on_loop")

        @app.task(name="in_thread")
        def in_thread() -> None:
            calls.append("in_thread")

        return app

    @pytest.mark.parametrize(
        ("kind", "name"), [(LoopRunner, "on_loop"), (ThreadRunner, "in_thread")]
    )
    @pytest.mark.parametrize("lease", [15.0, 0.0])
    async def test_no_handler_begins_after_its_lease(
        self, app: App, calls: list[str], kind: Any, name: str, lease: float
    ) -> None:
        runner = kind(asyncio.get_running_loop())
        one = attempt(lease, runner, app.functions[name])
        one.start()

        async def settled() -> bool:
            return one.finished

        await eventually(settled, within=5, what="it is over")
        assert calls == ([name] if lease else [])
        assert one.verdict is not None
        assert one.verdict.status == ("succeeded" if lease else "released")


class Server:
    """Nodes that answer heartbeats and reports as the test has it."""

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.asked: list[Any] = []
        self.heard = threading.Event()
        self.connections_asked = 0
        self.there: socket.socket | None = None

    async def ask_any(self, _path: str, body: Any, _answer: Any, **_how: Any) -> Any:
        self.asked.append(body)
        answer: Any = self.answers.pop(0) if self.answers else "continue"
        if not self.answers:
            self.heard.set()
        if isinstance(answer, Exception):
            raise answer
        if isinstance(body, HeartbeatIn):
            return PulsesOut([PulseOut(id=beat.id, action=answer) for beat in body.running])
        return JudgedListOut([JudgedOut(outcome.id, "accepted") for outcome in body.outcomes])

    def stream(self, _within: float) -> Stream:
        """The first time there is no connection to be had."""
        self.connections_asked += 1
        if self.connections_asked == 1:
            raise Unreachable("nobody is there")
        here, self.there = socket.socketpair()
        return Stream(here, Origin.of("http://node"), {})

    def beats(self) -> list[tuple[bool, bool]]:
        beats = [beat for body in self.asked for beat in body.running]
        return [(beat.started, beat.alone) for beat in beats]


class Heartbeats:
    """A heartbeat thread, and the executions that it keeps."""

    def __init__(self, *executions: WorkerExecution, lease: float = 900.0) -> None:
        self.server, self.executions = Server(), list(executions)
        loop, clock = asyncio.get_running_loop(), ServerClock()
        clock.lease = lease
        self.heartbeat_thread = HeartbeatThread(
            OPTIONS,
            self.server,  # type: ignore[arg-type]
            clock,
            loop,
            self.held,
            LoopRunner(loop),
        )
        self.warnings: list[str] = []
        self.heartbeat_thread.warn = self.warnings.append

    def held(self) -> Sequence[WorkerExecution]:
        return self.executions

    async def next_request(self) -> None:
        assert await asyncio.to_thread(self.server.heard.wait, 5)


@pytest.fixture
async def beating() -> AsyncIterator[Callable[..., Heartbeats]]:
    made: list[Heartbeats] = []

    def start(
        *executions: WorkerExecution,
        before: Callable[[Heartbeats], None] = lambda _: None,
        **how: Any,
    ) -> Heartbeats:
        made.append(Heartbeats(*executions, **how))
        before(made[-1])
        made[-1].heartbeat_thread.start()
        return made[-1]

    yield start
    for one in made:
        one.heartbeat_thread.stop()


class TestHeartbeats:
    async def test_what_runs_for_a_while_is_named_once(
        self, beating: Callable[..., Heartbeats], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(heartbeat_module, "_ANNOUNCE_AFTER", 0.05)
        running, waiting, over = (attempt(lease=900.0) for _ in range(3))
        for one in (running, over):
            one.start()
            one.begin()
        over.finish(RELEASED)
        found = beating(running, waiting, over)
        await found.next_request()

        async def named() -> bool:
            return running.named

        await eventually(named, within=5, what="the answer has come")
        found.server.heard.clear()
        found.heartbeat_thread.interrupt_polls()
        await found.next_request()
        first, *rest = found.server.asked
        assert [beat.id for beat in first.running] == [running.leased.id]
        assert first.running[0].started
        assert [(b.id, b.started) for b in rest[0].running] == [
            (running.leased.id, True),
            (waiting.leased.id, False),
            (over.leased.id, True),
        ]

    async def test_what_is_alone_starts_when_its_lease_is_confirmed(
        self, beating: Callable[..., Heartbeats]
    ) -> None:
        one = attempt(lease=900.0)
        one.alone = True
        lost = Unreachable("nobody is there")
        found = beating(before=lambda b: b.server.answers.extend([lost, lost, "continue"]))
        found.heartbeat_thread.start_alone(one)
        await found.next_request()

        async def started() -> bool:
            return one.started

        await eventually(started, within=5, what="it is started")
        assert found.server.beats() == [(False, False)] * 4, "the worker may die before it begins"
        assert one.begin()
        assert found.server.there is not None
        found.server.there.settimeout(5)
        assert b'"alone":true' in found.server.there.recv(10_000)
        found.server.there.close()

    async def test_an_older_node_confirms_a_lease_as_begun(
        self, beating: Callable[..., Heartbeats]
    ) -> None:
        """It is not told of what has not begun; its answer counts all the same."""
        one = attempt(lease=900.0)
        one.alone = True
        found = beating()

        async def answer(_path: str, body: Any, _answer: Any, **_how: Any) -> Any:
            found.server.asked.append(body)
            return PulsesOut([PulseOut(id=b.id, action="lost") for b in body.running if b.started])

        found.server.ask_any = answer  # type: ignore[method-assign]
        assert await asyncio.to_thread(found.heartbeat_thread._is_decided, one)
        await asyncio.sleep(0)
        assert (one.started, one.ending) == (False, "lost")
        assert found.server.beats() == [(False, False), (True, False)]

    async def test_what_begins_while_an_older_node_answers_goes_on(
        self, beating: Callable[..., Heartbeats]
    ) -> None:
        """It heard nothing of what had not begun, and so it answers nothing about it."""
        one = attempt(lease=900.0)
        found = beating()

        async def answer(_path: str, body: Any, _answer: Any, **_how: Any) -> Any:
            one.start()
            assert one.begin()
            found.server.asked.append(body)
            return PulsesOut([])

        found.server.ask_any = answer  # type: ignore[method-assign]
        await asyncio.to_thread(found.heartbeat_thread._beat, [one])
        await asyncio.sleep(0)
        assert found.server.beats() == [(False, False)]
        assert (one.begun, one.ending) == (True, None)

    @pytest.mark.parametrize("answer", ["lost", "cancel"])
    async def test_what_is_not_confirmed_never_starts(
        self, beating: Callable[..., Heartbeats], answer: str
    ) -> None:
        one = attempt(lease=900.0)
        found = beating(before=lambda b: b.server.answers.append(answer))
        found.heartbeat_thread.start_alone(one)

        async def settled() -> bool:
            return one.finished

        await eventually(settled, within=5, what="it is over")
        assert not one.started
        assert not one.begin()
        assert len(found.server.asked) == 1

    async def test_a_lost_execution_never_starts(self, beating: Callable[..., Heartbeats]) -> None:
        one = attempt(lease=900.0)
        one.arriving = True  # the event loop has not heard of it yet
        found = beating(one, before=lambda b: b.server.answers.append("lost"))
        found.heartbeat_thread.interrupt_polls()
        await found.next_request()

        async def known() -> bool:
            return one.lease_end < 0

        await eventually(known, within=5, what="the answer is read")
        assert not one.begin()

    async def test_the_thread_survives_whatever_goes_wrong_in_it(
        self, beating: Callable[..., Heartbeats], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        problems = [OSError("no clock"), ValueError("sleep length must be non-negative")]

        def sleep(_seconds: float) -> None:
            if problems:
                raise problems.pop(0)

        def warn(_text: str) -> None:
            raise RuntimeError("the log is full")

        monkeypatch.setattr(heartbeat_module, "sleep", sleep)
        monkeypatch.setattr(heartbeat_module, "_AFTER_ERROR", 0.01)
        one = attempt(lease=0.1)
        found = beating(one, before=lambda b: setattr(b.heartbeat_thread, "warn", warn), lease=0.6)
        await found.next_request()

        async def all_met() -> bool:
            return not problems

        await eventually(all_met, within=5, what="both went wrong")
        found.server.heard.clear()
        one.lease_end = monotonic() + 0.1
        await found.next_request()
        assert found.heartbeat_thread.errors == 2

    async def test_what_waits_behind_a_blocked_loop_is_released(
        self, beating: Callable[..., Heartbeats]
    ) -> None:
        running, waiting = attempt(lease=900.0), attempt(lease=900.0)
        running.start()
        assert running.begin()

        def stand_still(found: Heartbeats) -> None:
            found.heartbeat_thread.pulse = monotonic() - 5.0

        found = beating(running, waiting, before=stand_still, lease=3.0)
        await found.next_request()
        (told,) = [body for body in found.server.asked if not isinstance(body, HeartbeatIn)]
        assert [(o.id, o.status) for o in told.outcomes] == [(waiting.leased.id, "released")]
        assert not waiting.begin()
        assert running.ending is None


class Sockets:
    """A server that takes connections, and whose answers the test gives."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.taken: list[socket.socket] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    def take(self) -> socket.socket:
        self.listener.settimeout(5)
        taken, _ = self.listener.accept()
        taken.settimeout(5)
        self.taken.append(taken)
        return taken

    def close(self) -> None:
        for taken in [*self.taken, self.listener]:
            taken.close()


@pytest.fixture
def sockets() -> Iterator[Sockets]:
    made = Sockets()
    yield made
    made.close()


class TestStartChannels:
    @pytest.fixture
    def channels(self, sockets: Sockets) -> Iterator[StartChannels]:
        made = StartChannels(OPTIONS, Nodes(Address(sockets.url, "key")))
        yield made
        made.close()

    def test_a_start_is_reported_as_it_happens(
        self, sockets: Sockets, channels: StartChannels
    ) -> None:
        one = attempt()
        assert channels.reserve(one)
        taken = sockets.take()
        taken.settimeout(0.05)
        with pytest.raises(TimeoutError):
            taken.recv(1)
        assert one.begin()
        taken.settimeout(5)
        head, _, body = taken.recv(10_000).partition(b"\r\n\r\n")
        assert head.startswith(b"POST /v1/leases/heartbeat HTTP/1.1")
        heartbeat = msgspec.json.decode(body, type=HeartbeatIn)
        assert (heartbeat.worker, heartbeat.incarnation) == ("w", "1")
        assert heartbeat.running == (BeatIn(*one.key),)
        assert b"started" not in body, "older nodes do not know that word"

    def test_it_says_that_nothing_runs_beside_it(
        self, sockets: Sockets, channels: StartChannels
    ) -> None:
        one = attempt()
        one.alone = True
        assert channels.reserve(one)
        assert one.begin()
        _, _, body = sockets.take().recv(10_000).partition(b"\r\n\r\n")
        heartbeat = msgspec.json.decode(body, type=HeartbeatIn)
        assert heartbeat.running == (BeatIn(*one.key, alone=True),)

    def test_one_message_at_a_time_on_each(
        self, sockets: Sockets, channels: StartChannels, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(suspects, "_MOST_CHANNELS", 2)
        executions = [attempt() for _ in range(4)]
        assert channels.reserve(executions[0])
        first = sockets.take()
        assert channels.reserve(executions[1])
        sockets.take()
        assert not channels.reserve(executions[2]), "it waits until one is answered"
        assert executions[0].begin()
        first.recv(10_000)
        assert not channels.reserve(executions[2])
        first.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        assert channels.reserve(executions[2])
        executions[1].finish(RELEASED)
        assert channels.reserve(executions[3]), "the other one was not used after all"
        assert len(sockets.taken) == 2

    def test_where_nobody_can_be_reached_it_begins_unnamed(
        self, sockets: Sockets, channels: StartChannels
    ) -> None:
        sockets.listener.close()
        one = attempt()
        assert channels.reserve(one)
        assert one.begin()

    def test_a_connection_that_was_closed_is_not_used(
        self, sockets: Sockets, channels: StartChannels
    ) -> None:
        first, second = attempt(), attempt()
        assert channels.reserve(first)
        assert first.begin()
        taken = sockets.take()
        taken.recv(10_000)
        taken.close()

        channels.recycle()
        assert channels.reserve(second)
        assert second.begin()
        assert sockets.take().recv(10_000)


class OlderNode:
    """A node that refuses what it does not know, as all of them do."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    async def send(self, request: Request, _within: float) -> Response:
        body = msgspec.json.decode(request.body or b"{}")
        self.asked.append(body)
        known = {"id", "fence", "progress"}
        unknown = "announces_starts" in body or any(set(b) - known for b in body.get("running", ()))
        if unknown:
            problem = {
                "type": "urn:mainspring:problem:malformed-request",
                "detail": "unknown field",
            }
            return Response(400, {}, msgspec.json.encode(problem))
        kept = [{"id": beat["id"], "action": "continue"} for beat in body.get("running", ())]
        return Response(200, {}, msgspec.json.encode({"tasks": kept}))


class TestOlderNodes:
    @pytest.fixture
    def node(self) -> OlderNode:
        return OlderNode()

    @pytest.fixture
    def nodes(self, node: OlderNode) -> Nodes:
        nodes = Nodes(Address("http://old", "key"))
        nodes._transports["http://old", False] = node  # type: ignore[assignment]
        return nodes

    async def test_they_are_asked_as_their_version_has_it(
        self, node: OlderNode, nodes: Nodes
    ) -> None:
        body = LeaseIn("w", "1", ("q",), ("h",), False, (), 1, 5.0, announces_starts=True)
        for _ in range(2):
            answer = await nodes.ask(
                "http://old", "/v1/leases", body, Leases, within=1, blocking=False
            )
            assert answer.tasks == []
        assert ["announces_starts" in asked for asked in node.asked] == [True, False, False]

    async def test_older_nodes_get_no_unstarted_executions(
        self, node: OlderNode, nodes: Nodes
    ) -> None:
        begun, alone, waiting = attempt(), attempt(), attempt()
        beats = (
            BeatIn(*begun.key),
            BeatIn(*alone.key, alone=True),
            BeatIn(*waiting.key, started=False),
        )
        answer = await nodes.ask(
            "http://old", "/x", HeartbeatIn("w", "1", beats), PulsesOut, within=1, blocking=False
        )
        assert [kept.id for kept in answer.tasks] == [begun.leased.id, alone.leased.id]
        assert {name for beat in node.asked[-1]["running"] for name in beat} == {"id", "fence"}

    def test_a_start_is_reported_in_their_words(self) -> None:
        one, (here, there) = attempt(), socket.socketpair()
        body = HeartbeatIn("w", "1", (BeatIn(*one.key, alone=True),))
        with here, there:
            for older in (False, True):
                stream = Stream(here, Origin.of("http://old"), {}, older)
                assert (b"alone" in stream.encode("/v1/leases/heartbeat", body)) != older

    async def test_what_they_refuse_all_the_same_is_an_error(
        self, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def refuse(*_what: Any, **_how: Any) -> Any:
            raise InvalidRequest("no such queue")

        monkeypatch.setattr(nodes, "_ask", refuse)
        body = LeaseIn("w", "1", ("q",), ("h",), False, (), 1, 5.0, announces_starts=True)
        with pytest.raises(InvalidRequest):
            await nodes.ask("http://old", "/x", body, Leases, within=1, blocking=False)
