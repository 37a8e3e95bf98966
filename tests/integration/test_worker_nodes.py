"""Workers and a cluster: a worker that asks one node gets the tasks of all."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast
from uuid import UUID

import pytest

from mainspring.domain.partitions import PARTITIONS, partition_of
from support.waiting import eventually
from support.workers import LocalNode, RawWorker, open_local_node, work


async def share(one: LocalNode, two: LocalNode) -> None:
    """Wait until each of two nodes owns its part."""

    async def shared() -> bool:
        owned = [len(local_node.server.node.ownership().partitions) for local_node in (one, two)]
        return min(owned) > 60 and sum(owned) == 256

    await eventually(shared, within=15, what="both nodes own partitions")


@asynccontextmanager
async def two_nodes(
    database_url: str, **settings: Any
) -> AsyncIterator[tuple[LocalNode, LocalNode]]:
    async with (
        open_local_node(database_url, **settings) as one,
        open_local_node(database_url, **settings) as two,
    ):
        await share(one, two)
        yield one, two


@pytest.fixture
async def pair(database_url: str) -> AsyncIterator[tuple[LocalNode, LocalNode]]:
    async with two_nodes(database_url) as (one, two):
        yield one, two


async def test_a_worker_that_asks_one_node_gets_the_tasks_of_the_other(
    database_url: str,
) -> None:
    """At once: so long as nodes look for messages and wakes without a hint, no machine is slow."""
    look = 5.0
    async with two_nodes(database_url, wake_poll=look) as (one, two):
        delays = await delays_between(one, two)
    assert delays[len(delays) // 2] < look / 5, delays
    assert delays[-4] < look / 2, delays


async def delays_between(one: LocalNode, two: LocalNode) -> list[float]:
    """How long tasks that are made at one node take to a worker at the other, in order."""
    worker = one.worker()
    loop = asyncio.get_running_loop()
    delays: list[float] = []
    for _ in range(60):
        asked = asyncio.create_task(worker.lease(most=1, wait=20))
        await eventually(one.polled_by(1), within=5, what="it waits")
        began = loop.time()
        created = await two.create()
        (task,) = await asked
        delays.append(loop.time() - began)
        assert task["id"] == created
        assert await worker.report(task, result=1) == ["accepted"]
    return sorted(delays)


async def test_lanes_polling_different_nodes_are_shown_as_one_worker(
    pair: tuple[LocalNode, LocalNode],
) -> None:
    one, two = pair
    here = one.worker(handlers=["fetch"])
    there = two.worker(handlers=["train"], incarnation=here.incarnation)

    async def item() -> dict[str, Any]:
        (item,) = (await one.client.get("/v1/workers")).json()["items"]
        return cast(dict[str, Any], item)

    async def noted() -> bool:
        return bool((await item())["about"].get("host") == "db7")

    async def shows(*handlers: str) -> None:
        async def whole() -> bool:
            return bool((await item())["handlers"] == list(handlers))

        await eventually(whole, within=5, what=f"it is shown with {handlers}")

    await here.lease(wait=0)
    await here.lease(wait=0, about={"host": "db7"})
    await eventually(noted, within=5, what="the first node has told all it knows")
    await there.lease(wait=0)
    assert "fetch" in (await item())["handlers"], "to begin at another node takes nothing away"
    await shows("fetch", "train")
    await there.lease(wait=0, handlers=["zip"])
    await shows("fetch", "train", "zip")


async def test_no_worker_gets_more_than_it_asked_for(pair: tuple[LocalNode, LocalNode]) -> None:
    one, two = pair
    await two.client.batch([work() for _ in range(300)])
    workers = [local_node.worker(f"w{n}") for n, local_node in enumerate((one, one, two))]
    done: set[str] = set()

    async def drain(worker_number: int) -> None:
        worker = workers[worker_number]
        while len(done) < 300:
            tasks = await worker.lease(most=7, wait=1)
            assert len(tasks) <= 7
            assert not {t["id"] for t in tasks} & done, "the same task twice"
            done.update(t["id"] for t in tasks)
            if tasks:
                assert set(await worker.report(*tasks)) == {"accepted"}

    async with asyncio.timeout(30):
        await asyncio.gather(*(drain(n) for n in range(3)))
    assert len(done) == 300


async def lease_all(worker: RawWorker, tasks: set[str]) -> None:
    held: set[str] = set()
    while held < tasks:
        held |= {task["id"] for task in await worker.lease(most=20, wait=2)}


async def test_a_restart_that_one_node_sees_frees_leases_at_the_other(
    database_url: str,
) -> None:
    async with two_nodes(database_url, worker_lease=300.0) as (one, _):
        created = {await one.create() for _ in range(12)}
        worker = one.worker()
        await lease_all(worker, created)
        async with asyncio.timeout(10):
            await lease_all(worker.restarted(), created)


async def test_a_cancel_reaches_a_worker_that_waits_at_another_node(database_url: str) -> None:
    async with two_nodes(database_url, worker_lease=300.0) as (one, two):
        created = {await one.create() for _ in range(8)}
        worker = one.worker()
        await lease_all(worker, created)
        for task in created:
            waiting = asyncio.create_task(worker.lease(wait=20))
            await eventually(one.polled_by(1), within=5, what="it waits")
            await two.client.post(f"/v1/tasks/{task}/cancel")
            async with asyncio.timeout(5):
                assert await waiting == []


async def test_a_lease_lost_at_another_node_does_not_come_back(
    database_url: str,
) -> None:
    async with two_nodes(database_url, worker_lease=1.0) as (one, two):
        frozen, live = one.worker("frozen"), one.worker("live")
        there = await owned_by(two)
        assert [task["id"] for task in await frozen.lease()] == [there]
        forgotten = asyncio.create_task(frozen.lease(wait=20))
        await eventually(one.polled_by(1), within=5, what="the frozen one waits")
        (again,) = await live.lease(wait=10)
        assert (again["id"], again["fence"]) == (there, 2)
        async with asyncio.timeout(5):
            assert await forgotten == []


async def owned_by(local_node: LocalNode) -> str:
    """A task in a partition of this node; what else is made on the way is cancelled."""
    tenant = await local_node.server.keys.ensure_tenant("workshop")
    for _ in range(30):
        there = await local_node.create()
        partition = partition_of(tenant, UUID(there), None, PARTITIONS)
        if partition in local_node.server.node.ownership().partitions:
            return there
        await local_node.client.post(f"/v1/tasks/{there}/cancel")
    raise AssertionError("it owns next to nothing")


async def test_explain_knows_of_workers_at_other_nodes(pair: tuple[LocalNode, LocalNode]) -> None:
    one, two = pair
    asked = asyncio.create_task(one.worker().lease(wait=20))
    later = [await two.create(delay=60) for _ in range(8)]

    async def known() -> bool:
        told = [(await two.client.get(f"/v1/tasks/{id}/explain")).json() for id in later]
        gates = [gate for t in told for gate in t["gates"] if gate["gate"] == "no_worker"]
        return len(gates) == 8 and all(gate["passed"] for gate in gates)

    await eventually(known, within=5, what="the other node knows the worker")
    asked.cancel()
    await asyncio.wait([asked])


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, "http://127.0.0.1:{port}"),
        ({"host": "0.0.0.0"}, "http://{name}:{port}"),
        ({"host": "0.0.0.0", "advertise_url": "https://work.example/"}, "https://work.example"),
    ],
)
async def test_workers_get_an_address_that_they_can_reach(
    database_url: str, settings: dict[str, Any], told: str
) -> None:
    async with open_local_node(database_url, **settings) as local_node:
        (node,) = (await local_node.client.get("/v1/workers/nodes")).json()["nodes"]
        port = local_node.server.url.rpartition(":")[2]
        assert node["url"] == told.format(port=port, name=socket.gethostname())
