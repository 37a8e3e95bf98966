"""Tasks that are leased as they are released or created: what a node offers, and what it does with
what came of it."""

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any, cast
from uuid import UUID

import pytest

from mainspring.config import Config
from mainspring.domain.capability import takes_slot
from mainspring.domain.execution import Execution, Outcome, Report
from mainspring.domain.rows import StreamKey, TaskRow
from mainspring.domain.tenant import TenantLimits
from mainspring.engine.core import Engine, EngineSettings
from mainspring.engine.entry import Entry
from mainspring.errors import StoreUnavailable
from mainspring.node.dispatcher import Dispatcher
from mainspring.node.recorder import Recorder
from mainspring.node.state import NodeState
from mainspring.observe.metrics import Metrics
from mainspring.store.creation import NO_EAGER_LEASE, NewTask, started_task
from mainspring.store.task_refs import Seen
from mainspring.store.workflows.step_rows import NO_STEP_LEASES
from support.manual_clock import ManualClock
from support.rows import execution, row, task_id

NOW = 1000.0


class Runs:
    """An executor that notes what it is given."""

    def __init__(self) -> None:
        self.started: list[Execution] = []
        self.runs = False
        self.runs_left: int | None = None
        self.breaks_at: UUID | None = None
        """When it comes to this task, it raises."""

    def can_run(self, capability: str) -> bool:
        return capability == "http" or (self.runs and not takes_slot(capability))

    def room(self) -> int | None:
        return self.runs_left

    def start(self, executions: Sequence[Execution]) -> None:
        for given in executions:
            if given.id == self.breaks_at:
                raise RuntimeError("broken")
            self.started.append(given)

    def has(self, task_id: UUID, fence: int) -> bool:
        return any((a.id, a.fence) == (task_id, fence) for a in self.started)


class Reports(Recorder):
    """A recorder that writes nothing."""

    def __init__(self, state: NodeState) -> None:
        nothing = cast(Any, None)
        super().__init__(state, nothing, nothing, nothing, Random(1))
        self.reports: list[Report] = []

    def report(self, reports: Sequence[Report]) -> None:
        self.reports += reports
        for report in reports:
            self._state.engine.leases.drop(report.execution.id, report.execution.fence)


class Leases:
    """A store that says what was leased, after it failed to once."""

    def __init__(self) -> None:
        self.leased: list[Execution] = []
        self.rows: list[TaskRow] = []
        self.failures = 1

    async def leased_to(self, tasks: Sequence[tuple[int, UUID]], *, worker: str) -> list[Execution]:
        self.failures -= 1
        if self.failures >= 0:
            raise StoreUnavailable("not yet")
        return [a for a in self.leased if (a.tenant_id, a.id) in tasks]

    async def look_at(self, tasks: Sequence[tuple[int, UUID]]) -> Seen:
        return Seen([row for row in self.rows if (row.tenant_id, row.id) in tasks], [])


class World:
    def __init__(self, slots: int = 10) -> None:
        config, metrics = Config(database_url="postgresql:///x", slots=slots), Metrics()
        engine = Engine(EngineSettings())
        engine.own([0], [], NOW)
        engine.set_limits({1: TenantLimits()}, NOW)
        self.state = state = NodeState(engine, ManualClock(NOW), config, metrics)
        self.engine, self.executor = engine, Runs()
        self.recorder = Reports(state)
        self.store = Leases()
        self.dispatcher = Dispatcher(state, cast(Any, self.store), self.recorder)
        self.dispatcher.add_executor(cast(Any, self.executor))

    def leased(self, number: int, **fields: Any) -> tuple[TaskRow, Execution]:
        fields = {"capability": "http", "due": NOW, "lease_end": NOW + 15, **fields}
        found = row(number, rev=2, state="running", fence=1, **fields)
        assert found.lease_end is not None
        return found, execution(found._replace(fence=0), lease_end=found.lease_end)


def test_only_slots_beyond_half_are_offered_and_each_once() -> None:
    world = World(slots=10)
    offer = world.dispatcher.eager_leases.offer_steps()
    assert (offer.most, world.dispatcher.free_slots) == (5, 5)
    assert world.dispatcher.eager_leases.offer_steps() == NO_STEP_LEASES
    world.dispatcher.eager_leases.end_steps(offer, [])
    assert world.dispatcher.free_slots == 10


def test_what_was_leased_is_started_and_takes_its_slot() -> None:
    world = World(slots=10)
    offer = world.dispatcher.eager_leases.offer_steps()
    found, given = world.leased(7)
    world.dispatcher.eager_leases.end_steps(offer, [(found, given)])
    assert world.executor.started == [given]
    assert (world.dispatcher.free_slots, world.engine.leases.slots) == (9, 1)


def test_a_node_without_slots_offers_none() -> None:
    assert World(slots=0).dispatcher.eager_leases.offer_steps() == NO_STEP_LEASES


def test_a_closing_node_offers_none_and_returns_late_leases() -> None:
    world = World()
    offer = world.dispatcher.eager_leases.offer_steps()
    world.dispatcher.close()
    assert world.dispatcher.eager_leases.offer_steps() == NO_STEP_LEASES
    world.dispatcher.eager_leases.end_steps(offer, [world.leased(7)])
    assert world.executor.started == []
    assert [report.outcome for report in world.recorder.reports] == [Outcome.RELEASED]
    assert world.engine.leases.slots == 0


def test_only_unrunnable_or_late_eager_leases_are_returned() -> None:
    world = World()
    offer = world.dispatcher.eager_leases.offer_steps()
    odd = world.leased(7, capability="handler:send_mail")
    late = world.leased(8, lease_end=NOW - 1)
    good = world.leased(9)
    world.dispatcher.eager_leases.end_steps(offer, [odd, late, good])
    assert world.executor.started == [good[1]]
    assert {r.execution.id for r in world.recorder.reports} == {odd[0].id, late[0].id}


# New tasks -------------------------------------------------------------------------------------

SPEC = b'{"target":{"type":"http","url":"http://there/"}}'


def new(number: int, **fields: Any) -> NewTask:
    plain = NewTask(
        1, task_id(number), NOW, NOW, NOW, None, None, None, 5, "default", "http", None, None,
        SPEC, b"{}",
    )  # fmt: skip
    return plain._replace(**fields)


def leased(task: NewTask, lease_end: float = NOW + 15) -> tuple[TaskRow, Execution]:
    return started_task(task, 0, NOW, lease_end)


def test_new_tasks_start_in_offered_slots_beyond_half() -> None:
    world = World(slots=4)
    tasks = [new(number) for number in range(1, 6)]
    offer = world.dispatcher.eager_leases.offer_tasks(tasks)
    assert (list(offer.tasks), world.dispatcher.free_slots) == ([t.id for t in tasks[:2]], 2)
    assert world.dispatcher.eager_leases.offer_tasks(tasks[2:]) == NO_EAGER_LEASE
    row, given = leased(tasks[0])
    world.dispatcher.eager_leases.end_tasks(offer, [(row, given)])
    assert world.executor.started == [given]
    assert (world.dispatcher.free_slots, world.engine.leases.slots) == (3, 1)


@pytest.mark.parametrize(
    "fields",
    [
        {"due": NOW + 1},
        {"expires": NOW + 60},
        {"concurrency_key": "red", "concurrency_limit": 1},
        {"capability": "handler:send_mail"},
        {"capability": "handler:mainspring.workflow"},
        {"tenant_id": 2},
    ],
    ids=["not due", "expires", "has a key", "for workers", "takes no slot", "limits unknown"],
)
def test_what_has_to_pass_a_gate_goes_through_the_queue(fields: dict[str, Any]) -> None:
    assert World().dispatcher.eager_leases.offer_tasks([new(1, **fields)]) == NO_EAGER_LEASE


def test_a_limited_tenant_gets_no_eager_lease() -> None:
    world = World()
    world.engine.set_limits({1: TenantLimits(max_running=256)}, NOW)
    assert world.dispatcher.eager_leases.offer_tasks([new(1)]) == NO_EAGER_LEASE


def test_nobody_goes_before_a_task_of_its_tenant_that_waits() -> None:
    world = World()
    world.engine.extend_horizon(NOW + 30)
    world.engine.update([row(7, capability="http", due=NOW)], NOW)
    assert world.dispatcher.eager_leases.offer_tasks([new(1)]) == NO_EAGER_LEASE


async def test_after_a_lost_answer_leases_are_found_and_started_once() -> None:
    world = World()
    world.engine.extend_horizon(NOW + 30)
    tasks = [new(1), new(2), new(3)]
    offer = world.dispatcher.eager_leases.offer_tasks(tasks)
    (found, one), (begun, two) = leased(tasks[0]), leased(tasks[1])
    waiting = row(3, capability="http", due=NOW)
    world.store.leased, world.store.rows = [one, two], [found, begun, waiting]
    world.dispatcher.eager_leases.end_tasks(offer, None)
    assert world.dispatcher.free_slots == 10 - 3
    world.engine.update([found], NOW)  # the reload found it, which starts nothing
    # The other one was not leased with the insert: it was found as well, claimed, run and reported.
    entry = Entry(row(2, capability="http", due=NOW), StreamKey(0, 1), NOW)
    world.dispatcher._hand_out([entry], [two])
    assert world.executor.started == [two]
    world.executor.started.clear()
    async with asyncio.timeout(5):
        while not world.executor.started:  # noqa: ASYNC110 - the store fails once before
            await asyncio.sleep(0.01)
    assert world.executor.started == [one]
    assert world.dispatcher.free_slots == 10 - 1
    picked = world.engine.pick(NOW, 5, lambda _capability: True)
    assert [entry.row.id for entry in picked] == [waiting.id], "the engine heard of it"


async def test_what_is_being_claimed_is_left_to_its_claim() -> None:
    world = World()
    world.store.failures = 0
    world.engine.extend_horizon(NOW + 30)
    offer = world.dispatcher.eager_leases.offer_tasks([new(1)])
    world.engine.update([row(1, capability="http", due=NOW)], NOW)
    assert world.engine.pick(NOW, 5, lambda _capability: True)
    found, given = leased(new(1))
    world.store.leased, world.store.rows = [given], [found]
    world.dispatcher.eager_leases.end_tasks(offer, None)
    async with asyncio.timeout(5):
        while world.dispatcher.free_slots < 10:  # noqa: ASYNC110 - a task of its own looks
            await asyncio.sleep(0.01)
    assert world.executor.started == []


def test_where_slots_are_short_the_most_urgent_get_them() -> None:
    world = World(slots=4)
    tasks = [new(number, priority=number) for number in range(1, 6)]
    offer = world.dispatcher.eager_leases.offer_tasks(tasks)
    assert set(offer.tasks) == {tasks[3].id, tasks[4].id}


def test_unused_reserved_slots_wake_the_tasks_that_wait() -> None:
    world = World(slots=10)
    offer = world.dispatcher.eager_leases.offer_tasks([new(number) for number in range(1, 6)])
    world.engine.extend_horizon(NOW + 30)
    world.engine.update([row(n, capability="http", due=NOW) for n in range(11, 21)], NOW)
    free = world.dispatcher.free_slots
    picked = world.engine.pick(NOW, free, lambda _capability: True, free=free)
    assert len(picked) == 3, "a tenant alone gets four fifths of ten"
    world.state.dispatch_wanted.clear()
    world.dispatcher.eager_leases.end_tasks(offer, [])
    assert world.state.dispatch_wanted.is_set()
    assert world.dispatcher.free_slots == 10


def test_a_failed_start_is_not_reported_to_the_creator() -> None:
    world = World()
    world.executor.breaks_at = new(2).id
    tasks = [new(1), new(2), new(3)]
    offer = world.dispatcher.eager_leases.offer_tasks(tasks)
    world.dispatcher.eager_leases.end_tasks(offer, [leased(task) for task in tasks])
    assert_only_the_first_was_started(world)


def test_a_claim_that_the_executor_refuses_is_given_back() -> None:
    world, (picked, given) = World(), claimed(3)
    world.executor.breaks_at = given[1].id
    for each in picked:
        world.engine.add_eager_lease(each.row._replace(fence=1), NOW)
    world.dispatcher._hand_out(picked, given)
    assert_only_the_first_was_started(world)


def assert_only_the_first_was_started(world: World) -> None:
    """What an executor took is its own to report, whatever it said afterwards."""
    assert [a.id for a in world.executor.started] == [task_id(1)]
    failed = [(r.execution.id, r.outcome, r.error and r.error.code) for r in world.recorder.reports]
    assert failed == [(task_id(n), Outcome.FAILED, "not-started") for n in (2, 3)]
    assert world.engine.leases.slots == 1


def test_a_claim_answered_to_a_closing_node_is_released() -> None:
    world, (picked, given) = World(), claimed(1)
    world.dispatcher.close()
    world.dispatcher._hand_out(picked, given)
    assert world.executor.started == []
    assert [report.outcome for report in world.recorder.reports] == [Outcome.RELEASED]


def claimed(count: int) -> tuple[list[Entry], list[Execution]]:
    """Tasks that were picked, and what their claim answered."""
    rows = [row(number, capability="http", due=NOW) for number in range(1, count + 1)]
    given = [execution(each, lease_end=NOW + 15) for each in rows]
    return [Entry(each, StreamKey(0, 1), NOW) for each in rows], given


def test_runs_take_room_only_until_they_have_started() -> None:
    world, run = World(), row(1, capability="handler:mainspring.workflow")
    assert world.dispatcher.room_for(run) == 10
    world.executor.runs_left = 0
    assert world.dispatcher.room_for(run) == 0
    assert world.dispatcher.room_for(row(2, capability="http")) == 10


async def test_no_more_runs_are_claimed_than_there_is_room_for() -> None:
    world = World()
    world.engine.extend_horizon(NOW + 30)
    world.executor.runs = True
    world.executor.runs_left = 3
    run = "handler:mainspring.workflow"
    world.engine.update([row(n, capability=run, due=NOW) for n in range(1, 9)], NOW)
    claims = asyncio.Queue[int]()

    async def claim(_ownership: object, refs: Sequence[object], **_how: object) -> list[Execution]:
        world.executor.runs_left = 0
        claims.put_nowait(len(refs))
        return []

    world.store.claim = claim  # type: ignore[attr-defined]
    running = asyncio.create_task(world.dispatcher.run())
    try:
        async with asyncio.timeout(5):
            assert await claims.get() == 3
    finally:
        running.cancel()
