"""The whole life of a task: batch create over HTTP → claim → noop → history, durable throughout.

Beside it, in the same run and on the same kind of server, the same rows are moved by plain asyncpg:
what PostgreSQL and a Python process can do at all. The ratio says what the product costs.
"""

import argparse
import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from random import Random

import asyncpg
import msgspec

from benchmarks.harness import Bench, bench, cpu_seconds, database, memory_mb
from mainspring.domain.ids import TaskIds
from mainspring.domain.partitions import partition_of

_BATCH = 1000
_PAYLOAD = {"order": 4711, "customer": "c-0815", "text": "x" * 150}
_JSON = {"Content-Type": "application/json"}
_TASK = {"target": {"type": "handler", "name": "mainspring.noop"}, "payload": _PAYLOAD}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--baseline-seconds", type=float, default=15)
    arguments = parser.parse_args()
    asyncio.run(_compare(arguments.seconds, arguments.baseline_seconds))


async def _compare(seconds: float, baseline_seconds: float) -> None:
    baseline = await _plain_asyncpg(baseline_seconds)
    print(f"plain asyncpg    {baseline:8.0f} tasks/s")
    async with bench() as server:
        product = await _product(server, seconds)
    print(f"ratio            {product / baseline:8.2f}")


async def _product(server: Bench, seconds: float) -> float:
    before = _usage(server)
    started, deadline = time.monotonic(), time.monotonic() + seconds
    feed = Feed(_TASK, batch=_BATCH, producers=6, backlog=20_000)
    sent = await feed.run(server, deadline)
    elapsed = time.monotonic() - started
    python, postgres, client = (a - b for a, b in zip(_usage(server), before, strict=True))
    rate = sent / elapsed
    print(f"mainspring       {rate:8.0f} tasks/s  ({sent} tasks in {elapsed:.1f} s)")
    print(
        f"processor share  node {python / elapsed:.0%}, PostgreSQL {postgres / elapsed:.0%}, "
        f"load generator {client / elapsed:.0%} of one core each; "
        f"node memory {memory_mb(server.node_pid):.0f} MB"
    )
    return rate


@dataclass(frozen=True, slots=True)
class Feed:
    """Producers that create one task in batches, and wait while many are unfinished."""

    task: Mapping[str, object]
    batch: int
    producers: int
    backlog: int

    async def run(self, server: Bench, deadline: float) -> int:
        """Create until the deadline; return how many once all have ended: the rate of the whole
        path counts."""
        body = msgspec.json.encode({"tasks": [self.task] * self.batch})
        connection = await asyncpg.connect(server.database_url)
        unfinished = Backlog(connection)
        sent = 0

        async def produce() -> None:
            nonlocal sent
            while time.monotonic() < deadline:
                await unfinished.wait_below(self.backlog)
                async with server.client.post(
                    "/v1/tasks/batch", data=body, headers=_JSON
                ) as answer:
                    assert answer.status == 201, await answer.text()
                    await answer.read()
                sent += self.batch

        watching = asyncio.create_task(unfinished.watch())
        await asyncio.gather(*(produce() for _ in range(self.producers)))
        await unfinished.wait_below(1)
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        await connection.close()
        return sent


class Backlog:
    """How many tasks are unfinished, looked at seldom: counting takes PostgreSQL's time."""

    def __init__(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        self._connection = connection
        self._unfinished = 0
        self._looked = asyncio.Condition()

    async def watch(self) -> None:
        while True:
            unfinished = await self._connection.fetchval("SELECT count(*) FROM tasks")
            async with self._looked:
                self._unfinished = unfinished
                self._looked.notify_all()
            # Towards the end the question is when it is reached, and there is little to count.
            await asyncio.sleep(0.5 if unfinished > 2000 else 0.05)

    async def wait_below(self, limit: int) -> None:
        async with self._looked:
            if limit == 1:
                await self._looked.wait()
            await self._looked.wait_for(lambda: self._unfinished < limit)


def _usage(server: Bench) -> tuple[float, float, float]:
    return (
        cpu_seconds(server.node_pid),
        cpu_seconds(server.postgres_pid),
        time.process_time(),
    )


async def _plain_asyncpg(seconds: float) -> float:
    """The same rows through the same tables, by bare statements from one process."""
    async with database() as (url, _pid):
        pool = await asyncpg.create_pool(url, min_size=6, max_size=6)
        deadline = time.monotonic() + seconds
        started = time.monotonic()
        moved = await asyncio.gather(*(_move(pool, deadline, seed) for seed in range(2)))
        rate = sum(moved) / (time.monotonic() - started)
        await pool.close()
        return rate


async def _move(pool: "asyncpg.Pool[asyncpg.Record]", deadline: float, seed: int) -> int:
    ids, moved = TaskIds(Random(seed)), 0
    payload, spec = msgspec.json.encode(_PAYLOAD), msgspec.json.encode({"target": _TASK["target"]})
    while time.monotonic() < deadline:
        batch = [ids.make(time.time()) for _ in range(_BATCH)]
        places = [partition_of(1, i, None, 256) for i in batch]
        await pool.execute(_INSERT, batch, places, [spec] * _BATCH, [payload] * _BATCH)
        await pool.fetch(_CLAIM, batch)
        await pool.execute(_FINISH, batch)
        moved += _BATCH
    return moved


_INSERT = """
INSERT INTO tasks (id, created_at, run_at, due_at, tenant_id, partition, priority, queue,
    capability, spec, payload)
SELECT id, now(), now(), now(), 1, place, 5, 'default', 'handler:mainspring.noop', spec, payload
FROM unnest($1::uuid[], $2::smallint[], $3::bytea[], $4::bytea[]) AS i (id, place, spec, payload)
"""
_CLAIM = """
UPDATE tasks SET state = 'running', fence = fence + 1, rev = rev + 1, worker = 'bench',
    picked_at = clock_timestamp(), lease_until = clock_timestamp() + interval '15 s'
WHERE tenant_id = 1 AND id = ANY ($1) AND state = 'scheduled'
RETURNING id, fence, spec, payload
"""
_FINISH = """
WITH done AS (
    DELETE FROM tasks WHERE tenant_id = 1 AND id = ANY ($1) AND state = 'running' RETURNING *
), history AS (
    INSERT INTO task_history (id, created_at, run_at, due_at, picked_at, started_at, finished_at,
        tenant_id, rev, fence, attempts, failures, priority, state, queue, capability, spec,
        payload)
    SELECT id, created_at, run_at, due_at, picked_at, picked_at, clock_timestamp(), tenant_id, rev,
        fence, 1, 0, priority, 'completed', queue, capability, spec, payload
    FROM done
)
INSERT INTO executions (task_id, due_at, picked_at, started_at, finished_at, tenant_id, fence,
    attempt, outcome, worker)
SELECT id, due_at, picked_at, picked_at, clock_timestamp(), tenant_id, fence, 1, 'succeeded', worker
FROM done
"""
