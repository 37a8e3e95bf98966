"""Changes of tables that others use at the same time: partitions made and dropped."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from typing import NamedTuple, TypeVar

import asyncpg

from mainspring.postgres import named_sql as queries
from mainspring.postgres.database import Store, transaction
from mainspring.postgres.named_sql import Statement

SQL = queries.load("table_changes")
T = TypeVar("T")

_LOCK_TIMEOUT = "500ms"
"""While one waits to change a table, all others wait to use it. Partitions are made days ahead, so
there is another chance."""
_ANALYZE_SELDOM = "autovacuum_analyze_scale_factor = 1"
"""A partition that grows by thousands of rows a second is a tenth larger all the time, and each
look at it takes a third of a second: once it has doubled is soon enough."""
LARGEST_DEFAULT = 256 * 2**20
"""Maximum bytes of a default partition that is scanned, while everybody waits, for a new one."""
BATCHES = 100
"""Maximum number of batches in a round: a million rows a minute are more than anybody makes."""

ArchiveHook = Callable[[str], Awaitable[bool]]
"""Called with the full name of a detached table; whether it may be dropped now."""


@dataclass(frozen=True, slots=True)
class Round:
    """The tables that were changed, and those that have to wait, with a reason each."""

    done: list[str] = field(default_factory=list)
    postponed: dict[str, str] = field(default_factory=dict)


class InUse(Exception):
    """A table could not be changed for now."""


class NewPartition(NamedTuple):
    """A partition to be made, for [first, end)."""

    name: str
    first: date
    end: date


async def in_batches(step: Callable[[], Awaitable[int]], batch: int) -> int:
    """Repeat a step that removes at most `batch` rows until it removes fewer; return how many."""
    total = 0
    for _ in range(BATCHES):
        gone = await step()
        total += gone
        if gone < batch:
            break
    return total


class TableChanges(Store):
    """Statements that change tables, none of which makes others wait for long."""

    async def today(self) -> date:
        return await SQL["today"].value(self._database, date)

    async def home(self) -> str:
        return await SQL["home"].value(self._database, str)

    async def names(self, statement: str, table: str) -> list[str]:
        return [row["name"] for row in await SQL[statement].fetch(self._database, table=table)]

    async def make_partitions(
        self, table: str, missing: Sequence[NewPartition], largest_default: int, made: Round
    ) -> None:
        """Make the partitions that a table lacks, except where the default partition has rows of
        the time already, or another partition covers some of it."""
        if not missing:
            return
        home = await self.home()
        size = await SQL["default_size"].value(self._database, int, table=table)
        if size > largest_default:
            made.postponed[table] = "its default partition is too large to be looked through"
            return
        try:
            for name, first, end in missing:
                with suppress(asyncpg.CheckViolationError, asyncpg.InvalidObjectDefinitionError):
                    await self.alter(
                        f"CREATE TABLE IF NOT EXISTS {home}.{name} PARTITION OF {table} "
                        f"FOR VALUES FROM ('{first}T00:00:00Z') TO ('{end}T00:00:00Z') "
                        f"WITH ({_ANALYZE_SELDOM})"
                    )
                    made.done.append(name)
        except InUse as problem:
            made.postponed[table] = str(problem)

    async def clear(self, allow: Statement, clear: Statement, oldest: date, batch: int) -> int:
        """Delete old rows of a table, some at a time; return how many rows were deleted."""

        async def clear_some(connection: asyncpg.Connection) -> int:
            await allow.run(connection)
            return await clear.value(connection, int, oldest=oldest, limit=batch)

        return await in_batches(lambda: self._database.transact(clear_some), batch)

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
        """Change a table, unless somebody uses it for longer than the lock timeout."""
        await self.transact(lambda connection: connection.execute(statement))

    @transaction
    async def transact(
        self, connection: asyncpg.Connection, work: Callable[[asyncpg.Connection], Awaitable[T]]
    ) -> T:
        """Run a transaction that changes tables; InUse if somebody uses them for too long."""
        await connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")
        try:
            return await work(connection)
        except asyncpg.LockNotAvailableError:
            raise InUse("somebody else uses it") from None
