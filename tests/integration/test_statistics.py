"""Bulk inserts into tables that vacuum found empty: plans made for one row must not meet them."""

import asyncio
from collections.abc import AsyncIterator
from unittest import mock

import pytest

from mainspring.domain.partitions import Ownership
from mainspring.postgres.database import Database, DatabaseOptions, connect
from mainspring.postgres.named_sql import Statement
from mainspring.store.upkeep import statistics
from mainspring.store.upkeep.housekeeping import HousekeepingStore
from mainspring.store.upkeep.statistics import BULK_ROWS
from support.store import StoreWorld


@pytest.fixture
async def empty(database_url: str) -> AsyncIterator[StoreWorld]:
    """A world whose tables are known to be empty, and at which nobody else looks. All goes over one
    connection: a new one would make plans of its own."""
    database = Database(DatabaseOptions(database_url, connections=1))
    await database.open()
    world = StoreWorld(database)
    await world.open()
    for table in ("tasks", "wakes"):
        await database.fetch(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
        await database.fetch(f"VACUUM ANALYZE {table}")
    yield world
    await database.close()


async def known_tasks(world: StoreWorld) -> int:
    """How many there are, as far as the planner knows."""
    row = await world.database.fetch_row(
        "SELECT reltuples::integer AS known FROM pg_class WHERE oid = 'tasks'::regclass"
    )
    assert row is not None
    return int(row["known"])


async def test_a_batch_is_analyzed_before_it_is_claimed(empty: StoreWorld) -> None:
    await empty.due_tasks(BULK_ROWS - 1)
    assert await known_tasks(empty) == 0
    await empty.due_tasks(BULK_ROWS)
    assert await known_tasks(empty) == 2 * BULK_ROWS - 1


async def test_a_batch_that_fills_old_pages_is_analyzed(empty: StoreWorld) -> None:
    """Where the table was full once its size says nothing."""
    await empty.due_tasks(3 * BULK_ROWS)
    await empty.database.fetch(
        "DELETE FROM tasks WHERE id <> (SELECT id FROM tasks ORDER BY id DESC LIMIT 1)"
    )
    await empty.database.fetch("VACUUM ANALYZE tasks")
    assert await known_tasks(empty) == 1
    await empty.due_tasks(BULK_ROWS)
    assert await known_tasks(empty) == BULK_ROWS + 1


@pytest.mark.parametrize("telling", ["SELECT 1 / 0", "SELECT pg_sleep(60)"])
async def test_a_failing_analyze_does_not_hide_that_tasks_were_made(
    empty: StoreWorld, telling: str
) -> None:
    with mock.patch.dict(statistics.SQL, {"analyze_now": Statement("analyze_now", telling)}):
        async with asyncio.timeout(15):  # a statement is given up after 20
            made = await empty.due_tasks(2 * BULK_ROWS)
    assert await known_tasks(empty) == 0
    refs = [(empty.tenant_id, task_id) for task_id in made]
    assert len((await empty.engine.look_at(refs)).rows) == len(made)


async def test_housekeeping_analyzes_tasks_that_came_few_at_a_time(empty: StoreWorld) -> None:
    house = HousekeepingStore(empty.database)
    assert not await house.analyze_if_grown()
    for _ in range(6):
        await empty.due_tasks(BULK_ROWS // 2)
    assert await house.analyze_if_grown()
    assert await known_tasks(empty) == 3 * BULK_ROWS
    assert not await house.analyze_if_grown()


async def test_a_failed_analyze_is_not_recorded_as_done(
    empty: StoreWorld, database_url: str
) -> None:
    for _ in range(3):
        await empty.due_tasks(BULK_ROWS - 1)
    house = HousekeepingStore(empty.database)
    other = await connect(DatabaseOptions(database_url))
    try:
        async with other.transaction():
            await other.execute("LOCK TABLE tasks IN SHARE UPDATE EXCLUSIVE MODE")  # as vacuum does
            assert not await house.analyze_if_grown()
    finally:
        await other.close()
    assert await house.analyze_if_grown()


async def rows_read(world: StoreWorld) -> int:
    """How many rows of tasks were looked at so far, whether they were wanted or not."""
    await world.database.fetch("SELECT pg_stat_force_next_flush()")
    row = await world.database.fetch_row(
        "SELECT seq_tup_read + idx_tup_fetch AS read FROM pg_stat_user_tables"
        " WHERE relid = 'tasks'::regclass"
    )
    assert row is not None
    return int(row["read"])


async def test_wakes_are_looked_up_one_by_one(empty: StoreWorld) -> None:
    """And not each compared with each task, which takes ten seconds and not a tenth of one."""
    owner = empty.ownership
    assert not (await empty.engine.poll_wakes(owner, [], limit=1000)).rows
    empty.ownership = Ownership(
        owner.node_id, owner.epoch, frozenset()
    )  # what is made now is not ours
    for _ in range(20):
        await empty.due_tasks(BULK_ROWS // 2)
    before = await rows_read(empty)
    seen = await empty.engine.poll_wakes(owner, [], limit=20 * BULK_ROWS)
    assert len(seen.rows) == 10 * BULK_ROWS
    assert await rows_read(empty) - before <= 10 * BULK_ROWS


async def test_what_expires_is_looked_up_one_by_one(empty: StoreWorld) -> None:
    assert not await empty.engine.expire(empty.ownership, limit=BULK_ROWS)
    for _ in range(20):
        await empty.due_tasks(BULK_ROWS // 2)
    await empty.database.fetch("UPDATE tasks SET expires_at = due_at - interval '1 second'")
    before = await rows_read(empty)
    assert len(await empty.engine.expire(empty.ownership, limit=BULK_ROWS)) == BULK_ROWS
    assert await rows_read(empty) - before <= 3 * BULK_ROWS
