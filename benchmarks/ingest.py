"""How fast the API takes tasks in and shows them again, durable throughout.

Singles come over 64 connections, one request at a time on each: to the HTTP server with nothing
behind it, for comparison, to one node, and to two that share the connections (a node is one process
with one event loop, so that one alone cannot use a second core). Batches of 1,000 come over 4, as
JSON and as NDJSON. Then pages and single tasks are read while history holds a million rows.
"""

import argparse
import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from urllib.parse import urlsplit

import asyncpg
import msgspec
import uvloop

from benchmarks.harness import Bench, another_node, bare_server, bench, cpu_seconds
from benchmarks.wire import Totals, hammer, request

_BATCH = 1000
# Due tomorrow, so that nothing runs meanwhile: this is about taking tasks in.
_TASK = {
    "target": {"type": "http", "url": "https://api.example.com/hook"},
    "payload": {"order": 4711, "customer": "c-0815", "text": "x" * 150},
    "delay": 86400,
}
_ONE = msgspec.json.encode(_TASK)
_NDJSON = "application/x-ndjson"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=15, help="for each kind of request")
    parser.add_argument("--history", type=int, default=1_000_000, help="finished tasks to read in")
    parser.add_argument("--only", choices=["singles", "batches", "reads"])
    arguments = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(arguments.seconds, arguments.history, arguments.only))


async def _run(seconds: float, history: int, only: str | None) -> None:
    async with bench() as server:
        print(f"{'':22}{'goal':>18} {'rate':>11} {'p50':>9} {'p99':>9}   processor time a request")
        if only in (None, "singles"):
            await _singles(server, seconds)
        if only in (None, "batches"):
            await _batches(server, seconds)
        if only in (None, "reads"):
            await _fill_history(server, history)
            await _reads(server, seconds)


async def _singles(server: Bench, seconds: float) -> None:
    one = request("POST", "/v1/tasks", _ONE)
    async with server.client.post("/v1/tasks", data=_ONE) as created:
        answer = await created.read()
    async with bare_server(answer) as (port, pid):
        idle = replace(server, url=f"http://127.0.0.1:{port}", node_pid=pid)
        await _measure("bare HTTP server", "", [idle], [one], 64, seconds)
    await _measure("single creates", "6,000/s, 50 ms", [server], [one], 64, seconds)
    async with another_node(server) as other:
        goal = "6,000/s, 50 ms"
        await _measure("…by two nodes", goal, [server, other], [one], 64, seconds)


async def _batches(server: Bench, seconds: float) -> None:
    document = request("POST", "/v1/tasks/batch", msgspec.json.encode({"tasks": [_TASK] * _BATCH}))
    lines = request("POST", "/v1/tasks/batch", (_ONE + b"\n") * _BATCH, _NDJSON)
    await _measure("batches (JSON)", "30,000 tasks/s", [server], [document], 4, seconds, _BATCH)
    await _measure("batches (NDJSON)", "30,000 tasks/s", [server], [lines], 4, seconds, _BATCH)


async def _reads(server: Bench, seconds: float) -> None:
    """At a moderate rate: the question is how long one caller waits, not how many are served."""
    connection = await asyncpg.connect(server.database_url)
    rows = await connection.fetch(
        "SELECT id FROM task_history TABLESAMPLE SYSTEM (1) WHERE tenant_id = $1 LIMIT 2000",
        server.tenant_id,
    )
    await connection.close()
    some = [request("GET", f"/v1/tasks/{row['id']}") for row in rows]
    Random(1).shuffle(some)
    pages = [
        request("GET", "/v1/tasks?limit=50"),
        request("GET", "/v1/tasks?limit=50&state=failed"),
        request("GET", "/v1/tasks?limit=50&queue=default&name=n7"),
    ]
    await _measure("read one", "p99 20 ms", [server], some, 4, seconds)
    await _measure("list 50", "p99 20 ms", [server], pages[:1], 2, seconds)
    await _measure("list 50, filtered", "p99 20 ms", [server], pages[1:], 2, seconds)


async def _measure(
    name: str,
    goal: str,
    nodes: Sequence[Bench],
    requests: list[bytes],
    connections: int,
    seconds: float,
    tasks: int = 1,
) -> None:
    """`tasks`: how many each request creates."""
    ports = [urlsplit(node.url).port or 0 for node in nodes]
    await hammer(ports, requests, connections=connections, seconds=min(2.0, seconds))
    before = _usage(nodes)
    tally = await hammer(ports, requests, connections=connections, seconds=seconds)
    used = [after - start for after, start in zip(_usage(nodes), before, strict=True)]
    assert not tally.failures, tally.last_failure
    _print(name, goal, tally, used, tasks)


def _print(name: str, goal: str, tally: Totals, used: list[float], tasks: int) -> None:
    node, postgres, client = (1e6 * seconds / len(tally.latencies) for seconds in used)
    print(
        f"{name:22}{goal:>18} {tally.rate * tasks:9,.0f}/s"
        f" {tally.milliseconds(50):6.1f} ms {tally.milliseconds(99):6.1f} ms"
        f"   node {node:.0f} µs, PostgreSQL {postgres:.0f} µs, load generator {client:.0f} µs",
        flush=True,
    )


def _usage(nodes: Sequence[Bench]) -> tuple[float, float, float]:
    used = cpu_seconds(*(node.node_pid for node in nodes))
    return used, cpu_seconds(nodes[0].postgres_pid), time.process_time()


async def _fill_history(server: Bench, count: int) -> None:
    connection = await asyncpg.connect(server.database_url)
    await connection.execute(_FILL, server.tenant_id, count)
    await connection.execute("VACUUM ANALYZE task_history")
    await connection.execute("ANALYZE tasks")
    await connection.close()


# Ids as they would be, had the tasks been created one by one over the last eleven days.
_FILL = """
INSERT INTO task_history (id, created_at, run_at, due_at, picked_at, started_at, finished_at,
    tenant_id, rev, fence, attempts, failures, priority, state, queue, capability, name, spec,
    payload)
SELECT (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7'
        || substr(md5(n::text), 1, 3) || '8' || substr(md5(n::text), 4, 15))::uuid,
    at, at, at, at, at, at + interval '1 second', $1, 3, 1, 1, 0, 5,
    CASE WHEN n % 50 = 0 THEN 'failed' ELSE 'completed' END, 'default', 'http', 'n' || n % 1000,
    '{"target":{"type":"http","url":"https://api.example.com/hook","method":"POST"}}',
    convert_to(format('{"order":%s,"text":"%s"}', n, repeat('x', 150)), 'UTF8')
FROM generate_series(1, $2::int) AS n,
    LATERAL (SELECT clock_timestamp() - n * interval '1 second' AS at) AS times
"""


if __name__ == "__main__":
    main()
