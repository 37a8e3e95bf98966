"""Slots that are granted to other nodes: each is settled once, whoever speaks first."""

import asyncio
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

import pytest
from structlog.testing import capture_logs

from mainspring.clock import ManualClock
from mainspring.domain.capability import Offer, needs_worker
from mainspring.domain.execution import Assignment
from mainspring.engine.core import Engine
from mainspring.engine.demand import Holder, Poll
from mainspring.engine.settings import EngineSettings
from mainspring.lifecycle import Errands
from mainspring.node.state import NodeState
from mainspring.node.workers import remote_workers as forwarding
from mainspring.node.workers.lease_service import LeaseDesk, _Waiting
from mainspring.node.workers.mailbox import (
    Grant,
    Granted,
    Kind,
    Letter,
    Post,
    Ready,
    Try,
)
from mainspring.node.workers.remote_workers import Forwarding
from support.rows import assignment, row, task_id

WORK = Offer(frozenset({"default"}), frozenset({"work"}))
HOLDER = Holder(1, "w", "1")
KIND = (1, WORK)


class Office:
    """A post that keeps what is sent."""

    def __init__(self) -> None:
        self.others: set[UUID] = set()
        self.sent: list[Letter] = []

    def deliver_to(self, hear: Any) -> None:
        self.hear = hear

    def send(self, _node: UUID, letter: Letter) -> None:
        self.sent.append(letter)

    def tell_all(self, _letter: Letter) -> None: ...

    def grants(self) -> list[int]:
        return [letter.number for letter in self.sent if isinstance(letter, Grant)]


class Desk:
    """Where one worker waits; what is settled is noted."""

    def __init__(self, *polls: Poll) -> None:
        self.waiting = polls
        self.known: list[Kind] = [KIND]
        self.settled: list[tuple[int, Sequence[Try]]] = []

    def polls(self) -> Iterable[Poll]:
        return self.waiting

    def kinds(self) -> Iterable[Kind]:
        return self.known

    async def claim_for(self, grant: Grant) -> list[Try]:
        raise AssertionError

    async def claimed_elsewhere(self, _poll: Poll, slots: int, tasks: Sequence[Try]) -> None:
        self.settled.append((slots, tasks))

    def replaced(self, current: Holder) -> None: ...


def make_state() -> NodeState:
    return NodeState(Engine(EngineSettings(), needs_worker), ManualClock())


def make_forwarding(desk: Any) -> tuple[Forwarding, Office]:
    office = Office()
    return Forwarding(make_state(), cast(Post, office), desk), office


async def background(forward: Any) -> None:
    while errands := set(forward._errands._under_way):
        await asyncio.wait(errands)


async def test_a_grant_is_settled_once() -> None:
    """The answer and the end of the patience for it may come in the same moment."""
    desk = Desk(Poll(HOLDER, WORK, 4))
    forward, office = make_forwarding(desk)
    there = uuid4()
    office.hear(Ready(there, KIND, 2))
    (number,) = office.grants()
    with capture_logs() as logs:
        office.hear(Granted(there, number, [(task_id(1), 1), (task_id(2), 1)]))
        forward._give_up(number)
        office.hear(Granted(there, number, [(task_id(1), 1), (task_id(2), 1)]))
        await background(forward)
    assert desk.settled == [(2, [(task_id(1), 1), (task_id(2), 1)])]
    assert logs == []


@pytest.mark.parametrize("announces", [True, False])
async def test_a_grant_says_whether_the_worker_announces_starts(announces: bool) -> None:
    _, office = make_forwarding(Desk(Poll(HOLDER, WORK, 4, announces=announces)))
    office.hear(Ready(uuid4(), KIND, 2))
    (grant,) = [letter for letter in office.sent if isinstance(letter, Grant)]
    assert grant.announces is announces


async def test_what_goes_wrong_in_the_background_is_logged() -> None:
    desk = Desk(Poll(HOLDER, WORK, 4))
    forward, office = make_forwarding(desk)
    with capture_logs() as logs:
        office.hear(Grant(uuid4(), 1, HOLDER, WORK, 1, True))
        await background(forward)
    assert [entry["action"] for entry in logs] == ["forward.failed"]


async def test_nodes_and_workers_that_are_gone_are_not_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk = Desk()
    forward, office = make_forwarding(desk)
    here, gone = uuid4(), uuid4()
    office.others = {here}
    other = (1, Offer(frozenset({"other"}), frozenset({"work"})))
    for kind in (KIND, other):
        for node in (here, gone):
            office.hear(Ready(node, kind, 2))
    said = asyncio.Event()
    monkeypatch.setattr(forwarding, "_SAY_AGAIN", 0.0)

    def polls() -> list[Poll]:
        said.set()
        return []

    monkeypatch.setattr(desk, "polls", polls)
    loop = asyncio.create_task(forward._keep_saying())
    await said.wait()
    loop.cancel()
    assert forward._ready == {KIND: {here: 2}}


class SlowStore:
    """Reads tasks when it is told to."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.go = asyncio.Event()

    async def leased(self, _tenant: int, tasks: Sequence[Try]) -> list[Any]:
        self.asked.set()
        await self.go.wait()
        return [SimpleNamespace(assignment=_leased(of)) for of, _fence in tasks]


def _leased(of: UUID) -> Assignment:
    return assignment(row(of.int))


async def test_a_poll_is_not_opened_anew_while_its_tasks_are_read() -> None:
    """One node claimed nothing for it, another one did, and that is still being read."""
    desk: Any = LeaseDesk.__new__(LeaseDesk)
    store, state = SlowStore(), make_state()
    desk._state, desk._store, desk._metrics = state, store, None
    desk._errands, desk._waiting = Errands(of="lease"), {}
    desk._reporting = SimpleNamespace(remember=lambda *_: None)
    poll = Poll(HOLDER, WORK, 0)
    poll.in_flight = 4
    answer = asyncio.get_running_loop().create_future()
    waiting = desk._waiting[poll] = _Waiting(poll, 4, answer)
    reading = asyncio.create_task(desk.claimed_elsewhere(poll, 2, [(task_id(1), 1)]))
    await store.asked.wait()
    await desk.claimed_elsewhere(poll, 2, ())
    assert (poll.free, poll.in_flight, desk._errands._under_way) == (0, 2, set())
    store.go.set()
    await reading
    assert poll.in_flight == 0
    assert [task.assignment.id for task in await answer] == [task_id(1)]
    assert waiting.poll not in desk._waiting
