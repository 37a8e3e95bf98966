"""What the database says about tasks afterwards: finished once, never early, fenced, none lost."""

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from uuid import UUID

import asyncpg

from mainspring.errors import StoreUnavailable
from mainspring.postgres.database import Database
from support.waiting import eventually

_UNFINISHED = "SELECT id, state, fence, lease_until, due_at FROM tasks WHERE id = ANY ($1::uuid[])"
_FINISHED = "SELECT count(DISTINCT id) FROM task_history WHERE id = ANY ($1::uuid[])"

_NOT_ONCE = """
SELECT wanted.id, count(h.id) AS times FROM unnest($1::uuid[]) AS wanted (id)
LEFT JOIN task_history h ON h.id = wanted.id
GROUP BY wanted.id HAVING count(h.id) <> 1
"""
_IN_BOTH = (
    "SELECT t.id FROM tasks t JOIN task_history h ON h.tenant_id = t.tenant_id AND h.id = t.id"
)
_EARLY = """
SELECT task_id, fence, outcome, due_at, picked_at, started_at FROM executions
WHERE picked_at < due_at OR started_at < due_at
"""
_OUT_OF_ORDER = """
SELECT task_id, fence, outcome, picked_at, started_at, finished_at FROM executions
WHERE started_at < picked_at OR finished_at < started_at
"""
_TWO_OUTCOMES = """
SELECT task_id, fence, array_agg(outcome) FROM executions
GROUP BY task_id, fence HAVING count(*) > 1
"""
# Every claim counts as an attempt, and every execution ends in one execution, whoever ends it.
_UNACCOUNTED = """
SELECT h.id, h.attempts, h.state, count(e.fence) AS executions FROM task_history h
LEFT JOIN executions e ON e.tenant_id = h.tenant_id AND e.task_id = h.id
GROUP BY h.id, h.attempts, h.state HAVING count(e.fence) <> h.attempts
"""
_WRONG_END = """
SELECT h.id, h.state, e.outcome FROM task_history h
JOIN executions e ON e.tenant_id = h.tenant_id AND e.task_id = h.id AND e.fence = h.fence
WHERE (h.state = 'completed') <> (e.outcome = 'succeeded')
"""
_OVERLAPS = """
SELECT a.task_id, b.task_id AS other, a.picked_at, a.finished_at, b.picked_at AS other_picked_at
FROM executions a
JOIN task_history ha ON ha.tenant_id = a.tenant_id AND ha.id = a.task_id
JOIN executions b ON b.tenant_id = a.tenant_id AND (b.task_id, b.fence) <> (a.task_id, a.fence)
JOIN task_history hb ON hb.tenant_id = b.tenant_id AND hb.id = b.task_id
WHERE ha.concurrency_key = $1 AND hb.concurrency_key = $1
  AND a.picked_at <= b.picked_at AND b.picked_at < a.finished_at
"""
_MOST_AT_ONCE = """
SELECT coalesce(max(running), 0) FROM (
    SELECT sum(step) OVER (ORDER BY at, step) AS running FROM (
        SELECT picked_at AS at, 1 AS step FROM executions WHERE tenant_id = $1
        UNION ALL
        SELECT finished_at, -1 FROM executions WHERE tenant_id = $1
    ) steps
) counted
"""
_DELAYS = """
SELECT extract(epoch FROM started_at - due_at)::float8 AS delay FROM executions
WHERE task_id = ANY ($1::uuid[]) AND attempt = 1 AND started_at IS NOT NULL ORDER BY delay
"""


class Evidence:
    """Looks at the tables; the nodes know nothing of it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def rows(self, sql: str, *arguments: object) -> Sequence[asyncpg.Record]:
        return await self._database.fetch(sql, *arguments)

    async def value(self, sql: str, *arguments: object) -> int:
        row = await self._database.fetch_row(sql, *arguments)
        assert row is not None
        return int(row[0])

    async def all_finished(self, ids: Collection[UUID], *, within: float) -> None:
        """Wait until all of these tasks are in history."""
        wanted = list(ids)

        async def finished() -> bool:
            try:
                return await self.value(_FINISHED, wanted) == len(wanted)
            except StoreUnavailable:
                return False  # a test may be restarting the database

        try:
            await eventually(finished, within=within, what="all tasks finish", tick=0.1)
        except AssertionError as problem:
            left = await self.rows(_UNFINISHED, wanted)
            raise AssertionError(
                f"{problem}; {len(left)} of {len(wanted)} left, such as {left[:5]}"
            ) from None

    async def sound(self, ids: Collection[UUID]) -> None:
        """All of these finished exactly once, and nothing in the database breaks a promise."""
        assert not await self.rows(_NOT_ONCE, list(ids)), "lost, or finished twice"
        assert not await self.rows(_IN_BOTH), "finished and unfinished at once"
        assert not await self.rows(_EARLY), "started before it was due"
        assert not await self.rows(_OUT_OF_ORDER), "ended before it started, or started unpicked"
        assert not await self.rows(_TWO_OUTCOMES), "two outcomes of one execution"
        assert not await self.rows(_UNACCOUNTED), "an execution without an outcome"
        assert not await self.rows(_WRONG_END), "the end does not fit the last execution"

    async def overlaps(self, concurrency_key: str) -> Sequence[asyncpg.Record]:
        """Pairs of executions under a key that ran at the same time."""
        return await self.rows(_OVERLAPS, concurrency_key)

    async def most_at_once(self, tenant_id: int) -> int:
        """How many executions of a tenant ran at the same time, at most."""
        return await self.value(_MOST_AT_ONCE, tenant_id)

    async def delays(self, ids: Collection[UUID]) -> list[float]:
        """Seconds from due to start of the first executions, sorted."""
        return [row["delay"] for row in await self.rows(_DELAYS, list(ids))]


@asynccontextmanager
async def backup_of(database_url: str, tables: str) -> AsyncIterator[None]:
    """A backup that reads these tables until this ends."""
    backup = await asyncpg.connect(database_url)
    async with backup.transaction():
        await backup.execute(f"LOCK TABLE {tables} IN ACCESS SHARE MODE")
        yield
    await backup.close()


async def waits_for_a_lock(database: Database) -> bool:
    """Whether somebody waits for a lock in this database."""
    return bool(
        await database.fetch(
            "SELECT FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
    )
