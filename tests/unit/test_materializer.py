"""The materializer when the database does not answer."""

import asyncio
from collections.abc import Collection, Sequence
from typing import cast
from uuid import UUID

import pytest

from mainspring.domain.partitions import Ownership
from mainspring.engine.core import Engine, EngineSettings
from mainspring.errors import NothingSent, StoreUnavailable
from mainspring.node.materializer import Materializer
from mainspring.node.signals import Announcer
from mainspring.node.state import NodeState
from mainspring.schedules.occurrences import DecidedSchedules
from mainspring.schedules.service import DueSchedule, OverdueSchedules, ScheduleService
from support.manual_clock import ManualClock


class Unanswered(ScheduleService):
    """One schedule is due, and whether it was decided on nobody says."""

    def __init__(self, problem: StoreUnavailable) -> None:
        self._problem = problem
        self.asked = asyncio.Event()

    async def due(
        self, partitions: Collection[int], *, until: float, limit: int
    ) -> list[DueSchedule]:
        return [DueSchedule(1, UUID(int=1), until - 2)]

    async def fire(self, ownership: Ownership, due: Sequence[DueSchedule]) -> DecidedSchedules:
        self.asked.set()
        raise self._problem

    async def overdue(self, seconds: float) -> OverdueSchedules:
        return OverdueSchedules(0, None)

    async def retime(self, partitions: Collection[int], *, limit: int) -> int:
        return 0


@pytest.mark.parametrize(
    ("problem", "stale_partitions"),
    [(StoreUnavailable("the connection was lost"), {3, 4}), (NothingSent("there was none"), set())],
)
async def test_after_a_lost_answer_the_partitions_are_looked_at_again(
    problem: StoreUnavailable, stale_partitions: set[int]
) -> None:
    """The decision may have been written, and its tasks with it: our engine has to hear of them."""
    state = NodeState(Engine(EngineSettings()), ManualClock(1000.0))
    state.engine.own({3, 4}, [], 1000.0)
    schedules = Unanswered(problem)
    materializer = Materializer(state, schedules, cast(Announcer, None))
    running = asyncio.create_task(materializer.run())
    async with asyncio.timeout(5):
        await schedules.asked.wait()
    running.cancel()
    assert state.stale_partitions == stale_partitions
