"""Many schedules: how soon ten thousand that are due in one second start, and what a million that
are not due cost."""

import argparse
import asyncio
from math import floor

import asyncpg
import msgspec

from benchmarks.harness import Bench, bench, cpu_seconds, memory_mb, percentile
from mainspring import timezones
from mainspring.domain.schedules.definition import ScheduleDefinition
from mainspring.domain.task import Target, TaskSpec
from mainspring.store.schedules.schedules import Template

_DAY = 86400.0
_SPEC = msgspec.Raw(msgspec.json.encode(TaskSpec(Target("handler", name="mainspring.noop"))))
_TEMPLATE = msgspec.json.encode(
    Template(_SPEC, msgspec.Raw(b"{}"), "handler:mainspring.noop", "default", 5)
)
_INSERT = """
INSERT INTO schedules (tenant_id, id, name, partition, timezone, tzdata, definition, template,
    decided_to, next_at, wake_at)
SELECT $1, made.id, made.id::text, partition_of($1, made.id, NULL, 256), 'UTC', $3, $4, $5,
    clock_timestamp(), to_timestamp($6), to_timestamp($6)
FROM (SELECT gen_random_uuid() AS id FROM generate_series(1, $2)) made
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=100_000)
    parser.add_argument("--due", type=int, default=10_000)
    parser.add_argument("--idle", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long to watch them idle")
    options = parser.parse_args()
    asyncio.run(_due_at_once(options.schedules, options.due))
    asyncio.run(_idle(options.idle, options.seconds))


async def _due_at_once(schedules: int, due: int) -> None:
    async with bench() as at:
        connection = await asyncpg.connect(at.database_url)
        await _add(connection, at, schedules - due, await _in(connection, _DAY))
        moment = floor(await _in(connection, 12.0))
        # Ticks before it warm the node up, as it would be in production.
        await _add(connection, at, 500, moment - 6)
        await _add(connection, at, due, moment)
        await connection.execute("ANALYZE schedules")
        print(f"{schedules:,} schedules, {due:,} of them due in one second")
        delays = await _delays(connection, moment, due)
        print(
            f"  started after: p50 {percentile(delays, 50):.2f} s,"
            f" p99 {percentile(delays, 99):.2f} s, all within {max(delays):.2f} s"
        )
        await connection.close()


async def _delays(connection: asyncpg.Connection, moment: float, due: int) -> list[float]:
    query = """
        SELECT extract(epoch FROM started_at - nominal_at)::float8 AS delay FROM task_history
        WHERE schedule_id IS NOT NULL AND nominal_at = to_timestamp($1)
    """
    async with asyncio.timeout(120):
        while True:
            rows = await connection.fetch(query, moment)
            if len(rows) >= due:
                return [row["delay"] for row in rows]
            await asyncio.sleep(0.5)


async def _idle(schedules: int, seconds: float) -> None:
    async with bench() as at:
        connection = await asyncpg.connect(at.database_url)
        await asyncio.sleep(5)
        node, both = await _watch(at, seconds)
        before = memory_mb(at.node_pid)
        print(f"nothing there: {node:.1%} of a core in the node, {both:.1%} with PostgreSQL")
        for _ in range(10):
            await _add(connection, at, schedules // 10, await _in(connection, 30 * _DAY))
        await connection.execute("VACUUM ANALYZE schedules")
        await connection.execute("CHECKPOINT")
        await asyncio.sleep(5)
        node_after, both_after = await _watch(at, seconds)
        memory = memory_mb(at.node_pid)
        print(
            f"{schedules:,} schedules, none due: {node_after:.1%} of a core in the node,"
            f" {both_after:.1%} with PostgreSQL (they add {both_after - both:+.1%});"
            f" the node's memory {before:.0f} MB → {memory:.0f} MB"
        )
        await connection.close()


async def _watch(at: Bench, seconds: float) -> tuple[float, float]:
    """The share of a core that the node uses, alone and together with PostgreSQL."""
    node, both = cpu_seconds(at.node_pid), cpu_seconds(at.node_pid, at.postgres_pid)
    await asyncio.sleep(seconds)
    return (
        (cpu_seconds(at.node_pid) - node) / seconds,
        (cpu_seconds(at.node_pid, at.postgres_pid) - both) / seconds,
    )


async def _add(connection: asyncpg.Connection, at: Bench, count: int, moment: float) -> None:
    """Schedules that are due at one moment, and then once a day."""
    definition = ScheduleDefinition(interval=_DAY, anchor=moment, start_at=moment)
    await connection.execute(
        _INSERT,
        at.tenant_id,
        count,
        timezones.version(),
        msgspec.json.encode(definition),
        _TEMPLATE,
        moment,
        timeout=300,
    )


async def _in(connection: asyncpg.Connection, seconds: float) -> float:
    now: float = await connection.fetchval("SELECT extract(epoch FROM clock_timestamp())::float8")
    return now + seconds
