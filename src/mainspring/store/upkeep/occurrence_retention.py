"""Retention of the ledger of occurrences: by when a line was decided, not by the time it is about.

Uniqueness of a line needs its nominal time in the partition key, so partitions are months of
nominal time. Most lines are decided at their nominal time, and leave with their month's partition.
A backfill of years ago lands in the default partition, or in an old month: its lines are deleted
by rows when they are old themselves, and until then their month stays.
"""

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise
from uuid import UUID

import asyncpg

from mainspring.postgres import named_sql as queries
from mainspring.postgres.database import Database, Store, transaction
from mainspring.postgres.named_sql import Queryable
from mainspring.store.upkeep.table_changes import (
    BATCHES,
    LARGEST_DEFAULT,
    ArchiveHook,
    InUse,
    NewPartition,
    Round,
    TableChanges,
)
from mainspring.store.upkeep.table_changes import SQL as TABLES

SQL = queries.load("occurrence_retention")

_LEDGER = "occurrences"
_DEFAULT = "occurrences_default"


class OccurrenceRetention(Store):
    """Every method may be called again and again, and by more than one node."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._tables = TableChanges(database)

    async def make_partitions(
        self, days_ahead: int, largest_default: int = LARGEST_DEFAULT
    ) -> Round:
        """Make a partition per month from this one on, unless another partition covers it or the
        default partition already has lines of the month."""
        today, made = await self._tables.today(), Round()
        covered = await SQL["covered_to"].value_or_none(self._database, date)
        missing: list[NewPartition] = []
        for month, end in _months(today, today + timedelta(days_ahead)):
            first = month if covered is None else max(month, covered)
            if first < end and not await SQL["in_default"].value(
                self._database, bool, first=_midnight(first), end=_midnight(end)
            ):
                missing.append(NewPartition(_name(month), first, end))
        await self._tables.make_partitions(_LEDGER, missing, largest_default, made)
        return made

    async def retire_partitions(self, keep_days: int, archive: ArchiveHook | None = None) -> Round:
        """Detach months without recent decisions, hand each to the archive hook, and drop it."""
        oldest, retired = await self._oldest(keep_days), Round()
        try:
            for name in await self._old("ledger_partitions", oldest):
                if not await _has_younger(self._database, name, oldest):
                    await self._detach(name, oldest)
        except InUse as problem:
            retired.postponed[_LEDGER] = str(problem)
        detached = await self._old("detached_ledger_partitions", oldest)
        await self._tables.drop_detached(detached, archive, retired)
        return retired

    async def clear(self, keep_days: int, batch: int = 10_000) -> int:
        """Delete old lines that no partition can leave with; return how many lines were deleted."""
        oldest = await self._oldest(keep_days)
        cleared = await self._clear_table(_DEFAULT, oldest, batch)
        for name in await self._old("ledger_partitions", oldest):
            # Any other month leaves as a whole, through the archive.
            if await _has_younger(self._database, name, oldest):
                cleared += await self._clear_table(name, oldest, batch)
        return cleared

    async def clear_deleted(self, batch: int = 10_000) -> int:
        """Delete lines of schedules that were deleted; return how many lines were deleted."""
        cleared = 0
        for _ in range(BATCHES):
            row = await SQL["deleted_schedule"].record(self._database)
            if row is None:
                break
            cleared += await self._clear_schedule(row, batch)
        return cleared

    @transaction
    async def _clear_schedule(
        self, connection: asyncpg.Connection, row: asyncpg.Record, batch: int
    ) -> int:
        gone = await _delete_lines(connection, row["tenant_id"], row["id"], batch)
        if gone < batch:
            await SQL["forget_schedule"].run(connection, schedule_id=row["id"])
        return gone

    async def _clear_table(self, table: str, oldest: datetime, batch: int) -> int:
        clear = SQL["clear_table"].filled(table=table)
        return await self._tables.clear(SQL["allow_clearing"], clear, oldest, batch)

    async def _detach(self, name: str, oldest: datetime) -> None:
        """Detach a month, unless a line was decided in it while we waited for the lock."""

        async def work(connection: asyncpg.Connection) -> None:
            await connection.execute(f"ALTER TABLE {_LEDGER} DETACH PARTITION {name}")
            if await _has_younger(connection, name, oldest):
                raise InUse("a line of it was decided just now")

        await self._tables.transact(work)

    async def _oldest(self, keep_days: int) -> datetime:
        return _midnight(await self._tables.today() - timedelta(keep_days))

    async def _old(self, statement: str, oldest: datetime) -> list[str]:
        """Return the names of months that ended before that time."""
        rows = await SQL[statement].fetch(self._database)
        return [row["name"] for row in rows if _month_in(row["name"]) < f"{oldest:%Y%m}"]


async def delete_ledger(
    connection: asyncpg.Connection, tenant_id: int, schedule_id: UUID, batch: int = 10_000
) -> None:
    """Delete the lines of a deleted schedule; if there are many, housekeeping deletes the rest."""
    if await _delete_lines(connection, tenant_id, schedule_id, batch) >= batch:
        await SQL["note_deleted"].run(connection, tenant_id=tenant_id, schedule_id=schedule_id)


async def _delete_lines(
    connection: asyncpg.Connection, tenant_id: int, schedule_id: UUID, batch: int
) -> int:
    """Delete lines of a deleted schedule, the oldest first; fewer than `batch` are the last."""
    await TABLES["allow_purge"].run(connection)
    return await SQL["delete_lines"].value(
        connection, int, tenant_id=tenant_id, schedule_id=schedule_id, limit=batch
    )


def _name(month: date) -> str:
    return f"{_LEDGER}_m{month:%Y%m}"


def _month_in(name: str) -> str:
    """Return the digits of a partition's name, which begin with its year and month."""
    return name.rpartition("_")[2][1:]


def _months(first: date, last: date) -> Iterator[tuple[date, date]]:
    """Return the months from that of `first` to that of `last`: first day, and first day after."""
    count = 12 * (last.year - first.year) + last.month - first.month
    numbers = range(first.month - 1, first.month + count + 1)
    return pairwise(date(first.year + number // 12, number % 12 + 1, 1) for number in numbers)


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)


async def _has_younger(on: Queryable, month: str, oldest: datetime) -> bool:
    return await SQL["has_younger"].filled(table=month).value(on, bool, oldest=oldest)
