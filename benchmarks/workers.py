"""Workers over HTTP: how many noops a second, how soon after they are due, what holding costs.

The worker is a process of its own that speaks the protocol and does nothing else; it shares the
machine with the node, PostgreSQL and the producer.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from benchmarks import sdk_workers
from benchmarks.feeding import BATCH, JSON, done, feed, trickle
from benchmarks.harness import Bench, bench, cpu_seconds, memory_mb, percentile

_TASK = {"target": {"type": "handler", "name": "noop"}, "payload": {"order": 4711}}
_encode = msgspec.json.Encoder().encode

Json = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--held", type=int, default=100_000)
    parser.add_argument("--only", choices=["rate", "delay", "held", "sdk"])
    arguments = parser.parse_args()
    asyncio.run(_measure(arguments.seconds, arguments.held, arguments.only))


async def _measure(seconds: float, held: int, only: str | None) -> None:
    if only in (None, "rate"):
        async with bench() as server:
            await _rate(server, seconds)
    if only in (None, "delay"):
        async with bench() as server:
            await _delay(server, seconds)
    if only in (None, "held"):
        async with bench() as server:
            await _hold(server, held, seconds)
    if only in (None, "sdk"):
        print("the same through `mainspring worker`:")
        await sdk_workers.measure(seconds)


# Throughput ------------------------------------------------------------------------------------


async def _rate(server: Bench, seconds: float) -> None:
    worker = await _start_worker(server, "--polls", "4", "--most", "1000")
    before = cpu_seconds(server.node_pid), cpu_seconds(server.postgres_pid)
    started = time.monotonic()
    await feed(server, _TASK, started + seconds)
    elapsed = time.monotonic() - started
    node = cpu_seconds(server.node_pid) - before[0]
    postgres = cpu_seconds(server.postgres_pid) - before[1]
    ended = await done(server)
    await _stop_worker(worker)
    rate = ended / elapsed
    print(f"noops through a worker       {rate:8.0f} tasks/s   (wanted: 8,000)")
    print(
        f"  processor share            node {node / elapsed:.0%}, "
        f"PostgreSQL {postgres / elapsed:.0%}; node memory {memory_mb(server.node_pid):.0f} MB"
    )


# Delay -----------------------------------------------------------------------------------------


async def _delay(server: Bench, seconds: float) -> None:
    worker = await _start_worker(server, "--polls", "4", "--most", "50", "--timed")
    sent = await trickle(server, {**_TASK, "delay": 0.5}, 500, seconds)
    delays = [1000 * delay for delay in (await _stop_worker(worker))["delays"]]
    late = ", ".join(f"p{p} {percentile(delays, p):.1f}" for p in (50, 90, 99))
    print(f"due → handler start at {sent / seconds:.0f}/s   {late} ms   (wanted: p50 ≤ 10 ms)")


# Holding ---------------------------------------------------------------------------------------


async def _hold(server: Bench, tasks: int, seconds: float) -> None:
    workers = 100
    body = _encode({"tasks": [{**_TASK, "timeout": 3600}] * BATCH})
    for _ in range(tasks // BATCH):
        async with server.client.post("/v1/tasks/batch", data=body, headers=JSON) as answer:
            assert answer.status == 201
    held: list[list[Json]] = [[] for _ in range(workers)]
    beating = [asyncio.create_task(_beat(server, n, held[n])) for n in range(workers)]
    for number in range(workers):
        await _lease(server, number, held[number], tasks // workers)
    print(f"held by {workers} workers          {sum(map(len, held)):8d} tasks")
    await asyncio.sleep(5)
    before, began = cpu_seconds(server.node_pid), time.monotonic()
    base = cpu_seconds(server.postgres_pid)
    await asyncio.sleep(max(20.0, seconds))
    elapsed = time.monotonic() - began
    node = (cpu_seconds(server.node_pid) - before) / elapsed
    postgres = (cpu_seconds(server.postgres_pid) - base) / elapsed
    lost = [b for b in beating if b.done()]
    for beat in beating:
        beat.cancel()
    assert not lost, lost[0].exception()
    print(
        f"  processor share            node {node:.0%} of a core (wanted: below 50 %), "
        f"PostgreSQL {postgres:.0%}; node memory {memory_mb(server.node_pid):.0f} MB"
    )


async def _lease(server: Bench, number: int, held: list[Json], wanted: int) -> None:
    while len(held) < wanted:
        most = min(1000, wanted - len(held))
        asked = {**_name(number), "handlers": ["noop"], "max": most, "wait": 10}
        answer = await _post(server, "/v1/leases", asked)
        held += [{"id": t["id"], "fence": t["fence"]} for t in answer["tasks"]]


async def _beat(server: Bench, number: int, held: list[Json]) -> None:
    """At a third of the lease, as workers do; each at a moment of its own."""
    await asyncio.sleep(5 * number / 100)
    pause = 5.0
    while True:
        if held:
            answer = await _post(server, "/v1/leases/heartbeat", {**_name(number), "running": held})
            assert all(task["action"] == "continue" for task in answer["tasks"])
            pause = 10.0  # a lease that was extended is twice as long
        await asyncio.sleep(pause)


def _name(number: int) -> Json:
    return {"worker": f"w{number}", "incarnation": "bench"}


async def _post(server: Bench, path: str, body: Json) -> Json:
    async with server.client.post(path, data=_encode(body), headers=JSON) as answer:
        assert answer.status == 200, await answer.text()
        found: Json = msgspec.json.decode(await answer.read())
        return found


# The worker's process --------------------------------------------------------------------------


async def _start_worker(server: Bench, *arguments: str) -> asyncio.subprocess.Process:
    command: Sequence[str] = (sys.executable, "-m", "benchmarks.plain_worker", server.url)
    return await asyncio.create_subprocess_exec(
        *command,
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=2**26,
    )


async def _stop_worker(worker: asyncio.subprocess.Process) -> Json:
    out, _ = await worker.communicate(b"")
    results: Json = json.loads(out)
    assert not results["problems"], results["problems"]
    return results
