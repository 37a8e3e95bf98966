"""Long polls under an Idempotency-Key: the node goes on answering others, and can be stopped."""

import asyncio
from typing import Any

import pytest

from support.client import Client, handler
from support.cluster import Cluster
from support.waiting import eventually

POLL = {"worker": "w1", "incarnation": "i1", "handlers": ["extract"]}
PROMPTLY = 5.0


def poll(client: Client, key: str, wait: float, **fields: Any) -> "asyncio.Task[Any]":
    wanted = {**POLL, "wait": wait, **fields}
    return asyncio.create_task(client.post("/v1/leases", wanted, Idempotency_Key=key))


@pytest.mark.parametrize("wait", [0, 1, 20])
async def test_poll_with_a_key_leaves_the_node_responsive(cluster: Cluster, wait: float) -> None:
    node, tenant = await cluster.start(), await cluster.tenant()
    client = node.client(tenant)
    polling = poll(client, "k1", wait)
    async with asyncio.timeout(PROMPTLY):
        assert (await client.get("/healthz")).status == 200
        assert (await client.create(handler("noop"))) is not None
    if wait < PROMPTLY:
        async with asyncio.timeout(PROMPTLY):
            assert (await polling).json()["tasks"] == []
    node.terminate()
    assert await node.ended(within=15) == 0
    async with asyncio.timeout(PROMPTLY):
        assert (await polling).status == 200


async def test_repeated_poll_gets_the_first_leases_again(cluster: Cluster) -> None:
    node, tenant = await cluster.start(), await cluster.tenant()
    client = node.client(tenant)
    task = {"target": {"type": "handler", "name": "extract"}}
    first, second = [poll(client, "k1", 20) for _ in range(2)]
    await client.create(task)
    async with asyncio.timeout(PROMPTLY):
        answers = [await first, await second]
    leased = [answer.json()["tasks"] for answer in answers]
    assert len(leased[0]) == 1
    assert leased[0] == leased[1]
    assert [a.headers.get("Idempotency-Replayed") for a in answers].count("true") == 1


async def test_worker_that_leaves_frees_the_key_of_its_poll(cluster: Cluster) -> None:
    """An abandoned poll keeps neither its key nor a task from the worker that asks again."""
    node, tenant = await cluster.start(), await cluster.tenant()
    client = node.client(tenant)
    abandoned = poll(client, "k1", 60)

    async def waits() -> bool:
        return await cluster.metric(node, "polls_waiting") == 1

    await eventually(waits, within=PROMPTLY, what="the poll waits")
    abandoned.cancel()
    await asyncio.gather(abandoned, return_exceptions=True)
    again = poll(client, "k1", 60)
    await client.create({"target": {"type": "handler", "name": "extract"}})
    async with asyncio.timeout(PROMPTLY):
        answer = await again
    assert len(answer.json()["tasks"]) == 1
    assert "Idempotency-Replayed" not in answer.headers
