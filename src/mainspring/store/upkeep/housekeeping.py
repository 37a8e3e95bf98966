"""Keeping house in the database: partitions of history ahead of time, and what is old out."""

from datetime import date, timedelta
from uuid import UUID

import asyncpg

from mainspring.postgres import named_sql as queries
from mainspring.postgres.database import Database
from mainspring.store.tenants import TenantStore
from mainspring.store.upkeep.ledger_retention import LedgerRetention
from mainspring.store.upkeep.planner import analyze_if_grown
from mainspring.store.upkeep.table_changes import (
    BATCHES,
    LARGEST_DEFAULT,
    ArchiveHook,
    InUse,
    Round,
    TableChanges,
)
from mainspring.store.workflow.workflow_runs import SQL as RUNS

SQL = queries.load("housekeeping")

PARTITIONED = {
    "task_history": "finished_at",
    "executions": "finished_at",
    "task_logs": "logged_at",
}
"""Tables that come in partitions of a day, and the column that says which. The ledger of
occurrences has partitions of its own kind: see `ledger_retention`."""
_LONGEST_BUILD = 3600.0
_GONE = (asyncpg.UndefinedTableError, asyncpg.InvalidObjectDefinitionError)
"""Seconds that it may take to build an index of one partition."""


class HousekeepingStore:
    """Every method may be called again and again, and by more than one node."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._tables = TableChanges(database)
        self.ledger = LedgerRetention(database)

    async def hold_duty(self, node_id: UUID, lease: float, duty: str = "housekeeping") -> bool:
        """Become, or stay, the one node that does this."""
        row = await self._database.fetch_row(
            *SQL["hold_duty"](duty=duty, holder=node_id, lease=lease)
        )
        return row is not None

    async def drop_duties(self, node_id: UUID) -> None:
        """Let another node take over at once."""
        await self._database.fetch(*SQL["drop_duties"](holder=node_id))

    async def make_partitions(
        self, days_ahead: int, largest_default: int = LARGEST_DEFAULT
    ) -> Round:
        """A partition per day and table, from today on. Where rows of a day lie in the default
        partition already (nobody kept house for a while), they stay there."""
        today, home, made = await self._tables.today(), await self._tables.home(), Round()
        for table in PARTITIONED:
            there = set(await self._tables.names("list_partitions", table))
            days = [today + timedelta(offset) for offset in range(days_ahead + 1)]
            missing = [day for day in days if _name(table, day) not in there]
            if missing and await self._tables.default_size(table) > largest_default:
                made.postponed[table] = "its default partition is too large to be looked through"
                continue
            for day in missing:
                try:
                    name, following = _name(table, day), day + timedelta(1)
                    if await self._tables.make_partition(table, f"{home}.{name}", day, following):
                        made.done.append(name)
                except InUse as problem:
                    made.postponed[table] = str(problem)
                    break
        return made

    async def build_indexes(self) -> Round:
        """Build what partitions lack of the indexes of their table, while everybody goes on using
        them. Whoever does this locks the table against others who would do the same, so that what
        is half built and not locked was left behind."""
        home, made = await self._tables.home(), Round()
        for row in await self._database.fetch(*SQL["missing_indexes"](tables=list(PARTITIONED))):
            try:
                await self._build_index(home, row)
                made.done.append(row["name"])
            except InUse as problem:
                made.postponed[row["name"]] = str(problem)
            except _GONE as problem:
                made.postponed[row["name"]] = f"its partition is gone: {problem}"
        for row in await self._database.fetch(*SQL["unfinished_indexes"](tables=list(PARTITIONED))):
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
        """Detach partitions older than that, hand each to the archive hook, and drop it."""
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
        """What landed in a default partition, because nobody kept house, goes row by row; return
        how many rows went."""
        oldest = await self._tables.today() - timedelta(keep_days)
        cleared = 0
        for table, column in PARTITIONED.items():
            statement = _clear_statement(f"{table}_default", column)

            async def work(connection: asyncpg.Connection, statement: str = statement) -> int:
                await connection.execute(*SQL["allow_clearing"]())
                status = await connection.execute(statement, oldest, batch)
                return int(status.rpartition(" ")[2])

            for _ in range(BATCHES):
                gone = await self._database.transact(work)
                cleared += gone
                if gone < batch:
                    break
        return cleared

    async def forget_expired(self, batch: int = 10_000) -> int:
        """Idempotency keys and effects past their time, and events that nobody took: in turns,
        until there are none; return how many rows went."""
        kinds = ["forget_expired_keys", "forget_expired_effects", "forget_old_events"]
        forgotten = 0
        for _ in range(BATCHES):
            gone = {kind: await self._forget(kind, batch) for kind in kinds}
            forgotten += sum(gone.values())
            kinds = [kind for kind in kinds if gone[kind] == batch]
            if not kinds:
                break
        return forgotten

    async def forget_gone(self) -> None:
        """Nodes and workers that are long gone, and what they left to each other."""
        await self._database.fetch(*SQL["forget_dead_nodes"]())
        await self._database.fetch(*SQL["forget_gone_workers"]())
        await self._database.fetch(*SQL["forget_gone_leases"]())
        await self._database.fetch(*SQL["forget_old_messages"]())

    async def forget_old_keys(self, keep_days: int) -> None:
        """API keys that were revoked or ran out so many days ago."""
        await self._database.fetch(*SQL["forget_old_keys"](keep_days=keep_days))

    async def forget_runs(self, keep_days: int, batch: int = 1000) -> int:
        """Runs of workflows that ended so many days ago, with their steps; return how many."""
        gone = 0
        for _ in range(BATCHES):
            rows = await self._database.fetch(
                *RUNS["delete_old_runs"](keep_days=keep_days, limit=batch)
            )
            gone += len(rows)
            if len(rows) < batch:
                break
        return gone

    async def clear_departed(self, rounds: int = 100) -> int:
        """What tenants that are gone left behind, in small steps; return how many rows went."""
        tenants, cleared = TenantStore(self._database), 0
        for _ in range(rounds):
            gone = await tenants.clear()
            if not gone:
                break
            cleared += gone
        return cleared

    async def analyze_if_grown(self) -> bool:
        """Analyze the table of tasks if it grew row by row; return whether it did."""
        return await analyze_if_grown(self._database)

    async def oldest_transaction(self) -> tuple[int, float, str] | None:
        """Who holds the oldest snapshot: (pid, age in seconds, application)."""
        row = await self._database.fetch_row(*SQL["oldest_transaction"]())
        return None if row is None else (row["pid"], row["age"] or 0.0, row["application"])

    async def _old(self, statement: str, table: str, oldest: date) -> list[str]:
        names = await self._tables.names(statement, table)
        return [name for name in names if name < _name(table, oldest)]

    async def _detach(self, table: str, oldest: date) -> None:
        for name in await self._old("list_partitions", table, oldest):
            await self._tables.alter(f"ALTER TABLE {table} DETACH PARTITION {name}")

    async def _forget(self, kind: str, batch: int) -> int:
        row = await self._database.fetch_row(*SQL[kind](limit=batch))
        assert row is not None
        return int(row["gone"])


def _name(table: str, day: date) -> str:
    return f"{table}_d{day:%Y%m%d}"


def _clear_statement(table: str, column: str) -> str:
    return f"""
        DELETE FROM {table} WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM {table} WHERE {column} < $1::date LIMIT $2))
    """
