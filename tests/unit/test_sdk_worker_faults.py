"""What a worker meets on bad days: proxies that answer, keys that change, odd values."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import msgspec
import pytest

from mainspring import App
from mainspring.clock import monotonic
from mainspring.errors import (
    Conflict,
    Forbidden,
    NotFound,
    Unauthenticated,
    Unavailable,
    Unreachable,
)
from mainspring.sdk.calling import read
from mainspring.sdk.context import Context, HandlerLogLine
from mainspring.sdk.environment import Address
from mainspring.sdk.http1 import Response
from mainspring.sdk.worker import child, reports
from mainspring.sdk.worker.execution import WorkerExecution
from mainspring.sdk.worker.heartbeat_thread import HeartbeatThread
from mainspring.sdk.worker.leasing import Leaser
from mainspring.sdk.worker.options import WorkerOptions
from mainspring.sdk.worker.outcomes import LONGEST_MESSAGE, ReportedOutcome, log_traceback
from mainspring.sdk.worker.protocol import Leases, ServerClock
from mainspring.sdk.worker.reports import LogSender, Reporter, outcome_of
from mainspring.sdk.worker.runners import LoopRunner
from mainspring.sdk.worker.worker import Worker
from mainspring.wire.workers import JudgedListOut, JudgedOut, LogsIn, PulseOut, PulsesOut, ReportIn
from support.leased_tasks import leased, report_all
from support.process import is_running

PAGE = b"<html><body>Welcome to the proxy</body></html>"


class IdleRunner:
    """A runner that runs nothing."""

    apart = False

    def start(self, attempt: WorkerExecution) -> None:
        pass

    def stop(self, attempt: WorkerExecution) -> None:
        pass


def attempt(lease: float = 15.0) -> WorkerExecution:
    task = leased()
    return WorkerExecution(
        task, monotonic() + lease, Context(task.id), None, IdleRunner(), lambda _: None
    )


class FakeNodes:
    """Nodes that fail as often as the test has it, then accept."""

    def __init__(self, *problems: Exception) -> None:
        self.problems = list(problems)
        self.asked: list[Any] = []
        self.heard = threading.Event()

    async def ask_any(self, _path: str, body: Any, answer: Any, **_how: Any) -> Any:
        self.asked.append(body)
        if self.problems:
            raise self.problems.pop(0)
        self.heard.set()
        if answer is object:
            return None
        if answer is PulsesOut:
            return PulsesOut([PulseOut(id=beat.id, action="continue") for beat in body.running])
        return JudgedListOut([JudgedOut(outcome.id, "accepted") for outcome in body.outcomes])


class BlockedLogNodes(FakeNodes):
    """Nodes that take no lines of logs until they are told to."""

    def __init__(self) -> None:
        super().__init__()
        self.listen = asyncio.Event()

    async def ask_any(self, _path: str, body: Any, answer: Any, **how: Any) -> Any:
        if isinstance(body, LogsIn):
            await self.listen.wait()
        return await super().ask_any(_path, body, answer, **how)


@pytest.mark.parametrize("body", [PAGE, b"", b"[]", b'{"tasks": "\xff"}', b'{"tasks": 1}'])
def test_an_answer_that_is_not_the_servers_is_no_answer(body: bytes) -> None:
    with pytest.raises(Unavailable, match="answered 200, but"):
        read(Response(200, {}, body), Leases)


def test_a_redirect_is_no_success() -> None:
    with pytest.raises(Unavailable, match="points to http://elsewhere"):
        read(Response(307, {"location": "http://elsewhere"}, b""), None)


class TestReports:
    @pytest.mark.parametrize("kind", [Unauthenticated, Forbidden, NotFound, Conflict])
    async def test_a_refused_report_is_repeated_later(
        self, monkeypatch: pytest.MonkeyPatch, kind: Any
    ) -> None:
        monkeypatch.setattr(reports, "_PAUSE", 0.001)
        fake_nodes = FakeNodes(*[kind("the key is being replaced")] * 5)
        executions = [attempt() for _ in range(3)]
        assert await report_all(fake_nodes, executions) == executions
        assert [one.verdict for one in executions] == [ReportedOutcome("succeeded", b"1")] * 3
        assert [len(body.outcomes) for body in fake_nodes.asked] == [3] * 6

    async def test_no_error_loses_a_batch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(reports, "_PAUSE", 0.001)
        fake_nodes = FakeNodes(ValueError("nobody thought of it"), Unavailable("a page", 200))
        executions = [attempt() for _ in range(3)]
        assert await report_all(fake_nodes, executions) == executions
        assert len(fake_nodes.asked) == 3

    async def test_not_beyond_the_lease(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(reports, "_PAUSE", 0.001)
        fake_nodes = FakeNodes(*[Unauthenticated("who are you")] * 100_000)
        one = attempt(lease=0.05)
        assert await report_all(fake_nodes, [one]) == [one]


def heartbeats_of(
    fake_nodes: FakeNodes, held: Callable[[], list[WorkerExecution]], lease: float = 0.6
) -> HeartbeatThread:
    loop = asyncio.get_running_loop()
    clock = ServerClock()
    clock.lease = lease
    options, nodes = WorkerOptions(name="w"), cast(Any, fake_nodes)
    return HeartbeatThread(options, nodes, clock, loop, held, LoopRunner(loop))


class TestHeartbeatThread:
    async def test_it_beats_at_once_when_it_is_woken(self) -> None:
        one, fake_nodes = attempt(lease=900.0), FakeNodes()
        heartbeat_thread = heartbeats_of(fake_nodes, lambda: [one], lease=900.0)
        heartbeat_thread.start()
        heartbeat_thread.interrupt_polls()
        assert await asyncio.to_thread(fake_nodes.heard.wait, 5)
        heartbeat_thread.stop()
        assert [[beat.id for beat in body.running] for body in fake_nodes.asked] == [
            [one.leased.id]
        ]

    async def test_it_goes_on_beating_whatever_happens(self) -> None:
        one = attempt(lease=0.1)
        fake_nodes = FakeNodes(ValueError("nobody thought of it"), Unavailable("a page", 200))
        heartbeat_thread = heartbeats_of(fake_nodes, lambda: [one])
        warnings: list[str] = []
        heartbeat_thread.warn = warnings.append
        heartbeat_thread.start()
        assert await asyncio.to_thread(fake_nodes.heard.wait, 5)
        heartbeat_thread.stop()
        assert len(warnings) == 2
        assert "nobody thought of it" in warnings[0]
        assert one.lease_end > monotonic()

    async def test_the_same_complaint_is_not_made_with_every_beat(self) -> None:
        one = attempt()
        lost = Unreachable("nobody is there")
        fake_nodes = FakeNodes(lost, lost, Unavailable("a page", 200), lost)
        heartbeat_thread = heartbeats_of(fake_nodes, list)
        warnings: list[str] = []
        heartbeat_thread.warn = warnings.append
        for _ in range(5):
            heartbeat_thread._beat([one])
        fake_nodes.problems.append(lost)
        heartbeat_thread._beat([one])
        heartbeat_thread.stop()
        gone = "a heartbeat failed: nobody is there"
        assert warnings == [gone, "a heartbeat failed: a page", gone, gone]

    @pytest.mark.parametrize(
        ("progress", "told"),
        [
            ({"done": 3}, b'{"done":3}'),
            ("\udcff", b"cannot be written as JSON"),
            (object(), b"cannot be written as JSON"),
            ("x" * 20_000, "…".encode()),
        ],
    )
    async def test_no_progress_costs_the_others_their_heartbeat(
        self, progress: Any, told: bytes
    ) -> None:
        one, other = attempt(), attempt()
        one.context.progress(progress)
        fake_nodes = FakeNodes()
        heartbeat_thread = heartbeats_of(fake_nodes, list)
        heartbeat_thread._beat([one, other])
        heartbeat_thread.stop()
        sent = [msgspec.json.encode(beat) for beat in fake_nodes.asked[0].running]
        assert told in sent[0]
        assert len(sent[0]) <= 10_000
        assert b"progress" not in sent[1]


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


class TestHandlers:
    async def settled(self, function: Callable[..., Any]) -> ReportedOutcome:
        app = App(url="http://x", api_key="key")
        task = leased()
        runner = LoopRunner(asyncio.get_running_loop())
        over: asyncio.Future[WorkerExecution] = asyncio.get_running_loop().create_future()
        made = app.task(name="x")(function)
        context = Context(task.id)
        one = WorkerExecution(task, monotonic() + 15, context, made, runner, over.set_result)
        runner.start(one)
        await asyncio.wait_for(over, 5)
        assert one.verdict is not None
        msgspec.json.encode(outcome_of(one))
        return one.verdict

    @pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit])
    async def test_a_handler_that_exits_fails_alone(self, kind: Any) -> None:
        async def leave() -> None:
            await asyncio.sleep(0)
            raise kind(3)

        verdict = await self.settled(leave)
        assert (verdict.status, verdict.message) == ("failed", f"{kind.__name__}: 3")

    @pytest.mark.parametrize(
        ("problem", "message"),
        [
            (FileNotFoundError("\udcff\0"), "FileNotFoundError: ?\ufffd"),
            (UnprintableError(), "UnprintableError: it cannot be told"),
        ],
    )
    async def test_every_failure_can_be_reported(self, problem: Exception, message: str) -> None:
        async def fail() -> None:
            raise problem

        assert (await self.settled(fail)).message == message

    async def test_a_result_whose_own_code_fails(self) -> None:
        class Model:
            def model_dump(self, mode: str) -> Any:
                raise KeyError(mode)

        async def answer() -> Model:
            return Model()

        verdict = await self.settled(answer)
        assert (verdict.code, verdict.retryable) == ("bad-result", False)
        assert "returned Model" in verdict.message


async def ended_with_a_line(fake_nodes: FakeNodes) -> LogSender:
    """An execution that wrote a line and was done, and whose outcome was told."""
    sender, one = LogSender(fake_nodes), attempt()  # type: ignore[arg-type]
    reporter = Reporter(fake_nodes, sender, lambda _: None)  # type: ignore[arg-type]
    work = asyncio.create_task(reporter.run())
    sender.line_of(one.leased, HandlerLogLine("the last words", "info"))
    one.finish(ReportedOutcome("succeeded", b"1"))
    reporter.put(one)
    assert await reporter.flush(5)
    work.cancel()
    return sender


async def test_the_log_of_a_task_is_there_before_its_end() -> None:
    fake_nodes = FakeNodes()
    await ended_with_a_line(fake_nodes)
    assert [type(body) for body in fake_nodes.asked] == [LogsIn, ReportIn]


async def test_an_outcome_does_not_wait_long_for_undelivered_logs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reports, "_FLUSH_WITHIN", 0.01)
    fake_nodes = BlockedLogNodes()
    sender = await ended_with_a_line(fake_nodes)
    assert [type(body) for body in fake_nodes.asked] == [ReportIn]
    fake_nodes.listen.set()
    await sender.flush()
    assert [type(body) for body in fake_nodes.asked] == [ReportIn, LogsIn], "it is sent once"


async def test_endless_logging_delays_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "_MOST_LINES", 1)
    one = attempt()

    class Slow(FakeNodes):
        async def ask_any(self, _path: str, body: Any, answer: Any, **how: Any) -> Any:
            sender.line_of(one.leased, HandlerLogLine("and another thing", "info"))
            return await super().ask_any(_path, body, answer, **how)

    fake_nodes = Slow()
    sender = LogSender(fake_nodes)  # type: ignore[arg-type]
    for text in ("a", "b"):
        sender.line_of(one.leased, HandlerLogLine(text, "info"))
    await sender.sent([one], within=3600)
    assert [line.message for body in fake_nodes.asked for line in body.lines] == ["a", "b"]
    sender.close()


async def test_an_outcome_waits_for_its_own_executions_logs_only() -> None:
    fake_nodes = BlockedLogNodes()
    sender, talker, silent = LogSender(fake_nodes), attempt(), attempt()  # type: ignore[arg-type]
    sender.line_of(talker.leased, HandlerLogLine("hello", "info"))
    async with asyncio.timeout(10):
        await sender.sent([silent, silent], within=3600)
        waits = asyncio.create_task(sender.sent([silent, talker], within=3600))
        await asyncio.sleep(0)
        assert not waits.done()
        fake_nodes.listen.set()
        await waits
        sender.line_of(silent.leased, HandlerLogLine("hello", "info"))
        await sender.sent([talker], within=3600)
    assert len(fake_nodes.asked) == 1, "its own lines were sent before"
    sender.close()


async def test_lines_that_cannot_be_sent_do_not_cost_an_outcome() -> None:
    fake_nodes = FakeNodes(ValueError("nobody thought of it"))
    sender, one = LogSender(fake_nodes), attempt()  # type: ignore[arg-type]
    sender.line_of(one.leased, HandlerLogLine("hello", "info"))
    await sender.sent([one], within=3600)
    assert sender.dropped == 1
    sender.line_of(one.leased, HandlerLogLine("again", "info"))
    await sender.sent([one], within=3600)
    assert [line.message for line in fake_nodes.asked[1].lines] == ["again"]


async def test_waiting_for_undelivered_logs_leaves_nothing_behind() -> None:
    sender, one = LogSender(BlockedLogNodes()), attempt()  # type: ignore[arg-type]
    sender.line_of(one.leased, HandlerLogLine("hello", "info"))
    before = len(asyncio.all_tasks())
    for _ in range(10):
        await sender.sent([one], within=0.001)
    assert len(asyncio.all_tasks()) == before + 1
    sender.close()


def test_a_long_traceback_keeps_its_end() -> None:
    def deep(level: int) -> None:
        if level:
            _by_turns[level % 2](level - 1)
        raise ValueError("the cause")

    def deeper(level: int) -> None:
        deep(level)

    _by_turns = (deep, deeper)
    lines: list[HandlerLogLine] = []
    try:
        deep(60)
    except ValueError as problem:
        log_traceback(Context(uuid4(), said=lines.append), problem)
    [line] = lines
    assert len(line.message) == LONGEST_MESSAGE
    assert line.message.startswith("Traceback")
    assert line.message.endswith("ValueError: the cause")


async def test_a_line_that_json_does_not_know_is_sent_all_the_same() -> None:
    fake_nodes = FakeNodes()
    sender = LogSender(fake_nodes)  # type: ignore[arg-type]
    sender.line_of(attempt().leased, HandlerLogLine("caf\udce9\0", "info"))
    await sender.flush()
    assert b"caf?" in msgspec.json.encode(fake_nodes.asked[0])


async def test_a_process_does_not_outlive_its_worker(tmp_path: Path) -> None:
    (tmp_path / "endless_app.py").write_text(
        "import mainspring, subprocess, time\n"
        "app = mainspring.App(url='http://x', api_key='key')\n"
        "@app.task(cpu_bound=True)\n"
        "def spin(ctx: mainspring.Context) -> None:\n"
        "    started = subprocess.Popen(['sleep', '600'])\n"
        "    ctx.log(str(started.pid))\n"
        "    while True: time.sleep(1)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "mainspring.sdk.worker.child", "endless_app:app"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    order = child.ChildRequest(uuid4(), 1, 1, "spin", b"{}", 30.0)
    process.stdin.write(msgspec.json.encode(order) + b"\n")
    word = msgspec.json.decode(await process.stdout.readline(), type=child.ChildMessage)
    process.stdin.close()
    async with asyncio.timeout(20):
        assert await process.wait() == -signal.SIGKILL
        while is_running(int(word.line or "")):  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.01)


def test_a_process_outlives_what_json_does_not_know() -> None:
    app = App(url="http://x", api_key="key")

    @app.task(cpu_bound=True)
    def fail() -> None:
        raise FileNotFoundError("\udcff")

    order = child.ChildRequest(uuid4(), 1, 1, "fail", b"{}", 30.0)
    out = BytesIO()
    child.serve(app, BytesIO(msgspec.json.encode(order) + b"\n"), child.MessageWriter(out))
    words = [
        msgspec.json.decode(line, type=child.ChildMessage) for line in out.getvalue().splitlines()
    ]
    assert "FileNotFoundError: ?" in (words[0].line or "")
    assert words[1].verdict == ReportedOutcome("failed", None, "failed", "FileNotFoundError: ?")


async def test_a_refused_worker_finishes_what_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    app = App(url="http://x", api_key="key")
    closing = asyncio.Event()
    tasks = [leased()]

    @app.task(name="x")
    async def waits() -> int:
        await closing.wait()
        return 7

    class Refusing(FakeNodes):
        urls = ("http://x",)

        async def ask(self, *_what: Any, **_how: Any) -> Any:
            if tasks:
                return Leases([tasks.pop()])
            raise Unauthenticated("the key is gone")

        async def refresh(self) -> None:
            pass

        async def close(self) -> None:
            pass

        def apart(self) -> "Refusing":
            return self

    worker = Worker(app, WorkerOptions(name="w"), address=Address("http://x", "key"))
    fake_nodes = Refusing()
    monkeypatch.setattr(worker, "nodes", fake_nodes)
    close = Leaser.close

    async def closed(leaser: Leaser) -> None:
        await close(leaser)
        closing.set()

    monkeypatch.setattr(Leaser, "close", closed)
    with pytest.raises(Unauthenticated):
        await worker.run()
    sent = [body for body in fake_nodes.asked if isinstance(body, ReportIn)]
    assert [outcome.status for body in sent for outcome in body.outcomes] == ["succeeded"]
