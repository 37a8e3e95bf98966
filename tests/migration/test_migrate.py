"""Migrations: once each, in order, by one at a time, and never changed afterwards."""

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from unittest import mock
from urllib.parse import urlsplit

import asyncpg
import pytest

from mainspring.errors import MigrationError
from mainspring.postgres import migrate as migrations
from mainspring.postgres.migrate import (
    Migration,
    available,
    migrate,
    pending,
)

_numbers = count(1)

_SCHEMA = """
SELECT 'column', c.table_name || '.' || c.column_name,
    concat_ws(' ', c.data_type, c.is_nullable, c.column_default)
FROM information_schema.columns c WHERE c.table_schema = 'public'
UNION ALL SELECT 'index', indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'
UNION ALL SELECT 'constraint', conname, pg_get_constraintdef(oid) FROM pg_constraint
WHERE connamespace = 'public'::regnamespace
UNION ALL SELECT 'trigger', tgname, pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal
UNION ALL SELECT 'function', proname, pg_get_functiondef(oid) FROM pg_proc
WHERE pronamespace IN ('public'::regnamespace, 'mainspring'::regnamespace)
UNION ALL SELECT 'options', relname, array_to_string(reloptions, ' ') FROM pg_class
WHERE relnamespace = 'public'::regnamespace AND reloptions IS NOT NULL
UNION ALL SELECT 'statistics', attrelid::regclass || '.' || attname, attstattarget::text
FROM pg_attribute
WHERE attrelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'public'::regnamespace)
  AND attnum > 0 AND attstattarget >= 0
UNION ALL SELECT 'view', viewname, definition FROM pg_views WHERE schemaname = 'public'
ORDER BY 1, 2, 3
"""


@pytest.fixture
async def empty_url(pg_server: str) -> AsyncIterator[str]:
    """A database without any schema."""
    name = f"migration_{next(_numbers)}"
    server = await asyncpg.connect(pg_server)
    await server.execute(f"CREATE DATABASE {name}")
    yield urlsplit(pg_server)._replace(path=f"/{name}").geturl()
    await server.execute(f"DROP DATABASE {name} WITH (FORCE)")
    await server.close()


async def fetch(url: str, sql: str) -> list[tuple[object, ...]]:
    connection = await asyncpg.connect(url)
    try:
        return [tuple(row) for row in await connection.fetch(sql)]
    finally:
        await connection.close()


def known(*steps: Migration) -> "mock._patch[mock.MagicMock]":
    """As if this version of Mainspring knew these steps."""
    return mock.patch.object(migrations, "available", return_value=list(steps))


def test_steps_are_numbered_without_gaps_and_say_the_way_back() -> None:
    steps = available()
    assert [step.version for step in steps] == list(range(1, len(steps) + 1))
    assert all("Way back" in step.sql for step in steps)


async def test_from_empty_comes_the_whole_schema(empty_url: str) -> None:
    assert await pending(empty_url) == available()
    assert await migrate(empty_url) == available()
    assert await pending(empty_url) == []
    tables = await fetch(empty_url, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    wanted = {"tasks", "task_history", "executions", "dead_letters", "nodes", "partitions", "wakes"}
    assert wanted <= {name for (name,) in tables}
    assert await fetch(empty_url, "SELECT count(*) FROM partitions") == [(256,)]


async def test_the_second_time_changes_nothing(empty_url: str) -> None:
    await migrate(empty_url)
    before = await fetch(empty_url, _SCHEMA)
    ledger = await fetch(empty_url, "SELECT * FROM schema_migrations")
    assert await migrate(empty_url) == []
    assert await fetch(empty_url, _SCHEMA) == before
    assert await fetch(empty_url, "SELECT * FROM schema_migrations") == ledger


async def test_every_older_version_becomes_the_same_schema(
    empty_url: str, database_url: str
) -> None:
    wanted = await fetch(database_url, _SCHEMA)
    for version in range(1, len(available()) + 1):
        with known(*available()[:version]):
            await migrate(empty_url)
    assert await fetch(empty_url, _SCHEMA) == wanted


async def test_the_schema_that_is_compared_is_all_of_it(empty_url: str) -> None:
    """Each step changes something that the comparison sees."""
    steps, before = available(), list[tuple[object, ...]]()
    with known(steps[0]):
        await migrate(empty_url)
    await fetch(empty_url, "CREATE SCHEMA IF NOT EXISTS mainspring")  # it is looked into from 1 on
    for version in range(1, len(steps) + 1):
        with known(*steps[:version]):
            await migrate(empty_url)
        after = await fetch(empty_url, _SCHEMA)
        assert after != before, steps[version - 1].name
        before = after


async def test_days_of_the_ledger_are_kept_from_older_nodes(empty_url: str) -> None:
    with known(*available()[:13]):
        await migrate(empty_url)
    await fetch(
        empty_url,
        "CREATE TABLE public.occurrences_d20260714 PARTITION OF occurrences"
        " FOR VALUES FROM ('2026-07-14T00:00:00Z') TO ('2026-07-15T00:00:00Z')",
    )
    await fetch(
        empty_url,
        "INSERT INTO occurrences (schedule_id, tenant_id, nominal_at, to_at, decision, reason)"
        " VALUES (gen_random_uuid(), 1, '2026-07-14 12:00Z', '2026-07-14 12:00Z',"
        " 'skipped_paused', '')",
    )
    await migrate(empty_url)
    by_the_old_name = "SELECT relname FROM pg_class WHERE relname ~ '^occurrences_d[0-9]{8}$'"
    assert await fetch(empty_url, by_the_old_name) == []
    assert await fetch(empty_url, "SELECT count(*) FROM occurrences_m20260714") == [(1,)]
    assert await fetch(empty_url, "SELECT count(*) FROM occurrences") == [(1,)]


async def test_several_nodes_may_migrate_at_once(empty_url: str) -> None:
    applied = await asyncio.gather(*(migrate(empty_url) for _ in range(4)))
    assert sorted(len(steps) for steps in applied) == [0, 0, 0, len(available())]


async def test_a_step_that_was_changed_afterwards_is_refused(empty_url: str) -> None:
    await migrate(empty_url)
    first, *rest = available()
    changed = Migration(first.version, first.name, first.sql + "-- changed")
    with known(changed, *rest), pytest.raises(MigrationError, match="was changed after"):
        await migrate(empty_url)


async def test_a_newer_schema_is_tolerated(empty_url: str) -> None:
    newer = Migration(9999, "later", "CREATE TABLE later (id integer)")
    with known(*available(), newer):
        assert len(await migrate(empty_url)) == len(available()) + 1
    assert await pending(empty_url) == []
    assert await migrate(empty_url) == []


async def test_a_step_that_fails_leaves_nothing_behind(empty_url: str) -> None:
    bad = Migration(1, "bad", "CREATE TABLE half (id integer); SELECT 1 / 0")
    with (
        known(bad),
        pytest.raises(MigrationError, match="refused while migrating: division by zero"),
    ):
        await migrate(empty_url)
    assert await fetch(empty_url, "SELECT to_regclass('half'), to_regclass('tasks')") == [
        (None, None)
    ]


async def test_a_role_without_create_rights_gets_a_clear_error(empty_url: str) -> None:
    await fetch(empty_url, "CREATE ROLE guest LOGIN PASSWORD 'guest'")
    place = urlsplit(empty_url)
    guest = place._replace(netloc=f"guest:guest@{place.netloc.rpartition('@')[2]}").geturl()
    try:
        with pytest.raises(MigrationError, match="permission denied for schema public"):
            await migrate(guest)
    finally:
        await fetch(empty_url, "DROP ROLE guest")


async def test_nobody_waits_long_behind_a_step_that_waits_for_a_backup(empty_url: str) -> None:
    await migrate(empty_url)
    step = Migration(9999, "later", "ALTER TABLE tasks ADD COLUMN later integer")
    told: asyncio.Queue[str] = asyncio.Queue()
    names = {"application_name": "pg_dump"}
    backup = await asyncpg.connect(empty_url, server_settings=names)
    with known(*available(), step):
        async with backup.transaction():
            await backup.execute("LOCK TABLE tasks IN ACCESS SHARE MODE")
            migrating = asyncio.create_task(migrate(empty_url, tell=told.put_nowait))
            async with asyncio.timeout(10):
                assert (await told.get()).startswith("waiting for pg_dump (process ")
                assert await fetch(empty_url, "SELECT count(*) FROM tasks") == [(0,)]
            with pytest.raises(MigrationError, match=r"in use for 0 s.* by pg_dump"):
                await migrate(empty_url, timeout=0)
        assert await migrating == [step]
    await backup.close()


async def test_large_history_gets_its_indexes_later(empty_url: str) -> None:
    """No task could end while they are built."""
    steps = available()
    [number] = [n for n, step in enumerate(steps) if step.name == "list_indexes"]
    assert "268435456" in steps[number].sql
    large = Migration(
        steps[number].version, "list_indexes", steps[number].sql.replace("268435456", "-1")
    )
    with known(*steps[:number], large):
        await migrate(empty_url)
    ready = """
        SELECT DISTINCT indisvalid FROM pg_index JOIN pg_class c ON c.oid = indexrelid
        WHERE c.relkind = 'I' AND c.relname ~ '^task_history_(name|queue|state|schedule|run)$'
            OR c.relkind = 'I' AND c.relname IN ('task_history_label', 'task_history_due')
    """
    assert await fetch(empty_url, ready) == [(False,)]
    days = "FROM ('2030-01-01') TO ('2030-01-02')"
    await fetch(empty_url, f"CREATE TABLE a_day PARTITION OF task_history FOR VALUES {days}")
    indexes = "SELECT count(*) FROM pg_indexes WHERE tablename = 'a_day'"
    assert await fetch(empty_url, indexes) == [(8,)]
