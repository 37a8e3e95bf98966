"""Keeping house in the database: partitions of history ahead of time, and old ones out."""

from collections.abc import Awaitable, Callable
from datetime import date, timedelta
from uuid import UUID

import asyncpg

from mainspring.store import queries
from mainspring.store.database import Database
from mainspring.store.planner import tell_the_planner
from mainspring.store.tenants import Tenants

SQL = queries.load("housekeeping") | queries.load("cluster") | queries.load("keys")

_OLD_RUNS = queries.load("workflow_runs")["delete_old_runs"]

PARTITIONED = {
    "task_history": "finished_at",
    "executions": "finished_at",
    "occurrences": "nominal_at",
    "task_logs": "logged_at",
}
"""Tables that come in partitions of a day, and the column that says which."""
_ANALYZE_SELDOM = "autovacuum_analyze_scale_factor = 1"
"""A partition that grows by thousands of rows a second is a tenth larger all the time, and each
look at it takes a third of a second: once it has doubled is soon enough."""

ArchiveHook = Callable[[str], Awaitable[None]]
"""Called with the name of a detached table; when it returns, the table is dropped."""


class Housekeeping:
    """Every method may be called again and again, and by more than one node."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def hold_duty(self, node_id: UUID, lease: float) -> bool:
        """Become, or stay, the one node that keeps house."""
        row = await self._database.fetch_row(SQL["hold_duty"], "housekeeping", node_id, lease)
        return row is not None

    async def drop_duties(self, node_id: UUID) -> None:
        """Let another node take over at once."""
        await self._database.fetch(SQL["drop_duties"], node_id)

    async def make_partitions(self, days_ahead: int) -> list[str]:
        """A partition per day and table, from today on. Where rows of a day lie in the default
        partition already (nobody kept house for a while), they stay there."""
        made = []
        first, home = await self._today(), await self._home()
        for table in PARTITIONED:
            there = {
                row["name"] for row in await self._database.fetch(SQL["list_partitions"], table)
            }
            for offset in range(days_ahead + 1):
                name = _name(table, first + timedelta(offset))
                day = first + timedelta(offset)
                if name not in there and await self._make(table, f"{home}.{name}", day):
                    made.append(name)
        return made

    async def retire_partitions(
        self, keep_days: int, archive: ArchiveHook | None = None
    ) -> list[str]:
        """Detach partitions older than that, hand each to the archive hook, and drop it."""
        oldest = await self._today() - timedelta(keep_days)
        retired = []
        for table in PARTITIONED:
            for row in await self._database.fetch(SQL["list_partitions"], table):
                if row["name"] < _name(table, oldest):
                    await self._database.fetch(
                        f"ALTER TABLE {table} DETACH PARTITION {row['name']}"
                    )
            for row in await self._database.fetch(SQL["detached_partitions"], table):
                if archive is not None:
                    await archive(row["name"])
                await self._database.fetch(f"DROP TABLE {row['name']}")
                retired.append(row["name"])
        return retired

    async def clear_defaults(self, keep_days: int) -> None:
        """What landed in a default partition, because nobody kept house, goes row by row."""
        oldest = await self._today() - timedelta(keep_days)

        async def work(connection: asyncpg.Connection) -> None:
            await connection.execute(SQL["allow_clearing"])
            for table, column in PARTITIONED.items():
                await connection.execute(
                    f"DELETE FROM {table}_default WHERE {column} < $1::date", oldest
                )

        await self._database.transact(work)

    async def forget_expired(self, batch: int = 10_000) -> None:
        """Idempotency keys and effects past their time, events that nobody took, and nodes that
        are long gone."""
        await self._database.fetch(SQL["forget_expired_keys"], batch)
        await self._database.fetch(SQL["forget_expired_effects"], batch)
        await self._database.fetch(SQL["forget_old_events"], batch)
        await self._database.fetch(SQL["forget_dead_nodes"])
        await self._database.fetch(SQL["forget_gone_workers"])
        await self._database.fetch(SQL["forget_gone_leases"])
        await self._database.fetch(SQL["forget_old_messages"])

    async def forget_old_keys(self, keep_days: int) -> None:
        """API keys that were revoked or ran out so many days ago."""
        await self._database.fetch(SQL["forget_old_keys"], keep_days)

    async def forget_runs(self, keep_days: int, batch: int = 1000) -> int:
        """Runs of workflows that ended so many days ago, with their steps; answers how many."""
        gone = 0
        while rows := await self._database.fetch(_OLD_RUNS, keep_days, batch):
            gone += len(rows)
            if len(rows) < batch:
                break
        return gone

    async def clear_departed(self, rounds: int = 100) -> int:
        """What tenants that are gone left behind, in small steps; answers how many rows went."""
        tenants, cleared = Tenants(self._database), 0
        for _ in range(rounds):
            gone = await tenants.clear()
            if not gone:
                break
            cleared += gone
        return cleared

    async def tell_the_planner(self) -> bool:
        """Of tasks that came one by one; answers whether there was a crowd that it did not know."""
        return await tell_the_planner(self._database)

    async def oldest_transaction(self) -> tuple[int, float, str] | None:
        """Who holds the oldest snapshot: (pid, age in seconds, application)."""
        row = await self._database.fetch_row(SQL["oldest_transaction"])
        return None if row is None else (row["pid"], row["age"] or 0.0, row["application"])

    async def _today(self) -> date:
        row = await self._database.fetch_row(SQL["today"])
        assert row is not None
        today: date = row["today"]
        return today

    async def _home(self) -> str:
        row = await self._database.fetch_row(SQL["home"])
        assert row is not None
        home: str = row["name"]
        return home

    async def _make(self, table: str, name: str, day: date) -> bool:
        try:
            await self._database.fetch(
                f"CREATE TABLE IF NOT EXISTS {name} PARTITION OF {table} "
                f"FOR VALUES FROM ('{day}T00:00:00Z') TO ('{day + timedelta(1)}T00:00:00Z') "
                f"WITH ({_ANALYZE_SELDOM})"
            )
        except (asyncpg.CheckViolationError, asyncpg.InvalidObjectDefinitionError):
            return False
        return True


def _name(table: str, day: date) -> str:
    return f"{table}_d{day:%Y%m%d}"
