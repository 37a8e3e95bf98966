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
from mainspring.postgres.database import Database
from mainspring.store.upkeep.table_changes import (
    BATCHES,
    LARGEST_DEFAULT,
    ArchiveHook,
    InUse,
    Round,
    TableChanges,
)

SQL = queries.load("ledger_retention")

_LEDGER = "occurrences"
_DEFAULT = "occurrences_default"


class LedgerRetention:
    """Every method may be called again and again, and by more than one node."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._tables = TableChanges(database)

    async def make_partitions(
        self, days_ahead: int, largest_default: int = LARGEST_DEFAULT
    ) -> Round:
        """Make a partition per month from this one on, for what no partition covers yet. Where
        lines of a month lie in the default partition already, they stay there."""
        today, home, made = await self._tables.today(), await self._tables.home(), Round()
        covered = await self._covered_to()
        for month, end in _months(today, today + timedelta(days_ahead)):
            first = month if covered is None else max(month, covered)
            if first >= end or await self._in_default(first, end):
                continue
            if await self._tables.default_size(_LEDGER) > largest_default:
                made.postponed[_LEDGER] = "its default partition is too large to be looked through"
                break
            name = _name(month)
            try:
                if await self._tables.make_partition(_LEDGER, f"{home}.{name}", first, end):
                    made.done.append(name)
            except InUse as problem:
                made.postponed[_LEDGER] = str(problem)
                break
        return made

    async def retire_partitions(self, keep_days: int, archive: ArchiveHook | None = None) -> Round:
        """Detach months of which nothing was decided since, hand each to the archive hook, and
        drop it."""
        oldest, retired = await self._oldest(keep_days), Round()
        try:
            for name in await self._old("ledger_partitions", oldest):
                if not await self._has_younger(name, oldest):
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
            if await self._has_younger(name, oldest):
                cleared += await self._clear_table(name, oldest, batch)
        return cleared

    async def clear_deleted(self, batch: int = 10_000) -> int:
        """Delete lines of schedules that were deleted; return how many lines were deleted."""
        cleared = 0
        for _ in range(BATCHES):
            row = await self._database.fetch_row(*SQL["deleted_schedule"]())
            if row is None:
                break
            cleared += await self._clear_schedule(row, batch)
        return cleared

    async def _clear_schedule(self, row: asyncpg.Record, batch: int) -> int:
        async def work(connection: asyncpg.Connection) -> int:
            gone = await _delete_lines(connection, row["tenant_id"], row["id"], batch)
            if gone < batch:
                await connection.execute(*SQL["forget_schedule"](schedule_id=row["id"]))
            return gone

        return await self._database.transact(work)

    async def _clear_table(self, table: str, oldest: datetime, batch: int) -> int:
        async def work(connection: asyncpg.Connection) -> int:
            await connection.execute(*SQL["allow_clearing"]())
            status = await connection.execute(_clear_statement(table), oldest, batch)
            return _rows(status)

        cleared = 0
        for _ in range(BATCHES):
            gone = await self._database.transact(work)
            cleared += gone
            if gone < batch:
                break
        return cleared

    async def _detach(self, name: str, oldest: datetime) -> None:
        """Detach a month, unless a line was decided in it while we waited for the lock."""

        async def work(connection: asyncpg.Connection) -> None:
            await connection.execute(f"ALTER TABLE {_LEDGER} DETACH PARTITION {name}")
            if await connection.fetchval(_younger_statement(name), oldest):
                raise InUse("a line of it was decided just now")

        await self._tables.transact(work)

    async def _has_younger(self, name: str, oldest: datetime) -> bool:
        row = await self._database.fetch_row(_younger_statement(name), oldest)
        return row is not None and bool(row[0])

    async def _in_default(self, first: date, end: date) -> bool:
        row = await self._database.fetch_row(
            *SQL["in_default"](first=_midnight(first), end=_midnight(end))
        )
        return row is not None and bool(row[0])

    async def _covered_to(self) -> date | None:
        row = await self._database.fetch_row(*SQL["covered_to"]())
        return None if row is None else row["covered_to"]

    async def _oldest(self, keep_days: int) -> datetime:
        return _midnight(await self._tables.today() - timedelta(keep_days))

    async def _old(self, statement: str, oldest: datetime) -> list[str]:
        """Return the names of months that ended before that time."""
        rows = await self._database.fetch(*SQL[statement]())
        return [row["name"] for row in rows if _month_in(row["name"]) < f"{oldest:%Y%m}"]


async def delete_ledger(
    connection: asyncpg.Connection, tenant_id: int, schedule_id: UUID, batch: int = 10_000
) -> None:
    """Delete the lines of a schedule that this transaction deleted. If there are many,
    housekeeping deletes the rest."""
    if await _delete_lines(connection, tenant_id, schedule_id, batch) >= batch:
        await connection.execute(*SQL["note_deleted"](tenant_id=tenant_id, schedule_id=schedule_id))


async def _delete_lines(
    connection: asyncpg.Connection, tenant_id: int, schedule_id: UUID, batch: int
) -> int:
    """Delete lines of a deleted schedule, the oldest first; fewer than `batch` are the last."""
    await connection.execute(*SQL["allow_purge"]())
    return _rows(
        await connection.execute(
            *SQL["delete_lines"](tenant_id=tenant_id, schedule_id=schedule_id, limit=batch)
        )
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


def _rows(status: str) -> int:
    return int(status.rpartition(" ")[2])


def _younger_statement(table: str) -> str:
    return f"SELECT EXISTS (SELECT FROM {table} WHERE decided_at >= $1::timestamptz)"


def _clear_statement(table: str) -> str:
    return f"""
        DELETE FROM {table} WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM {table} WHERE decided_at < $1::timestamptz
            ORDER BY decided_at LIMIT $2))
    """
