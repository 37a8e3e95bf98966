"""Callers that race each other, and racing the engine: one effect, one end."""

import asyncio
from collections.abc import Sequence
from uuid import UUID

import pytest

from support.client import Client, noop, sleep
from support.cluster import Cluster

CALLERS = 100
RACES = 300


async def test_a_hundred_creates_under_one_key_on_two_nodes(cluster: Cluster) -> None:
    tenant = await cluster.tenant()
    nodes = await cluster.pair()
    clients = [node.client(tenant) for node in nodes]
    task = noop(delay=0.2, payload={"order": 7})
    answers = await asyncio.gather(
        *(clients[n % 2].post("/v1/tasks", task, Idempotency_Key="order-7") for n in range(CALLERS))
    )
    assert {answer.status for answer in answers} == {201}
    assert len({answer.body for answer in answers}) == 1
    task_id = UUID(answers[0].json()["id"])
    await cluster.evidence.all_finished([task_id], within=5)
    await cluster.evidence.sound([task_id])
    assert await cluster.evidence.value("SELECT count(*) FROM task_history") == 1
    again = await clients[0].post("/v1/tasks", task, Idempotency_Key="order-7")
    assert again.body == answers[0].body


async def test_cancel_races_start_races_completion(cluster: Cluster) -> None:
    """Each task is cancelled at about the moment it starts or ends, through either node. Where the
    requests are slow, they are sent earlier."""
    tenant = await cluster.tenant()
    clients = [node.client(tenant) for node in await cluster.pair()]
    ends: set[str] = set()
    for early in (0.0, 0.1, 0.2, 0.4):
        ends |= await race(cluster, clients, early)
        if ends == {"completed", "cancelled"}:
            return
    pytest.fail(f"the race was one-sided: all were {ends}")


async def race(cluster: Cluster, clients: Sequence[Client], early: float) -> set[str]:
    """Cancel tasks that run for a moment; return the states in which they ended."""
    tasks = [sleep(0.05, delay=0.3 + early + n / RACES) for n in range(RACES)]
    ids = await clients[0].batch(tasks)
    statuses = await asyncio.gather(
        *(
            cancel_after(clients[n % 2], task, 0.22 + n / RACES + n % 7 / 40)
            for n, task in enumerate(ids)
        )
    )
    assert set(statuses) <= {200, 409}
    await cluster.evidence.all_finished(ids, within=10)
    await cluster.evidence.sound(ids)
    rows = await cluster.evidence.rows(
        "SELECT DISTINCT state FROM task_history WHERE id = ANY($1)", ids
    )
    return {row["state"] for row in rows}


async def cancel_after(client: Client, task_id: UUID, seconds: float) -> int:
    await asyncio.sleep(seconds)
    return (await client.post(f"/v1/tasks/{task_id}/cancel")).status
