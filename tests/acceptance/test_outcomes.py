"""What executors say is recorded, also where the database cannot store the words they use."""

import asyncio

import pytest

from support.client import fail, noop
from support.cluster import Cluster
from support.workers import RawWorker, work


@pytest.mark.parametrize("attempts", [1, 3])
async def test_an_error_with_a_nul_in_it_is_kept(cluster: Cluster, attempts: int) -> None:
    """PostgreSQL stores no NUL: something else stands for it, and all the rest is as it was."""
    tenant = await cluster.tenant()
    client = (await cluster.start()).client(tenant)
    odd = work(retry={"max_attempts": attempts, "initial": 0.05, "jitter": 0})
    ids = await client.batch([noop(), odd, fail(2), odd, noop()])
    worker, told = RawWorker(client), 0
    async with asyncio.timeout(10):
        while told < 2 * attempts:
            for task in await worker.lease():
                assert await worker.report(task, status="failed", error="a\0b") == ["accepted"]
                told += 1
    await cluster.evidence.all_finished(ids, within=10)
    await cluster.evidence.sound(ids)
    letter = (await client.get(f"/v1/dead-letters/{ids[1]}")).json()
    assert (letter["task"]["state"], letter["task"]["attempts"]) == ("failed", attempts)
    assert letter["final_error"] == {"code": "failed", "message": "a\ufffdb"}
    assert letter["reason"] == "exhausted"
    assert {told["error"]["message"] for told in letter["attempts"]} == {"a\ufffdb"}
