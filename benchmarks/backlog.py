"""What a backlog costs: the delay from due to start of tasks that can run beside those that cannot.

Three worlds: almost empty; millions of tasks in the future; a million due that nothing can run.
The delay must not depend on them, and neither may the node's memory.
"""

import argparse
import asyncio
from datetime import UTC, datetime, timedelta

import asyncpg
import msgspec

from benchmarks.harness import Bench, bench, memory_mb, percentile

_PROBES = 1000
_ROUNDS = 3
_OVER = 10.0
_NOOP = {"type": "handler", "name": "mainspring.noop"}
_CHUNK = 250_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--future", type=int, default=5_000_000, help="tasks in the future")
    parser.add_argument("--due", type=int, default=1_000_000, help="tasks due, without capacity")
    arguments = parser.parse_args()
    asyncio.run(_compare(arguments.future, arguments.due))


async def _compare(future: int, due: int) -> None:
    small = await _world("1,000 future tasks", _future_rows(1000))
    large = await _world(f"{future:,} future tasks", _future_rows(future))
    stuck = await _world(f"{due:,} due tasks, no capacity", _stuck_rows(due))
    for name, delays in (("future tasks", large), ("due tasks without capacity", stuck)):
        ratios = (percentile(delays, p) / percentile(small, p) for p in (50, 99))
        print(f"{name}: p50 × {next(ratios):.2f}, p99 × {next(ratios):.2f}")


async def _world(name: str, rows: "list[tuple[str, int]]") -> list[float]:
    async with bench() as server:
        connection = await asyncpg.connect(server.database_url)
        for sql, count in rows:
            await connection.execute(sql, server.tenant_id, count, timeout=600)
        await connection.execute("VACUUM ANALYZE tasks", timeout=600)
        # Filling the table leaves gigabytes to be written; the backlog is asked about, not that.
        await connection.execute("CHECKPOINT", timeout=600)
        await _probe(server, connection)  # the first round warms up caches and prepared statements
        before = memory_mb(server.node_pid)
        # Several rounds, so that one hiccup of the machine is not the ninety-ninth percentile.
        delays = [d for _ in range(_ROUNDS) for d in await _probe(server, connection)]
        after = memory_mb(server.node_pid)
        await connection.close()
    print(
        f"{name:35} start - due: p50 {percentile(delays, 50):6.2f} ms, "
        f"p99 {percentile(delays, 99):6.2f} ms, max {max(delays):6.2f} ms; "
        f"node memory {before:.0f} → {after:.0f} MB"
    )
    return delays


async def _probe(server: Bench, connection: "asyncpg.Connection[asyncpg.Record]") -> list[float]:
    """Tasks spread evenly over some seconds; return how late each started, in milliseconds."""
    first = datetime.now(UTC) + timedelta(seconds=2)
    times = [first + timedelta(seconds=i * _OVER / _PROBES) for i in range(_PROBES)]
    tasks = [{"name": "probe", "target": _NOOP, "run_at": t.isoformat()} for t in times]
    async with server.client.post(
        "/v1/tasks/batch",
        data=msgspec.json.encode({"tasks": tasks}),
        headers={"Content-Type": "application/json"},
    ) as answer:
        assert answer.status == 201, await answer.text()
        ids = (await answer.json())["ids"]
    await asyncio.sleep(_OVER + 2.5)
    rows = await connection.fetch(
        "SELECT extract(epoch FROM started_at - due_at)::float8 * 1000 AS late FROM executions "
        "WHERE tenant_id = $1 AND task_id = ANY ($2::uuid[])",
        server.tenant_id,
        ids,
    )
    assert len(rows) == _PROBES, f"only {len(rows)} of {_PROBES} started"
    delays = [row["late"] for row in rows]
    assert min(delays) >= 0, "a task started early"
    return delays


def _future_rows(count: int) -> list[tuple[str, int]]:
    return _in_chunks(_INSERT.format(due="now() + interval '1 day' + n * interval '1 ms'"), count)


def _stuck_rows(count: int) -> list[tuple[str, int]]:
    return _in_chunks(_INSERT.format(due="now() - n * interval '1 ms'"), count)


def _in_chunks(sql: str, count: int) -> list[tuple[str, int]]:
    return [(sql, min(_CHUNK, count - done)) for done in range(0, count, _CHUNK)]


# No executor has this capability, so a due task of it waits for a worker that never comes.
_INSERT = """
INSERT INTO tasks (id, created_at, run_at, due_at, tenant_id, partition, priority, queue,
    capability, spec, payload)
SELECT id, now(), {due}, {due}, $1, partition_of($1, id, NULL, 256), 5, 'default',
    'handler:nobody.has.this', '{{"target":{{"type":"handler","name":"nobody.has.this"}}}}', '{{}}'
FROM (SELECT gen_random_uuid() AS id, n FROM generate_series(1, $2::integer) AS n) AS made
"""
