"""Many at once: due in the same second, and running at the same time."""

import asyncio

import pytest

from support.client import noop, sleep
from support.cluster import Cluster

MANY = 10_000

pytestmark = [pytest.mark.slow, pytest.mark.alone]


async def test_ten_thousand_due_in_one_second(cluster: Cluster) -> None:
    """All start soon, and a quiet tenant hardly notices."""
    loud, quiet = await cluster.tenant("loud"), await cluster.tenant("quiet")
    node = await cluster.start(heartbeat=0.5, node_ttl=2, lease=15)
    burst = [noop(delay=4 + number / MANY) for number in range(MANY)]
    few = [noop(delay=4 + number / 100) for number in range(100)]
    loud_ids, quiet_ids = await asyncio.gather(
        node.client(loud).batch(burst), node.client(quiet).batch(few)
    )
    await cluster.evidence.all_finished([*loud_ids, *quiet_ids], within=30)
    await cluster.evidence.sound([*loud_ids, *quiet_ids])
    loud_delays = await cluster.evidence.delays(loud_ids)
    quiet_delays = await cluster.evidence.delays(quiet_ids)
    print(f"latest start: loud {loud_delays[-1]:.3f} s, quiet {quiet_delays[-1]:.3f} s")
    assert loud_delays[-1] <= 3.0
    assert quiet_delays[-1] <= 0.5


async def test_ten_thousand_running_at_once(cluster: Cluster) -> None:
    """All are leased, kept alive over more than a lease, and finished."""
    tenant = await cluster.tenant()
    node = await cluster.start(heartbeat=0.5, node_ttl=2, lease=4)
    ids = await node.client(tenant).batch([sleep(10)] * MANY)
    await cluster.evidence.all_finished(ids, within=90)
    await cluster.evidence.sound(ids)
    assert await cluster.evidence.value("SELECT count(*) FROM executions") == MANY
    at_once = await cluster.evidence.most_at_once(tenant.id)
    print(f"{at_once} ran at once")
    assert at_once == MANY
