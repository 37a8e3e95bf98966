"""Claims that were not answered at once."""

import asyncio
from collections.abc import Iterable, Sequence
from random import Random
from typing import Any, cast
from uuid import UUID

import pytest

from mainspring.domain.execution import Execution
from mainspring.domain.partitions import Ownership
from mainspring.domain.tenant import TenantLimits
from mainspring.engine.core import Engine, EngineSettings
from mainspring.errors import NothingSent, StoreUnavailable
from mainspring.node.dispatcher import Dispatcher
from mainspring.node.recorder import Recorder
from mainspring.node.state import NodeState
from mainspring.store.claims import EngineStore
from mainspring.store.task_refs import Seen, TaskRef
from support.manual_clock import ManualClock
from support.rows import row

NOW = 1000.0


class Unanswered(EngineStore):
    """The first claim is not answered; notes what is asked."""

    def __init__(self, problem: StoreUnavailable) -> None:
        self._problems = [problem]
        self.asked: list[str] = []
        self.looked_at = asyncio.Event()

    async def claim(
        self, ownership: Ownership, picks: Iterable[TaskRef], *, worker: str, lease: float
    ) -> list[Execution]:
        self.asked.append("claim")
        if self._problems:
            raise self._problems.pop()
        return []

    async def claimed_by(self, picks: Iterable[TaskRef], *, worker: str) -> list[Execution]:
        self.asked.append("claimed_by")
        return []

    async def look_at(self, tasks: Sequence[tuple[int, UUID]]) -> Seen:
        self.asked.append("look_at")
        self.looked_at.set()
        return Seen([], [task_id for _, task_id in tasks])


class Runs:
    """An executor with nothing to do."""

    def can_run(self, capability: str) -> bool:
        return True

    def room(self) -> int | None:
        return None


@pytest.mark.parametrize(
    ("problem", "asked"),
    [
        (StoreUnavailable("the connection was lost"), ["claim", "claimed_by", "look_at"]),
        (NothingSent("there was none"), ["claim", "claim", "look_at"]),
    ],
)
async def test_only_a_claim_that_was_sent_is_made_void(
    problem: StoreUnavailable, asked: list[str]
) -> None:
    """Any other is sent again, and who was picked keeps its place until then."""
    nothing = cast(Any, None)
    state = NodeState(Engine(EngineSettings()), ManualClock(NOW))
    state.engine.extend_horizon(NOW + 10)
    state.engine.own([0], [row(1, due=NOW, capability="http")], NOW)
    state.engine.set_limits({1: TenantLimits()}, NOW)
    store = Unanswered(problem)
    recorder = Recorder(state, nothing, nothing, nothing, Random(1))
    dispatcher = Dispatcher(state, store, recorder)
    dispatcher.add_executor(cast(Any, Runs()))
    running = asyncio.create_task(dispatcher.run())
    async with asyncio.timeout(5):
        await store.looked_at.wait()
    running.cancel()
    assert store.asked == asked
