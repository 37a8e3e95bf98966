"""Lateness over the death of nodes: what is written down survives, and no more is unknown."""

import asyncio
from typing import Any
from uuid import UUID

import pytest

from mainspring.domain.partitions import PARTITIONS, partition_of
from support.client import Client
from support.cluster import Cluster, Node, Tenant
from support.lateness import check_causes, check_sums, moment
from support.waiting import eventually
from support.workers import RawWorker, work

pytestmark = pytest.mark.slow

LEASE, WAIT, SLA = 3.0, 1.0, 0.5


async def placed(cluster: Cluster, tenant: Tenant, owner: Node, at: Node, **task: Any) -> str:
    """A task that one node owns, created at another: it is leased by nobody at once."""
    there = await cluster.partitions_of(owner)
    while True:
        made = await at.client(tenant).create({"sla": SLA, **task})
        if partition_of(tenant.id, UUID(str(made)), None, PARTITIONS) in there:
            return str(made)
        await at.client(tenant).post(f"/v1/tasks/{made}/cancel")


async def finished(client: Client, task_id: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    async def done() -> dict[str, Any] | None:
        task: dict[str, Any] = (await client.get(f"/v1/tasks/{task_id}")).json()
        return task if task["state"] == "completed" else None

    task = await eventually(done, within=30, what="it is completed")
    assert task is not None
    executions = (await client.get(f"/v1/tasks/{task_id}/executions")).json()["items"]
    return task, executions


async def test_a_lease_that_dies_with_its_owner_is_a_failed_execution(cluster: Cluster) -> None:
    tenant = await cluster.tenant()
    doomed, steady = await cluster.start(), await cluster.start()
    await cluster.balanced(doomed, steady)
    there = await placed(cluster, tenant, doomed, steady, **work())
    await asyncio.sleep(WAIT)
    client = steady.client(tenant)
    holder, other = RawWorker(client, "holder"), RawWorker(client, "other")
    (held,) = await holder.lease(most=1, wait=10)
    assert held["id"] == there
    doomed.kill()
    async with asyncio.timeout(30):
        while not (again := await other.lease(most=1, wait=2)):
            pass
    assert await other.report(*again) == ["accepted"]
    task, executions = await finished(client, there)
    check_sums(task, executions)
    assert [one["outcome"] for one in executions] == ["lost", "succeeded"]
    check_causes(executions[0]["lateness"], no_worker=WAIT)
    check_causes(task["lateness"], no_worker=WAIT, failed_tries=LEASE, fair_share=0, waiting=0)
    assert (task["sla_met"], task["blame"]) == (False, "capacity")


async def test_so_is_what_a_node_ran_itself(cluster: Cluster) -> None:
    tenant = await cluster.tenant()
    doomed, steady = await cluster.start(), await cluster.start()
    await cluster.balanced(doomed, steady)
    sleep = {"target": {"type": "handler", "name": "mainspring.sleep"}, "payload": {"seconds": 1.5}}
    there = await placed(cluster, tenant, doomed, steady, **sleep)
    client = steady.client(tenant)

    async def runs() -> bool:
        return bool((await client.get(f"/v1/tasks/{there}")).json()["state"] == "running")

    await eventually(runs, within=10, what="it runs")
    doomed.kill()
    task, executions = await finished(client, there)
    check_sums(task, executions)
    assert [one["outcome"] for one in executions] == ["lost", "succeeded"]
    check_causes(task["lateness"], failed_tries=LEASE, fair_share=0, waiting=0)
    assert (task["sla_met"], task["blame"]) == (False, "capacity")


async def test_what_nobody_accounted_for_ends_with_the_takeover(cluster: Cluster) -> None:
    tenant = await cluster.tenant()
    doomed, steady = await cluster.start(), await cluster.start()
    await cluster.balanced(doomed, steady)
    there = await placed(cluster, tenant, doomed, steady, **work())
    doomed.kill()
    client = steady.client(tenant)

    async def taken() -> bool:
        return len(await cluster.partitions_of(steady)) == PARTITIONS

    async def known() -> bool:
        told = (await client.get(f"/v1/tasks/{there}/explain")).json()
        return bool(told["source"] == "owner" and told["verdict"] == "no_worker")

    await eventually(taken, within=15, what="the partitions are taken over")
    await eventually(known, within=15, what="the new owner knows it")
    await asyncio.sleep(2 * WAIT)
    worker = RawWorker(client)
    (leased,) = await worker.lease(most=1, wait=10)
    assert await worker.report(leased) == ["accepted"]
    task, executions = await finished(client, there)
    check_sums(task, executions)
    late = moment(task["started_at"]) - moment(task["due_at"])
    check_causes(task["lateness"], no_worker=2 * WAIT, unattributed=0.0)
    assert task["lateness"]["unattributed"] < late - 2 * WAIT
