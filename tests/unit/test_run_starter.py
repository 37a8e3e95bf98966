"""Tasks that run workflows: a flood of one tenant's delays nobody else's, nor the ends of runs."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import cast
from uuid import UUID

import msgspec

from mainspring.domain.execution import Execution, Report
from mainspring.domain.partitions import Ownership
from mainspring.engine.core import Engine, EngineSettings
from mainspring.node.run_starter import RunStarter
from mainspring.node.signals import Announcer
from mainspring.node.state import NodeState
from mainspring.store.workflows.step_rows import Moved
from mainspring.workflows.task_runs import TaskRuns
from support.manual_clock import ManualClock
from support.rows import execution, row

FLOOD = 400
QUIET = FLOOD + 1
EARLIER = FLOOD + 2


class Runs:
    """In place of the store: the runs of the flood begin when they are let."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.asked: list[int] = []
        """How many ends were asked for, each time."""
        self.at_once = self.most_at_once = 0
        self.held = asyncio.Event()
        self.held.set()

    async def begin(
        self, _ownership: Ownership, of: Execution, _name: str, _given: Mapping[str, msgspec.Raw]
    ) -> Moved:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await self.held.wait()
        await asyncio.sleep(0.001)  # a round trip
        self.at_once -= 1
        self.begun.append(of.id.int)
        return Moved()

    async def ended(self, tasks: list[Execution]) -> list[tuple[UUID, str]]:
        self.asked.append(len(tasks))
        over = (QUIET, EARLIER) if QUIET in self.begun else ()
        return [(t.id, "completed") for t in tasks if t.id.int in over]


class Listener:
    """In place of the announcer."""

    def announce_runs(self, moved: Moved) -> None:
        """There is no engine to tell."""


class World:
    def __init__(self) -> None:
        self.runs, self.reports = Runs(), list[Report]()
        self.reported = asyncio.Event()
        self.state = NodeState(Engine(EngineSettings()), ManualClock())
        self.starter = RunStarter(
            ManualClock(),
            self.state,
            cast(TaskRuns, self.runs),
            cast(Announcer, Listener()),
            self._report,
        )

    def start(self, *numbers: int, tenant: int = 1) -> None:
        payload = b'{"workflow": "flow"}'
        tasks = [execution(row(n, tenant=tenant))._replace(payload=payload) for n in numbers]
        self.starter.start(tasks)

    async def until_reported(self, count: int) -> list[int]:
        async with asyncio.timeout(10):
            while len(self.reports) < count:
                self.reported.clear()
                await self.reported.wait()
        return [report.execution.id.int for report in self.reports]

    def _report(self, reports: Sequence[Report]) -> None:
        self.reports += reports
        self.reported.set()


async def test_a_flood_delays_neither_other_tenants_nor_ending_runs() -> None:
    world = World()
    try:
        world.start(*range(1, FLOOD + 1))
        world.start(QUIET, EARLIER, tenant=2)
        assert set(await world.until_reported(2)) == {QUIET, EARLIER}
        assert world.runs.begun.index(QUIET) < 4, "tenants take turns"
        assert len(world.runs.begun) < FLOOD, "ends are noticed in between"
        assert 1 < world.runs.most_at_once <= 8
    finally:
        await world.starter.stop(0)


async def test_runs_yet_to_begin_are_bounded_and_room_is_announced() -> None:
    world = World()
    before = world.starter.room()
    world.runs.held.clear()
    try:
        world.start(*range(1, FLOOD + 1))
        assert (before, world.starter.room()) == (256, 0)
        told = world.starter.holds_back(UUID(int=FLOOD), 1)
        assert told == f"{FLOOD} runs are about to begin"
        world.state.dispatch_wanted.clear()
        world.runs.held.set()
        async with asyncio.timeout(10):
            while world.starter.room() < before:
                await world.state.dispatch_wanted.wait()
                world.state.dispatch_wanted.clear()
        assert world.starter.holds_back(UUID(int=1), 1) is None
    finally:
        await world.starter.stop(0)
