"""Creating and changing tasks: places, idempotency keys, limits that move tasks."""

from contract.store_lab import Lab, retry
from mainspring.domain.placement import NO_OWNERSHIP, partition_of
from mainspring.domain.tenant import TenantLimits
from mainspring.store.creation import Creation, Made


async def test_a_task_lies_where_its_affinity_says(lab: Lab) -> None:
    tenant = await lab.tenant(spread=256)
    alone, keyed = await lab.create(tenant), await lab.create(tenant, key="red")
    assert alone.partition == partition_of(tenant, alone.id, None, 256)
    assert keyed.partition == partition_of(tenant, keyed.id, "red", 256)


async def test_an_unknown_tenant_gets_nothing(lab: Lab) -> None:
    new = lab.new(10_000)
    assert await lab.tasks.create([Creation(10_000, [new])], NO_OWNERSHIP) == Made({}, [])


async def test_creations_share_a_statement(lab: Lab) -> None:
    tenants = [await lab.tenant(), await lab.tenant()]
    tasks = [lab.new(tenants[0]), lab.new(tenants[1]), lab.new(tenants[1])]
    creations = [Creation(tenants[0], tasks[:1]), Creation(tenants[1], tasks[1:])]
    made = await lab.tasks.create(creations, NO_OWNERSHIP)
    assert made.partitions.keys() == {task.id for task in tasks}


async def test_a_taken_key_inserts_nothing(lab: Lab) -> None:
    tenant = await lab.tenant()
    first = await lab.create_keyed(tenant, ttl=60.0)
    assert first is not None
    assert await lab.create_keyed(tenant, ttl=60.0) is None
    assert await lab.inspect.answer_under(tenant, "k") == str(first).encode()


async def test_a_key_belongs_to_its_tenant(lab: Lab) -> None:
    tenants = [await lab.tenant(), await lab.tenant()]
    for tenant in tenants:
        assert await lab.create_keyed(tenant, ttl=60.0) is not None


async def test_an_expired_key_can_be_used_again(lab: Lab) -> None:
    tenant = await lab.tenant()
    assert await lab.create_keyed(tenant, ttl=-1.0) is not None
    second = await lab.create_keyed(tenant, ttl=60.0)
    assert second is not None
    assert await lab.inspect.answer_under(tenant, "k") == str(second).encode()


async def test_after_a_lost_answer_one_can_ask_what_exists(lab: Lab) -> None:
    tenant = await lab.tenant()
    waiting, ended = await lab.create(tenant), await lab.create(tenant)
    await lab.move(tenant, ended.id, "cancelled")
    missing = lab.new(tenant).id
    found = await lab.tasks.which_exist(tenant, [waiting.id, ended.id, missing])
    assert found == {waiting.id: waiting.partition, ended.id: None}
    assert await lab.tasks.which_exist(await lab.tenant(), [waiting.id]) == {}


async def test_a_change_raises_the_rev(lab: Lab) -> None:
    tenant = await lab.tenant()
    row = await lab.create(tenant)
    assert await lab.move(tenant, row.id, "paused") is True
    now = await lab.row(tenant, row.id)
    assert (now.state, now.rev) == ("paused", row.rev + 1)


async def test_an_ending_change_is_history(lab: Lab) -> None:
    tenant = await lab.tenant()
    row = await lab.create(tenant)
    assert await lab.move(tenant, row.id, "cancelled") is True
    end = await lab.inspect.end_of(row.id)
    assert end is not None
    assert (end.state, end.rev) == ("cancelled", row.rev + 1)
    assert await lab.move(tenant, row.id, "paused") is None


async def test_a_stranger_changes_nothing(lab: Lab) -> None:
    row = await lab.create(await lab.tenant())
    assert await lab.move(await lab.tenant(), row.id, "paused") is None


async def test_a_new_spread_moves_the_tasks_and_tells_both_owners(lab: Lab) -> None:
    ownership, tenant = await lab.join(), await lab.tenant(spread=256)
    stranger = await lab.create(await lab.tenant(spread=256), ownership=ownership)
    rows = [await lab.create(tenant, ownership=ownership) for _ in range(4)]
    await lab.limit(tenant, TenantLimits(2, 3, 1))
    place = partition_of(tenant, rows[0].id, None, 1)
    moved = [row for row in rows if row.partition != place]
    assert moved
    for row in rows:
        now = await lab.row(tenant, row.id)
        assert (now.partition, now.rev) == (place, row.rev + (row in moved))
    told = [(row.partition, row.id) for row in moved] + [(place, row.id) for row in moved]
    assert await lab.inspect.wakes() == sorted(told)
    assert await lab.row(stranger.tenant_id, stranger.id) == stranger
    assert (await lab.keys.limits())[tenant] == TenantLimits(2, 3, 1)


async def test_of_moved_tasks_that_are_due_late_nobody_is_told(lab: Lab) -> None:
    """No owner has them: whoever owns their new place will read them when their time comes."""
    ownership, tenant = await lab.join(), await lab.tenant(spread=256)
    rows = [
        await lab.create(tenant, ownership=ownership, due=due) for due in 4 * [100.0] + 4 * [7200.0]
    ]
    await lab.limit(tenant, TenantLimits(2, 3, 1))
    place = partition_of(tenant, rows[0].id, None, 1)
    assert {(await lab.row(tenant, row.id)).partition for row in rows} == {place}
    near = [row for row in rows[:4] if row.partition != place]
    assert near
    told = [(row.partition, row.id) for row in near] + [(place, row.id) for row in near]
    assert await lab.inspect.wakes() == sorted(told)


async def test_limits_are_told_of_those_tenants_who_are_asked_for(lab: Lab) -> None:
    one, other = await lab.tenant(max_running=3), await lab.tenant(max_running=4)
    assert await lab.keys.limits([one]) == {one: TenantLimits(1, 3, 1)}
    assert await lab.keys.limits([]) == {}
    assert (await lab.keys.limits()).keys() >= {one, other}


async def test_the_same_spread_moves_nothing(lab: Lab) -> None:
    ownership, tenant = await lab.join(), await lab.tenant(spread=1)
    row = await lab.create(tenant, ownership=ownership)
    await lab.limit(tenant, TenantLimits(5, 3, 1))
    assert await lab.row(tenant, row.id) == row
    assert await lab.inspect.wakes() == []


async def test_a_moved_task_escapes_its_old_owner(lab: Lab) -> None:
    ownership, tenant = await lab.join(), await lab.tenant(spread=256)
    rows = [await lab.create(tenant, ownership=ownership) for _ in range(4)]
    running = await lab.claim(ownership, rows[0])
    assert running is not None
    await lab.limit(tenant, TenantLimits(1, 1, 1))
    place = partition_of(tenant, rows[0].id, None, 1)
    for row in rows[1:]:
        assert (await lab.claim(ownership, row) is None) == (row.partition != place)
    assert len(await lab.engine.retry(ownership, [retry(running)])) == 1
