"""Changes of tables that others use at the same time: partitions made and dropped."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import date
from typing import TypeVar

import asyncpg

from mainspring.postgres import named_sql as queries
from mainspring.postgres.database import Database

SQL = queries.load("table_changes")
T = TypeVar("T")

_LOCK_TIMEOUT = "500ms"
"""Whoever waits to change a table makes all others wait, who only want to use it. Partitions are
made days ahead: there will be a better moment than the middle of somebody's backup."""
_ANALYZE_SELDOM = "autovacuum_analyze_scale_factor = 1"
"""A partition that grows by thousands of rows a second is a tenth larger all the time, and each
look at it takes a third of a second: once it has doubled is soon enough."""
LARGEST_DEFAULT = 256 * 2**20
"""Bytes of a default partition that are looked through, while everybody waits, for rows that belong
in a new one."""
BATCHES = 100
"""Of each kind, in one go: a million rows a minute are more than anybody makes."""

ArchiveHook = Callable[[str], Awaitable[bool]]
"""Called with the full name of a detached table; whether it may be dropped now."""


@dataclass(frozen=True, slots=True)
class Round:
    """The tables that were dealt with, and those that must wait, with a reason each."""

    done: list[str] = field(default_factory=list)
    postponed: dict[str, str] = field(default_factory=dict)


class InUse(Exception):
    """A table could not be changed for now."""


class TableChanges:
    """Statements that change tables, none of which makes others wait for long."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def today(self) -> date:
        row = await self._database.fetch_row(*SQL["today"]())
        assert row is not None
        today: date = row["today"]
        return today

    async def home(self) -> str:
        row = await self._database.fetch_row(*SQL["home"]())
        assert row is not None
        home: str = row["name"]
        return home

    async def names(self, statement: str, table: str) -> list[str]:
        return [row["name"] for row in await self._database.fetch(*SQL[statement](table=table))]

    async def default_size(self, table: str) -> int:
        row = await self._database.fetch_row(*SQL["default_size"](table=table))
        assert row is not None
        return int(row["bytes"])

    async def make_partition(self, table: str, name: str, first: date, end: date) -> bool:
        """Make a partition for [first, end); False where rows of that time lie in the default
        partition already, or another partition covers some of it."""
        try:
            await self.alter(
                f"CREATE TABLE IF NOT EXISTS {name} PARTITION OF {table} "
                f"FOR VALUES FROM ('{first}T00:00:00Z') TO ('{end}T00:00:00Z') "
                f"WITH ({_ANALYZE_SELDOM})"
            )
        except (asyncpg.CheckViolationError, asyncpg.InvalidObjectDefinitionError):
            return False
        return True

    async def drop_detached(
        self, names: list[str], archive: ArchiveHook | None, retired: Round
    ) -> None:
        """Hand each table to the archive hook, and drop it."""
        home = await self.home()
        for name in names:
            if archive is not None and not await archive(f"{home}.{name}"):
                retired.postponed[name] = "it is not archived"
                continue
            try:
                await self.alter(f"DROP TABLE {home}.{name}")
                retired.done.append(name)
            except InUse as problem:
                retired.postponed[name] = str(problem)

    async def alter(self, statement: str) -> None:
        """Change a table, unless somebody uses it who does not stop to."""

        async def work(connection: asyncpg.Connection) -> None:
            await connection.execute(statement)

        await self.transact(work)

    async def transact(self, work: Callable[[asyncpg.Connection], Awaitable[T]]) -> T:
        """A transaction that changes tables, unless somebody uses them who does not stop to."""

        async def briefly(connection: asyncpg.Connection) -> T:
            await connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")
            try:
                return await work(connection)
            except asyncpg.LockNotAvailableError:
                raise InUse("somebody else uses it") from None

        return await self._database.transact(briefly)
