"""What keeps runs apart: from other tenants' runs, and from whoever changes them at once."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from uuid import UUID

import asyncpg
import pytest

from mainspring.domain.execution import Execution
from mainspring.domain.outcome_rules import Finish
from mainspring.domain.task import TaskState
from mainspring.postgres.database import DatabaseOptions, connect
from mainspring.store.keys import KeyStore
from mainspring.store.outcomes import SQL as OUTCOMES
from mainspring.store.outcomes import finish_arguments
from mainspring.store.upkeep.housekeeping import HousekeepingStore
from mainspring.store.workflows import steps
from mainspring.store.workflows.step_rows import Ended, Moved, RunHead, RunTransaction, StartingStep
from mainspring.workflows.results import reported_end
from support.runs import RunWorld, finish, step, workflow
from support.waiting import eventually

PAIR = workflow(step("a"), step("b", "a"))


@pytest.fixture
async def other(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A second node's connection."""
    connection = await connect(DatabaseOptions(database_url))
    yield connection
    await connection.close()


@pytest.fixture
async def third(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await connect(DatabaseOptions(database_url))
    yield connection
    await connection.close()


# --- tenants ------------------------------------------------------------------------------------


async def test_nothing_that_names_another_tenant_moves_a_run(world: RunWorld) -> None:
    """Ids of runs are unique, and cannot be guessed; no statement relies on that."""
    run = await world.begin(PAIR)
    before = await world.states(run)
    stranger = await KeyStore(world.database).ensure_tenant("stranger")
    now = await world.now()
    head = RunHead(stranger, run, "flow", 1, "running", None, 2, 0)
    ended, moved = [Ended(stranger, run, "a", TaskState.COMPLETED)], Moved()

    def tx(connection: asyncpg.Connection) -> RunTransaction:
        return RunTransaction(connection, world.ownership, now, moved)

    start = StartingStep(head, PAIR.by_id["b"], now, None)
    works: list[Callable[[asyncpg.Connection], Awaitable[object]]] = [
        lambda c: world.steps.advance_runs(tx(c), ended),
        lambda c: world.steps.tasks.end(tx(c), ended),
        lambda c: world.steps.tasks.release(tx(c), [start]),
        lambda c: world.steps.set_paused(c, head, paused=True),
    ]
    for work in works:
        await world.database.transact(work)
        assert await world.states(run) == before
        assert (await world.step(run, "b")).finished == 0
    assert (moved.rows, moved.told) == ([], set())


async def test_an_outcome_moves_the_run_of_its_own_tenant_alone(world: RunWorld) -> None:
    """Should two runs ever have one id."""
    run, ours = await world.begin(PAIR), world.tenant_id
    world.tenant_id = stranger = await KeyStore(world.database).ensure_tenant("stranger")
    await world.begin(PAIR)
    for change in ("workflow_runs SET id = $1", "tasks SET workflow_run_id = $1"):
        await world.database.fetch(f"UPDATE {change} WHERE tenant_id = $2", run, stranger)
    claimed = await world.claim(run)
    await world.report([a for a in claimed if a.tenant_id == stranger])
    world.tenant_id = ours
    assert await world.states(run) == {"a": "running", "b": "blocked"}
    assert (await world.step(run, "b")).finished == 0


async def test_an_old_run_takes_no_steps_of_another_tenant_with_it(world: RunWorld) -> None:
    run = await world.begin(PAIR)
    stranger = await KeyStore(world.database).ensure_tenant("stranger")
    await world.database.fetch(
        "INSERT INTO workflow_runs (tenant_id, id, workflow, version, partition, total, unfinished,"
        " input, state, finished_at) VALUES ($1, $2, 'flow', 1, 0, 0, 0, '{}', 'completed',"
        " now() - interval '40 days')",
        stranger,
        run,
    )
    assert await HousekeepingStore(world.database).forget_runs(30) == 1
    assert len(await world.states(run)) == 2


# --- order --------------------------------------------------------------------------------------


async def test_tasks_of_steps_are_ended_in_the_order_of_their_ids(
    world: RunWorld, other: asyncpg.Connection
) -> None:
    """As they are claimed: the other way round, each could wait for the other."""
    run = await world.begin(workflow(step("z", delay=60), step("a", delay=60)))
    assert await _in_order(world, run) == ["z", "a"], "by id, which is not the order of names"
    await world.database.fetch(
        "UPDATE tasks SET expires_at = now() WHERE workflow_run_id = $1", run
    )
    leaving = await world.outcomes.expiring(world.ownership)
    now = await world.now()
    async with other.transaction():
        await _take(other, run, "z")
        expiring = asyncio.create_task(world.outcomes.expire(world.ownership, leaving, now))
        await eventually(lambda: _waits(world), within=5, what="the first task is waited for")
        await _take(other, run, "a")
    await expiring
    assert set((await world.states(run)).values()) == {"expired"}


# --- the run's lock -----------------------------------------------------------------------------

FAN = workflow(step("a"), step("b"), step("join", "a", "b", when="all_finished"))


async def test_two_nodes_that_record_steps_of_a_run_take_turns(
    world: RunWorld, other: asyncpg.Connection, third: asyncpg.Connection
) -> None:
    """One of the steps failed, so what else runs is asked to stop: its task, which the other node
    holds. That one holds the run as well, and is not waited for in a circle."""
    run = await world.begin(FAN)
    a, b = await world.claim(run)
    released = await _at_once(world, other, b, third, a)
    assert released == [0, 1], "by the second one"
    assert await world.drain(run) == ["join"]
    assert await world.state(run) == "failed"


async def test_without_the_lock_of_the_run_they_would_deadlock(
    world: RunWorld,
    other: asyncpg.Connection,
    third: asyncpg.Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So the test above is about the lock."""
    _unlocked(monkeypatch)
    run = await world.begin(FAN)
    a, b = await world.claim(run)
    with pytest.raises(asyncpg.DeadlockDetectedError):
        await _at_once(world, other, b, third, a)


async def test_a_join_starts_once_even_if_nobody_holds_the_run(
    world: RunWorld,
    other: asyncpg.Connection,
    third: asyncpg.Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That is for its counters to see to: whoever counts second waits for the first, and sees what
    that one has counted."""
    _unlocked(monkeypatch)
    run = await world.begin(FAN)
    a, b = await world.claim(run)
    now = await world.now()
    async with other.transaction():
        ended = await _record(world, other, finish(a))
        first = await _advance(world, other, ended, now)

        async def second() -> Moved:
            async with third.transaction():
                ended = await _record(world, third, finish(b))
                return await _advance(world, third, ended, now)

        counting = asyncio.create_task(second())
        await eventually(lambda: _waits(world), within=5, what="the second counts after the first")
    assert (len(first.rows), len((await counting).rows)) == (0, 1)
    assert await world.drain(run) == ["join"]


async def _at_once(
    world: RunWorld,
    one: asyncpg.Connection,
    succeeded: Execution,
    another: asyncpg.Connection,
    failed: Execution,
) -> list[int]:
    """The one node has recorded a success, but not yet what follows from it, when the other records
    a failure. Return how many steps each of them released."""
    now = await world.now()

    async def fail() -> Moved:
        async with another.transaction():
            ended = await _record(world, another, finish(failed, TaskState.FAILED))
            return await _advance(world, another, ended, now)

    async with one.transaction():
        ended = await _record(world, one, finish(succeeded))
        failing = asyncio.create_task(fail())
        try:
            await eventually(lambda: _waits(world), within=5, what="the other one waits")
            first = await _advance(world, one, ended, now)
        except BaseException:
            failing.cancel()
            await asyncio.gather(failing, return_exceptions=True)
            raise
    return [len(first.rows), len((await failing).rows)]


async def _advance(
    world: RunWorld, connection: asyncpg.Connection, ended: list[Ended], now: float
) -> Moved:
    return await world.steps.advance_runs(RunTransaction(connection, world.ownership, now), ended)


async def _record(world: RunWorld, connection: asyncpg.Connection, done: Finish) -> list[Ended]:
    """What happens before a run moves on: it is held, and the outcome is written."""
    await world.steps.lock_runs(connection, [(world.tenant_id, _run_of(done))])
    rows = await connection.fetch(*OUTCOMES["finish"](**finish_arguments(world.ownership, [done])))
    assert len(rows) == 1
    return [reported_end(done)]


def _run_of(done: Finish) -> UUID:
    run = done.report.execution.workflow_run_id
    assert run is not None
    return run


def _unlocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let everybody find the runs, and nobody hold them."""
    locking = steps.SQL["hold_runs"]
    reading = replace(locking, text=locking.text.replace("FOR NO KEY UPDATE", ""))
    assert reading.sql != locking.sql
    monkeypatch.setitem(steps.SQL, "hold_runs", reading)


async def _in_order(world: RunWorld, run: UUID) -> list[str]:
    rows = await world.database.fetch(
        "SELECT step FROM tasks WHERE workflow_run_id = $1 ORDER BY id", run
    )
    return [row["step"] for row in rows]


async def _take(connection: asyncpg.Connection, run: UUID, name: str) -> None:
    """Lock a task that must be free."""
    await connection.execute(
        "SELECT FROM tasks WHERE workflow_run_id = $1 AND step = $2 FOR UPDATE NOWAIT", run, name
    )


async def _waits(world: RunWorld) -> bool:
    row = await world.database.fetch_row(
        "SELECT FROM pg_stat_activity"
        " WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    return row is not None
