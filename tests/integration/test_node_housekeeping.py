"""Keeping house: partitions ahead of time, old ones out, and one housekeeper at a time."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from uuid import uuid4

import asyncpg
import pytest

from mainspring.store.cluster import Topology
from mainspring.store.database import Database, DatabaseOptions
from mainspring.store.housekeeping import PARTITIONED, Housekeeping
from support.evidence import Evidence
from support.store import StoreWorld, success
from support.waiting import eventually

OLD = ["executions_d20200102", "task_history_d20200102"]


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = Database(DatabaseOptions(database_url))
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
async def house(database: Database) -> Housekeeping:
    return Housekeeping(database)


async def test_partitions_exist_ahead_of_time(house: Housekeeping) -> None:
    made = await house.make_partitions(days_ahead=3)
    today = f"{datetime.now(UTC):%Y%m%d}"
    assert len(made) == len(PARTITIONED) * 4
    assert {f"task_history_d{today}", f"executions_d{today}"} <= set(made)
    assert await house.make_partitions(days_ahead=3) == []


async def test_a_partition_is_analyzed_again_when_it_has_doubled_and_not_all_the_time(
    house: Housekeeping, database: Database
) -> None:
    await house.make_partitions(days_ahead=0)
    rows = await database.fetch(
        "SELECT c.reloptions FROM pg_class c JOIN pg_inherits i ON i.inhrelid = c.oid"
        " WHERE c.relname ~ '_d[0-9]{8}$' AND i.inhparent = ANY ($1::text[]::regclass[])",
        list(PARTITIONED),
    )
    assert len(rows) >= len(PARTITIONED)
    for row in rows:
        assert "autovacuum_analyze_scale_factor=1" in row["reloptions"]


async def test_finished_tasks_land_in_the_partition_of_their_day(
    house: Housekeeping, database: Database
) -> None:
    await house.make_partitions(days_ahead=1)
    world = StoreWorld(database)
    await world.open()
    held = await world.claim(await world.due_tasks(5), lease=60)
    await world.engine.finish(world.tenure, map(success, held))
    evidence = Evidence(database)
    assert await evidence.value("SELECT count(*) FROM task_history") == 5
    assert await evidence.value("SELECT count(*) FROM task_history_default") == 0


async def test_a_day_whose_rows_lie_in_the_default_partition_stays_there(
    house: Housekeeping, database: Database
) -> None:
    world = StoreWorld(database)
    await world.open()
    held = await world.claim(await world.due_tasks(1), lease=60)
    await world.engine.finish(world.tenure, map(success, held))
    made = await house.make_partitions(days_ahead=1)
    assert f"task_history_d{datetime.now(UTC):%Y%m%d}" not in made
    assert await Evidence(database).value("SELECT count(*) FROM task_history") == 1


async def test_old_partitions_are_archived_and_dropped(
    house: Housekeeping, database: Database
) -> None:
    await make_old_partitions(database)
    archived: list[str] = []

    async def archive(table: str) -> None:
        archived.append(table)

    assert sorted(await house.retire_partitions(30, archive)) == OLD
    assert sorted(archived) == OLD
    assert await tables(database) == []
    assert await house.retire_partitions(30, archive) == []


async def test_what_could_not_be_archived_is_kept_and_offered_again(
    house: Housekeeping, database: Database
) -> None:
    await make_old_partitions(database)

    async def archive_is_down(_table: str) -> None:
        raise ConnectionError("no archive today")

    with pytest.raises(ConnectionError):
        await house.retire_partitions(30, archive_is_down)
    assert await tables(database) == OLD
    assert sorted(await house.retire_partitions(30)) == OLD


async def test_expired_keys_and_dead_nodes_are_forgotten(
    house: Housekeeping, database: Database
) -> None:
    await database.fetch(
        "INSERT INTO idempotency_keys (tenant_id, key, body_hash, status, answer, expires_at)"
        " VALUES (1, 'old', '', 201, '', now() - interval '1 second'),"
        " (1, 'new', '', 201, '', now() + interval '1 hour')"
    )
    await database.fetch(
        "INSERT INTO nodes (id, name, version, state, heartbeat_at)"
        " VALUES (gen_random_uuid(), 'long gone', '0', 'dead', now() - interval '2 hours'),"
        " (gen_random_uuid(), 'just left', '0', 'left', now()),"
        " (gen_random_uuid(), 'not given up', '0', 'active', now() - interval '2 hours')"
    )
    await database.fetch(
        "INSERT INTO outbox (tenant_id, kind, body, created_at)"
        " VALUES (1, 'old', '{}', now() - interval '8 days'), (1, 'new', '{}', now())"
    )
    await house.forget_expired()
    assert [row["kind"] for row in await database.fetch("SELECT kind FROM outbox")] == ["new"]
    assert [row["key"] for row in await database.fetch("SELECT key FROM idempotency_keys")] == [
        "new"
    ]
    names = await database.fetch("SELECT name FROM nodes ORDER BY name")
    assert [row["name"] for row in names] == ["just left", "not given up"]


async def test_a_dead_node_is_remembered_while_it_owns_something_and_people_see_how_much(
    house: Housekeeping, database: Database
) -> None:
    await database.fetch(
        "WITH n AS (INSERT INTO nodes (id, name, version, state, heartbeat_at)"
        " VALUES (gen_random_uuid(), 'owner', '0', 'dead', now() - interval '2 hours'),"
        " (gen_random_uuid(), 'another', '0', 'active', now()) RETURNING id, name)"
        " UPDATE partitions p SET owner = n.id, epoch = p.epoch + 1"
        " FROM n WHERE n.name = 'owner' AND p.partition < 3"
    )
    await house.forget_expired()
    found = {node.name: node.owned for node in await Topology(database).nodes()}
    assert found == {"owner": 3, "another": 0}


async def test_what_workers_held_is_forgotten_with_them_and_with_their_nodes(
    house: Housekeeping, database: Database
) -> None:
    here, gone = uuid4(), uuid4()
    await database.fetch(
        "INSERT INTO nodes (id, name, version, state, heartbeat_at)"
        " VALUES ($1, 'here', '0', 'active', now())",
        here,
    )
    await database.fetch(
        "INSERT INTO workers (tenant_id, name, incarnation, offer, seen_at)"
        " VALUES (1, 'w', '1', '{}', now()), (1, 'old', '1', '{}', now() - interval '2 days')"
    )
    await database.fetch(
        "INSERT INTO worker_leases (tenant_id, name, node_id, held)"
        " VALUES (1, 'w', $1, 0), (1, 'w', $2, 3), (1, 'old', $1, 0)",
        here,
        gone,
    )
    await house.forget_expired()
    left = await database.fetch("SELECT name, node_id FROM worker_leases")
    assert [tuple(row) for row in left] == [("w", here)]


async def test_one_node_keeps_house_at_a_time(house: Housekeeping) -> None:
    one, other = uuid4(), uuid4()
    assert await house.hold_duty(one, lease=60)
    assert not await house.hold_duty(other, lease=60)
    assert await house.hold_duty(one, lease=60), "the holder stays"
    await house.drop_duties(one)
    assert await house.hold_duty(other, lease=0.05), "who leaves makes room at once"
    await eventually(
        lambda: house.hold_duty(one, lease=60), within=5, what="the duty passes on by itself"
    )


async def test_the_oldest_transaction_is_found(house: Housekeeping, database_url: str) -> None:
    reader = await asyncpg.connect(database_url, server_settings={"application_name": "report"})
    async with reader.transaction(isolation="repeatable_read"):
        await reader.fetchval("SELECT count(*) FROM tasks")
        oldest = await house.oldest_transaction()
    await reader.close()
    assert oldest is not None
    pid, age, application = oldest
    assert (pid, application) == (reader.get_server_pid(), "report")
    assert 0 <= age < 5


async def make_old_partitions(database: Database) -> None:
    for name in OLD:
        await database.fetch(
            f"CREATE TABLE public.{name} PARTITION OF {name.removesuffix('_d20200102')}"
            " FOR VALUES FROM ('2020-01-02T00:00:00Z') TO ('2020-01-03T00:00:00Z')"
        )


async def tables(database: Database) -> list[str]:
    rows = await database.fetch(
        "SELECT relname FROM pg_class WHERE relkind = 'r' AND relname ~ '_d2020' ORDER BY relname"
    )
    return [row["relname"] for row in rows]
