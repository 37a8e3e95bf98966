"""What only PostgreSQL itself guarantees: functions, triggers, constraints and partitions."""

import time
from random import Random
from uuid import UUID

import asyncpg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.store_set import StoreSet, finish
from mainspring.domain.execution import Execution
from mainspring.domain.ids import TaskIds
from mainspring.domain.partitions import partition_of
from support.ids import time_of

_places = st.tuples(
    st.integers(1, 2**31 - 1),
    st.uuids(),
    st.none() | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    st.integers(1, 256),
)


async def test_python_and_sql_place_tasks_alike(connection: asyncpg.Connection) -> None:
    places: list[tuple[int, UUID, str | None, int]] = []

    @settings(max_examples=300, database=None, deadline=None)
    @given(_places)
    def collect(place: tuple[int, UUID, str | None, int]) -> None:
        places.append(place)

    collect()
    tenants, ids, keys, spreads = (list(column) for column in zip(*places, strict=True))
    rows = await connection.fetch(
        "SELECT partition_of(tenant, id, key, spread) FROM unnest($1::integer[], $2::uuid[], "
        "$3::text[], $4::integer[]) WITH ORDINALITY AS p (tenant, id, key, spread, nth) "
        "ORDER BY nth",
        tenants,
        ids,
        keys,
        spreads,
    )
    assert [row[0] for row in rows] == [partition_of(*place) for place in places]


async def test_python_and_sql_read_the_time_of_an_id_alike(connection: asyncpg.Connection) -> None:
    lab_ids = TaskIds(Random(3))
    task_id = lab_ids.make(1_812_345_678.9)
    found = await connection.fetchval("SELECT extract(epoch FROM time_of($1))::float8", task_id)
    assert found == pytest.approx(time_of(task_id) - 1.0)
    old = UUID(int=5, version=4)
    assert await connection.fetchval("SELECT time_of($1) = '-infinity'", old)


async def finished_task(stores: StoreSet) -> Execution:
    ownership = await stores.join()
    task = await stores.running(ownership, await stores.tenant())
    await stores.engine.finish(ownership, [finish(task)])
    return task


@pytest.mark.parametrize("table", ["executions", "audit"])
async def test_what_was_recorded_stays(
    real_stores: StoreSet, connection: asyncpg.Connection, table: str
) -> None:
    task = await finished_task(real_stores)
    other = await real_stores.create(task.tenant_id)
    assert await real_stores.changes.purge(task.tenant_id, other.id, "tester", lambda _rev: None)
    for statement in (f"DELETE FROM {table}", f"UPDATE {table} SET tenant_id = 0"):
        with pytest.raises(asyncpg.RaiseError, match="append-only"):
            await connection.execute(statement)


async def test_a_purge_may_delete_executions(real_stores: StoreSet) -> None:
    task = await finished_task(real_stores)
    assert await real_stores.changes.purge(task.tenant_id, task.id, "tester", lambda _rev: None)
    assert await real_stores.inspect.executions_of(task.id) == []
    assert await real_stores.inspect.end_of(task.id) is None


@pytest.mark.parametrize("table", ["task_history", "executions"])
async def test_history_of_any_day_has_a_place(
    real_stores: StoreSet, connection: asyncpg.Connection, table: str
) -> None:
    ownership, tenant = await real_stores.join(), await real_stores.tenant()
    task = await real_stores.running(ownership, tenant)
    done = finish(task)
    far = done.report._replace(finished=time.time() + 400 * 86400.0)
    assert await real_stores.engine.finish(ownership, [done._replace(report=far)]) == {task.id}
    place = await connection.fetchval(f"SELECT tableoid::regclass::text FROM {table}")
    assert place == f"{table}_default"


@pytest.mark.parametrize("table", ["partitions", "nodes"])
async def test_an_epoch_only_rises(
    real_stores: StoreSet, connection: asyncpg.Connection, table: str
) -> None:
    await real_stores.join()
    with pytest.raises(asyncpg.RaiseError, match="may only rise"):
        await connection.execute(f"UPDATE {table} SET epoch = epoch - 1")


@pytest.mark.parametrize(
    ("change", "constraint"),
    [
        ("state = 'completed'", "state_is_unfinished"),
        ("state = 'paused'", "parked_follows_state"),
        ("state = 'running'", "running_holds_a_lease"),
        ("cancel_requested = true", "only_running_hears_cancel"),
        ("concurrency_key = 'red'", "key_has_limit"),
    ],
)
async def test_a_task_that_makes_no_sense_is_refused(
    real_stores: StoreSet, connection: asyncpg.Connection, change: str, constraint: str
) -> None:
    await real_stores.create(await real_stores.tenant())
    with pytest.raises(asyncpg.CheckViolationError) as refusal:
        await connection.execute(f"UPDATE tasks SET {change}")
    assert refusal.value.constraint_name == constraint
