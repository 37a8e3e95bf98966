"""Fences over restores: what was leased before is leased above anything that was ever issued, and
who joined another server leases nothing."""

from contract.store_lab import Lab, finish, retry

ABOVE = 50_000_000
"""Less than the seconds since 2025: no task is leased so often."""


async def test_a_task_that_was_there_is_leased_above_the_floor(lab: Lab) -> None:
    tenant, former = await lab.tenant(), await lab.join()
    row = await lab.create(tenant, tenure=former)
    tenure = await lab.join()
    assignment = await lab.claim(tenure, row)
    assert assignment is not None
    assert assignment.fence > ABOVE


async def test_a_worker_gets_a_fence_above_the_floor(lab: Lab) -> None:
    tenant, former = await lab.tenant(), await lab.join()
    row = await lab.create(tenant, tenure=former)
    tenure = await lab.join()
    assignment = await lab.lease(tenure, row)
    assert assignment is not None
    assert assignment.fence > ABOVE


async def test_a_task_that_came_later_begins_with_fence_one(lab: Lab) -> None:
    tenant, tenure = await lab.tenant(), await lab.join()
    row = await lab.create(tenant, tenure=tenure)
    worked = await lab.create(tenant, tenure=tenure)
    claimed, leased = await lab.claim(tenure, row), await lab.lease(tenure, worked)
    assert claimed is not None
    assert leased is not None
    assert (claimed.fence, leased.fence) == (1, 1)


async def test_a_floor_that_was_passed_does_not_lower_fences(lab: Lab) -> None:
    tenant, former = await lab.tenant(), await lab.join()
    row = await lab.create(tenant, tenure=former)
    tenure = await lab.join()
    fences = []
    for _ in range(3):
        assignment = await lab.claim(tenure, await lab.row(tenant, row.id))
        assert assignment is not None
        fences.append(assignment.fence)
        await lab.engine.retry(tenure, [retry(assignment, delay=None)])
    assert fences == [fences[0], fences[0] + 1, fences[0] + 2]


async def test_another_server_raises_the_floor(lab: Lab) -> None:
    tenant, former = await lab.tenant(), await lab.join()
    rows = [await lab.create(tenant, tenure=former) for _ in range(3)]
    fences = []
    for row in rows:
        assignment = await lab.claim(await lab.join(), row)
        assert assignment is not None
        fences.append(assignment.fence)
        await lab.inspect.restart_server()
    assert fences[0] < fences[1] < fences[2]


async def test_many_who_join_do_not_get_ahead_of_the_clock(lab: Lab) -> None:
    """Else a restore would come back to fences that were issued."""
    tenant, former = await lab.tenant(), await lab.join()
    rows = [await lab.create(tenant, tenure=former) for _ in range(2)]
    first = await lab.claim(await lab.join(), rows[0])
    for _ in range(50):
        tenure = await lab.join()
    last = await lab.claim(tenure, rows[1])
    assert first is not None
    assert last is not None
    assert last.fence - first.fence < 25


async def test_after_another_start_the_clock_may_be_behind(lab: Lab) -> None:
    tenant = await lab.tenant()
    await lab.join()
    await lab.inspect.restart_server()
    tenure = await lab.join()
    row = await lab.create(tenant, tenure=tenure)
    assignment = await lab.claim(tenure, row)
    assert assignment is not None
    assert assignment.fence > ABOVE


async def test_who_joined_another_server_leases_nothing(lab: Lab) -> None:
    tenant, tenure = await lab.tenant(), await lab.join()
    row = await lab.create(tenant, tenure=tenure)
    await lab.inspect.restart_server()
    assert await lab.claim(tenure, row) is None
    assert await lab.lease(tenure, row) is None
    assert (await lab.row(tenant, row.id)).state == "scheduled"


async def test_who_joined_another_server_takes_no_wakes(lab: Lab) -> None:
    tenant, tenure = await lab.tenant(), await lab.join()
    row = await lab.create(tenant)
    await lab.inspect.restart_server()
    told = await lab.engine.take_wakes(tenure, [], limit=10)
    assert (told.rows, told.wakes) == ([], [])
    assert await lab.inspect.wakes() == [(row.partition, row.id)]


async def test_who_joined_another_server_expires_nothing(lab: Lab) -> None:
    tenant, tenure = await lab.tenant(), await lab.join()
    row = await lab.create(tenant, tenure=tenure, due=-5, expires=-1)
    await lab.inspect.restart_server()
    assert await lab.engine.expire(tenure, limit=10) == []
    assert await lab.is_unfinished(row)


async def test_what_an_outdated_owner_writes_leaves_a_wake(lab: Lab) -> None:
    """Its partitions may be another's: whoever that is hears of it."""
    tenant, tenure = await lab.tenant(), await lab.join()
    failed, ended = await lab.running(tenure, tenant), await lab.running(tenure, tenant)
    await lab.inspect.restart_server()
    created = await lab.create(tenant, tenure=tenure)
    again = await lab.engine.retry(tenure, [retry(failed)])
    assert [row.id for row in again] == [failed.id]
    assert await lab.engine.finish(tenure, [finish(ended)]) == {ended.id}
    assert {task for _, task in await lab.inspect.wakes()} == {created.id, failed.id, ended.id}
