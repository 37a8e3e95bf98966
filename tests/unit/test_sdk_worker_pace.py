"""How often a worker asks: whatever the answers are, never as often as it can."""

import asyncio
from typing import Any
from uuid import UUID

import pytest

from mainspring.errors import Unavailable
from mainspring.sdk.worker.leasing import (
    Lane,
    LeaseErrors,
    Leaser,
    Pace,
)
from mainspring.sdk.worker.options import WorkerOptions
from mainspring.sdk.worker.protocol import Leases
from mainspring.wire.workers import AboutIn, LeaseIn
from support.leased_tasks import leased

SOON = 0.001
LONG = 20.0


def rests(count: int, pace: Pace) -> list[float]:
    return [pace.rest(SOON, LONG, began=False) for _ in range(count)]


def test_an_interrupted_poll_is_followed_by_a_request_at_once() -> None:
    assert rests(2, Pace()) == [0.0, 0.0]


def test_answers_in_vain_make_ever_longer_rests() -> None:
    assert rests(100, Pace())[2:8] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6]
    assert rests(100, Pace())[8:] == [2.0] * 92


@pytest.mark.parametrize(
    ("lasted", "wanted", "began"), [(SOON, LONG, True), (LONG, LONG, False), (1.0, LONG, False)]
)
def test_work_or_a_long_poll_ends_the_rests(lasted: float, wanted: float, began: bool) -> None:
    pace = Pace()
    rests(50, pace)
    assert pace.rest(lasted, wanted, began=began) == 0.0
    assert rests(3, pace) == [0.0, 0.0, 0.05]


def test_a_node_that_waits_for_nobody_is_not_asked_all_the_time() -> None:
    """It answers at once, and says that it waits no longer than that."""
    pace = Pace()
    assert [pace.rest(SOON, 0.0, began=False) for _ in range(9)][-1] == 2.0


class Server:
    """A transport that answers all requests at once, in the same way."""

    urls = ("http://one",)

    def __init__(self, answer: Leases | Exception) -> None:
        self.answer = answer
        self.asked = 0

    async def ask(self, *_what: Any, **_how: Any) -> Leases:
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class RefusingWorker:
    """A worker that begins nothing of what it gets."""

    def __init__(self, server: Server) -> None:
        self.nodes: Any = server
        self.options = WorkerOptions()
        self.lease_errors = LeaseErrors()

    async def ask(self, url: str, body: LeaseIn, lane: Lane, within: float) -> tuple[Leases, int]:
        return await self.nodes.ask(url, body), 0

    def leased_executions(self, most: int) -> list[tuple[UUID, int]] | None:
        return []

    def about(self) -> AboutIn | None:
        return None

    def polls_interrupted(self) -> None:
        pass


@pytest.mark.parametrize(
    "answer",
    [Leases([]), Leases([], 0.0), Leases([leased()]), Unavailable("down", 503)],
    ids=["empty", "without waiting", "known tasks", "errors"],
)
async def test_no_answers_make_a_worker_ask_in_a_hot_loop(
    monkeypatch: pytest.MonkeyPatch, answer: Leases | Exception
) -> None:
    rested: list[float] = []
    enough = asyncio.Event()

    async def rest(seconds: float) -> None:
        if seconds != 0.5:  # the leaser's own look at the nodes
            rested.append(seconds)
            if sum(rested) > 60:
                enough.set()
        await asyncio.get_running_loop().run_in_executor(None, lambda: None)

    monkeypatch.setattr("mainspring.sdk.worker.leasing.asyncio.sleep", rest)
    server = Server(answer)
    work = asyncio.create_task(Leaser(Lane(1, ["x"], commands=False), RefusingWorker(server)).run())
    async with asyncio.timeout(10):
        await enough.wait()
    work.cancel()
    # In a minute of rests two pollers asked each a few times quickly, then every two seconds.
    assert server.asked < 100
