"""Two nodes under fire: no task is lost, none runs twice for one outcome, none starts early."""

import asyncio

import pytest

from support.chaos import kill_in_turns
from support.client import Client, noop
from support.cluster import Cluster, Node, Tenant
from support.traffic import Traffic

TASKS = 10_000
UNDER_FIRE = 60.0
BETWEEN_KILLS = 2.0

pytestmark = pytest.mark.slow


async def test_two_nodes_ten_thousand_tasks_no_duplicate_none_lost(cluster: Cluster) -> None:
    tenant = await cluster.tenant()
    nodes = await cluster.pair()
    batches = [noop(delay=delay) for delay in (0, 0, 0, 1) for _ in range(250)]
    made = await asyncio.gather(
        *(nodes[n % 2].client(tenant).batch(batches) for n in range(TASKS // len(batches)))
    )
    ids = [task_id for batch in made for task_id in batch]
    await cluster.evidence.all_finished(ids, within=60)
    await cluster.evidence.sound(ids)
    assert await cluster.evidence.value("SELECT count(*) FROM executions") == TASKS
    workers = await cluster.evidence.value("SELECT count(DISTINCT worker) FROM executions")
    assert workers == 2, "both nodes had their share"


async def test_nodes_killed_again_and_again_lose_nothing(cluster: Cluster) -> None:
    """One of two nodes is killed every few seconds and another started, under steady creates."""
    tenant, traffic, stop = await cluster.tenant(), Traffic(), asyncio.Event()
    nodes = list(await cluster.pair())
    flow = asyncio.create_task(traffic.flow(lambda: clients(nodes, tenant), pause=0.1, stop=stop))
    kills = await kill_in_turns(cluster, nodes, seconds=UNDER_FIRE, between=BETWEEN_KILLS)
    stop.set()
    await flow
    for client in clients(nodes, tenant)[:1]:
        await traffic.send_again(client)
    print(f"{kills} kills, {len(traffic.acknowledged)} tasks acknowledged")
    assert kills >= 5
    await cluster.evidence.all_finished(traffic.acknowledged, within=30)
    await cluster.evidence.sound(traffic.acknowledged)


def clients(nodes: list[Node], tenant: Tenant) -> list[Client]:
    return [node.client(tenant) for node in nodes]
