"""Housekeeping: partitions ahead of time, old ones out, and one housekeeper at a time."""

import asyncio
from datetime import UTC, datetime
from functools import partial
from unittest import mock
from uuid import UUID, uuid4

import asyncpg
import pytest
from structlog.testing import capture_logs

from mainspring.errors import StoreUnavailable
from mainspring.node.housekeeping import Housekeeper
from mainspring.node.state import NodeState
from mainspring.postgres.database import Database
from mainspring.store.cluster import Topology
from mainspring.store.upkeep import table_changes
from mainspring.store.upkeep.housekeeping import PARTITIONED, HousekeepingStore
from mainspring.store.upkeep.table_changes import Round
from support.evidence import Evidence, backup_of, waits_for_a_lock
from support.store import StoreWorld, success
from support.waiting import eventually

OLD = ["executions_d20200102", "task_history_d20200102"]


@pytest.fixture
async def store(database: Database) -> HousekeepingStore:
    return HousekeepingStore(database)


async def add_node(database: Database, name: str, state: str, *, silent: str = "0 s") -> UUID:
    node_id = uuid4()
    await database.fetch(
        "INSERT INTO nodes (id, name, version, state, heartbeat_at)"
        " VALUES ($1, $2, '0', $3, now() - $4::text::interval)",
        node_id,
        name,
        state,
        silent,
    )
    return node_id


async def test_partitions_exist_ahead_of_time(store: HousekeepingStore) -> None:
    made = await store.make_partitions(days_ahead=3)
    today = f"{datetime.now(UTC):%Y%m%d}"
    assert len(made.done) == len(PARTITIONED) * 4
    assert {f"task_history_d{today}", f"executions_d{today}"} <= set(made.done)
    assert await store.make_partitions(days_ahead=3) == Round()


async def test_a_partition_is_analyzed_again_once_it_has_doubled(
    store: HousekeepingStore, database: Database
) -> None:
    await store.make_partitions(days_ahead=0)
    rows = await database.fetch(
        "SELECT c.reloptions FROM pg_class c JOIN pg_inherits i ON i.inhrelid = c.oid"
        " WHERE c.relname ~ '_d[0-9]{8}$' AND i.inhparent = ANY ($1::text[]::regclass[])",
        list(PARTITIONED),
    )
    assert len(rows) >= len(PARTITIONED)
    for row in rows:
        assert "autovacuum_analyze_scale_factor=1" in row["reloptions"]


async def test_finished_tasks_land_in_the_partition_of_their_day(
    store: HousekeepingStore, database: Database
) -> None:
    await store.make_partitions(days_ahead=1)
    world = StoreWorld(database)
    await world.open()
    held = await world.claim(await world.due_tasks(5), lease=60)
    await world.engine.finish(world.ownership, map(success, held))
    evidence = Evidence(database)
    assert await evidence.value("SELECT count(*) FROM task_history") == 5
    assert await evidence.value("SELECT count(*) FROM task_history_default") == 0


async def test_a_day_with_rows_in_the_default_partition_stays_there(
    store: HousekeepingStore, database: Database
) -> None:
    world = StoreWorld(database)
    await world.open()
    held = await world.claim(await world.due_tasks(1), lease=60)
    await world.engine.finish(world.ownership, map(success, held))
    made = await store.make_partitions(days_ahead=1)
    assert f"task_history_d{datetime.now(UTC):%Y%m%d}" not in made.done
    assert await Evidence(database).value("SELECT count(*) FROM task_history") == 1


async def test_scanning_a_large_default_partition_blocks_nobody(
    store: HousekeepingStore, database: Database
) -> None:
    await add_old_logs(database, 1)
    made = await store.make_partitions(days_ahead=1, largest_default=0)
    assert set(made.postponed) == {"task_logs"}
    assert len(made.done) == 2 * (len(PARTITIONED) - 1), "the others are made"
    assert len((await store.make_partitions(days_ahead=1)).done) == 2, "it is small, in truth"


async def test_old_rows_in_a_default_partition_go_in_small_steps(
    store: HousekeepingStore, database: Database
) -> None:
    await add_old_logs(database, 5)
    assert await store.clear_defaults(30, batch=2) == 5
    assert await Evidence(database).value("SELECT count(*) FROM task_logs") == 0


async def test_nobody_waits_long_for_a_partition_while_a_backup_runs(
    store: HousekeepingStore, database: Database, database_url: str
) -> None:
    world = StoreWorld(database)
    await world.open()
    held = await world.claim(await world.due_tasks(1), lease=60)
    async with backup_of(database_url, "task_history, executions"):
        making = asyncio.create_task(store.make_partitions(days_ahead=1))
        await eventually(partial(waits_for_a_lock, database), within=5, what="it waits")
        async with asyncio.timeout(5):  # and not the 20 s after which a statement is given up
            await world.engine.finish(world.ownership, map(success, held))
            made = await making
    assert set(made.postponed) == {"task_history", "executions"}
    assert {name.partition("_d")[0] for name in made.done} == {"task_logs"}
    later = await store.make_partitions(days_ahead=1)
    assert {name.partition("_d")[0] for name in later.done} == {"task_history", "executions"}


async def test_old_history_stays_while_a_backup_runs(
    store: HousekeepingStore, database: Database, database_url: str
) -> None:
    await make_old_partitions(database)
    async with asyncio.timeout(5), backup_of(database_url, "task_history"):
        retired = await store.retire_partitions(30)
        assert retired == Round([OLD[0]], {"task_history": "somebody else uses it"})
    assert (await store.retire_partitions(30)).done == OLD[1:]


async def test_old_partitions_are_archived_and_dropped(
    store: HousekeepingStore, database: Database
) -> None:
    await make_old_partitions(database)
    archived: list[str] = []

    async def archive(table: str) -> bool:
        archived.append(table)
        return True

    assert sorted((await store.retire_partitions(30, archive)).done) == OLD
    assert sorted(archived) == [f"public.{name}" for name in OLD]
    assert await tables(database) == []
    assert await store.retire_partitions(30, archive) == Round()


async def test_what_could_not_be_archived_is_kept_and_offered_again(
    store: HousekeepingStore, database: Database
) -> None:
    await make_old_partitions(database)

    async def archive(table: str) -> bool:
        return "executions" in table

    retired = await store.retire_partitions(30, archive)
    assert retired == Round([OLD[0]], {OLD[1]: "it is not archived"})
    assert await tables(database) == [OLD[1]]
    assert (await store.retire_partitions(30)).done == [OLD[1]]


async def test_a_manually_detached_partition_is_kept_until_its_time(
    store: HousekeepingStore, database: Database
) -> None:
    await store.make_partitions(days_ahead=0)
    today = f"executions_d{datetime.now(UTC):%Y%m%d}"
    await database.fetch(f"ALTER TABLE executions DETACH PARTITION {today}")
    assert await store.retire_partitions(1) == Round()
    assert today in (await store.retire_partitions(-2)).done


async def test_a_failing_job_does_not_stop_the_others(database: Database) -> None:
    class FailingHousekeeping(HousekeepingStore):
        async def make_partitions(self, *_: int) -> Round:
            raise asyncpg.UndefinedTableError("no such table")

        async def clear_defaults(self, *_: int) -> int:
            raise StoreUnavailable("it took too long")

        async def retire_partitions(self, *_: object) -> Round:
            raise RuntimeError("no archive today")

    await add_key(database, "old", "-1 second")
    housekeeper = Housekeeper(NodeState(mock.Mock(), mock.Mock()), FailingHousekeeping(database))
    with capture_logs() as lines:
        running = asyncio.create_task(housekeeper.run())
        await eventually(partial(no_keys, database), within=5, what="keys are forgotten")
        running.cancel()
        await asyncio.wait([running])
    failed = {line["job"] for line in lines if line["action"] == "house.failed"}
    assert failed == {"make_partitions", "clear_defaults", "retire"}


async def test_all_that_is_expired_goes_however_much_it_is(
    store: HousekeepingStore, database: Database
) -> None:
    await add_key(database, "new", "1 hour")
    for number in range(5):
        await add_key(database, f"old {number}", "-1 second")
    await database.fetch(
        "INSERT INTO effects (tenant_id, key, answer, expires_at)"
        " VALUES (1, 'new', '', now() + interval '1 hour')"
    )
    await database.fetch(
        "INSERT INTO effects (tenant_id, key, answer, expires_at) SELECT"
        " 1, 'old' || number, '', now() - interval '1 second' FROM generate_series(1, 3) number"
    )
    with mock.patch.object(table_changes, "BATCHES", 1):
        assert await store.forget_expired(batch=1) == 2, "never too many at once"
    assert await store.forget_expired(batch=1) == 6
    assert await names(database, "SELECT key AS name FROM idempotency_keys") == ["new"]


async def test_a_key_that_is_renewed_at_that_moment_stays(
    store: HousekeepingStore, database: Database, database_url: str
) -> None:
    await add_key(database, "renewed", "-1 second")
    other = await asyncpg.connect(database_url)
    async with other.transaction():
        await other.execute("UPDATE idempotency_keys SET expires_at = now() + interval '1 day'")
        forgetting = asyncio.create_task(store.forget_expired())
        await eventually(partial(waits_for_a_lock, database), within=5, what="it waits")
    await other.close()
    assert await forgetting == 0
    assert await names(database, "SELECT key AS name FROM idempotency_keys") == ["renewed"]


async def test_expired_keys_and_dead_nodes_are_forgotten(
    store: HousekeepingStore, database: Database
) -> None:
    await add_key(database, "old", "-1 second")
    await add_key(database, "new", "1 hour")
    await add_node(database, "long gone", "dead", silent="2 hours")
    await add_node(database, "just left", "left")
    await add_node(database, "not given up", "active", silent="2 hours")
    await database.fetch(
        "INSERT INTO outbox (tenant_id, kind, body, created_at)"
        " VALUES (1, 'old', '{}', now() - interval '8 days'), (1, 'new', '{}', now())"
    )
    await store.forget_expired()
    await store.forget_gone()
    assert await names(database, "SELECT kind AS name FROM outbox") == ["new"]
    assert await names(database, "SELECT key AS name FROM idempotency_keys") == ["new"]
    left = await names(database, "SELECT name FROM nodes ORDER BY name")
    assert left == ["just left", "not given up"]


async def test_api_keys_that_ended_long_ago_are_forgotten(
    store: HousekeepingStore, database: Database
) -> None:
    await database.fetch(
        "INSERT INTO api_keys (id, secret_hash, scopes, operator, revoked_at, expires_at)"
        " VALUES ('revoked', '1', '{}', true, now() - interval '31 days', NULL),"
        " ('run out', '2', '{}', true, NULL, now() - interval '31 days'),"
        " ('just ended', '3', '{}', true, now(), now() - interval '1 day'),"
        " ('in use', '4', '{}', true, NULL, NULL)"
    )
    await store.forget_old_keys(30)
    left = await names(database, "SELECT id AS name FROM api_keys ORDER BY id")
    assert left == ["in use", "just ended"]


async def test_a_dead_node_is_kept_and_shown_while_it_owns_partitions(
    store: HousekeepingStore, database: Database
) -> None:
    owner = await add_node(database, "owner", "dead", silent="2 hours")
    await add_node(database, "another", "active")
    await database.fetch(
        "UPDATE partitions SET owner = $1, epoch = epoch + 1 WHERE partition < 3", owner
    )
    await store.forget_gone()
    found = {node.name: node.owned for node in await Topology(database).nodes()}
    assert found == {"owner": 3, "another": 0}


async def test_lease_counts_go_with_their_workers_and_nodes(
    store: HousekeepingStore, database: Database
) -> None:
    here, gone = await add_node(database, "here", "active"), uuid4()
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
    await store.forget_gone()
    left = await database.fetch("SELECT name, node_id FROM worker_leases")
    assert [tuple(row) for row in left] == [("w", here)]


async def test_one_node_does_housekeeping_at_a_time(store: HousekeepingStore) -> None:
    one, other = uuid4(), uuid4()
    assert await store.hold_duty(one, lease=60)
    assert not await store.hold_duty(other, lease=60)
    assert await store.hold_duty(one, lease=60), "the holder stays"
    await store.drop_duties(one)
    assert await store.hold_duty(other, lease=0.05), "who leaves makes room at once"
    await eventually(
        lambda: store.hold_duty(one, lease=60), within=5, what="the duty passes on by itself"
    )


async def test_the_oldest_transaction_is_found(store: HousekeepingStore, database_url: str) -> None:
    reader = await asyncpg.connect(database_url, server_settings={"application_name": "report"})
    async with reader.transaction(isolation="repeatable_read"):
        await reader.fetchval("SELECT count(*) FROM tasks")
        oldest = await store.oldest_transaction()
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


async def add_old_logs(database: Database, count: int) -> None:
    await database.fetch(
        "INSERT INTO task_logs (task_id, tenant_id, fence, at, logged_at, level, message)"
        " SELECT gen_random_uuid(), 1, 1, now(), '2020-01-02T12:00:00Z', 'info', ''"
        " FROM generate_series(1, $1)",
        count,
    )


async def tables(database: Database) -> list[str]:
    return await names(
        database,
        "SELECT relname AS name FROM pg_class WHERE relkind = 'r' AND relname ~ '_d2020'"
        " ORDER BY relname",
    )


async def names(database: Database, sql: str) -> list[str]:
    return [row["name"] for row in await database.fetch(sql)]


async def add_key(database: Database, key: str, expires_in: str) -> None:
    await database.fetch(
        "INSERT INTO idempotency_keys (tenant_id, key, body_hash, status, answer, expires_at)"
        " VALUES (1, $1, '', 201, '', now() + $2::text::interval)",
        key,
        expires_in,
    )


async def no_keys(database: Database) -> bool:
    return not await names(database, "SELECT key AS name FROM idempotency_keys")


async def undo_index(database: Database) -> None:
    """As an upgrade leaves it on a large table: the parent has an index, its partitions do not."""
    await database.fetch("DROP INDEX task_history_name")
    await database.fetch(
        'CREATE INDEX task_history_name ON ONLY task_history (tenant_id, name COLLATE "C", id)'
        " WHERE name IS NOT NULL"
    )


async def leave_index_half_built(database: Database) -> None:
    await undo_index(database)
    await database.fetch("CREATE INDEX task_history_default_name ON task_history_default (id)")
    await database.fetch(
        "UPDATE pg_index SET indisvalid = false"
        " WHERE indexrelid = 'task_history_default_name'::regclass"
    )


async def is_ready(database: Database) -> bool:
    return bool(
        await Evidence(database).value(
            "SELECT indisvalid FROM pg_index WHERE indexrelid = 'task_history_name'::regclass"
        )
    )


async def test_indexes_are_built_partition_by_partition(
    store: HousekeepingStore, database: Database
) -> None:
    await store.make_partitions(days_ahead=1)
    await undo_index(database)
    assert not await is_ready(database)
    built = await store.build_indexes()
    assert (len(built.done), built.postponed) == (3, {})
    assert await is_ready(database)
    assert await store.build_indexes() == Round()
    # The next partition has them from the start.
    await store.make_partitions(days_ahead=2)
    assert await is_ready(database)


async def test_detaching_the_last_unindexed_partition_ends_the_index(
    store: HousekeepingStore, database: Database
) -> None:
    await store.make_partitions(days_ahead=0)
    await undo_index(database)
    row = await database.fetch_row(
        "SELECT min(inhrelid::regclass::text) FROM pg_inherits"
        " WHERE inhparent = 'task_history'::regclass AND inhrelid::regclass::text ~ '_d2'"
    )
    await database.fetch(
        "CREATE INDEX task_history_default_name ON task_history_default"
        ' (tenant_id, name COLLATE "C", id) WHERE name IS NOT NULL'
    )
    await database.fetch("ALTER INDEX task_history_name ATTACH PARTITION task_history_default_name")
    assert row is not None
    await database.fetch(f"ALTER TABLE task_history DETACH PARTITION {row[0]}")
    assert not await is_ready(database)
    await store.build_indexes()
    assert await is_ready(database)
    assert await store.build_indexes() == Round()


async def test_a_partition_that_goes_keeps_no_other_from_its_index(
    store: HousekeepingStore, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.make_partitions(days_ahead=0)
    await undo_index(database)
    build = HousekeepingStore._build_index

    async def after_it_is_gone(self: HousekeepingStore, home: str, row: asyncpg.Record) -> None:
        if row["partition"] != "task_history_default":
            await database.fetch(f"ALTER TABLE task_history DETACH PARTITION {row['partition']}")
            await database.fetch(f"DROP TABLE {row['partition']}")
        await build(self, home, row)

    monkeypatch.setattr(HousekeepingStore, "_build_index", after_it_is_gone)
    built = await store.build_indexes()
    assert built.done == ["task_history_default_name"]
    assert [reason[:21] for reason in built.postponed.values()] == ["its partition is gone"]
    assert await is_ready(database)


async def test_a_partition_made_meanwhile_has_the_index(
    store: HousekeepingStore, database: Database
) -> None:
    await undo_index(database)
    await store.make_partitions(days_ahead=1)
    assert (await store.build_indexes()).done == ["task_history_default_name"]
    assert await is_ready(database)


async def test_an_index_left_half_built_is_built_anew(
    store: HousekeepingStore, database: Database
) -> None:
    await leave_index_half_built(database)
    assert (await store.build_indexes()).done == ["task_history_default_name"]
    assert await is_ready(database)


async def test_an_index_that_another_builds_is_left_to_it(
    store: HousekeepingStore, database: Database, database_url: str
) -> None:
    await leave_index_half_built(database)
    builder = await asyncpg.connect(database_url)
    try:
        async with builder.transaction():
            # As CREATE INDEX CONCURRENTLY holds it from its beginning to its end.
            await builder.execute("LOCK task_history_default IN SHARE UPDATE EXCLUSIVE MODE")
            built = await store.build_indexes()
        assert (built.done, set(built.postponed)) == ([], {"task_history_default_name"})
    finally:
        await builder.close()
    assert (await store.build_indexes()).done == ["task_history_default_name"]


async def test_an_index_built_by_a_crashed_node_is_attached(
    store: HousekeepingStore, database: Database
) -> None:
    await undo_index(database)
    await database.fetch(
        "CREATE INDEX task_history_default_name ON task_history_default"
        ' (tenant_id, name COLLATE "C", id) WHERE name IS NOT NULL'
    )
    before = await Evidence(database).value("SELECT 'task_history_default_name'::regclass::oid")
    assert (await store.build_indexes()).done == ["task_history_default_name"]
    after = await Evidence(database).value("SELECT 'task_history_default_name'::regclass::oid")
    assert await is_ready(database)
    assert before == after
