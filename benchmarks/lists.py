"""Lists with a filter, among very many tasks of one tenant: how long until the first page is there?

Each filter matches nothing, one task, or one in a hundred, among finished tasks of many days and
tasks that wait. A page counts as complete if it is full, or if all that matches is on it.
"""

import argparse
import asyncio
import time
from datetime import UTC, datetime, timedelta
from urllib.parse import quote
from uuid import UUID

import asyncpg
import msgspec

from benchmarks.harness import Bench, bench, percentile
from mainspring.postgres.database import Database, DatabaseOptions
from mainspring.store.upkeep.housekeeping import HousekeepingStore

_DAYS = 30
_LIMIT = 50
_ONE, _PERCENT = UUID(int=1), UUID(int=2)

Case = tuple[str, str, int]
"""A filter, as people say it and as the query string does, and how much of the page it fills."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--finished", type=int, default=1_000_000)
    parser.add_argument("--waiting", type=int, default=100_000)
    parser.add_argument("--requests", type=int, default=200)
    arguments = parser.parse_args()
    asyncio.run(_measure(arguments.finished, arguments.waiting, arguments.requests))


async def _measure(finished: int, waiting: int, requests: int) -> None:
    async with bench() as server:
        await fill(server.database_url, server.tenant_id, finished, waiting)
        print(f"{finished} finished tasks of {_DAYS} days, {waiting} that wait; milliseconds")
        print(f"{'filter':<34}{'p50':>8}{'p99':>8}   page")
        for words, query, wanted in cases():
            await _time(server, words, query, wanted, requests)


async def _time(server: Bench, words: str, query: str, wanted: int, requests: int) -> None:
    took: list[float] = []
    for _ in range(requests):
        started = time.perf_counter()
        async with server.client.get(f"/v1/tasks?limit={_LIMIT}{query}") as answer:
            body = await answer.read()
        took.append(1000 * (time.perf_counter() - started))
    page = msgspec.json.decode(body)
    found = len(page["items"])
    verdict = "complete" if found >= wanted else f"incomplete: {found} of {wanted}"
    p50, p99 = percentile(took, 50), percentile(took, 99)
    print(f"{words:<34}{p50:>8.1f}{p99:>8.1f}   {verdict}")


def cases() -> list[Case]:
    """What is asked: each filter by itself, and a few pairs."""
    soon = quote((datetime.now(UTC) + timedelta(hours=1)).isoformat())
    far = quote((datetime.now(UTC) + timedelta(days=300)).isoformat())
    old = quote((datetime.now(UTC) - timedelta(days=_DAYS + 2)).isoformat())
    return [
        ("no filter", "", _LIMIT),
        *_by("name", "name=none", "name=one", "name=percent"),
        *_by("queue", "queue=none", "queue=one", "queue=percent"),
        *_by("label", "label=kind:none", "label=kind:one", "label=kind:percent"),
        *_by("schedule", *(f"schedule_id={id}" for id in (UUID(int=9), _ONE, _PERCENT))),
        *_by("run", *(f"workflow_run_id={id}" for id in (UUID(int=9), _ONE, _PERCENT))),
        *_by("finished", "state=skipped", "state=expired", "state=failed"),
        ("completed, dense", "&state=completed", _LIMIT),
        *_by("unfinished", "state=blocked", "state=running", "state=paused"),
        ("scheduled, dense", "&state=scheduled", _LIMIT),
        ("due, none", f"&due_after={far}", 0),
        ("due before all", f"&due_before={old}", 0),
        ("due within the hour, one", f"&due_before={soon}&state=scheduled", 1),
        ("name dense and state one", "&name=common&state=expired", 1),
        ("name one and state dense", "&name=one&state=completed", 1),
        ("queue dense and name percent", "&queue=default&name=percent", _LIMIT),
    ]  # fmt: skip


def _by(words: str, none: str, one: str, percent: str) -> list[Case]:
    return [
        (f"{words}, none", f"&{none}", 0),
        (f"{words}, one", f"&{one}", 1),
        (f"{words}, one in a hundred", f"&{percent}", _LIMIT),
    ]


async def fill(url: str, tenant_id: int, finished: int, waiting: int) -> None:
    """Write the tasks straight into the tables, and what autovacuum would do in time."""
    connection = await asyncpg.connect(url)
    today = datetime.now(UTC).date()
    for day in (today - timedelta(back) for back in range(1, _DAYS)):
        await connection.execute(
            f"CREATE TABLE public.task_history_d{day:%Y%m%d} PARTITION OF task_history FOR VALUES "
            f"FROM ('{day}T00:00:00Z') TO ('{day + timedelta(1)}T00:00:00Z')"
        )
    await connection.execute(_FINISHED, tenant_id, finished, _DAYS, _ONE, _PERCENT)
    await connection.execute(_WAITING, tenant_id, waiting)
    await connection.execute("VACUUM (ANALYZE) task_history")
    await connection.execute("VACUUM (ANALYZE) tasks")
    await connection.execute("CHECKPOINT")
    await connection.close()
    store = Database(DatabaseOptions(url))
    await store.open()
    await HousekeepingStore(store).make_partitions(1)
    await store.close()


# An id as TaskIds makes it: the time in milliseconds, the version, and noise.
_ID = """
    (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7'
     || substr(md5(i::text), 1, 3) || '8' || substr(md5(i::text), 5, 15))::uuid
"""
# Half of them finished within the last day, the rest in the days before.
_FINISHED = f"""
INSERT INTO task_history (id, created_at, run_at, due_at, picked_at, started_at, finished_at,
    tenant_id, rev, fence, attempts, failures, priority, sla_met, state, queue, capability, name,
    labels, lateness, spec, payload, schedule_id, workflow_run_id, step)
SELECT {_ID}, at, at, at, at, at, at + interval '1 second', $1, 3, 1, 1, 0, 5, true,
    CASE WHEN i = $2 / 3 THEN 'expired' WHEN i % 100 = 7 THEN 'failed' ELSE 'completed' END,
    CASE WHEN i = $2 / 3 THEN 'one' WHEN i % 100 = 8 THEN 'percent' ELSE 'default' END,
    'handler:mainspring.noop',
    CASE WHEN i = $2 / 3 + 1 THEN 'one' WHEN i % 100 = 9 THEN 'percent' ELSE 'common' END,
    jsonb_build_object('customer', i % 1000, 'kind',
        CASE WHEN i = $2 / 3 THEN 'one' WHEN i % 100 = 10 THEN 'percent' ELSE 'common' END),
    '{{}}', '\\x7b22746172676574223a7b2274797065223a2268616e646c6572227d7d',
    convert_to(repeat('x', 200), 'UTF8'),
    CASE WHEN i = $2 / 3 THEN $4::uuid WHEN i % 100 = 11 THEN $5::uuid END,
    CASE WHEN i = $2 / 3 THEN $4::uuid WHEN i % 100 = 12 THEN $5::uuid END,
    CASE WHEN i = $2 / 3 OR i % 100 = 12 THEN 'step' END
FROM (SELECT i, now() - interval '10 seconds' - CASE
          WHEN i <= $2 / 2 THEN interval '1 day' * (i * 2.0 / $2)
          ELSE interval '1 day' * (1 + ($3 - 2) * (i * 2.0 / $2 - 1)) END AS at
      FROM generate_series($2::integer, 1, -1) AS i) made
"""
_WAITING = f"""
INSERT INTO tasks (id, created_at, run_at, due_at, picked_at, lease_until, worker, tenant_id,
    partition, priority, state, parked, queue, capability, name, labels, spec, payload)
SELECT {_ID}, at, due, due, CASE WHEN running THEN at END,
    CASE WHEN running THEN now() + interval '1 year' END, CASE WHEN running THEN 'bench' END, $1,
    partition_of($1, {_ID}, NULL, 256), 5,
    CASE WHEN running THEN 'running' WHEN i % 100 = 7 THEN 'paused' ELSE 'scheduled' END,
    i % 100 = 7 AND NOT running, 'default', 'handler:mainspring.noop', 'common',
    jsonb_build_object('customer', i % 1000, 'kind', 'common'),
    '\\x7b22746172676574223a7b2274797065223a2268616e646c6572227d7d',
    convert_to(repeat('x', 200), 'UTF8')
FROM (SELECT i, now() - interval '5 seconds' - interval '1 second' * i AS at, i = $2 / 2 AS running,
          CASE WHEN i = $2 / 2 THEN now() - interval '1 second'
          WHEN i = $2 / 3 THEN now() + interval '30 minutes'
          ELSE now() + interval '1 day' + interval '1 second' * i END AS due
      FROM generate_series($2::integer, 1, -1) AS i) made
"""


if __name__ == "__main__":
    main()
