"""A task that was lost with its workers runs alone; and every poll tells all that is held."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from mainspring.clock import monotonic
from mainspring.sdk.environment import Address
from mainspring.sdk.worker import leasing as lanes
from mainspring.sdk.worker import suspects
from mainspring.sdk.worker.execution import WorkerExecution
from mainspring.sdk.worker.leasing import Lane, Leaser
from mainspring.sdk.worker.options import WorkerOptions
from mainspring.sdk.worker.outcomes import RELEASED, ReportedOutcome
from mainspring.sdk.worker.protocol import Leased, Leases
from mainspring.sdk.worker.worker import Worker
from mainspring.wire.workers import LeaseIn
from support.leased_tasks import leased
from support.waiting import eventually

DONE = ReportedOutcome("succeeded", b"1")


class Runner:
    """Runs until the test says that it is enough."""

    apart = False

    def __init__(self) -> None:
        self.started: list[WorkerExecution] = []

    def start(self, attempt: WorkerExecution) -> None:
        self.started.append(attempt)

    def stop(self, attempt: WorkerExecution) -> None:
        pass

    @property
    def running(self) -> list[Leased]:
        return [attempt.leased for attempt in self.started if not attempt.finished]


class Nodes:
    """Two nodes that answer a poll when the test has them do so."""

    urls = ("http://one", "http://two")

    def __init__(self) -> None:
        self.polls: list[tuple[LeaseIn, asyncio.Future[Leases]]] = []
        self.told: list[Any] = []

    async def ask(self, _url: str, _path: str, body: LeaseIn, _answer: Any, **_how: Any) -> Any:
        answer = asyncio.get_running_loop().create_future()
        self.polls.append((body, answer))
        return await answer

    def waiting(self) -> list[tuple[LeaseIn, "asyncio.Future[Leases]"]]:
        return [poll for poll in self.polls if not poll[1].done()]

    async def give(self, *tasks: Leased) -> None:
        """Answer the poll that waits longest."""
        self.waiting()[0][1].set_result(Leases(list(tasks)))
        await turns()


async def turns() -> None:
    """Let everything that can go on do so."""
    for _ in range(30):
        await asyncio.sleep(0)


async def here(work: Coroutine[Any, Any, Any]) -> Any:
    """Read leases on the worker's own loop."""
    found = await work
    await asyncio.sleep(0)
    return found


class TwoLaneWorker:
    """A worker with two lanes, between those nodes and that runner."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.nodes, self.runner = Nodes(), Runner()
        self.worker = Worker(None, WorkerOptions(name="w"), address=Address("http://x", "key"))
        self.worker._build()
        self.worker._lease_nodes = self.worker.nodes = self.nodes  # type: ignore[assignment]
        self.to_confirm: list[WorkerExecution] = []
        self.named: list[WorkerExecution] = []
        monkeypatch.setattr(self.worker._reader, "call", here)
        monkeypatch.setattr(self.worker._heartbeats, "start_alone", self.to_confirm.append)
        monkeypatch.setattr(self.worker._suspects, "_start", self.named.append)
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
        self.worker._heartbeats.stop()

    async def confirm(self) -> WorkerExecution:
        """Let the server confirm the lease of what is to run alone."""
        attempt = self.to_confirm.pop(0)
        attempt.start()
        assert attempt.begin()
        await turns()
        return attempt

    async def finish(self, leased: Leased) -> None:
        """It ends, and its report is acknowledged."""
        (found,) = [one for one in self.runner.started if one.leased is leased]
        found.finish(DONE)
        await self.acknowledge(leased)

    async def acknowledge(self, *reported: Leased) -> None:
        for attempt in [one for one in self.nodes.told if one.leased in reported]:
            self.worker._forget(attempt)
        await turns()

    def released(self) -> list[Leased]:
        told = self.nodes.told
        return [attempt.leased for attempt in told if attempt.verdict.status == "released"]


@pytest.fixture
async def two_lanes(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = TwoLaneWorker(monkeypatch)
    await turns()
    yield found
    await found.close()


async def test_beside_a_suspect_nothing_runs_and_nothing_is_asked_for(
    two_lanes: TwoLaneWorker,
) -> None:
    suspect, other = leased(alone=True), leased(alone=False)
    polls = len(two_lanes.nodes.waiting())
    assert polls == 8  # two lanes, two nodes, two each
    await two_lanes.nodes.give(suspect)
    assert len(two_lanes.nodes.waiting()) == polls - 1
    await two_lanes.confirm()
    while two_lanes.nodes.waiting():
        await two_lanes.nodes.give(leased())
    assert two_lanes.runner.running == [suspect]
    assert len(two_lanes.released()) == polls - 1
    two_lanes.runner.started[0].finish(DONE)
    await turns()
    assert len(two_lanes.nodes.waiting()) == polls
    await two_lanes.nodes.give(other)
    assert two_lanes.runner.running == [other]


async def test_a_suspect_waits_until_all_others_are_reported(two_lanes: TwoLaneWorker) -> None:
    first, second, suspect = leased(), leased(), leased(alone=True)
    await two_lanes.nodes.give(first, second)
    await two_lanes.nodes.give(suspect)
    assert two_lanes.runner.running == [first, second]
    await two_lanes.nodes.give(late := leased())
    assert two_lanes.released() == [late]
    await two_lanes.finish(first)
    await two_lanes.acknowledge(late)
    assert not two_lanes.to_confirm
    two_lanes.runner.started[1].finish(DONE)
    await turns()
    assert not two_lanes.to_confirm, "should it kill this process, the report would be lost"
    await two_lanes.acknowledge(second)
    assert not two_lanes.runner.running, "the server does not know of it yet"
    attempt = await two_lanes.confirm()
    assert (attempt.leased, attempt.alone) == (suspect, True)
    assert two_lanes.runner.running == [suspect]
    assert not two_lanes.to_confirm, "once is enough"


async def test_a_suspect_that_waits_in_vain_is_released(
    two_lanes: TwoLaneWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, suspect = leased(), leased(alone=True, timeout=8.0)
    await two_lanes.nodes.give(first)
    await two_lanes.nodes.give(suspect)
    (attempt,) = [one for one in two_lanes.worker._leased() if one.leased is suspect]
    assert not two_lanes.worker._has_waited_enough(attempt, attempt.began + 3.9)
    assert two_lanes.worker._has_waited_enough(attempt, attempt.began + 4.1)
    attempt.end("released")
    await turns()
    assert two_lanes.released() == [suspect]
    assert two_lanes.nodes.told[0].verdict.code is None  # no failure of its own
    before = len(two_lanes.nodes.polls)
    await two_lanes.nodes.give(leased())
    held = two_lanes.nodes.polls[before][0].running
    assert held, "it says that it holds others, and gets no such task meanwhile"


async def test_of_two_suspects_the_second_is_released(two_lanes: TwoLaneWorker) -> None:
    first, second = leased(alone=True), leased(alone=True)
    await two_lanes.nodes.give(first)
    await two_lanes.nodes.give(second)
    assert two_lanes.released() == [second]
    await two_lanes.acknowledge(second)
    assert (await two_lanes.confirm()).leased is first


async def test_a_suspect_heads_an_answer_with_others(two_lanes: TwoLaneWorker) -> None:
    suspect, other = leased(alone=True), leased()
    await two_lanes.nodes.give(suspect, other)
    assert two_lanes.released() == [other]
    await two_lanes.acknowledge(other)
    await two_lanes.confirm()
    assert two_lanes.runner.running == [suspect]


async def test_beside_code_that_does_not_stop_nothing_is_alone(two_lanes: TwoLaneWorker) -> None:
    two_lanes.worker._left_behind = True
    await two_lanes.nodes.give(leased(alone=True))
    assert not (await two_lanes.confirm()).alone


async def test_a_suspect_that_ends_at_once_leaves_the_lanes_open(
    two_lanes: TwoLaneWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(two_lanes.runner, "start", lambda attempt: attempt.finish(DONE))
    await two_lanes.nodes.give(leased(alone=True))
    two_lanes.to_confirm.pop().start()
    await turns()
    assert not any(lane.closed for lane in two_lanes.worker._lanes)
    assert len(two_lanes.nodes.waiting()) == 8


async def until(condition: Callable[[], bool]) -> None:
    async def holds() -> bool:
        return condition()

    await eventually(holds, within=5, what="it is so")


async def test_what_was_lost_before_begins_when_nothing_else_does(
    two_lanes: TwoLaneWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else who dies of one of them would leave word that both had begun."""
    first, second, other, late = (leased(suspect=n < 2, number=n) for n in range(4))
    await two_lanes.nodes.give(other)
    await two_lanes.nodes.give(first, second)
    assert not two_lanes.named, "the other one has not begun"
    assert two_lanes.runner.started[0].begin()
    began = monotonic()
    await until(lambda: bool(two_lanes.named))
    assert monotonic() - began >= suspects._MOMENT
    await two_lanes.nodes.give(late)
    assert two_lanes.runner.running == [other]
    attempt = two_lanes.named.pop()
    assert attempt.leased is first
    attempt.start()
    assert attempt.begin()
    began = monotonic()
    await until(lambda: late in two_lanes.runner.running)
    assert monotonic() - began >= suspects._MOMENT
    assert not two_lanes.named, "the late one has not begun"
    assert two_lanes.runner.started[-1].begin()
    await until(lambda: bool(two_lanes.named))
    assert two_lanes.named[0].leased is second


async def test_a_suspect_does_not_wait_for_ever_for_its_moment(
    two_lanes: TwoLaneWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suspects, "_LONGEST_WAIT", 0.05)
    await two_lanes.nodes.give(other := leased())
    await two_lanes.nodes.give(suspect := leased(suspect=True))
    await until(lambda: suspect in two_lanes.runner.running)
    assert two_lanes.runner.running == [other, suspect]
    assert not two_lanes.named


async def test_what_runs_apart_does_not_hold_up_others(two_lanes: TwoLaneWorker) -> None:
    two_lanes.runner.apart = True
    await two_lanes.nodes.give(suspect := leased(suspect=True))
    assert two_lanes.runner.running == [suspect]


async def test_what_was_withdrawn_while_it_waited_is_reported(two_lanes: TwoLaneWorker) -> None:
    """Else the lanes stayed closed for good."""
    await two_lanes.nodes.give(leased())
    await two_lanes.nodes.give(leased(alone=True))
    waiting = two_lanes.worker._exclusive
    assert waiting is not None
    assert waiting.withdraw()  # by another thread, while the loop stood still
    ticking = asyncio.create_task(two_lanes.worker._tick())
    await until(lambda: waiting.finished)
    ticking.cancel()
    assert waiting.verdict == RELEASED
    assert not any(lane.closed for lane in two_lanes.worker._lanes)


async def test_what_arrives_while_it_stops_is_released(two_lanes: TwoLaneWorker) -> None:
    two_lanes.worker._draining = True
    await two_lanes.nodes.give(late := leased())
    assert two_lanes.released() == [late]


async def test_what_is_ended_before_it_arrives_is_still_counted(two_lanes: TwoLaneWorker) -> None:
    """The thread that reads has it, the event loop has not: it hears of both in any order."""
    lane = two_lanes.worker._lanes[0]
    (attempt,) = two_lanes.worker.register([leased()], lane)
    attempt.end("lost")
    assert not attempt.finished
    attempt.lease_end = 0.0
    two_lanes.worker.begin_all([attempt])
    assert not attempt.begin(), "its lease is over"
    assert (lane.running, two_lanes.worker.running) == (1, 1)


async def test_every_poll_tells_what_the_others_brought(two_lanes: TwoLaneWorker) -> None:
    given = [leased() for _ in range(5)]
    for count, task in enumerate(given, 1):
        before = len(two_lanes.nodes.polls)
        await two_lanes.nodes.give(task)
        body = two_lanes.nodes.polls[before][0]
        held = {(entry.id, entry.fence) for entry in body.running or []}
        assert held == {(one.id, one.fence) for one in given[:count]}
    two_lanes.runner.started[0].finish(DONE)  # reported, but not acknowledged
    before = len(two_lanes.nodes.polls)
    await two_lanes.nodes.give()
    assert len(two_lanes.nodes.polls[before][0].running or []) == 5
    two_lanes.worker._forget(two_lanes.runner.started[0])
    before = len(two_lanes.nodes.polls)
    await two_lanes.nodes.give()
    assert len(two_lanes.nodes.polls[before][0].running or []) == 4
