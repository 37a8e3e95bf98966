"""Slots that are granted to other nodes: each is closed once, whoever speaks first."""

import asyncio
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

import pytest
from structlog.testing import capture_logs

from mainspring.domain.capability import Offer, needs_worker
from mainspring.domain.execution import Execution
from mainspring.engine.core import Engine, EngineSettings
from mainspring.engine.demand import Poll, WorkerSession
from mainspring.lifecycle import BackgroundTasks
from mainspring.node.state import NodeState
from mainspring.node.workers import remote_workers as forwarding
from mainspring.node.workers.lease_service import LeaseService, _OpenPoll
from mainspring.node.workers.mailbox import (
    ExecutionKey,
    GrantClaimed,
    Kind,
    Mailbox,
    NodeMessage,
    SlotGrant,
    TasksWait,
)
from mainspring.node.workers.remote_workers import RemoteWorkers
from support.manual_clock import ManualClock
from support.rows import execution, row, task_id

WORK = Offer(frozenset({"default"}), frozenset({"work"}))
SESSION = WorkerSession(1, "w", "1")
KIND = (1, WORK)


class FakeMailbox:
    """A mailbox that keeps what is sent."""

    def __init__(self) -> None:
        self.others: set[UUID] = set()
        self.sent: list[NodeMessage] = []

    def deliver_to(self, receive: Any) -> None:
        self.receive = receive

    def send(self, _node: UUID, message: NodeMessage) -> None:
        self.sent.append(message)

    def tell_all(self, _message: NodeMessage) -> None: ...

    def grants(self) -> list[int]:
        return [message.number for message in self.sent if isinstance(message, SlotGrant)]


class FakeLeaseService:
    """Where one worker waits; what is closed is noted."""

    def __init__(self, *polls: Poll) -> None:
        self.waiting = polls
        self.known: list[Kind] = [KIND]
        self.closed: list[tuple[int, Sequence[ExecutionKey]]] = []

    def polls(self) -> Iterable[Poll]:
        return self.waiting

    def kinds(self) -> Iterable[Kind]:
        return self.known

    async def claim_for(self, grant: SlotGrant) -> list[ExecutionKey]:
        raise AssertionError

    async def claimed_elsewhere(
        self, _poll: Poll, slots: int, tasks: Sequence[ExecutionKey]
    ) -> None:
        self.closed.append((slots, tasks))

    def replaced(self, current: WorkerSession) -> None: ...


def make_state() -> NodeState:
    return NodeState(Engine(EngineSettings(), needs_worker), ManualClock())


def make_forwarding(lease_service: Any) -> tuple[RemoteWorkers, FakeMailbox]:
    mailbox = FakeMailbox()
    return RemoteWorkers(make_state(), cast(Mailbox, mailbox), lease_service), mailbox


async def background(forward: Any) -> None:
    while background_tasks := set(forward._background_tasks._under_way):
        await asyncio.wait(background_tasks)


async def test_a_grant_is_closed_once() -> None:
    """The answer and the end of its timeout may come in the same moment."""
    lease_service = FakeLeaseService(Poll(SESSION, WORK, 4))
    forward, mailbox = make_forwarding(lease_service)
    there = uuid4()
    mailbox.receive(TasksWait(there, KIND, 2))
    (number,) = mailbox.grants()
    with capture_logs() as logs:
        mailbox.receive(GrantClaimed(there, number, [(task_id(1), 1), (task_id(2), 1)]))
        forward._close_grant(number, ())
        mailbox.receive(GrantClaimed(there, number, [(task_id(1), 1), (task_id(2), 1)]))
        await background(forward)
    assert lease_service.closed == [(2, [(task_id(1), 1), (task_id(2), 1)])]
    assert logs == []


@pytest.mark.parametrize("announces", [True, False])
async def test_a_grant_says_whether_the_worker_announces_starts(announces: bool) -> None:
    _, mailbox = make_forwarding(FakeLeaseService(Poll(SESSION, WORK, 4, announces=announces)))
    mailbox.receive(TasksWait(uuid4(), KIND, 2))
    (grant,) = [message for message in mailbox.sent if isinstance(message, SlotGrant)]
    assert grant.announces is announces


@pytest.mark.parametrize(
    ("wanted", "in_flight", "shared"), [(4, 0, False), (9, 0, False), (3, 0, True), (4, 1, True)]
)
async def test_a_grant_says_whether_others_may_claim_for_the_worker(
    wanted: int, in_flight: int, shared: bool
) -> None:
    """Then nobody knows what its only task is, and none counts as begun without its word."""
    poll = Poll(SESSION, WORK, 4)
    poll.in_flight = in_flight
    _, mailbox = make_forwarding(FakeLeaseService(poll))
    mailbox.receive(TasksWait(uuid4(), KIND, wanted))
    (grant,) = [message for message in mailbox.sent if isinstance(message, SlotGrant)]
    assert grant.shared is shared
    assert poll.shared


async def test_what_goes_wrong_in_the_background_is_logged() -> None:
    lease_service = FakeLeaseService(Poll(SESSION, WORK, 4))
    forward, mailbox = make_forwarding(lease_service)
    with capture_logs() as logs:
        mailbox.receive(SlotGrant(uuid4(), 1, SESSION, WORK, 1, True))
        await background(forward)
    assert [entry["action"] for entry in logs] == ["forward.failed"]


async def test_nodes_and_workers_that_are_gone_are_not_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lease_service = FakeLeaseService()
    forward, mailbox = make_forwarding(lease_service)
    here, gone = uuid4(), uuid4()
    mailbox.others = {here}
    other = (1, Offer(frozenset({"other"}), frozenset({"work"})))
    for kind in (KIND, other):
        for node in (here, gone):
            mailbox.receive(TasksWait(node, kind, 2))
    answered = asyncio.Event()
    monkeypatch.setattr(forwarding, "_ANNOUNCE_EVERY", 0.0)

    def polls() -> list[Poll]:
        answered.set()
        return []

    monkeypatch.setattr(lease_service, "polls", polls)
    loop = asyncio.create_task(forward._keep_announcing())
    await answered.wait()
    loop.cancel()
    assert forward._remote_demand == {KIND: {here: 2}}


class SlowStore:
    """Reads tasks when it is told to."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.go = asyncio.Event()

    async def leased(self, _tenant: int, tasks: Sequence[ExecutionKey]) -> list[Any]:
        self.asked.set()
        await self.go.wait()
        return [SimpleNamespace(execution=_leased(of)) for of, _fence in tasks]


def _leased(of: UUID) -> Execution:
    return execution(row(of.int))


async def test_a_poll_is_not_opened_anew_while_its_tasks_are_read() -> None:
    """One node claimed nothing for it, another one did, and that is still being read."""
    lease_service: Any = LeaseService.__new__(LeaseService)
    store, state = SlowStore(), make_state()
    lease_service._state, lease_service._store, lease_service._metrics = state, store, None
    lease_service._background_tasks, lease_service._waiting = BackgroundTasks(of="lease"), {}
    lease_service._reports = SimpleNamespace(remember=lambda *_: None)
    poll = Poll(SESSION, WORK, 0)
    poll.in_flight = 4
    answer = asyncio.get_running_loop().create_future()
    waiting = lease_service._waiting[poll] = _OpenPoll(poll, 4, answer)
    reading = asyncio.create_task(lease_service.claimed_elsewhere(poll, 2, [(task_id(1), 1)]))
    await store.asked.wait()
    await lease_service.claimed_elsewhere(poll, 2, ())
    assert (poll.free, poll.in_flight, lease_service._background_tasks._under_way) == (0, 2, set())
    store.go.set()
    await reading
    assert poll.in_flight == 0
    assert [task.execution.id for task in await answer] == [task_id(1)]
    assert waiting.poll not in lease_service._waiting


def unbuilt(**parts: Any) -> Any:
    """A lease service with these parts and no others."""
    lease_service: Any = LeaseService.__new__(LeaseService)
    for name, part in parts.items():
        setattr(lease_service, f"_{name}", part)
    return lease_service


@pytest.mark.parametrize("shared", [True, False])
async def test_tasks_are_claimed_for_a_worker_within_its_grant(shared: bool) -> None:
    opened: list[Poll] = []

    async def nothing(*_: Any) -> list[Any]:
        return []

    lease_service = unbuilt(
        closed=False,
        state=SimpleNamespace(
            engine=SimpleNamespace(workers=SimpleNamespace(has_tasks_for=lambda *_: True)),
            clock=ManualClock(),
        ),
        open=opened.append,
        wait=nothing,
    )
    grant = SlotGrant(uuid4(), 1, SESSION, WORK, 2, idle=True, announces=True, shared=shared)
    assert await lease_service.claim_for(grant) == []
    (poll,) = opened
    assert (poll.session, poll.free, poll.here) == (SESSION, 2, False)
    assert (poll.announces, poll.shared) == (True, shared)


async def test_a_poll_that_got_nothing_is_nobody_elses_any_more() -> None:
    async def is_current(_holder: WorkerSession) -> bool:
        return True

    lease_service = unbuilt(
        state=make_state(),
        metrics=None,
        registry=SimpleNamespace(is_current=is_current),
        remote=SimpleNamespace(waits=lambda _poll: None),
    )
    poll = Poll(SESSION, WORK, 0, shared=True)
    await lease_service._reconsider(_OpenPoll(poll, 4, asyncio.get_running_loop().create_future()))
    assert (poll.free, poll.shared) == (4, False)
