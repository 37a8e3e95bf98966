"""Upkeep of the database: partitions of history are made ahead of time, and old rows removed."""

from datetime import date, timedelta
from functools import partial
from typing import NamedTuple
from uuid import UUID

import asyncpg

from mainspring.postgres import named_sql as queries
from mainspring.postgres.database import Database, Store
from mainspring.store.tenants import TenantStore
from mainspring.store.upkeep.occurrence_retention import OccurrenceRetention
from mainspring.store.upkeep.statistics import analyze_if_grown
from mainspring.store.upkeep.table_changes import (
    LARGEST_DEFAULT,
    ArchiveHook,
    InUse,
    NewPartition,
    Round,
    TableChanges,
    in_batches,
)
from mainspring.store.upkeep.table_changes import SQL as TABLES
from mainspring.store.workflows.workflow_runs import SQL as RUNS

SQL = queries.load("housekeeping")
_FORGET_EXPIRED = [
    SQL["forget_expired"].filled(expiring=table) for table in ("idempotency_keys", "effects")
]

PARTITIONED = {"task_history": "finished_at", "executions": "finished_at", "task_logs": "logged_at"}
"""Tables with a partition per day, and its column; the ledger has partitions per month."""
_LONGEST_BUILD = 3600.0
"""Seconds that it may take to build an index of one partition."""
_GONE = (asyncpg.UndefinedTableError, asyncpg.InvalidObjectDefinitionError)


class OldTransaction(NamedTuple):
    """The transaction with the oldest snapshot: dead rows stay until it ends."""

    pid: int
    age: float
    application: str


class HousekeepingStore(Store):
    """Every method may be called again and again, and by more than one node."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._tables = TableChanges(database)
        self.ledger = OccurrenceRetention(database)

    async def hold_duty(self, node_id: UUID, lease: float, duty: str = "housekeeping") -> bool:
        """Become, or stay, the one node with this duty."""
        return await SQL["hold_duty"].found(self._database, duty=duty, holder=node_id, lease=lease)

    async def drop_duties(self, node_id: UUID) -> None:
        """Let another node take over at once."""
        await SQL["drop_duties"].run(self._database, holder=node_id)

    async def make_partitions(
        self, days_ahead: int, largest_default: int = LARGEST_DEFAULT
    ) -> Round:
        """Make a partition per day and table, unless the default one already has rows of the
        day."""
        today, made = await self._tables.today(), Round()
        days = [today + timedelta(offset) for offset in range(days_ahead + 1)]
        for table in PARTITIONED:
            there = set(await self._tables.names("list_partitions", table))
            every = [NewPartition(_name(table, day), day, day + timedelta(1)) for day in days]
            missing = [partition for partition in every if partition.name not in there]
            await self._tables.make_partitions(table, missing, largest_default, made)
        return made

    async def build_indexes(self) -> Round:
        """Build the indexes of their table that partitions lack, while the tables are in use. The
        builder locks the table against others, so an unfinished index that is not locked was
        abandoned."""
        home, made = await self._tables.home(), Round()
        for row in await SQL["missing_indexes"].fetch(self._database, tables=list(PARTITIONED)):
            try:
                await self._build_index(home, row)
                made.done.append(row["name"])
            except InUse as problem:
                made.postponed[row["name"]] = str(problem)
            except _GONE as problem:
                made.postponed[row["name"]] = f"its partition is gone: {problem}"
        for row in await SQL["unfinished_indexes"].fetch(self._database, tables=list(PARTITIONED)):
            await self._attach(row["index"], row["part"])
            made.done.append(row["index"])
        return made

    async def _build_index(self, home: str, row: asyncpg.Record) -> None:
        name, table = f"{row['home']}.{row['name']}", f"{row['home']}.{row['partition']}"
        if row["built"] and not row["whole"]:
            await self._tables.alter(f"DROP INDEX {name}")
        if not row["whole"]:
            statement = f"CREATE INDEX CONCURRENTLY {row['name']} ON {table}{row['definition']}"
            await self._database.run_alone(statement, _LONGEST_BUILD)
        await self._attach(f"{home}.{row['index']}", name)

    async def _attach(self, index: str, part: str) -> None:
        await self._tables.alter(f"ALTER INDEX {index} ATTACH PARTITION {part}")

    async def retire_partitions(self, keep_days: int, archive: ArchiveHook | None = None) -> Round:
        """Detach old partitions, hand each to the archive hook, and drop it."""
        oldest = await self._tables.today() - timedelta(keep_days)
        retired = Round()
        for table in PARTITIONED:
            try:
                await self._detach(table, oldest)
            except InUse as problem:
                retired.postponed[table] = str(problem)
            detached = await self._old("detached_partitions", table, oldest)
            await self._tables.drop_detached(detached, archive, retired)
        return retired

    async def clear_defaults(self, keep_days: int, batch: int = 10_000) -> int:
        """Delete old rows of the default partitions; return how many."""
        oldest = await self._tables.today() - timedelta(keep_days)
        cleared = 0
        for table, column in PARTITIONED.items():
            clear = SQL["clear_default"].filled(table=f"{table}_default", column=column)
            cleared += await self._tables.clear(TABLES["allow_purge"], clear, oldest, batch)
        return cleared

    async def forget_expired(self, batch: int = 10_000) -> int:
        """Delete expired idempotency keys and effects, and old events; return how many."""
        return sum(
            [
                await in_batches(partial(forget.value, self._database, int, limit=batch), batch)
                for forget in (*_FORGET_EXPIRED, SQL["forget_old_events"])
            ]
        )

    async def forget_gone(self) -> None:
        """Delete nodes and workers that are long gone, and what they left behind."""
        await SQL["forget_dead_nodes"].run(self._database)
        await SQL["forget_gone_workers"].run(self._database)
        await SQL["forget_gone_leases"].run(self._database)
        await SQL["forget_old_messages"].run(self._database)

    async def forget_old_keys(self, keep_days: int) -> None:
        """Delete API keys that were revoked or expired so many days ago."""
        await SQL["forget_old_keys"].run(self._database, keep_days=keep_days)

    async def forget_runs(self, keep_days: int, batch: int = 1000) -> int:
        """Delete runs that ended so many days ago, with their steps; return how many."""
        delete = partial(RUNS["delete_old_runs"].value, self._database, int)
        return await in_batches(partial(delete, keep_days=keep_days, limit=batch), batch)

    async def clear_departed(self) -> int:
        """Delete the rows of deleted tenants, in small steps; return how many."""
        return await in_batches(TenantStore(self._database).clear, 1)

    async def analyze_if_grown(self) -> bool:
        """Analyze the table of tasks if it grew row by row; return whether it did."""
        return await analyze_if_grown(self._database)

    async def oldest_transaction(self) -> OldTransaction | None:
        """Return the transaction with the oldest snapshot, and its age in seconds."""
        return await SQL["oldest_transaction"].row(self._database, OldTransaction)

    async def _old(self, statement: str, table: str, oldest: date) -> list[str]:
        names = await self._tables.names(statement, table)
        return [name for name in names if name < _name(table, oldest)]

    async def _detach(self, table: str, oldest: date) -> None:
        for name in await self._old("list_partitions", table, oldest):
            await self._tables.alter(f"ALTER TABLE {table} DETACH PARTITION {name}")


def _name(table: str, day: date) -> str:
    return f"{table}_d{day:%Y%m%d}"
