"""Poll answers that do not arrive: the worker went away, or its connection did."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from mainspring.domain.capability import Offer
from mainspring.engine.demand import WorkerSession
from mainspring.node.workers.lease_service import LeaseRequest, LeaseService
from support.waiting import eventually
from support.workers import LocalNode

WORK = Offer(frozenset({"default"}), frozenset({"work"}))


def lease_service_of(local_node: LocalNode) -> LeaseService:
    lease_service = local_node.server.node._lease_service
    assert lease_service is not None
    return lease_service


def _polls(local_node: LocalNode, polls: int) -> Callable[[], Awaitable[bool]]:
    async def there() -> bool:
        return len(lease_service_of(local_node)._waiting) == polls

    return there


async def test_hanging_up_during_a_claim_loses_nothing(
    local_node: LocalNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait of the poll is over, and its claim not yet: then the worker goes away."""
    lease_service = lease_service_of(local_node)
    claim_for, began, over = lease_service._store.claim_for, asyncio.Event(), asyncio.Event()

    async def slowly(*arguments: Any, **more: Any) -> Any:
        began.set()
        await over.wait()
        return await claim_for(*arguments, **more)

    monkeypatch.setattr(lease_service._store, "claim_for", slowly)
    tenant = await local_node.server.keys.ensure_tenant("workshop")
    request = LeaseRequest(WorkerSession(tenant, "gone", "1"), WORK, 1, 0.1)
    there = await local_node.create()
    asked = asyncio.create_task(lease_service.lease(request))
    await began.wait()
    (waiting,) = lease_service._waiting.values()

    async def ended() -> bool:
        return waiting.over

    await eventually(ended, within=5, what="the wait is over")
    asked.cancel()
    await asyncio.wait([asked])
    over.set()
    (task,) = await local_node.worker("here").lease(wait=10)
    assert task["id"] == there
    assert [t["outcome"] for t in await local_node.executions(there)] == ["released"]


async def test_an_answer_and_a_hang_up_at_once_lose_nothing(local_node: LocalNode) -> None:
    lease_service = lease_service_of(local_node)
    tenant = await local_node.server.keys.ensure_tenant("workshop")
    asked = asyncio.create_task(
        lease_service.lease(LeaseRequest(WorkerSession(tenant, "gone", "1"), WORK, 1, 30))
    )
    await eventually(_polls(local_node, 1), within=5, what="it waits")
    (waiting,) = lease_service._waiting.values()
    hung_up = asyncio.get_running_loop().create_future()

    def hang_up(_answer: object) -> None:
        asked.cancel()
        hung_up.set_result(None)

    waiting.answer.add_done_callback(hang_up)
    there = await local_node.create()
    await hung_up
    (task,) = await local_node.worker("here").lease(wait=10)
    assert task["id"] == there
    assert [t["outcome"] for t in await local_node.executions(there)] == ["released"]


async def test_a_lost_answer_is_given_again(local_node: LocalNode) -> None:
    """The worker says what it holds: what it was told last and does not hold, it never heard."""
    there = await local_node.create()
    worker = local_node.worker()
    (heard,) = await worker.lease(running=[])
    again = await worker.lease(running=[], wait=0)
    assert again == [heard]
    mine = {"id": there, "fence": 1}
    assert await worker.lease(running=[mine], wait=0) == []
    assert await worker.report(heard) == ["accepted"]
    assert await worker.lease(running=[], wait=0) == [], "it was reported: nothing is missing"
    assert len(await local_node.executions(there)) == 1


async def test_the_lost_answer_of_one_of_two_polls_is_given_again(local_node: LocalNode) -> None:
    worker = local_node.worker()
    polls = [asyncio.create_task(worker.lease(most=1, running=[], wait=10)) for _ in range(2)]
    await eventually(_polls(local_node, 2), within=5, what="both wait")
    await local_node.create()
    await asyncio.wait(polls, return_when=asyncio.FIRST_COMPLETED)
    first = next(poll for poll in polls if poll.done())
    (lost,) = await first
    await local_node.create()
    (heard,) = await next(poll for poll in polls if poll is not first)
    mine = {"id": heard["id"], "fence": heard["fence"]}
    assert await worker.lease(running=[mine], wait=0) == [lost]
    both = [mine, {"id": lost["id"], "fence": lost["fence"]}]
    assert await worker.lease(running=both, wait=0) == []
    assert await worker.lease(running=[], wait=0) == [], "it held them: they arrived"


async def test_what_is_given_again_is_no_more_than_asked_for(local_node: LocalNode) -> None:
    worker = local_node.worker()
    await asyncio.gather(*(local_node.create() for _ in range(3)))
    given = await worker.lease(most=3, running=[])
    (one,) = await worker.lease(most=1, running=[])
    assert one in given
    mine = [{"id": one["id"], "fence": one["fence"]}]
    rest = await worker.lease(most=3, running=mine)
    assert sorted(t["id"] for t in [one, *rest]) == sorted(t["id"] for t in given)


async def test_a_worker_that_lists_no_leases_gets_nothing_twice(
    local_node: LocalNode,
) -> None:
    await local_node.create()
    worker = local_node.worker()
    assert len(await worker.lease()) == 1
    assert await worker.lease(wait=0) == []
