"""Workers and nodes that die: real processes, killed while polls are open and leases held."""

import asyncio

import pytest

from support.client import Unacknowledged
from support.cluster import Cluster
from support.workers import RawWorker, work

pytestmark = pytest.mark.slow


async def test_tasks_of_a_node_killed_with_open_polls_start_elsewhere(cluster: Cluster) -> None:
    tenant = await cluster.tenant()
    doomed, steady = await cluster.start(), await cluster.start()
    client = steady.client(tenant)
    idle = RawWorker(doomed.client(tenant), "idle", handlers=["nothing"])
    asked = asyncio.create_task(idle.lease(most=50, wait=20))
    holding = RawWorker(doomed.client(tenant), "holding")
    before = [str(await client.create(work())) for _ in range(5)]
    leased = await holding.lease(most=50, wait=5)
    assert leased
    assert not asked.done()
    doomed.kill()
    with pytest.raises(Unacknowledged):
        await asked
    # The same process goes on at the other node: what it holds is its own, and can be reported.
    here = RawWorker(client, "elsewhere")
    created = [str(await client.create(work())) for _ in range(20)]
    mine = RawWorker(client, holding.name, incarnation=holding.incarnation)
    assert set(await mine.report(*leased)) == {"accepted"}
    done = {task["id"] for task in leased}
    async with asyncio.timeout(30):
        while not {*before, *created} <= done:
            tasks = await here.lease(most=50, wait=2)
            if tasks:
                assert set(await here.report(*tasks)) == {"accepted"}
                done |= {task["id"] for task in tasks}
    lost = "SELECT count(*) FROM tasks"
    assert await cluster.evidence.value(lost) == 0
    count_crash = "SELECT count(*) FROM task_history WHERE capability LIKE '%;alone'"
    assert await cluster.evidence.value(count_crash) == 0
