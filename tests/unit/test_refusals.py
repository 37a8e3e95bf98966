"""What the database refuses because of the values, and what it cannot do at the moment."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any, cast
from uuid import UUID

import asyncpg
import pytest
from asyncpg.exceptions._base import DataError as ClientDataError

from mainspring.clock import ManualClock
from mainspring.config import Config
from mainspring.domain.execution import Outcome, Report
from mainspring.domain.placement import Tenure
from mainspring.domain.rows import TaskRow
from mainspring.domain.settlement import Finish, Retry
from mainspring.engine.core import Engine, EngineSettings
from mainspring.errors import StoreUnavailable
from mainspring.node.recorder import Recorder
from mainspring.node.signals import Signals
from mainspring.node.state import NodeState
from mainspring.observe.metrics import Metrics
from mainspring.store.database import REFUSED, Database, DatabaseOptions
from support.rows import assignment, row


class _Pool:
    """Connections of which none is used."""

    @asynccontextmanager
    async def acquire(self, **_how: float) -> AsyncIterator[None]:
        yield


async def raising(error: Exception) -> None:
    """Let a statement fail so."""
    database = Database(DatabaseOptions("postgresql:///x"))
    database._pool = cast(Any, _Pool())

    async def work(_connection: object) -> None:
        raise error

    await database._with_connection(work)


@pytest.mark.parametrize(
    "kind",
    [
        asyncpg.CharacterNotInRepertoireError,
        asyncpg.CheckViolationError,
        asyncpg.ProgramLimitExceededError,
        asyncpg.RaiseError,
        ClientDataError,
        ValueError,
    ],
)
async def test_what_the_values_cause_is_refused(kind: type[Exception]) -> None:
    with pytest.raises(kind) as caught:
        await raising(kind("no"))
    assert isinstance(caught.value, REFUSED)


@pytest.mark.parametrize(
    "kind",
    [
        asyncpg.InternalServerError,
        asyncpg.PostgresIOError,
        asyncpg.InsufficientPrivilegeError,
        asyncpg.UndefinedTableError,
        asyncpg.LockNotAvailableError,
        asyncpg.DiskFullError,
        asyncpg.InterfaceError,
        ConnectionResetError,
    ],
)
async def test_a_fault_of_the_database_says_nothing_about_the_values(
    kind: type[Exception],
) -> None:
    with pytest.raises(StoreUnavailable):
        await raising(kind("no"))


class _Refuses:
    """A store that takes nothing of tasks 1 and 2, whatever is written of them."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    async def finish(self, _tenure: Tenure, finishes: Sequence[Finish]) -> set[UUID]:
        return {report.assignment.id for report in self._take(finishes)}

    async def retry(self, _tenure: Tenure, retries: Sequence[Retry]) -> list[TaskRow]:
        return [row(report.assignment.id.int, rev=3) for report in self._take(retries)]

    def _take(self, items: Sequence[Finish | Retry]) -> list[Report]:
        reports = [item.report for item in items]
        self.asked += [report.assignment.id.int for report in reports if len(reports) == 1]
        if any(report.assignment.id.int in (1, 2) for report in reports):
            raise asyncpg.DataError("invalid")
        return reports


async def test_what_is_refused_twice_is_given_up_and_holds_nobody_up() -> None:
    store, state = _Refuses(), NodeState(Engine(EngineSettings()), ManualClock())
    config = Config(database_url="postgresql:///x")
    nobody = cast(Any, None)
    recorder = Recorder(
        config, state, cast(Any, store), nobody, cast(Signals, _Deaf()), Metrics(), Random(1)
    )
    outcomes = {
        1: Outcome.SUCCEEDED,
        2: Outcome.RELEASED,
        3: Outcome.SUCCEEDED,
        4: Outcome.RELEASED,
    }
    batch = [Report(assignment(row(n)), outcome, 0.0, 0.0) for n, outcome in outcomes.items()]
    await recorder._write(batch)
    assert sorted(store.asked) == [1, 1, 2, 2, 3, 4]
    assert [await recorder.record_now(report) for report in batch] == [False, False, True, True]


class _Deaf:
    def wake_owners(self, partitions: object) -> None:
        """Nobody is there."""
