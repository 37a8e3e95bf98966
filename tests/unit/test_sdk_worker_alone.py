"""A task that was lost with its workers runs alone; and every poll tells all that is held."""

import asyncio
from typing import Any

import pytest

from mainspring.sdk.environment import Address
from mainspring.sdk.worker import lanes
from mainspring.sdk.worker.lanes import Lane, Leaser
from mainspring.sdk.worker.options import WorkerOptions
from mainspring.sdk.worker.outcomes import Verdict
from mainspring.sdk.worker.protocol import Leased, LeaseIn, LeaseOut
from mainspring.sdk.worker.tries import Try
from mainspring.sdk.worker.worker import Worker
from support.sdk_tries import leased

DONE = Verdict("succeeded", b"1")


class Runner:
    """Runs until the test says that it is enough."""

    def __init__(self) -> None:
        self.started: list[Try] = []

    def start(self, attempt: Try) -> None:
        self.started.append(attempt)

    def stop(self, attempt: Try) -> None:
        pass

    @property
    def running(self) -> list[Leased]:
        return [attempt.leased for attempt in self.started if not attempt.settled]


class Nodes:
    """Two nodes that answer a poll when the test has them do so."""

    urls = ("http://one", "http://two")

    def __init__(self) -> None:
        self.polls: list[tuple[LeaseIn, asyncio.Future[LeaseOut]]] = []
        self.told: list[Any] = []

    async def ask(self, _url: str, _path: str, body: LeaseIn, _answer: Any, **_how: Any) -> Any:
        answer = asyncio.get_running_loop().create_future()
        self.polls.append((body, answer))
        return await answer

    def waiting(self) -> list[tuple[LeaseIn, "asyncio.Future[LeaseOut]"]]:
        return [poll for poll in self.polls if not poll[1].done()]

    async def give(self, *tasks: Leased) -> None:
        """Answer the poll that waits longest."""
        self.waiting()[0][1].set_result(LeaseOut(list(tasks)))
        await turns()


async def turns() -> None:
    """Let everything that can go on do so."""
    for _ in range(30):
        await asyncio.sleep(0)


class Shop:
    """A worker with two lanes, between those nodes and that runner."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.nodes, self.runner = Nodes(), Runner()
        self.worker = Worker(None, WorkerOptions(name="w"), address=Address("http://x", "key"))
        self.worker._build()
        self.worker.nodes = self.nodes  # type: ignore[assignment]
        self.worker._lanes += [Lane(8, ["x"], commands=False), Lane(8, ["y"], commands=False)]
        monkeypatch.setattr(lanes, "_GATHER", 0)
        monkeypatch.setattr(self.worker, "_runner_of", lambda _leased, _function: self.runner)
        monkeypatch.setattr(self.worker._reporter, "put", self.nodes.told.append)
        self._work = [
            asyncio.create_task(Leaser(lane, self.worker).run()) for lane in self.worker._lanes
        ]

    async def close(self) -> None:
        for task in self._work:
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)
        self.worker._heart.stop()

    def released(self) -> list[Leased]:
        told = self.nodes.told
        return [attempt.leased for attempt in told if attempt.verdict.status == "released"]


@pytest.fixture
async def shop(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = Shop(monkeypatch)
    await turns()
    yield found
    await found.close()


async def test_beside_a_suspect_nothing_runs_and_nothing_is_asked_for(shop: Shop) -> None:
    suspect, other = leased(alone=True), leased(alone=False)
    polls = len(shop.nodes.waiting())
    assert polls == 8  # two lanes, two nodes, two each
    await shop.nodes.give(suspect)
    assert len(shop.nodes.waiting()) == polls - 1
    while shop.nodes.waiting():
        await shop.nodes.give(leased())
    assert shop.runner.running == [suspect]
    assert len(shop.released()) == polls - 1
    shop.runner.started[0].settle(DONE)
    await turns()
    assert len(shop.nodes.waiting()) == polls
    await shop.nodes.give(other)
    assert shop.runner.running == [other]


async def test_a_suspect_that_comes_beside_others_is_released(shop: Shop) -> None:
    first, suspect = leased(), leased(alone=True)
    await shop.nodes.give(first)
    await shop.nodes.give(suspect)
    assert shop.runner.running == [first]
    assert shop.released() == [suspect]
    assert shop.nodes.told[0].verdict.code is None  # no failure of its own
    shop.runner.started[0].settle(DONE)
    again = leased(alone=True)
    await shop.nodes.give(again)
    assert shop.runner.running == [again]


async def test_a_suspect_heads_an_answer_with_others(shop: Shop) -> None:
    suspect, other = leased(alone=True), leased()
    await shop.nodes.give(suspect, other)
    assert shop.runner.running == [suspect]
    assert shop.released() == [other]


async def test_a_suspect_that_ends_at_once_leaves_the_lanes_open(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shop.runner, "start", lambda attempt: attempt.settle(DONE))
    await shop.nodes.give(leased(alone=True))
    assert not any(lane.closed for lane in shop.worker._lanes)
    assert len(shop.nodes.waiting()) == 8


async def test_every_poll_tells_what_the_others_brought(shop: Shop) -> None:
    given = [leased() for _ in range(5)]
    for count, task in enumerate(given, 1):
        before = len(shop.nodes.polls)
        await shop.nodes.give(task)
        body = shop.nodes.polls[before][0]
        held = {(entry.id, entry.fence) for entry in body.running or []}
        assert held == {(one.id, one.fence) for one in given[:count]}
    shop.runner.started[0].settle(DONE)  # reported, but not acknowledged
    before = len(shop.nodes.polls)
    await shop.nodes.give()
    assert len(shop.nodes.polls[before][0].running or []) == 5
    shop.worker._forget(shop.runner.started[0])
    before = len(shop.nodes.polls)
    await shop.nodes.give()
    assert len(shop.nodes.polls[before][0].running or []) == 4
