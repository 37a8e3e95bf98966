"""Answers to polls that do not arrive: the worker went away, or its connection did."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from mainspring.domain.capability import Offer
from mainspring.engine.demand import WorkerSession
from mainspring.node.workers.lease_service import LeaseRequest, LeaseService
from support.waiting import eventually
from support.workers import Shop, opened_shop

WORK = Offer(frozenset({"default"}), frozenset({"work"}))


@pytest.fixture
async def shop(database_url: str) -> AsyncIterator[Shop]:
    async with opened_shop(database_url, worker_lease=1.0) as opened:
        yield opened


def desk_of(shop: Shop) -> LeaseService:
    lease_service = shop.server.node._lease_service
    assert lease_service is not None
    return lease_service


def _polls(shop: Shop, polls: int) -> Callable[[], Awaitable[bool]]:
    async def there() -> bool:
        return len(desk_of(shop)._waiting) == polls

    return there


async def test_who_hangs_up_while_a_claim_is_on_its_way_loses_nothing(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait of the poll is over, and its claim not yet: then the worker goes away."""
    lease_service = desk_of(shop)
    claim_for, began, over = lease_service._store.claim_for, asyncio.Event(), asyncio.Event()

    async def slowly(*arguments: Any, **more: Any) -> Any:
        began.set()
        await over.wait()
        return await claim_for(*arguments, **more)

    monkeypatch.setattr(lease_service._store, "claim_for", slowly)
    tenant = await shop.server.keys.ensure_tenant("workshop")
    wish = LeaseRequest(WorkerSession(tenant, "gone", "1"), WORK, 1, 0.1)
    there = await shop.create()
    asked = asyncio.create_task(lease_service.lease(wish))
    await began.wait()
    (waiting,) = lease_service._waiting.values()

    async def ended() -> bool:
        return waiting.over

    await eventually(ended, within=5, what="the wait is over")
    asked.cancel()
    await asyncio.wait([asked])
    over.set()
    (task,) = await shop.worker("here").lease(wait=10)
    assert task["id"] == there
    assert [t["outcome"] for t in await shop.tries(there)] == ["released"]


async def test_an_answer_and_a_hang_up_at_once_lose_nothing(shop: Shop) -> None:
    lease_service = desk_of(shop)
    tenant = await shop.server.keys.ensure_tenant("workshop")
    asked = asyncio.create_task(
        lease_service.lease(LeaseRequest(WorkerSession(tenant, "gone", "1"), WORK, 1, 30))
    )
    await eventually(_polls(shop, 1), within=5, what="it waits")
    (waiting,) = lease_service._waiting.values()
    hung_up = asyncio.get_running_loop().create_future()

    def hang_up(_answer: object) -> None:
        asked.cancel()
        hung_up.set_result(None)

    waiting.answer.add_done_callback(hang_up)
    there = await shop.create()
    await hung_up
    (task,) = await shop.worker("here").lease(wait=10)
    assert task["id"] == there
    assert [t["outcome"] for t in await shop.tries(there)] == ["released"]


async def test_a_lost_answer_is_given_again(shop: Shop) -> None:
    """The worker says what it holds: what it was told last and does not hold, it never heard."""
    there = await shop.create()
    worker = shop.worker()
    (heard,) = await worker.lease(running=[])
    again = await worker.lease(running=[], wait=0)
    assert again == [heard]
    mine = {"id": there, "fence": 1}
    assert await worker.lease(running=[mine], wait=0) == []
    assert await worker.report(heard) == ["accepted"]
    assert await worker.lease(running=[], wait=0) == [], "it was reported: nothing is missing"
    assert len(await shop.tries(there)) == 1


async def test_the_lost_answer_of_one_of_two_polls_is_given_again(shop: Shop) -> None:
    worker = shop.worker()
    polls = [asyncio.create_task(worker.lease(most=1, running=[], wait=10)) for _ in range(2)]
    await eventually(_polls(shop, 2), within=5, what="both wait")
    await shop.create()
    await asyncio.wait(polls, return_when=asyncio.FIRST_COMPLETED)
    first = next(poll for poll in polls if poll.done())
    (lost,) = await first
    await shop.create()
    (heard,) = await next(poll for poll in polls if poll is not first)
    mine = {"id": heard["id"], "fence": heard["fence"]}
    assert await worker.lease(running=[mine], wait=0) == [lost]
    both = [mine, {"id": lost["id"], "fence": lost["fence"]}]
    assert await worker.lease(running=both, wait=0) == []
    assert await worker.lease(running=[], wait=0) == [], "it held them: they arrived"


async def test_what_is_given_again_is_no_more_than_asked_for(shop: Shop) -> None:
    worker = shop.worker()
    await asyncio.gather(*(shop.create() for _ in range(3)))
    given = await worker.lease(most=3, running=[])
    (one,) = await worker.lease(most=1, running=[])
    assert one in given
    mine = [{"id": one["id"], "fence": one["fence"]}]
    rest = await worker.lease(most=3, running=mine)
    assert sorted(t["id"] for t in [one, *rest]) == sorted(t["id"] for t in given)


async def test_a_worker_that_does_not_say_what_it_holds_gets_nothing_twice(shop: Shop) -> None:
    await shop.create()
    worker = shop.worker()
    assert len(await worker.lease()) == 1
    assert await worker.lease(wait=0) == []
