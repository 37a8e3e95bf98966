"""A node is killed at every named crash point; nothing acknowledged is lost, nothing runs early.

The list of points is the source: a new point is tested by being named, and a point that this
traffic never reaches fails its test.
"""

from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from mainspring import crash_points
from support.asgi import Answer
from support.client import Client, Unacknowledged, noop
from support.cluster import Cluster, Node, Tenant
from support.traffic import Traffic, mixed
from support.waiting import eventually
from support.workers import PollingWorkers, work

REACHED_WITHIN = 8.0
FOR_WORKERS = 20 * [work()]

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("point", sorted(crash_points.POINTS))
async def test_a_kill_loses_nothing(cluster: Cluster, point: str) -> None:
    traffic, tenant = Traffic(), await cluster.tenant()
    steady = await cluster.start()
    doomed = await cluster.start(crash_at=point)
    async with PollingWorkers(tenant) as workers:
        workers.serve(steady)
        workers.serve(doomed)
        async for _ in provocations(cluster, tenant, traffic, steady, doomed):
            if not doomed.alive:
                break
    assert await doomed.ended(within=REACHED_WITHIN) == -9, "it did not die at the crash point"

    last = await cluster.start()
    survivor = last.client(tenant)
    assert (await a_key_of_its_own(survivor)).status == 201
    async with PollingWorkers(tenant) as workers:
        workers.serve(last)
        await traffic.send_again(survivor)
        await traffic.send(survivor, [*mixed(), *FOR_WORKERS])
        await cluster.evidence.all_finished(traffic.acknowledged, within=20)
    await cluster.evidence.sound(traffic.acknowledged)
    assert await tasks_per_key(cluster) == dict.fromkeys(traffic.keys_used, 1)
    await no_run_is_left(cluster)
    made = await cluster.evidence.value("SELECT count(*) FROM api_keys WHERE name = 'once'")
    assert made == 1


async def provocations(
    cluster: Cluster, tenant: Tenant, traffic: Traffic, steady: Node, doomed: Node
) -> AsyncIterator[None]:
    """Make the doomed node do everything a node does; after each step its life is looked at."""
    await shared_or_dead(cluster, doomed)
    await every_second(steady.client(tenant))
    await some_runs(steady.client(tenant), doomed.client(tenant))
    await traffic.send(steady.client(tenant), 4 * mixed() + FOR_WORKERS)
    await traffic.send(doomed.client(tenant), 4 * mixed() + FOR_WORKERS)
    await quiet_or_dead(cluster, traffic, doomed)
    yield
    with suppress(Unacknowledged):
        await a_key_of_its_own(doomed.client(tenant))
    yield
    newcomer = await cluster.start()  # is given some of its partitions
    await quiet_or_dead(cluster, traffic, doomed)
    yield
    await traffic.send(newcomer.client(tenant), mixed())
    newcomer.kill()  # leaves partitions to take over
    steady.kill()
    yield


async def shared_or_dead(cluster: Cluster, doomed: Node) -> None:
    """Wait until the doomed node owns its share, or it may have nothing to do before the work is
    done."""

    async def settled() -> bool:
        owners = await cluster.evidence.value("SELECT count(DISTINCT owner) FROM partitions")
        return owners == 2 or not doomed.alive

    await eventually(settled, within=REACHED_WITHIN, what="both nodes own partitions")


async def some_runs(steady: Client, doomed: Client) -> None:
    """Runs of a workflow, enough that each node does steps of some."""
    target = {"type": "handler", "name": "mainspring.noop"}
    steps = [
        {"id": "a", "target": target},
        *({"id": f"b{n}", "needs": ["a"], "target": target} for n in range(3)),
        {"id": "c", "needs": ["b0", "b1", "b2"], "target": target},
    ]
    answer = await steady.post("/v1/workflows", {"name": "join", "steps": steps})
    assert answer.status == 201, answer.body
    for client in 8 * (steady, doomed):
        with suppress(Unacknowledged):
            await client.post("/v1/workflows/join/runs", {})


async def no_run_is_left(cluster: Cluster) -> None:
    """Every run ended, and each of its steps was done once."""

    async def over() -> bool:
        return not await cluster.evidence.value(
            "SELECT count(*) FROM workflow_runs WHERE state <> 'completed'"
        )

    await eventually(over, within=20, what="all runs end", tick=0.1)
    assert not await cluster.evidence.rows(
        "SELECT s.run_id, s.step FROM workflow_steps s LEFT JOIN task_history h"
        " ON h.workflow_run_id = s.run_id AND h.step = s.step"
        " GROUP BY s.run_id, s.step HAVING count(h.id) <> 1"
    ), "a step was done twice, or never"


async def a_key_of_its_own(client: Client) -> Answer:
    """Made once, however often it is asked for."""
    wanted = {"name": "once", "scopes": ["read"]}
    return await client.post("/v1/keys", wanted, Idempotency_Key="a-key")


async def every_second(client: Client) -> None:
    """Schedules enough that each node owns some."""
    for number in range(8):
        body = {"name": f"tick-{number}", "cron": "* * * * * *", "task": noop()}
        answer = await client.post("/v1/schedules", body)
        assert answer.status == 201, answer.body


async def quiet_or_dead(cluster: Cluster, traffic: Traffic, doomed: Node) -> None:
    """Wait until all traffic was worked off, or the doomed node is gone."""
    wanted = list(traffic.acknowledged)

    async def reached() -> bool:
        finished = await cluster.evidence.value(
            "SELECT count(*) FROM task_history WHERE id = ANY ($1::uuid[])", wanted
        )
        return not doomed.alive or finished == len(wanted)

    await eventually(reached, within=REACHED_WITHIN, what="the traffic is worked off", tick=0.05)


async def tasks_per_key(cluster: Cluster) -> dict[str, int]:
    rows = await cluster.evidence.rows(
        "SELECT labels ->> 'sent-as' AS key, count(*) AS tasks FROM task_history"
        " WHERE labels ? 'sent-as' GROUP BY 1"
    )
    return {row["key"]: row["tasks"] for row in rows}
