"""A handler that blocks the event loop of its worker for longer than leases last."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mainspring.sdk.resources.tasks import Task
from support import worker_app as tasks
from support.cluster import Cluster, Node
from support.sdk_workers import Workers, workers_at

pytestmark = pytest.mark.slow

BLOCKED = 8.0
"""Seconds; the leases of these clusters last 3."""


@pytest.fixture
async def node(cluster: Cluster) -> Node:
    return await cluster.start()


@pytest.fixture
async def workers(cluster: Cluster, node: Node, tmp_path: Path) -> AsyncIterator[Workers]:
    async with workers_at(cluster, node, tmp_path) as found:
        yield found


async def check(workers: Workers, neighbours: list[Task]) -> None:
    """Each ran once, and what began had its lease until it was over."""
    for task in neighbours:
        assert (await workers.ended(task, within=30)).state == "completed"
        executions = {e.attempt: e.outcome for e in await workers.client.tasks.executions(task.id)}
        assert set(executions.values()) <= {"succeeded", "released"}
        assert [executions[note.attempt] for note in workers.noted(task, "begin")] == ["succeeded"]


async def test_executions_beside_a_blocking_one_are_not_lost(workers: Workers) -> None:
    """53: those of the same answer, and those whose answer comes while the loop stands still."""
    together = [await workers.send(tasks.block_the_loop, BLOCKED, timeout=60, priority=9)]
    together += [await workers.send(tasks.nap, 0.1) for _ in range(3)]
    together += [await workers.send(tasks.nap_in_thread, 0.1) for _ in range(3)]
    await workers.start("--name", "w")
    await workers.until(together[0], "begin")
    later = [await workers.send(tasks.nap, 0.1) for _ in range(5)]
    later += [await workers.send(tasks.compute, 10) for _ in range(2)]
    await check(workers, [*together, *later])


async def test_another_worker_takes_what_waits_behind_it(workers: Workers) -> None:
    blocker = await workers.send(tasks.block_the_loop, 2 * BLOCKED, timeout=60)
    await workers.start("--name", "w")
    await workers.until(blocker, "begin")
    waiting = [await workers.send(tasks.nap, 0.1) for _ in range(4)]
    other = await workers.start("--name", "v")
    for task in waiting:
        begun = await workers.until(task, "begin")
        assert begun.pid == other.pid
    await check(workers, [blocker, *waiting])
