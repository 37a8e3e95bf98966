"""Retention of the ledger: a line is kept for as long as was set, counted from its decision."""

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial
from unittest import mock
from uuid import UUID, uuid4

import asyncpg
import pytest

from mainspring.config import Config
from mainspring.node.housekeeping import Housekeeper
from mainspring.node.state import NodeState
from mainspring.postgres.database import Database
from mainspring.store.upkeep.housekeeping import HousekeepingStore
from mainspring.store.upkeep.occurrence_retention import OccurrenceRetention, delete_ledger
from mainspring.store.upkeep.table_changes import Round
from support.evidence import Evidence, backup_of, waits_for_a_lock
from support.waiting import eventually

JANUARY_2020 = "occurrences_m202001"
YEARS_AGO = "2020-01-02T12:00:00Z"
FAR_AHEAD = "2099-01-02T12:00:00Z"
OLD_CLEARING = """
    DELETE FROM occurrences_default WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM occurrences_default WHERE nominal_at < $1::date LIMIT $2))
"""
"""The statement by which nodes of earlier versions clear the default partition."""


@pytest.fixture
async def ledger(database: Database) -> OccurrenceRetention:
    return HousekeepingStore(database).ledger


async def test_a_partition_covers_each_month_ahead(
    ledger: OccurrenceRetention, database: Database
) -> None:
    made = await ledger.make_partitions(days_ahead=35)
    assert made.done[0] == f"occurrences_m{datetime.now(UTC):%Y%m}"
    assert len(made.done) in (2, 3)
    assert await ledger.make_partitions(days_ahead=35) == Round()
    await add_lines(database, "now()", 1)
    assert await count(database, "occurrences_default") == 0


async def test_a_month_begins_where_days_of_before_end(
    ledger: OccurrenceRetention, database: Database
) -> None:
    first = datetime.now(UTC).date().replace(day=1)
    second = first + timedelta(1)
    await database.fetch(
        f"CREATE TABLE public.occurrences_m{first:%Y%m%d} PARTITION OF occurrences"
        f" FOR VALUES FROM ('{first}T00:00:00Z') TO ('{second}T00:00:00Z')"
    )
    assert (await ledger.make_partitions(days_ahead=0)).done == [f"occurrences_m{first:%Y%m}"]
    await add_lines(database, f"'{second}T00:00:00Z'", 1)
    assert await count(database, f"occurrences_m{first:%Y%m}") == 1


async def test_a_month_whose_lines_lie_in_the_default_stays(
    ledger: OccurrenceRetention, database: Database
) -> None:
    await add_lines(database, "now()", 1)
    assert await ledger.make_partitions(days_ahead=0) == Round()
    assert await count(database, "occurrences") == 1


async def test_nobody_waits_while_a_large_default_is_read(
    ledger: OccurrenceRetention, database: Database
) -> None:
    await add_lines(database, f"'{YEARS_AGO}'", 1)
    made = await ledger.make_partitions(days_ahead=0, largest_default=0)
    assert set(made.postponed) == {"occurrences"}
    assert len((await ledger.make_partitions(days_ahead=0)).done) == 1


@pytest.mark.parametrize("nominal", [YEARS_AGO, FAR_AHEAD])
async def test_lines_are_kept_by_when_they_were_decided(
    ledger: OccurrenceRetention, database: Database, nominal: str
) -> None:
    await add_lines(database, f"'{nominal}'", 5, decided="now() - interval '366 days'")
    await add_lines(database, f"'{nominal}'", 3, decided="now() - interval '364 days'")
    assert await ledger.clear(365, batch=2) == 5
    assert await count(database, "occurrences") == 3


async def test_a_round_of_housekeeping_keeps_lines_for_their_own_time(database: Database) -> None:
    """However short the history of tasks is."""
    await make_old_month(database)
    for nominal in (YEARS_AGO, FAR_AHEAD):
        await add_lines(database, f"'{nominal}'", 2, decided="now() - interval '40 days'")
    for ledger_days, left in ((50, 4), (20, 0)):
        config = Config(retention_days=1, ledger_retention_days=ledger_days)
        state = NodeState(mock.Mock(), mock.Mock(), config)
        housekeeper = Housekeeper(state, HousekeepingStore(database))
        await housekeeper.tidy()
        await housekeeper.retire()
        await housekeeper.leave()
        assert await count(database, "occurrences") == left


async def test_an_old_month_is_archived_and_dropped(
    ledger: OccurrenceRetention, database: Database
) -> None:
    await make_old_month(database)
    await add_lines(database, f"'{YEARS_AGO}'", 3, decided="now() - interval '366 days'")
    archived: list[str] = []

    async def archive(table: str) -> bool:
        archived.append(table)
        return len(archived) > 1

    assert await ledger.clear(365) == 0, "it leaves as a whole"
    assert set((await ledger.retire_partitions(365, archive)).postponed) == {JANUARY_2020}
    assert (await ledger.retire_partitions(365, archive)).done == [JANUARY_2020]
    assert archived == [f"public.{JANUARY_2020}"] * 2
    assert await ledger.retire_partitions(365, archive) == Round()


async def test_a_day_that_an_older_node_made_is_dropped_too(
    ledger: OccurrenceRetention, database: Database
) -> None:
    await database.fetch(
        "CREATE TABLE public.occurrences_d20200105 PARTITION OF occurrences"
        " FOR VALUES FROM ('2020-01-05T00:00:00Z') TO ('2020-01-06T00:00:00Z')"
    )
    assert (await ledger.retire_partitions(365)).done == ["occurrences_d20200105"]


async def test_an_old_month_with_a_young_line_is_kept(
    ledger: OccurrenceRetention, database: Database
) -> None:
    await make_old_month(database)
    await add_lines(database, f"'{YEARS_AGO}'", 3, decided="now() - interval '366 days'")
    await add_lines(database, f"'{YEARS_AGO}'", 1, decided="now() - interval '364 days'")
    assert await ledger.retire_partitions(365) == Round()
    assert await ledger.clear(365, batch=2) == 3
    assert await count(database, "occurrences") == 1
    assert (await ledger.retire_partitions(360)).done == [JANUARY_2020]


async def test_a_line_decided_at_that_moment_is_kept(
    ledger: OccurrenceRetention, database: Database, database_url: str
) -> None:
    await make_old_month(database)
    deciding = await asyncpg.connect(database_url)
    async with deciding.transaction():
        await deciding.execute(insertion(f"'{YEARS_AGO}'", "now()"), 1, None)
        retiring = asyncio.create_task(ledger.retire_partitions(365))
        await eventually(partial(waits_for_a_lock, database), within=5, what="it waits")
    await deciding.close()
    assert (await retiring).done == []
    assert await count(database, JANUARY_2020) == 1
    assert await count(database, "occurrences") == 1


async def test_deciding_does_not_wait_for_a_backup_to_end(
    ledger: OccurrenceRetention, database: Database, database_url: str
) -> None:
    await make_old_month(database)
    async with asyncio.timeout(5), backup_of(database_url, "occurrences"):
        retiring = asyncio.create_task(ledger.retire_partitions(365))
        await eventually(partial(waits_for_a_lock, database), within=5, what="it waits")
        await add_lines(database, "now()", 1)
        assert await retiring == Round([], {"occurrences": "somebody else uses it"})
    assert (await ledger.retire_partitions(365)).done == [JANUARY_2020]


async def test_clearing_does_not_hold_up_deciding(
    ledger: OccurrenceRetention, database: Database, database_url: str
) -> None:
    await add_lines(database, f"'{YEARS_AGO}'", 3, decided="now() - interval '366 days'")
    deciding = await asyncpg.connect(database_url)
    async with asyncio.timeout(5), deciding.transaction():
        await deciding.execute(insertion(f"'{YEARS_AGO}'", "now()"), 1, None)
        assert await ledger.clear(365) == 3
    await deciding.close()
    assert await count(database, "occurrences") == 1


async def test_an_earlier_version_clears_nothing_that_counts(database: Database) -> None:
    schedule = await add_schedule(database)
    await add_lines(database, f"'{YEARS_AGO}'", 2, schedule=schedule)
    await add_lines(database, f"'{YEARS_AGO}'", 1, schedule=uuid4())

    async def clear(connection: asyncpg.Connection) -> str:
        await connection.execute("SELECT set_config('mainspring.purge', 'on', true)")
        status: str = await connection.execute(OLD_CLEARING, datetime.now(UTC).date(), 100)
        return status

    assert await database.transact(clear) == "DELETE 1", "only what belongs to no schedule"
    assert await count(database, "occurrences") == 2


async def test_the_ledger_stays_append_only(database: Database) -> None:
    await add_lines(database, f"'{YEARS_AGO}'", 1)
    for statement in ("DELETE FROM occurrences", "UPDATE occurrences SET reason = 'x'"):
        with pytest.raises(asyncpg.RaiseError, match="append-only"):
            await database.fetch(statement)


async def test_many_lines_of_a_deleted_schedule_go_in_steps(
    ledger: OccurrenceRetention, database: Database
) -> None:
    schedule = await add_schedule(database)
    await add_lines(database, "now()", 7, schedule=schedule)
    await add_lines(database, "now()", 1)

    async def delete(connection: asyncpg.Connection) -> None:
        await connection.execute("DELETE FROM schedules")
        await delete_ledger(connection, 1, schedule, batch=2)

    await database.transact(delete)
    assert await count(database, "occurrences") == 6
    assert await ledger.clear_deleted(batch=2) == 5
    assert await count(database, "occurrences") == 1, "the other schedule's"
    assert await count(database, "deleted_schedules") == 0


async def make_old_month(database: Database) -> None:
    await database.fetch(
        f"CREATE TABLE public.{JANUARY_2020} PARTITION OF occurrences"
        " FOR VALUES FROM ('2020-01-01T00:00:00Z') TO ('2020-02-01T00:00:00Z')"
    )


async def add_schedule(database: Database) -> UUID:
    await database.fetch("INSERT INTO tenants (name) VALUES ('a') ON CONFLICT DO NOTHING")
    [row] = await database.fetch(
        "INSERT INTO schedules (tenant_id, id, name, partition, timezone, tzdata, definition,"
        " template, decided_to, next_at, wake_at) SELECT min(id), gen_random_uuid(), 's', 0, 'UTC',"
        " '0', '', '', now(), now(), now() FROM tenants RETURNING id"
    )
    found: UUID = row["id"]
    return found


def insertion(nominal: str, decided: str) -> str:
    """A statement that adds lines a second apart from that time on, of a schedule ($2) or each of
    another."""
    return (
        "INSERT INTO occurrences (schedule_id, tenant_id, nominal_at, to_at, decision, reason,"
        " decided_at) SELECT coalesce($2::uuid, gen_random_uuid()), 1, at, at, 'skipped_paused',"
        f" '', {decided} FROM generate_series(1, $1) n,"
        f" LATERAL (SELECT {nominal}::timestamptz + n * interval '1 second' AS at) t"
    )


async def add_lines(
    database: Database,
    nominal: str,
    number: int,
    *,
    decided: str = "now()",
    schedule: UUID | None = None,
) -> None:
    await database.fetch(insertion(nominal, decided), number, schedule)


async def count(database: Database, table: str) -> int:
    found: int = await Evidence(database).value(f"SELECT count(*) FROM {table}")
    return found
