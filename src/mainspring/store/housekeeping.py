"""Keeping house in the database: partitions of history ahead of time, and what is old out."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import date, timedelta
from uuid import UUID

import asyncpg

from mainspring.store import queries
from mainspring.store.database import Database
from mainspring.store.planner import tell_the_planner
from mainspring.store.tenants import Tenants

SQL = queries.load("housekeeping")

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
_PATIENCE = "500ms"
"""Whoever waits to change a table makes all others wait, who only want to use it. Partitions are
made days ahead: there will be a better moment than the middle of somebody's backup."""
_LARGEST_DEFAULT = 256 * 2**20
"""Bytes of a default partition that are looked through, while everybody waits, for rows that belong
in a new one."""
_BATCHES = 100
"""Of each kind, in one go: a million rows a minute are more than anybody makes."""

ArchiveHook = Callable[[str], Awaitable[bool]]
"""Called with the full name of a detached table; whether it may be dropped now."""


@dataclass(frozen=True, slots=True)
class Round:
    """The tables that were dealt with, and those that must wait, with a reason each."""

    done: list[str] = field(default_factory=list)
    postponed: dict[str, str] = field(default_factory=dict)


class Housekeeping:
    """Every method may be called again and again, and by more than one node."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def hold_duty(self, node_id: UUID, lease: float, duty: str = "housekeeping") -> bool:
        """Become, or stay, the one node that does this."""
        row = await self._database.fetch_row(SQL["hold_duty"], duty, node_id, lease)
        return row is not None

    async def drop_duties(self, node_id: UUID) -> None:
        """Let another node take over at once."""
        await self._database.fetch(SQL["drop_duties"], node_id)

    async def make_partitions(
        self, days_ahead: int, largest_default: int = _LARGEST_DEFAULT
    ) -> Round:
        """A partition per day and table, from today on. Where rows of a day lie in the default
        partition already (nobody kept house for a while), they stay there."""
        today, home, made = await self._today(), await self._home(), Round()
        for table in PARTITIONED:
            there = set(await self._names("list_partitions", table))
            days = [today + timedelta(offset) for offset in range(days_ahead + 1)]
            missing = [day for day in days if _name(table, day) not in there]
            if missing and await self._default_size(table) > largest_default:
                made.postponed[table] = "its default partition is too large to be looked through"
                continue
            for day in missing:
                try:
                    if await self._make(table, home, day):
                        made.done.append(_name(table, day))
                except _InUse as problem:
                    made.postponed[table] = str(problem)
                    break
        return made

    async def retire_partitions(self, keep_days: int, archive: ArchiveHook | None = None) -> Round:
        """Detach partitions older than that, hand each to the archive hook, and drop it."""
        oldest = await self._today() - timedelta(keep_days)
        home, retired = await self._home(), Round()
        for table in PARTITIONED:
            try:
                await self._detach(table, oldest)
            except _InUse as problem:
                retired.postponed[table] = str(problem)
            for name in await self._old("detached_partitions", table, oldest):
                if archive is not None and not await archive(f"{home}.{name}"):
                    retired.postponed[name] = "it is not archived"
                    continue
                try:
                    await self._alter(f"DROP TABLE {home}.{name}")
                    retired.done.append(name)
                except _InUse as problem:
                    retired.postponed[name] = str(problem)
        return retired

    async def clear_defaults(self, keep_days: int, batch: int = 10_000) -> int:
        """What landed in a default partition, because nobody kept house, goes row by row; answers
        how many rows went."""
        oldest = await self._today() - timedelta(keep_days)
        cleared = 0
        for table, column in PARTITIONED.items():
            statement = _clear_statement(f"{table}_default", column)

            async def work(connection: asyncpg.Connection, statement: str = statement) -> int:
                await connection.execute(SQL["allow_clearing"])
                status = await connection.execute(statement, oldest, batch)
                return int(status.rpartition(" ")[2])

            for _ in range(_BATCHES):
                gone = await self._database.transact(work)
                cleared += gone
                if gone < batch:
                    break
        return cleared

    async def forget_expired(self, batch: int = 10_000) -> int:
        """Idempotency keys and effects past their time, and events that nobody took: in turns,
        until there are none; answers how many rows went."""
        kinds = ["forget_expired_keys", "forget_expired_effects", "forget_old_events"]
        forgotten = 0
        for _ in range(_BATCHES):
            gone = {kind: await self._forget(kind, batch) for kind in kinds}
            forgotten += sum(gone.values())
            kinds = [kind for kind in kinds if gone[kind] == batch]
            if not kinds:
                break
        return forgotten

    async def forget_gone(self) -> None:
        """Nodes and workers that are long gone, and what they left to each other."""
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
        for _ in range(_BATCHES):
            rows = await self._database.fetch(_OLD_RUNS, keep_days, batch)
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

    async def _names(self, statement: str, table: str) -> list[str]:
        return [row["name"] for row in await self._database.fetch(SQL[statement], table)]

    async def _old(self, statement: str, table: str, oldest: date) -> list[str]:
        return [name for name in await self._names(statement, table) if name < _name(table, oldest)]

    async def _default_size(self, table: str) -> int:
        row = await self._database.fetch_row(SQL["default_size"], table)
        assert row is not None
        return int(row["bytes"])

    async def _make(self, table: str, home: str, day: date) -> bool:
        try:
            await self._alter(
                f"CREATE TABLE IF NOT EXISTS {home}.{_name(table, day)} PARTITION OF {table} "
                f"FOR VALUES FROM ('{day}T00:00:00Z') TO ('{day + timedelta(1)}T00:00:00Z') "
                f"WITH ({_ANALYZE_SELDOM})"
            )
        except (asyncpg.CheckViolationError, asyncpg.InvalidObjectDefinitionError):
            return False
        return True

    async def _detach(self, table: str, oldest: date) -> None:
        for name in await self._old("list_partitions", table, oldest):
            await self._alter(f"ALTER TABLE {table} DETACH PARTITION {name}")

    async def _alter(self, statement: str) -> None:
        """Change a table, unless somebody uses it who does not stop to."""

        async def work(connection: asyncpg.Connection) -> None:
            await connection.execute(f"SET LOCAL lock_timeout = '{_PATIENCE}'")
            try:
                await connection.execute(statement)
            except asyncpg.LockNotAvailableError:
                raise _InUse("somebody else uses it") from None

        await self._database.transact(work)

    async def _forget(self, kind: str, batch: int) -> int:
        row = await self._database.fetch_row(SQL[kind], batch)
        assert row is not None
        return int(row["gone"])


class _InUse(Exception):
    """A table could not be changed for now."""


def _name(table: str, day: date) -> str:
    return f"{table}_d{day:%Y%m%d}"


def _clear_statement(table: str, column: str) -> str:
    return f"""
        DELETE FROM {table} WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM {table} WHERE {column} < $1::date LIMIT $2))
    """
