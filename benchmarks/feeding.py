"""Tasks for workers to run: as many as they can take, or so many a second."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from benchmarks.harness import Bench

BATCH = 1000
JSON = {"Content-Type": "application/json"}
_BACKLOG = 20_000
_encode = msgspec.json.Encoder().encode


async def feed(server: Bench, task: Mapping[str, Any], deadline: float) -> int:
    """Two producers, held back while the worker is behind: the rate of the whole path counts. How
    far it is they learn seldom: asking takes the node's time."""
    body = _encode({"tasks": [task] * BATCH})
    created = ended = 0

    async def look() -> None:
        nonlocal ended
        while True:
            ended = await done(server)
            await asyncio.sleep(0.5)

    async def produce() -> None:
        nonlocal created
        while time.monotonic() < deadline:
            if created - ended > _BACKLOG:
                await asyncio.sleep(0.05)
                continue
            async with server.client.post("/v1/tasks/batch", data=body, headers=JSON) as answer:
                assert answer.status == 201, await answer.text()
            created += BATCH

    async with asyncio.TaskGroup() as group:
        looking = group.create_task(look())
        await asyncio.gather(produce(), produce())
        looking.cancel()
    return created


async def trickle(server: Bench, task: Mapping[str, Any], rate: float, seconds: float) -> int:
    """Single tasks, evenly; return how many once all have ended."""
    body = _encode(task)
    started, sent = time.monotonic(), 0
    posts: set[asyncio.Task[None]] = set()

    async def create() -> None:
        async with server.client.post("/v1/tasks", data=body, headers=JSON) as answer:
            assert answer.status == 201, await answer.text()

    while time.monotonic() - started < seconds:
        if sent < (time.monotonic() - started) * rate:
            posts.add(asyncio.create_task(create()))
            sent += 1
        else:
            await asyncio.sleep(0.001)
    await asyncio.gather(*posts)
    async with asyncio.timeout(60):
        while await done(server) < sent:  # noqa: ASYNC110 - another process counts
            await asyncio.sleep(0.1)
    return sent


async def done(server: Bench) -> int:
    """Tasks that ended, as the node counts them."""
    async with server.client.get("/metrics") as answer:
        for line in (await answer.text()).splitlines():
            if line.startswith('mainspring_tasks_finished_total{state="completed"}'):
                return int(float(line.split()[-1]))
    return 0
