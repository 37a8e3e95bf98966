"""What a worker meets on bad days: proxies that answer, keys that change, odd values."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from mainspring.clock import monotonic
from mainspring.errors import Conflict, Forbidden, NotFound, Unauthenticated, Unavailable
from mainspring.sdk.calling import read
from mainspring.sdk.context import Context
from mainspring.sdk.wire import Response
from mainspring.sdk.worker import reports
from mainspring.sdk.worker.heart import Heart
from mainspring.sdk.worker.loop_runner import LoopRunner
from mainspring.sdk.worker.options import WorkerOptions
from mainspring.sdk.worker.outcomes import Verdict
from mainspring.sdk.worker.protocol import (
    Heard,
    HeartbeatOut,
    Kept,
    LeaseOut,
    ReportOut,
    ServerClock,
)
from mainspring.sdk.worker.reports import Reporter
from mainspring.sdk.worker.tries import Try
from support.sdk_tries import leased

PAGE = b"<html><body>Welcome to the proxy</body></html>"


class Silent:
    """A runner that runs nothing."""

    def start(self, attempt: Try) -> None:
        pass

    def stop(self, attempt: Try) -> None:
        pass


def attempt(lease: float = 15.0) -> Try:
    task = leased()
    return Try(task, monotonic() + lease, Context(task.id), None, Silent(), lambda _: None)


class Desk:
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
        if answer is HeartbeatOut:
            return HeartbeatOut([Kept(beat.id, "continue") for beat in body.running])
        return ReportOut([Heard(outcome.id, "accepted") for outcome in body.outcomes])


async def reported(desk: Desk, *tries: Try) -> list[Try]:
    done: list[Try] = []
    reporter = Reporter(desk, done.append)  # type: ignore[arg-type]
    work = asyncio.create_task(reporter.run())
    for one in tries:
        one.settle(Verdict("succeeded", b"1"))
        reporter.put(one)
    assert await reporter.flush(5)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    return done


@pytest.mark.parametrize("body", [PAGE, b"", b"[]", b'{"tasks": "\xff"}', b'{"tasks": 1}'])
def test_an_answer_that_is_not_the_servers_is_no_answer(body: bytes) -> None:
    with pytest.raises(Unavailable, match="answered 200, but"):
        read(Response(200, {}, body), LeaseOut)


def test_a_redirect_is_no_success() -> None:
    with pytest.raises(Unavailable, match="points to http://elsewhere"):
        read(Response(307, {"location": "http://elsewhere"}, b""), None)


class TestReports:
    @pytest.mark.parametrize("kind", [Unauthenticated, Forbidden, NotFound, Conflict])
    async def test_who_may_not_report_now_says_the_same_later(
        self, monkeypatch: pytest.MonkeyPatch, kind: Any
    ) -> None:
        monkeypatch.setattr(reports, "_PAUSE", 0.001)
        desk = Desk(*[kind("the key is being replaced")] * 5)
        tries = [attempt() for _ in range(3)]
        assert await reported(desk, *tries) == tries
        assert [one.verdict for one in tries] == [Verdict("succeeded", b"1")] * 3
        assert [len(body.outcomes) for body in desk.asked] == [3] * 6

    async def test_no_error_loses_a_batch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(reports, "_PAUSE", 0.001)
        desk = Desk(ValueError("nobody thought of it"), Unavailable("a page", 200))
        tries = [attempt() for _ in range(3)]
        assert await reported(desk, *tries) == tries
        assert len(desk.asked) == 3

    async def test_not_beyond_the_lease(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(reports, "_PAUSE", 0.001)
        desk = Desk(*[Unauthenticated("who are you")] * 100_000)
        one = attempt(lease=0.05)
        assert await reported(desk, one) == [one]


def heart_of(desk: Desk, held: Callable[[], list[Try]]) -> Heart:
    loop = asyncio.get_running_loop()
    clock = ServerClock()
    clock.lease = 0.6
    return Heart(WorkerOptions(name="w"), desk, clock, loop, held, LoopRunner(loop))  # type: ignore[arg-type]


class TestHeart:
    async def test_it_goes_on_beating_whatever_happens(self) -> None:
        one = attempt(lease=0.1)
        desk = Desk(ValueError("nobody thought of it"), Unavailable("a page", 200))
        heart = heart_of(desk, lambda: [one])
        warnings: list[str] = []
        heart.warn = warnings.append
        heart.start()
        assert await asyncio.to_thread(desk.heard.wait, 5)
        heart.stop()
        assert len(warnings) == 2
        assert "nobody thought of it" in warnings[0]
        assert one.lease_end > monotonic()
