"""Fences over restores: what was leased before is leased above anything that was ever issued, and
who joined another server leases nothing."""

from contract.store_lab import Lab, finish, retry

ABOVE = 50_000_000
"""Less than the seconds since 2025: no task is leased so often."""


async def test_a_task_that_was_there_is_leased_above_the_floor(lab: Lab) -> None:
    tenant, former = await lab.tenant(), await lab.join()
    row = await lab.create(tenant, ownership=former)
    ownership = await lab.join()
    execution = await lab.claim(ownership, row)
    assert execution is not None
    assert execution.fence > ABOVE


async def test_a_worker_gets_a_fence_above_the_floor(lab: Lab) -> None:
    tenant, former = await lab.tenant(), await lab.join()
    row = await lab.create(tenant, ownership=former)
    ownership = await lab.join()
    execution = await lab.lease(ownership, row)
    assert execution is not None
    assert execution.fence > ABOVE


async def test_a_task_that_came_later_begins_with_fence_one(lab: Lab) -> None:
    tenant, ownership = await lab.tenant(), await lab.join()
    row = await lab.create(tenant, ownership=ownership)
    worked = await lab.create(tenant, ownership=ownership)
    claimed, leased = await lab.claim(ownership, row), await lab.lease(ownership, worked)
    assert claimed is not None
    assert leased is not None
    assert (claimed.fence, leased.fence) == (1, 1)


async def test_a_floor_that_was_passed_does_not_lower_fences(lab: Lab) -> None:
    tenant, former = await lab.tenant(), await lab.join()
    row = await lab.create(tenant, ownership=former)
    ownership = await lab.join()
    fences = []
    for _ in range(3):
        execution = await lab.claim(ownership, await lab.row(tenant, row.id))
        assert execution is not None
        fences.append(execution.fence)
        await lab.engine.retry(ownership, [retry(execution, delay=None)])
    assert fences == [fences[0], fences[0] + 1, fences[0] + 2]


async def test_another_server_raises_the_floor(lab: Lab) -> None:
    tenant, former = await lab.tenant(), await lab.join()
    rows = [await lab.create(tenant, ownership=former) for _ in range(3)]
    fences = []
    for row in rows:
        execution = await lab.claim(await lab.join(), row)
        assert execution is not None
        fences.append(execution.fence)
        await lab.inspect.restart_server()
    assert fences[0] < fences[1] < fences[2]


async def test_many_who_join_do_not_get_ahead_of_the_clock(lab: Lab) -> None:
    """Else a restore would come back to fences that were issued."""
    tenant, former = await lab.tenant(), await lab.join()
    rows = [await lab.create(tenant, ownership=former) for _ in range(2)]
    first = await lab.claim(await lab.join(), rows[0])
    for _ in range(50):
        ownership = await lab.join()
    last = await lab.claim(ownership, rows[1])
    assert first is not None
    assert last is not None
    assert last.fence - first.fence < 25


async def test_after_another_start_the_clock_may_be_behind(lab: Lab) -> None:
    tenant = await lab.tenant()
    await lab.join()
    await lab.inspect.restart_server()
    ownership = await lab.join()
    row = await lab.create(tenant, ownership=ownership)
    execution = await lab.claim(ownership, row)
    assert execution is not None
    assert execution.fence > ABOVE


async def test_who_joined_another_server_leases_nothing(lab: Lab) -> None:
    tenant, ownership = await lab.tenant(), await lab.join()
    row = await lab.create(tenant, ownership=ownership)
    await lab.inspect.restart_server()
    assert await lab.claim(ownership, row) is None
    assert await lab.lease(ownership, row) is None
    assert (await lab.row(tenant, row.id)).state == "scheduled"


async def test_who_joined_another_server_takes_no_wakes(lab: Lab) -> None:
    tenant, ownership = await lab.tenant(), await lab.join()
    row = await lab.create(tenant)
    await lab.inspect.restart_server()
    told = await lab.engine.poll_wakes(ownership, [], limit=10)
    assert (told.rows, told.wakes) == ([], [])
    assert await lab.inspect.wakes() == [(row.partition, row.id)]


async def test_who_joined_another_server_expires_nothing(lab: Lab) -> None:
    tenant, ownership = await lab.tenant(), await lab.join()
    row = await lab.create(tenant, ownership=ownership, due=-5, expires=-1)
    await lab.inspect.restart_server()
    assert await lab.engine.expire(ownership, limit=10) == []
    assert await lab.is_unfinished(row)


async def test_what_an_outdated_owner_writes_leaves_a_wake(lab: Lab) -> None:
    """Its partitions may be another's: whoever that is hears of it."""
    tenant, ownership = await lab.tenant(), await lab.join()
    failed, ended = await lab.running(ownership, tenant), await lab.running(ownership, tenant)
    await lab.inspect.restart_server()
    created = await lab.create(tenant, ownership=ownership)
    again = await lab.engine.retry(ownership, [retry(failed)])
    assert [row.id for row in again] == [failed.id]
    assert await lab.engine.finish(ownership, [finish(ended)]) == {ended.id}
    assert {task for _, task in await lab.inspect.wakes()} == {created.id, failed.id, ended.id}
