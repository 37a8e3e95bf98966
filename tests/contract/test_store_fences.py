"""Fences over restores: what was leased before is leased above anything that was ever issued, and
who joined another server leases nothing."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from contract.store_set import StoreSet, finish, retry
from mainspring.domain.execution import Execution
from mainspring.domain.partitions import Ownership
from mainspring.domain.rows import TaskRow

Outdate = Callable[[StoreSet, Ownership], Awaitable[Ownership]]

ABOVE = 50_000_000
"""Less than the seconds since 2025: no task is leased so often."""


async def former_task(stores: StoreSet) -> tuple[Ownership, TaskRow]:
    """A task of an ownership before the present one."""
    row = await stores.create(await stores.tenant(), ownership=await stores.join())
    return await stores.join(), row


def fence_of(execution: Execution | None) -> int:
    """The fence of what was leased."""
    assert execution is not None
    return execution.fence


async def test_a_task_that_was_there_is_leased_above_the_floor(stores: StoreSet) -> None:
    ownership, row = await former_task(stores)
    assert fence_of(await stores.claim(ownership, row)) > ABOVE


async def test_a_worker_gets_a_fence_above_the_floor(stores: StoreSet) -> None:
    ownership, row = await former_task(stores)
    assert fence_of(await stores.lease(ownership, row)) > ABOVE


async def test_a_task_that_came_later_begins_with_fence_one(stores: StoreSet) -> None:
    tenant, ownership = await stores.tenant(), await stores.join()
    row = await stores.create(tenant, ownership=ownership)
    worked = await stores.create(tenant, ownership=ownership)
    claimed, leased = await stores.claim(ownership, row), await stores.lease(ownership, worked)
    assert (fence_of(claimed), fence_of(leased)) == (1, 1)


async def test_a_floor_that_was_passed_does_not_lower_fences(stores: StoreSet) -> None:
    tenant, former = await stores.tenant(), await stores.join()
    row = await stores.create(tenant, ownership=former)
    ownership = await stores.join()
    fences = []
    for _ in range(3):
        execution = await stores.claim(ownership, await stores.row(tenant, row.id))
        assert execution is not None
        fences.append(execution.fence)
        await stores.engine.retry(ownership, [retry(execution, delay=None)])
    assert fences == [fences[0], fences[0] + 1, fences[0] + 2]


async def test_another_server_raises_the_floor(stores: StoreSet) -> None:
    tenant, former = await stores.tenant(), await stores.join()
    rows = [await stores.create(tenant, ownership=former) for _ in range(3)]
    fences = []
    for row in rows:
        fences.append(fence_of(await stores.claim(await stores.join(), row)))
        await stores.inspect.restart_server()
    assert fences[0] < fences[1] < fences[2]


async def test_many_joins_do_not_get_ahead_of_the_clock(stores: StoreSet) -> None:
    """Else a restore would come back to fences that were issued."""
    tenant, former = await stores.tenant(), await stores.join()
    rows = [await stores.create(tenant, ownership=former) for _ in range(2)]
    first = await stores.claim(await stores.join(), rows[0])
    for _ in range(50):
        ownership = await stores.join()
    last = await stores.claim(ownership, rows[1])
    assert fence_of(last) - fence_of(first) < 25


async def test_after_another_start_the_clock_may_be_behind(stores: StoreSet) -> None:
    tenant = await stores.tenant()
    await stores.join()
    await stores.inspect.restart_server()
    ownership = await stores.join()
    row = await stores.create(tenant, ownership=ownership)
    assert fence_of(await stores.claim(ownership, row)) > ABOVE


async def another_server(stores: StoreSet, ownership: Ownership) -> Ownership:
    """Let a node face another server than the one that it joined."""
    await stores.inspect.restart_server()
    return ownership


async def fewer_beats(_stores: StoreSet, ownership: Ownership) -> Ownership:
    """Let a node know of a heartbeat that the database, which was set back, does not."""
    return replace(ownership, beats=ownership.beats + 1)


outdated = pytest.mark.parametrize("outdate", [another_server, fewer_beats])


@outdated
async def test_a_node_of_another_server_leases_nothing(stores: StoreSet, outdate: Outdate) -> None:
    tenant, ownership = await stores.tenant(), await stores.join()
    row = await stores.create(tenant, ownership=ownership)
    ownership = await outdate(stores, ownership)
    assert await stores.claim(ownership, row) is None
    assert await stores.lease(ownership, row) is None
    assert (await stores.row(tenant, row.id)).state == "scheduled"


@outdated
async def test_a_node_of_another_server_takes_no_wakes(stores: StoreSet, outdate: Outdate) -> None:
    tenant, ownership = await stores.tenant(), await stores.join()
    row = await stores.create(tenant)
    ownership = await outdate(stores, ownership)
    told = await stores.engine.poll_wakes(ownership, [], limit=10)
    assert (told.rows, told.wakes) == ([], [])
    assert await stores.inspect.wakes() == [(row.partition, row.id)]


@outdated
async def test_a_node_of_another_server_expires_nothing(stores: StoreSet, outdate: Outdate) -> None:
    tenant, ownership = await stores.tenant(), await stores.join()
    row = await stores.create(tenant, ownership=ownership, due=-5, expires=-1)
    ownership = await outdate(stores, ownership)
    assert await stores.engine.expire(ownership, limit=10) == []
    assert await stores.is_unfinished(row)


@outdated
async def test_what_an_outdated_owner_writes_leaves_a_wake(
    stores: StoreSet, outdate: Outdate
) -> None:
    """Its partitions may be another's: whoever that is hears of it."""
    tenant, ownership = await stores.tenant(), await stores.join()
    failed, ended = await stores.running(ownership, tenant), await stores.running(ownership, tenant)
    ownership = await outdate(stores, ownership)
    created = await stores.create(tenant, ownership=ownership)
    again = await stores.engine.retry(ownership, [retry(failed)])
    assert [row.id for row in again] == [failed.id]
    assert await stores.engine.finish(ownership, [finish(ended)]) == {ended.id}
    assert {task for _, task in await stores.inspect.wakes()} == {created.id, failed.id, ended.id}
