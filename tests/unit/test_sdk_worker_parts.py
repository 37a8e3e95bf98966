"""The parts of a worker, each alone: clocks, executions, demand, reports, addresses."""

import asyncio
import gc
import logging
import weakref
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from msgspec import UNSET

from mainspring.clock import monotonic, wall_clock
from mainspring.errors import (
    InvalidRequest,
    MainspringError,
    NotReady,
    Problem,
    Unavailable,
    Unreachable,
)
from mainspring.sdk.app import App
from mainspring.sdk.context import Context, HandlerLogLine
from mainspring.sdk.environment import Address
from mainspring.sdk.http1 import Response
from mainspring.sdk.worker import execution as worker_execution
from mainspring.sdk.worker import leasing as lanes
from mainspring.sdk.worker import reports
from mainspring.sdk.worker.execution import WorkerExecution
from mainspring.sdk.worker.leasing import Lane, LeaseErrors, Leaser
from mainspring.sdk.worker.nodes import Nodes
from mainspring.sdk.worker.options import WorkerOptions
from mainspring.sdk.worker.outcomes import Ending, ReportedOutcome
from mainspring.sdk.worker.protocol import LEASES, Leases, ServerClock
from mainspring.sdk.worker.reports import LogSender
from mainspring.sdk.worker.worker import Worker
from mainspring.wire.workers import JudgedListOut, JudgedOut, LeaseIn, NodeAddressOut
from support.leased_tasks import EPOCH, leased, report_all


class IdleRunner:
    """A runner that does what it is told, and nothing more."""

    apart = False

    def __init__(self) -> None:
        self.stopped: list[Ending | None] = []

    def start(self, attempt: WorkerExecution) -> None:
        pass

    def stop(self, attempt: WorkerExecution) -> None:
        self.stopped.append(attempt.ending)


def attempt(settled: list[WorkerExecution], lease_end: float | None = None) -> WorkerExecution:
    task = leased()
    end = monotonic() + 15 if lease_end is None else lease_end
    one = WorkerExecution(task, end, Context(task.id), None, IdleRunner(), settled.append)
    one.start()
    one.begin()
    return one


@pytest.mark.parametrize("shift", [-3600.0, 3600.0])
def test_a_clock_that_is_set_changes_no_duration(
    monkeypatch: pytest.MonkeyPatch, shift: float
) -> None:
    one = attempt([])
    passed, set_to = monotonic() + 20, wall_clock() + shift
    monkeypatch.setattr(worker_execution, "monotonic", lambda: passed)
    monkeypatch.setattr(worker_execution, "wall_clock", lambda: set_to)
    one.finish(ReportedOutcome("succeeded"))
    told = reports.outcome_of(one)
    assert told.finished_at is not None
    assert told.started_at is not None
    took = told.finished_at - told.started_at
    assert took.total_seconds() == pytest.approx(20, abs=1)


class TestServerClock:
    def test_the_length_of_a_lease_is_learned(self) -> None:
        clock = ServerClock()
        clock.sample(leased(lease=3.0))
        assert clock.lease == pytest.approx(3.0)

    def test_an_answer_that_lay_unread_is_known_to_be_old(self) -> None:
        clock = ServerClock()
        clock.sample(leased(100.0))
        old = leased(40.0)  # leased a minute before, read only now
        clock.sample(old)
        assert clock.local(old.lease_until) < monotonic()
        fresh = leased(100.0)
        assert clock.local(fresh.lease_until) == pytest.approx(monotonic() + 15, abs=0.5)

    def test_a_lease_never_seems_longer_than_it_can_be(self) -> None:
        clock = ServerClock()
        clock.sample(leased(0.0))
        assert clock.local(EPOCH + timedelta(days=1)) <= monotonic() + clock.lease


class TestExecutions:
    def test_it_settles_once(self) -> None:
        settled: list[WorkerExecution] = []
        one = attempt(settled)
        one.finish(ReportedOutcome("succeeded", b"1"))
        one.finish(ReportedOutcome("failed", None, "late"))
        assert len(settled) == 1
        assert one.verdict == ReportedOutcome("succeeded", b"1")

    @pytest.mark.parametrize(
        ("why", "code"), [("timeout", "timeout"), ("cancelled", "cancelled"), ("memory", "memory")]
    )
    def test_an_ended_execution_has_a_reason(self, why: Ending, code: str) -> None:
        settled: list[WorkerExecution] = []
        one = attempt(settled)
        one.end(why)
        one.finish(ReportedOutcome("failed", None, "failed", "CancelledError"))
        assert one.verdict is not None
        assert one.verdict.code == code
        assert one.context.cancelled

    def test_a_success_in_the_last_moment_counts(self) -> None:
        one = attempt([])
        one.end("timeout")
        one.finish(ReportedOutcome("succeeded", b"1"))
        assert one.verdict == ReportedOutcome("succeeded", b"1")

    def test_a_lost_execution_is_not_reported(self) -> None:
        one = attempt([])
        one.end("timeout")
        one.end("lost")
        one.end("cancelled")
        assert one.ending == "lost"
        one.finish(ReportedOutcome("succeeded", b"1"))
        assert one.verdict is None

    def test_a_settled_execution_cannot_be_ended(self) -> None:
        one = attempt([])
        one.finish(ReportedOutcome("succeeded", b"1"))
        one.end("cancelled")
        assert one.ending is None
        assert one.runner.stopped == []  # type: ignore[attr-defined]


class FakeNodes:
    """Nodes that answer as the test has it."""

    urls: tuple[str, ...] = ("http://one", "http://two")

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.answers: list[Any] = []
        self.open = 0
        self.changed = asyncio.Event()

    async def ask(self, _url: str, _path: str, body: Any, _answer: Any, **_how: Any) -> Any:
        self.asked.append(body)
        self.open += body.max
        self.changed.set()
        await asyncio.sleep(3600)

    async def ask_any(self, _path: str, body: Any, _answer: Any, **_how: Any) -> Any:
        self.asked.append(body)
        found = self.answers.pop(0) if self.answers else None
        if isinstance(found, MainspringError):
            raise found
        if found is not None:
            return found
        return JudgedListOut([JudgedOut(outcome.id, "accepted") for outcome in body.outcomes])


class FakeWorker:
    """As much of a worker as a leaser needs."""

    def __init__(self, nodes: Any) -> None:
        self.nodes = nodes
        self.options = WorkerOptions(name="w")
        self.interruptions = 0
        self.lease_errors = LeaseErrors()

    async def ask(self, url: str, body: LeaseIn, lane: Lane, within: float) -> tuple[Leases, int]:
        answer: Leases = await self.nodes.ask(url, LEASES, body, Leases, within=within)
        for _ in answer.tasks:
            lane.take()
        return answer, len(answer.tasks)

    def leased_executions(self, most: int) -> list[tuple[UUID, int]] | None:
        return []

    def about(self) -> None:
        return None

    def polls_interrupted(self) -> None:
        self.interruptions += 1


class TestDemand:
    async def test_slots_are_not_kept_for_a_node_that_does_not_answer(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class HalfReachable(FakeNodes):
            async def ask(self, _url: str, _path: str, body: Any, _answer: Any, **_how: Any) -> Any:
                if _url == "http://one":
                    raise Unreachable("it is gone")
                self.open += body.max
                self.changed.set()
                await asyncio.sleep(0.01)
                self.open -= body.max
                return Leases([])

        monkeypatch.setattr(lanes, "_FIRST_PAUSE", 3600)
        fake_nodes = HalfReachable()
        work = asyncio.create_task(
            Leaser(Lane(8, ["x"], commands=False), FakeWorker(fake_nodes)).run()
        )
        async with asyncio.timeout(5):
            while fake_nodes.open < 8:
                fake_nodes.changed.clear()
                await fake_nodes.changed.wait()
        work.cancel()

    @pytest.mark.parametrize(
        ("too_soon", "wait", "interruptions"),
        [(0.9, None, 1), (0.9, 5.0, 1), (0.9, 0.0, 0), (0.0, None, 0)],
    )
    async def test_an_answer_that_is_empty_too_soon_is_an_interruption(
        self,
        monkeypatch: pytest.MonkeyPatch,
        too_soon: float,
        wait: float | None,
        interruptions: int,
    ) -> None:
        """Too soon for what the node is ready to wait, if that is less than it was asked to."""

        class Answering(FakeNodes):
            urls = ("http://one",)

            async def ask(self, *what: Any, **how: Any) -> Any:
                if not self.asked:
                    self.asked.append(what)
                    return Leases([], wait)
                return await super().ask(*what, **how)

        monkeypatch.setattr(lanes, "_TOO_SOON", too_soon)
        fake_nodes = Answering()
        home = FakeWorker(fake_nodes)
        work = asyncio.create_task(Leaser(Lane(1, ["x"], commands=False), home).run())
        await fake_nodes.changed.wait()
        work.cancel()
        assert home.interruptions == interruptions

    @pytest.mark.parametrize("slots", [1, 2, 3, 7, 100, 5000])
    async def test_no_more_is_asked_for_than_slots_are_free(self, slots: int) -> None:
        fake_nodes = FakeNodes()
        leaser = Leaser(Lane(slots, ["x"], commands=False), FakeWorker(fake_nodes))
        work = asyncio.create_task(leaser.run())
        for _ in range(20):
            await asyncio.sleep(0)
        assert fake_nodes.open == min(slots, 4 * 1000)
        assert len(fake_nodes.asked) == min(4, slots)
        assert {type(body) for body in fake_nodes.asked} == {LeaseIn}
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)

    async def test_two_lanes_do_not_share_slots(self) -> None:
        lane = Lane(2, ["x"], commands=False)
        lane.take()
        lane.asked = 1
        assert lane.open_slots == 0
        lane.free()
        assert lane.open_slots == 1
        assert LEASES == "/v1/leases"


class TestReports:
    async def test_reports_are_sent_until_they_are_answered(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(reports, "_PAUSE", 0.01)
        fake_nodes = FakeNodes()
        fake_nodes.answers = [Unreachable("no"), Unreachable("no")]
        executions = [attempt([]) for _ in range(3)]
        assert await report_all(fake_nodes, executions) == executions
        assert len(fake_nodes.asked) == 3

    async def test_not_beyond_the_lease(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(reports, "_PAUSE", 0.01)
        fake_nodes = FakeNodes()
        fake_nodes.answers = [Unreachable("no")] * 100
        over = [attempt([], monotonic() + 0.05)]
        assert await report_all(fake_nodes, over) == over
        assert 1 < len(fake_nodes.asked) < 100

    async def test_one_that_cannot_be_read_does_not_hold_up_the_others(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        large = Problem("/outcomes/0/result", "has 9 bytes; the most is 8")

        class RejectingNodes(FakeNodes):
            async def ask_any(self, _path: str, body: Any, _answer: Any, **_how: Any) -> Any:
                self.asked.append(body)
                if any(o.id == bad.leased.id and o.result is not UNSET for o in body.outcomes):
                    raise InvalidRequest("it cannot be kept", [large])
                return JudgedListOut([JudgedOut(o.id, "accepted") for o in body.outcomes])

        executions = [attempt([]) for _ in range(9)]
        bad = executions[4]
        done = await report_all(RejectingNodes(), executions)
        assert set(done) == set(executions)
        assert bad.verdict is not None
        assert (bad.verdict.code, bad.verdict.retryable) == ("bad-report", False)
        assert "has 9 bytes; the most is 8" in bad.verdict.message
        (warning,) = caplog.records
        assert warning.levelno == logging.WARNING
        assert str(bad.leased.id) in warning.message
        assert "has 9 bytes; the most is 8" in warning.message

    async def test_lines_wait_while_nobody_listens_and_have_bounds(self) -> None:
        fake_nodes = FakeNodes()
        fake_nodes.answers = [Unreachable("no")]
        sender = LogSender(fake_nodes)  # type: ignore[arg-type]
        one = attempt([])
        for number in range(reports._MOST_WAITING_LINES + 5):
            sender.line_of(one.leased, HandlerLogLine(f"{number}\0", "strange"))
        assert sender.dropped == 5
        await sender.flush()
        fake_nodes.answers = [object()] * 100
        await sender.flush()
        first = fake_nodes.asked[1].lines[0]
        assert (first.message, first.level) == ("0\ufffd", "info")
        assert sum(len(body.lines) for body in fake_nodes.asked[1:]) == reports._MOST_WAITING_LINES


def stopping() -> Unavailable:
    problem = Unavailable("the server answered 503: this node is stopping", 503, 1.0)
    problem.reason = NotReady.code
    return problem


class TestComplaints:
    """What a worker says about nodes that serve no polls."""

    @pytest.fixture(autouse=True)
    def from_info_on(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "mainspring.worker")

    async def test_many_polls_say_the_same_once(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(lanes, "_FIRST_PAUSE", 0.0)
        enough = asyncio.Event()
        answers: list[MainspringError] = [
            *[stopping() for _ in range(6)],
            *[Unreachable("http://a cannot be reached: refused") for _ in range(6)],
        ]

        class StoppingNodes:
            urls = ("http://a",)

            async def ask(self, *_what: Any, **_how: Any) -> Any:
                if answers:
                    raise answers.pop(0)
                enough.set()
                await asyncio.Event().wait()

        home = FakeWorker(StoppingNodes())
        work = [
            asyncio.create_task(Leaser(Lane(4, [name], commands=False), home).run())
            for name in ("x", "y")
        ]
        await asyncio.wait_for(enough.wait(), 5)
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
        assert [(line.levelno, line.message) for line in caplog.records] == [
            (logging.INFO, "http://a: the server answered 503: this node is stopping"),
            (logging.WARNING, "http://a cannot be reached: refused"),
        ]

    def test_a_silent_node_is_reported_again_after_an_answer(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        lease_errors, lost = LeaseErrors(), Unreachable("http://a is gone")
        early = monotonic()
        lease_errors.failed("http://a", lost)
        lease_errors.answered("http://a", early)  # asked before that: it is no news
        lease_errors.answered("http://b", monotonic() + 1)
        lease_errors.failed("http://a", lost)
        assert [line.message for line in caplog.records] == ["http://a is gone"]
        lease_errors.answered("http://a", monotonic() + 1)
        lease_errors.answered("http://a", monotonic() + 1)
        lease_errors.failed("http://a", lost)
        messages = [line.message for line in caplog.records]
        assert messages == ["http://a is gone", "http://a answers again", "http://a is gone"]

    def test_each_node_has_its_own(self, caplog: pytest.LogCaptureFixture) -> None:
        lease_errors = LeaseErrors()
        for url in ("http://a", "http://b", "http://a", "http://b"):
            lease_errors.failed(url, stopping())
        assert len(caplog.records) == 2


class TestNodes:
    @pytest.mark.parametrize(
        ("given", "told", "called"),
        [
            ("https://lb.example", ["https://a:1", "https://b:1"], ["https://a:1", "https://b:1"]),
            ("https://lb.example", ["http://a:1"], ["https://lb.example"]),
            ("http://lb.example", ["http://127.0.0.1:1"], ["http://lb.example"]),
            ("http://127.0.0.1:1", ["http://127.0.0.1:2"], ["http://127.0.0.1:2"]),
            ("http://lb.example", ["http://0.0.0.0:1"], ["http://lb.example"]),
            ("http://lb.example", [None, "http://a:1"], ["http://a:1", "http://lb.example"]),
            ("http://lb.example", [], ["http://lb.example"]),
        ],
    )
    def test_whom_to_ask(self, given: str, told: list[str | None], called: list[str]) -> None:
        nodes = Nodes(Address(given, "key"))
        nodes._take([NodeAddressOut(uuid4(), url, 10) for url in told])
        assert list(nodes.urls) == called

    def test_an_unresponsive_node_is_replaced_by_others(self) -> None:
        nodes = Nodes(Address("http://lb", "key"))
        nodes._take(
            [NodeAddressOut(uuid4(), "http://a:1", 10), NodeAddressOut(uuid4(), "http://b:1", 10)]
        )
        nodes._avoided["http://a:1"] = monotonic() + 5
        assert list(nodes.urls) == ["http://b:1", "http://lb"]

    @pytest.mark.parametrize(("kind", "asked_again"), [("not-ready", False), ("crowded", True)])
    async def test_a_stopping_node_is_replaced_by_others(
        self, kind: str, asked_again: bool
    ) -> None:
        class UnavailableTransport:
            async def send(self, *_what: Any) -> Response:
                return Response(503, {}, b'{"type": "urn:mainspring:problem:%b"}' % kind.encode())

        nodes = Nodes(Address("http://lb", "key"))
        nodes._take(
            [NodeAddressOut(uuid4(), "http://a:1", 10), NodeAddressOut(uuid4(), "http://b:1", 10)]
        )
        nodes._transports["http://a:1", False] = UnavailableTransport()  # type: ignore[assignment]
        with pytest.raises(Unavailable):
            await nodes.ask("http://a:1", "/x", {}, object, within=1, blocking=False)
        assert ("http://a:1" in nodes.urls) is asked_again


async def test_a_task_that_is_given_twice_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(None, WorkerOptions(), address=Address("http://x", "key"))
    worker._build()
    task, lane = leased(), Lane(5, [], commands=True)
    started: list[WorkerExecution] = []

    class Recording(IdleRunner):
        def start(self, attempt: WorkerExecution) -> None:
            started.append(attempt)

    monkeypatch.setattr(worker, "_runner_of", lambda _leased, _function: Recording())
    worker.begin_all(worker.register([task, task], lane))
    worker.begin_all(worker.register([task], lane))
    assert (len(started), lane.running) == (1, 1)
    assert worker.leased_executions(10) == [(task.id, task.fence)]
    started[0].end("lost")
    started[0].finish(ReportedOutcome("succeeded", b"1"))
    assert worker.leased_executions(10) == []
    worker.begin_all(worker.register([task], lane))  # an answer that was slower than the task
    assert (len(started), lane.running) == (1, 0)
    worker._heartbeats.stop()


async def test_a_finished_execution_leaves_no_reference_cycles() -> None:
    app = App(url="http://x", api_key="key")
    contexts: list[weakref.ref[Context]] = []

    @app.task(name="x")
    async def noted(context: Context) -> None:
        contexts.append(weakref.ref(context))

    worker = Worker(app, WorkerOptions(), address=Address("http://x", "key"))
    worker._build()
    gc.disable()
    try:
        worker.begin_all(worker.register([leased()], worker._lanes[0]))
        while worker.running:  # noqa: ASYNC110 - the handler is a turn of this loop
            await asyncio.sleep(0)
        worker._forget(worker._reporter._waiting.popleft())
        await asyncio.sleep(0)
        assert [context() for context in contexts] == [None]
    finally:
        gc.enable()
        worker._heartbeats.stop()
