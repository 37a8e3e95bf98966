"""Workers at one node: leases, heartbeats, reports, and what happens when they stop coming."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from support.workers import Shop, opened_shop


@pytest.fixture
async def shop(database_url: str) -> AsyncIterator[Shop]:
    async with opened_shop(database_url, worker_lease=1.0) as opened:
        yield opened


async def test_a_task_is_leased_reported_and_read(shop: Shop) -> None:
    created = await shop.create(payload={"n": 1}, labels={"team": "a"}, timeout=60)
    worker = shop.worker()
    (task,) = await worker.lease()
    assert task["id"] == created
    assert (task["fence"], task["attempt"], task["timeout"]) == (1, 1, 60)
    assert task["target"] == {"type": "handler", "name": "work"}
    assert task["payload"] == {"n": 1}
    assert task["context"]["labels"] == {"team": "a"}
    assert (await shop.task(created))["state"] == "running"
    assert await worker.report(task, result={"rows": 12}) == ["accepted"]
    read = await shop.task(created)
    assert (read["state"], read["result"]) == ("completed", {"rows": 12})
    (tried,) = await shop.tries(created)
    assert (tried["worker"], tried["outcome"], tried["fence"]) == ("w1", "succeeded", 1)


async def test_a_waiting_worker_gets_a_task_at_once(shop: Shop) -> None:
    worker = shop.worker()
    asked = asyncio.create_task(worker.lease(wait=30))
    await asyncio.sleep(0.2)
    loop = asyncio.get_running_loop()
    began = loop.time()
    created = await shop.create()
    (task,) = await asked
    assert task["id"] == created
    assert loop.time() - began < 0.5


async def test_nothing_comes_and_the_answer_is_empty(shop: Shop) -> None:
    assert await shop.worker().lease(wait=0) == []
    assert await shop.worker().lease(wait=0.2) == []
