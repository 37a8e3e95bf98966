"""`mainspring worker`, in a process of its own: noops a second, delays, memory.

It shares the machine with the node, PostgreSQL and the producer. `workers` has the same figures for
a worker that does nothing but speak the protocol: the difference is what the SDK costs.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.feeding import BATCH, JSON, done, feed, trickle
from benchmarks.harness import API_KEY, Bench, bench, cpu_seconds, memory_mb, percentile

_encode = msgspec.json.Encoder().encode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--only", choices=["rate", "threads", "delay", "memory"])
    arguments = parser.parse_args()
    asyncio.run(measure(arguments.seconds, arguments.only))


async def measure(seconds: float, only: str | None = None) -> None:
    if only in (None, "rate"):
        async with bench() as server:
            await _rate(server, "noop", seconds)
    if only in (None, "threads"):
        async with bench() as server:
            await _rate(server, "noop_in_thread", seconds)
    if only in (None, "delay"):
        async with bench() as server:
            await _delay(server, seconds)
    if only in (None, "memory"):
        async with bench() as server:
            await _memory(server)


def _task(handler: str, **fields: Any) -> dict[str, Any]:
    return {"target": {"type": "handler", "name": handler}, "payload": {"order": 4711}, **fields}


# Throughput ------------------------------------------------------------------------------------


async def _rate(server: Bench, handler: str, seconds: float) -> None:
    async with _worker(server, "--concurrency", "2000") as worker:
        before = [cpu_seconds(pid) for pid in (server.node_pid, server.postgres_pid, worker.pid)]
        started = time.monotonic()
        created = await feed(server, _task(handler), started + seconds)
        elapsed = time.monotonic() - started
        ended = await done(server)
        after = [cpu_seconds(pid) for pid in (server.node_pid, server.postgres_pid, worker.pid)]
        shares = [(a - b) / elapsed for a, b in zip(after, before, strict=True)]
        wanted = "(wanted: 8,000)" if handler == "noop" else ""
        print(f"{handler:28} {ended / elapsed:8.0f} tasks/s   {wanted}")
        print(
            f"  processor share            node {shares[0]:.0%}, PostgreSQL {shares[1]:.0%}, "
            f"worker {shares[2]:.0%}; worker memory {memory_mb(worker.pid):.0f} MB; "
            f"{created - ended} left"
        )


# Delay -----------------------------------------------------------------------------------------


async def _delay(server: Bench, seconds: float) -> None:
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory, "delays")
        async with _worker(server, "--concurrency", "100", out=out):
            sent = await trickle(server, _task("timed", delay=0.5), 500, seconds)
        delays = _milliseconds(out)
    assert len(delays) == sent, f"{len(delays)} of {sent} tasks began"
    late = ", ".join(f"p{p} {percentile(delays, p):.1f}" for p in (50, 90, 99))
    print(f"due → handler start at {sent / seconds:.0f}/s   {late} ms   (wanted: p50 ≤ 10 ms)")


def _milliseconds(file: Path) -> list[float]:
    return [1000 * seconds for seconds in json.loads(file.read_text())]


async def _until(server: Bench, count: Callable[[Bench], Awaitable[int]], wanted: int) -> None:
    async with asyncio.timeout(60):
        while await count(server) < wanted:  # noqa: ASYNC110 - another process counts
            await asyncio.sleep(0.1)


# Memory ----------------------------------------------------------------------------------------


async def _memory(server: Bench) -> None:
    async with _worker(server, "--concurrency", "1000", "--grace", "0") as worker:
        empty = memory_mb(worker.pid)
        body = _encode({"tasks": [_task("nap", timeout=3600)] * BATCH})
        async with server.client.post("/v1/tasks/batch", data=body, headers=JSON) as answer:
            assert answer.status == 201, await answer.text()
        await _until(server, _running, BATCH)
        full = memory_mb(worker.pid)
    print(
        f"memory with 1,000 sleeping   {full:8.0f} MB   (wanted: below 150; {empty:.0f} MB before)"
    )


async def _running(server: Bench) -> int:
    query = {"state": "running", "limit": "1000"}
    async with server.client.get("/v1/tasks", params=query) as answer:
        found = msgspec.json.decode(await answer.read())
    return len(found["items"])


# The worker's process --------------------------------------------------------------------------


@asynccontextmanager
async def _worker(
    server: Bench, *options: str, out: Path | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    environment = {**os.environ, "MAINSPRING_URL": server.url, "MAINSPRING_API_KEY": API_KEY}
    if out is not None:
        environment["BENCH_OUT"] = str(out)
    worker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "mainspring", "worker", "benchmarks.sdk_app:app", *options),
        env=environment,
        stdout=asyncio.subprocess.PIPE,
    )
    assert worker.stdout is not None
    line = await worker.stdout.readline()
    assert b"takes tasks" in line, line
    try:
        yield worker
    finally:
        worker.terminate()
        await worker.communicate()
