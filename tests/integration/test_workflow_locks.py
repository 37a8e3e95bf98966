"""What keeps runs apart: from other tenants' runs, and from whoever changes them at once."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from uuid import UUID

import asyncpg
import pytest

from mainspring.domain.task import TaskState
from mainspring.store.database import Database, DatabaseOptions, connect
from mainspring.store.housekeeping import Housekeeping
from mainspring.store.keys import Keys
from mainspring.store.step_rows import Ended, Moved, RunHead, Start
from support.runs import RunWorld, step, workflow
from support.waiting import eventually

PAIR = workflow(step("a"), step("b", "a"))


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[RunWorld]:
    database = Database(DatabaseOptions(database_url))
    await database.open()
    made = RunWorld(database)
    await made.open()
    yield made
    await database.close()


@pytest.fixture
async def other(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A second node's connection."""
    connection = await connect(DatabaseOptions(database_url))
    yield connection
    await connection.close()


# --- tenants ------------------------------------------------------------------------------------


async def test_nothing_that_names_another_tenant_moves_a_run(world: RunWorld) -> None:
    """Ids of runs are unique, and cannot be guessed; no statement relies on that."""
    run = await world.begin(PAIR)
    before = await world.states(run)
    stranger = await Keys(world.database).ensure_tenant("stranger")
    now = await world.now()
    head = RunHead(stranger, run, "flow", 1, "running", None, 2, 0)
    steps = world.steps
    ended, moved = [Ended(stranger, run, "a", TaskState.COMPLETED)], Moved()
    start = Start(head, PAIR.by_id["b"], now, None)
    works: list[Callable[[asyncpg.Connection], Awaitable[object]]] = [
        lambda c: steps.settle(c, world.tenure, ended, now),
        lambda c: steps.tasks.end(c, ended, moved),
        lambda c: steps.tasks.release(c, world.tenure, [start], moved),
        lambda c: steps.pause(c, head),
    ]
    for work in works:
        await world.database.transact(work)
        assert await world.states(run) == before
        assert (await world.step(run, "b")).finished == 0
    assert (moved.rows, moved.told) == ([], set())


async def test_an_old_run_takes_no_steps_of_another_tenant_with_it(world: RunWorld) -> None:
    run = await world.begin(PAIR)
    stranger = await Keys(world.database).ensure_tenant("stranger")
    await world.database.fetch(
        "INSERT INTO workflow_runs (tenant_id, id, workflow, version, partition, total, unfinished,"
        " input, state, finished_at) VALUES ($1, $2, 'flow', 1, 0, 0, 0, '{}', 'completed',"
        " now() - interval '40 days')",
        stranger,
        run,
    )
    assert await Housekeeping(world.database).forget_runs(30) == 1
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
    leaving = await world.outcomes.expiring(world.tenure)
    now = await world.now()
    async with other.transaction():
        await _take(other, run, "z")
        expiring = asyncio.create_task(world.outcomes.expire(world.tenure, leaving, now))
        await eventually(lambda: _waits(other), within=5, what="the first task is waited for")
        await _take(other, run, "a")
    await expiring
    assert set((await world.states(run)).values()) == {"expired"}


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


async def _waits(connection: asyncpg.Connection) -> bool:
    count: int = await connection.fetchval(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    return count > 0
