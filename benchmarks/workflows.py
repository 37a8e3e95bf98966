"""Workflows of noops, durable throughout: from a parent's end to its child's start at a steady rate
of diamonds, a long chain, and a wide fan-out with its join."""

import argparse
import asyncio
import time
from typing import Any

import asyncpg
import msgspec

from benchmarks.harness import Bench, bench, cpu_seconds, percentile

_JSON = {"Content-Type": "application/json"}
_NOOP = {"type": "handler", "name": "mainspring.noop"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=200, help="diamonds per second")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--chain", type=int, default=1000)
    parser.add_argument("--fan", type=int, default=10_000)
    arguments = parser.parse_args()
    asyncio.run(_measure(arguments))


async def _measure(wanted: argparse.Namespace) -> None:
    async with bench() as server:
        connection = await asyncpg.connect(server.database_url)
        await _diamonds(server, connection, wanted.rate, wanted.seconds)
        await _chain(server, connection, wanted.chain)
        await _fan(server, connection, wanted.fan)
        await connection.close()


async def _diamonds(
    server: Bench, connection: "asyncpg.Connection[asyncpg.Record]", rate: float, seconds: float
) -> None:
    steps = [_step("a"), _step("b", "a"), _step("c", "a"), _step("d", "b", "c"), _step("e", "d")]
    await _define(server, "diamond", steps)
    await _paced(server, "diamond", rate, 2)  # plans are made, caches are warm
    before = await connection.fetchval("SELECT clock_timestamp()")
    used = cpu_seconds(server.node_pid), cpu_seconds(server.postgres_pid)
    started = time.monotonic()
    begun = await _paced(server, "diamond", rate, seconds)
    elapsed = time.monotonic() - started
    node, postgres = (
        now - then
        for now, then in zip(
            (cpu_seconds(server.node_pid), cpu_seconds(server.postgres_pid)), used, strict=True
        )
    )
    await _until_over(connection, "diamond")
    waits = [row["ms"] for row in await connection.fetch(_HANDOVERS, before)]
    print(
        f"diamonds         {begun / elapsed:8.1f} runs/s, {5 * begun / elapsed:.0f} steps/s  "
        f"(node {node / elapsed:.0%}, PostgreSQL {postgres / elapsed:.0%} of a core)"
    )
    print(
        f"parent to child  p50 {percentile(waits, 50):.1f} ms  p90 {percentile(waits, 90):.1f} ms  "
        f"p99 {percentile(waits, 99):.1f} ms  max {max(waits):.1f} ms  ({len(waits)} starts)"
    )


async def _chain(
    server: Bench, connection: "asyncpg.Connection[asyncpg.Record]", length: int
) -> None:
    steps = [_step("s0")] + [_step(f"s{n}", f"s{n - 1}") for n in range(1, length)]
    await _define(server, "chain", steps)
    took = await _one(server, connection, "chain")
    print(f"chain            {took:8.2f} s for {length} steps, {1000 * took / length:.2f} ms each")


async def _fan(server: Bench, connection: "asyncpg.Connection[asyncpg.Record]", width: int) -> None:
    middle = [f"w{n}" for n in range(width - 2)]
    steps = [_step("root"), *(_step(name, "root") for name in middle), _step("join", *middle)]
    await _define(server, "fan", steps)
    took = await _one(server, connection, "fan")
    print(f"fan-out          {took:8.2f} s for {width} steps and their join")
    foreach = [
        {**_step("each"), "foreach": list(range(width))},
        _step("after", "each"),
    ]
    await _define(server, "foreach", foreach)
    took = await _one(server, connection, "foreach")
    print(f"foreach          {took:8.2f} s for {width} items and their join")


def _step(name: str, *needs: str) -> dict[str, Any]:
    return {"id": name, "needs": list(needs), "target": _NOOP}


async def _define(server: Bench, name: str, steps: list[dict[str, Any]]) -> None:
    body = msgspec.json.encode({"name": name, "steps": steps})
    async with server.client.post("/v1/workflows", data=body, headers=_JSON) as answer:
        assert answer.status == 201, (await answer.text())[:500]


async def _begin(server: Bench, name: str) -> None:
    async with server.client.post(
        f"/v1/workflows/{name}/runs", data=b"{}", headers=_JSON
    ) as answer:
        assert answer.status == 201, (await answer.text())[:500]


async def _paced(server: Bench, name: str, rate: float, seconds: float) -> int:
    """Begin runs at even intervals, whatever becomes of those before."""
    begun: list[asyncio.Task[None]] = []
    started = time.monotonic()
    while (now := time.monotonic() - started) < seconds:
        while len(begun) < now * rate:
            begun.append(asyncio.create_task(_begin(server, name)))
        await asyncio.sleep(1 / rate)
    await asyncio.gather(*begun)
    return len(begun)


async def _one(server: Bench, connection: "asyncpg.Connection[asyncpg.Record]", name: str) -> float:
    """Seconds from the request to the end of the run, by its own record."""
    started = time.time()
    await _begin(server, name)
    await _until_over(connection, name)
    ended = await connection.fetchval(
        "SELECT extract(epoch FROM max(finished_at))::float8 FROM workflow_runs"
        " WHERE workflow = $1",
        name,
    )
    return float(ended) - started


async def _until_over(connection: "asyncpg.Connection[asyncpg.Record]", name: str) -> None:
    async with asyncio.timeout(120):
        while await connection.fetchval(  # noqa: ASYNC110 - the database has no signal for this
            "SELECT count(*) FROM workflow_runs WHERE workflow = $1 AND finished_at IS NULL", name
        ):
            await asyncio.sleep(0.05)


# A child's start against the end of the last of its parents.
_HANDOVERS = """
SELECT extract(epoch FROM c.started_at - max(p.finished_at))::float8 * 1000 AS ms
FROM workflow_runs r
JOIN workflow_steps p ON p.run_id = r.id
CROSS JOIN LATERAL unnest(p.children) AS child
JOIN workflow_steps c ON c.run_id = r.id AND c.step = child AND c.item = -1
WHERE r.workflow = 'diamond' AND r.created_at >= $1
GROUP BY c.run_id, c.step, c.started_at
"""
