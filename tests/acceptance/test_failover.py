"""A node dies, freezes or leaves: others take over in time, and what it still writes is void."""

from collections.abc import Sequence
from uuid import UUID

import pytest

from mainspring.domain.partitions import PARTITIONS
from mainspring.domain.tenant import TenantLimits
from support.client import Task, noop, sleep
from support.cluster import Cluster, Node, Tenant
from support.waiting import eventually

pytestmark = pytest.mark.slow

_NOW = "SELECT extract(epoch FROM clock_timestamp())::float8 AS now"
_RUNNING = "SELECT count(*) FROM tasks WHERE state = 'running' AND id = ANY ($1::uuid[])"
_RUNNING_AT = (
    "SELECT count(*) FROM tasks t JOIN nodes n ON t.worker = 'node:' || n.id WHERE n.name = $1"
)
_STARTS = (
    "SELECT extract(epoch FROM started_at)::float8 AS started FROM executions"
    " WHERE task_id = ANY ($1::uuid[])"
)
_LOST = "SELECT count(*) FROM executions WHERE outcome = 'lost'"
_HISTORY = "SELECT id, fence, state, finished_at FROM task_history ORDER BY id"


async def test_a_killed_node_is_replaced_within_three_seconds(cluster: Cluster) -> None:
    """With the default heartbeat, tasks that it had not claimed start elsewhere in time."""
    tenant = await cluster.tenant()
    victim, heir = await cluster.pair(heartbeat=0.5, node_ttl=2, lease=15)
    ids = await heir.client(tenant).batch([noop(delay=1.0)] * 400)
    orphans = await tasks_in(cluster, await cluster.partitions_of(victim))
    victim.kill()
    killed = (await cluster.evidence.rows(_NOW))[0]["now"]
    await cluster.evidence.all_finished(ids, within=10)
    await cluster.evidence.sound(ids)
    starts = await cluster.evidence.rows(_STARTS, orphans)
    assert len(starts) == len(orphans) > 0
    latest = max(row["started"] for row in starts)
    print(f"from the kill to the last start in a partition of the dead: {latest - killed:.2f} s")
    assert latest - killed <= 3.0


async def test_a_frozen_owner_changes_nothing_when_it_wakes(cluster: Cluster) -> None:
    tenant = await cluster.tenant()
    frozen, other = await cluster.pair()
    ids = await other.client(tenant).batch([sleep(1.0)] * 40)
    await running_at(cluster, frozen, at_least=10)
    frozen.freeze()
    await cluster.evidence.all_finished(ids, within=15)
    before = await cluster.evidence.rows(_HISTORY)
    frozen.thaw()
    await eventually(
        lambda: refused_outcomes(cluster, frozen), within=10, what="stale outcomes are refused"
    )
    assert await cluster.evidence.rows(_HISTORY) == before
    await cluster.evidence.sound(ids)
    await cluster.balanced(frozen, other)  # it is a member again, under a new identity
    more = await frozen.client(tenant).batch([noop()] * 100)
    await cluster.evidence.all_finished(more, within=5)
    await cluster.evidence.sound(more)


async def test_a_key_stays_exclusive_while_its_owner_is_replaced(cluster: Cluster) -> None:
    tenant = await cluster.tenant()
    task = sleep(0.2, concurrency={"key": "printer", "limit": 1})
    ids = await freeze_the_owner(cluster, tenant, [task] * 15)
    await cluster.evidence.sound(ids)
    assert not await cluster.evidence.overlaps("printer")


async def test_a_tenants_limit_holds_while_its_owner_is_replaced(
    cluster: Cluster,
) -> None:
    tenant = await cluster.tenant()
    limits = TenantLimits(max_running=3, spread=1)
    await cluster.tenants.change(tenant.id, lambda _: limits, "test")
    ids = await freeze_the_owner(cluster, tenant, [sleep(0.2)] * 40)
    await cluster.evidence.sound(ids)
    assert await cluster.evidence.most_at_once(tenant.id) == 3


async def freeze_the_owner(
    cluster: Cluster, tenant: Tenant, tasks: Sequence[Task]
) -> Sequence[UUID]:
    """Create these, freeze the owner of their partition until its leases ran out and another took
    over, wake it, and wait until all are done."""
    nodes = await cluster.pair()
    ids = await nodes[0].client(tenant).batch(tasks)
    owner, other = await owner_first(cluster, tenant, nodes)
    await running_at(cluster, owner, at_least=1)
    owner.freeze()
    await owns_everything(cluster, other)
    await running_at(cluster, other, at_least=1)
    owner.thaw()
    await cluster.balanced(*nodes)
    await cluster.evidence.all_finished(ids, within=30)
    return ids


async def test_a_node_that_leaves_hands_over_at_once(cluster: Cluster) -> None:
    """SIGTERM: short work finishes, long work is released and runs elsewhere at once."""
    tenant = await cluster.tenant()
    leaving, heir = await cluster.pair(grace=3)
    short = await heir.client(tenant).batch([sleep(2.0)] * 20)
    long = await heir.client(tenant).batch([sleep(60)] * 20)
    await all_running(cluster, short + long)
    leaving.terminate()
    await owns_everything(cluster, heir, within=1.0)
    assert await leaving.ended(within=10) == 0
    await cluster.evidence.all_finished(short, within=5)
    await cluster.evidence.sound(short)
    assert await cluster.evidence.value(_LOST) == 0
    await running_at(cluster, heir, at_least=len(long), within=3)
    assert await longest_gap_after_release(cluster) < 1.0


async def test_a_node_that_leaves_under_load_loses_no_lease(cluster: Cluster) -> None:
    """SIGTERM in the middle of a rush: nothing has to wait for a lease to run out."""
    tenant = await cluster.tenant()
    leaving, heir = await cluster.pair()
    ids = await heir.client(tenant).batch([sleep(0.05, delay=1 + n / 4000) for n in range(4000)])
    await running_at(cluster, leaving, at_least=1)
    leaving.terminate()
    assert await leaving.ended(within=10) == 0
    await cluster.evidence.all_finished(ids, within=10)
    await cluster.evidence.sound(ids)
    assert await cluster.evidence.value(_LOST) == 0


async def tasks_in(cluster: Cluster, partitions: set[int]) -> list[UUID]:
    rows = await cluster.evidence.rows(
        "SELECT id FROM tasks WHERE partition = ANY ($1::smallint[])", list(partitions)
    )
    return [row["id"] for row in rows]


async def owner_first(
    cluster: Cluster, tenant: Tenant, nodes: tuple[Node, Node]
) -> tuple[Node, Node]:
    """These nodes, the one first that owns where the tenant's tasks lie."""
    rows = await cluster.evidence.rows(
        "SELECT DISTINCT partition FROM tasks WHERE tenant_id = $1", tenant.id
    )
    (row,) = rows  # a key, or a limited tenant, lives in one partition
    first, second = nodes
    owns = row["partition"] in await cluster.partitions_of(first)
    return (first, second) if owns else (second, first)


async def longest_gap_after_release(cluster: Cluster) -> float:
    """Seconds from the end of a released execution to the start of the next, at most."""
    rows = await cluster.evidence.rows(
        "SELECT extract(epoch FROM t.picked_at - e.finished_at)::float8 AS gap FROM executions e"
        " JOIN tasks t ON t.id = e.task_id WHERE e.outcome = 'released'"
    )
    assert rows, "nothing was released"
    return max(float(row["gap"]) for row in rows)


async def refused_outcomes(cluster: Cluster, node: Node) -> bool:
    fenced = await cluster.metric(node, "fenced_outcomes_total")
    return fenced > 0 and '"node.fenced"' in node.output()


async def running_at(cluster: Cluster, node: Node, *, at_least: int, within: float = 10.0) -> None:
    async def enough() -> bool:
        return await cluster.evidence.value(_RUNNING_AT, node.name) >= at_least

    await eventually(enough, within=within, what=f"{at_least} tasks run at {node.name}")


async def all_running(cluster: Cluster, ids: list[UUID]) -> None:
    async def running() -> bool:
        return await cluster.evidence.value(_RUNNING, ids) == len(ids)

    await eventually(running, within=10, what="all tasks run")


async def owns_everything(cluster: Cluster, node: Node, *, within: float = 10.0) -> None:
    async def owns() -> bool:
        return len(await cluster.partitions_of(node)) == PARTITIONS

    await eventually(owns, within=within, what=f"{node.name} owns all partitions")
