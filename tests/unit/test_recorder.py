"""The recorder: what it does with outcomes that are refused, or told twice."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any, cast
from uuid import UUID

import asyncpg

from mainspring.config import Config
from mainspring.domain.execution import Outcome, Report
from mainspring.domain.outcome_rules import Finish, RetryLater
from mainspring.domain.partitions import Ownership
from mainspring.domain.rows import TaskRow
from mainspring.engine.core import Engine, EngineSettings
from mainspring.node.recorder import Recorder
from mainspring.node.state import NodeState
from support.manual_clock import ManualClock
from support.rows import execution, row


class RefusingStore:
    """A store that takes nothing of tasks 1 and 2, whatever is written of them."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        """Of which tasks alone something was to be written."""

    async def finish(self, _ownership: Ownership, finishes: Sequence[Finish]) -> set[UUID]:
        return {report.execution.id for report in self._take(finishes)}

    async def retry(self, _ownership: Ownership, retries: Sequence[RetryLater]) -> list[TaskRow]:
        return [row(report.execution.id.int, rev=3) for report in self._take(retries)]

    def _take(self, items: Sequence[Finish | RetryLater]) -> list[Report]:
        reports = [item.report for item in items]
        self.asked += [report.execution.id.int for report in reports if len(reports) == 1]
        if any(report.execution.id.int in (1, 2) for report in reports):
            raise asyncpg.DataError("invalid")
        return reports


class NoAnnouncer:
    def announce(self, changed: object) -> None:
        """Nobody is there."""


def report(number: int, outcome: Outcome) -> Report:
    return Report(execution(row(number)), outcome, 0.0, 0.0)


@asynccontextmanager
async def recording(store: RefusingStore) -> AsyncIterator[Recorder]:
    config = Config(database_url="postgresql:///x")
    state = NodeState(Engine(EngineSettings()), ManualClock(), config)
    nobody = cast(Any, None)
    recorder = Recorder(state, cast(Any, store), nobody, cast(Any, NoAnnouncer()), Random(1))
    writing = asyncio.create_task(recorder.run())
    try:
        async with asyncio.timeout(5):
            yield recorder
    finally:
        writing.cancel()


async def test_what_is_refused_twice_is_given_up_and_holds_nobody_up() -> None:
    store = RefusingStore()
    batch = [
        report(number, outcome)
        for number, outcome in enumerate([Outcome.SUCCEEDED, Outcome.RELEASED] * 2, 1)
    ]
    async with recording(store) as recorder:
        assert await recorder.record(batch) == [False, False, True, True]
    assert sorted(store.asked) == [1, 1, 2, 2, 3, 4]


async def test_of_two_concurrent_reports_of_an_execution_one_counts() -> None:
    """The other one is to hear that its word does not count, though the execution succeeded."""
    async with recording(RefusingStore()) as recorder:
        first, second = await asyncio.gather(
            recorder.record([report(3, Outcome.CANCELLED)]),
            recorder.record([report(3, Outcome.SUCCEEDED)]),
        )
    assert (first, second) == ([True], [False])
