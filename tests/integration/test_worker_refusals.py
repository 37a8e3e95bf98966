"""What workers are not taken at their word for, and keys that end while they wait."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from msgspec import Raw

from support.client import Client
from support.waiting import eventually
from support.workers import Shop, opened_shop


@pytest.fixture
async def shop(database_url: str) -> AsyncIterator[Shop]:
    async with opened_shop(database_url) as opened:
        yield opened


async def test_who_says_the_contrary_later_is_fenced(shop: Shop) -> None:
    """Whether or not there is a newer try by then."""
    there = await shop.create(retry={"initial": 0, "jitter": 0})
    worker, other = shop.worker(), shop.worker("w2")
    (task,) = await worker.lease()
    assert await worker.report(task, status="failed") == ["accepted"]
    assert await worker.report(task) == ["fenced"]
    (again,) = await other.lease()
    assert await worker.report(task, result="stale") == ["fenced"]
    assert await worker.report(task, status="failed") == ["accepted"], "the same was heard before"
    assert await other.report(again, result="fresh") == ["accepted"]
    assert await other.report(again, status="failed") == ["fenced"]
    assert (await shop.task(there))["result"] == "fresh"


async def test_numbers_that_nobody_can_read_are_refused(shop: Shop) -> None:
    await shop.create()
    worker = shop.worker()
    (task,) = await worker.lease()
    held, infinite = {"id": task["id"], "fence": 1}, Raw(b"[1e999]")
    told = {"outcomes": [{**held, "status": "succeeded", "result": infinite}]}
    answer = await shop.client.post("/v1/leases/report", told)
    assert (answer.status, answer.json()["errors"][0]["pointer"]) == (422, "/outcomes/0/result")
    beat = {"worker": worker.name, "incarnation": worker.incarnation}
    running = [{**held, "progress": infinite}]
    answer = await shop.client.post("/v1/leases/heartbeat", {**beat, "running": running})
    assert (answer.status, answer.json()["errors"][0]["pointer"]) == (422, "/running/0/progress")
    assert await worker.report(task) == ["accepted"]


async def test_a_key_that_is_revoked_ends_the_polls_under_it(shop: Shop) -> None:
    """SCENARIOS 45: within seconds, and what comes then is for others."""
    made = (await shop.client.post("/v1/keys", {"scopes": ["work"]})).json()
    revoked = Client(shop.session, shop.server.url, made["api_key"])
    waiting = asyncio.create_task(
        revoked.post(
            "/v1/leases", {"worker": "w", "incarnation": "1", "handlers": ["work"], "wait": 40}
        )
    )
    steady = asyncio.create_task(shop.worker("other", handlers=["else"]).lease(wait=8))
    await eventually(shop.polled_by(2), within=5, what="both wait")
    answer = await shop.client.call("DELETE", f"/v1/keys/{made['id']}")
    assert answer.status == 204
    async with asyncio.timeout(5):
        assert (await waiting).status == 401
    assert not steady.done()
    there = await shop.create()
    (task,) = await shop.worker().lease()
    assert task["id"] == there
    assert await steady == []
