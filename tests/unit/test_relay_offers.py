"""Steps that start as they are released: how many a node offers, and what it does with them."""

from collections.abc import Sequence
from random import Random
from typing import Any, cast

from mainspring.clock import ManualClock
from mainspring.config import Config
from mainspring.domain.execution import Assignment, Outcome, Report
from mainspring.domain.rows import TaskRow
from mainspring.engine.core import Engine, EngineSettings
from mainspring.node.dispatcher import Dispatcher
from mainspring.node.recorder import Recorder
from mainspring.node.state import NodeState
from mainspring.observe.metrics import Metrics
from mainspring.store.step_rows import NO_RELAY
from support.rows import assignment, row

NOW = 1000.0


class Runs:
    """An executor that notes what it is given."""

    def __init__(self) -> None:
        self.started: list[Assignment] = []

    def can_run(self, capability: str) -> bool:
        return capability == "http"

    def start(self, assignments: Sequence[Assignment]) -> None:
        self.started += assignments


class Reports(Recorder):
    """A recorder that writes nothing."""

    def __init__(self, config: Config, state: NodeState, metrics: Metrics) -> None:
        nothing = cast(Any, None)
        super().__init__(config, state, nothing, nothing, nothing, metrics, Random(1))
        self.reports: list[Report] = []

    def report(self, reports: Sequence[Report]) -> None:
        self.reports += reports
        for report in reports:
            self._state.engine.reported(report.assignment.id, report.assignment.fence)


class World:
    def __init__(self, slots: int = 10) -> None:
        config, metrics = Config(database_url="postgresql:///x", slots=slots), Metrics()
        engine = Engine(EngineSettings())
        engine.own([0], [], NOW)
        state = NodeState(engine, ManualClock(NOW))
        self.engine, self.executor = engine, Runs()
        self.recorder = Reports(config, state, metrics)
        self.dispatcher = Dispatcher(config, state, cast(Any, None), self.recorder, metrics)
        self.dispatcher.add_executor(cast(Any, self.executor))

    def begun(self, number: int, **fields: Any) -> tuple[TaskRow, Assignment]:
        fields = {"capability": "http", "due": NOW, "lease_end": NOW + 15, **fields}
        found = row(number, rev=2, state="running", fence=1, **fields)
        assert found.lease_end is not None
        return found, assignment(found._replace(fence=0), lease_end=found.lease_end)


def test_only_slots_beyond_half_of_all_are_offered_and_while_offered_not_twice() -> None:
    world = World(slots=10)
    relay = world.dispatcher.offer_relay()
    assert (relay.most, world.dispatcher.free_slots) == (5, 5)
    assert world.dispatcher.offer_relay() == NO_RELAY
    world.dispatcher.end_relay(relay, [])
    assert world.dispatcher.free_slots == 10


def test_what_was_leased_is_started_and_takes_its_slot() -> None:
    world = World(slots=10)
    relay = world.dispatcher.offer_relay()
    found, given = world.begun(7)
    world.dispatcher.end_relay(relay, [(found, given)])
    assert world.executor.started == [given]
    assert (world.dispatcher.free_slots, world.engine.slots_held) == (9, 1)


def test_a_node_without_slots_offers_none() -> None:
    assert World(slots=0).dispatcher.offer_relay() == NO_RELAY


def test_a_node_that_is_closing_offers_none_and_gives_back_what_comes_late() -> None:
    world = World()
    relay = world.dispatcher.offer_relay()
    world.dispatcher.close()
    assert world.dispatcher.offer_relay() == NO_RELAY
    world.dispatcher.end_relay(relay, [world.begun(7)])
    assert world.executor.started == []
    assert [report.outcome for report in world.recorder.reports] == [Outcome.RELEASED]
    assert world.engine.slots_held == 0


def test_what_nobody_here_can_run_and_what_came_too_late_goes_back_alone() -> None:
    world = World()
    relay = world.dispatcher.offer_relay()
    odd = world.begun(7, capability="handler:send_mail")
    late = world.begun(8, lease_end=NOW - 1)
    good = world.begun(9)
    world.dispatcher.end_relay(relay, [odd, late, good])
    assert world.executor.started == [good[1]]
    assert [r.assignment.id for r in world.recorder.reports] == [odd[0].id, late[0].id]
