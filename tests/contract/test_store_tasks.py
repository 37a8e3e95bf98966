"""Creating and changing tasks: places, idempotency keys, limits that move tasks."""

from contract.store_set import StoreSet, retry
from mainspring.domain.partitions import NO_OWNERSHIP, partition_of
from mainspring.domain.tenant import TenantLimits
from mainspring.store.creation import Creation, Made


async def test_a_task_is_placed_by_its_affinity(stores: StoreSet) -> None:
    tenant = await stores.tenant(spread=256)
    alone, keyed = await stores.create(tenant), await stores.create(tenant, key="red")
    assert alone.partition == partition_of(tenant, alone.id, None, 256)
    assert keyed.partition == partition_of(tenant, keyed.id, "red", 256)


async def test_an_unknown_tenant_gets_nothing(stores: StoreSet) -> None:
    new = stores.new(10_000)
    assert await stores.tasks.create([Creation(10_000, [new])], NO_OWNERSHIP) == Made({}, [])


async def test_creations_share_a_statement(stores: StoreSet) -> None:
    tenants = [await stores.tenant(), await stores.tenant()]
    tasks = [stores.new(tenants[0]), stores.new(tenants[1]), stores.new(tenants[1])]
    creations = [Creation(tenants[0], tasks[:1]), Creation(tenants[1], tasks[1:])]
    made = await stores.tasks.create(creations, NO_OWNERSHIP)
    assert made.partitions.keys() == {task.id for task in tasks}


async def test_a_taken_key_inserts_nothing(stores: StoreSet) -> None:
    tenant = await stores.tenant()
    first = await stores.create_keyed(tenant, ttl=60.0)
    assert first is not None
    assert await stores.create_keyed(tenant, ttl=60.0) is None
    assert await stores.inspect.answer_under(tenant, "k") == str(first).encode()


async def test_a_key_belongs_to_its_tenant(stores: StoreSet) -> None:
    tenants = [await stores.tenant(), await stores.tenant()]
    for tenant in tenants:
        assert await stores.create_keyed(tenant, ttl=60.0) is not None


async def test_an_expired_key_can_be_used_again(stores: StoreSet) -> None:
    tenant = await stores.tenant()
    assert await stores.create_keyed(tenant, ttl=-1.0) is not None
    second = await stores.create_keyed(tenant, ttl=60.0)
    assert second is not None
    assert await stores.inspect.answer_under(tenant, "k") == str(second).encode()


async def test_after_a_lost_answer_one_can_ask_what_exists(stores: StoreSet) -> None:
    tenant = await stores.tenant()
    waiting, ended = await stores.create(tenant), await stores.create(tenant)
    await stores.move(tenant, ended.id, "cancelled")
    missing = stores.new(tenant).id
    found = await stores.tasks.which_exist(tenant, [waiting.id, ended.id, missing])
    assert found == {waiting.id: waiting.partition, ended.id: None}
    assert await stores.tasks.which_exist(await stores.tenant(), [waiting.id]) == {}


async def test_a_change_raises_the_rev(stores: StoreSet) -> None:
    tenant = await stores.tenant()
    row = await stores.create(tenant)
    assert await stores.move(tenant, row.id, "paused") is True
    now = await stores.row(tenant, row.id)
    assert (now.state, now.rev) == ("paused", row.rev + 1)


async def test_an_ending_change_is_history(stores: StoreSet) -> None:
    tenant = await stores.tenant()
    row = await stores.create(tenant)
    assert await stores.move(tenant, row.id, "cancelled") is True
    end = await stores.inspect.end_of(row.id)
    assert end is not None
    assert (end.state, end.rev) == ("cancelled", row.rev + 1)
    assert await stores.move(tenant, row.id, "paused") is None


async def test_another_tenant_changes_nothing(stores: StoreSet) -> None:
    row = await stores.create(await stores.tenant())
    assert await stores.move(await stores.tenant(), row.id, "paused") is None


async def test_a_new_spread_moves_the_tasks_and_tells_both_owners(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant(spread=256)
    stranger = await stores.create(await stores.tenant(spread=256), ownership=ownership)
    rows = [await stores.create(tenant, ownership=ownership) for _ in range(4)]
    await stores.limit(tenant, TenantLimits(2, 3, 1))
    place = partition_of(tenant, rows[0].id, None, 1)
    moved = [row for row in rows if row.partition != place]
    assert moved
    for row in rows:
        now = await stores.row(tenant, row.id)
        assert (now.partition, now.rev) == (place, row.rev + (row in moved))
    told = [(row.partition, row.id) for row in moved] + [(place, row.id) for row in moved]
    assert await stores.inspect.wakes() == sorted(told)
    assert await stores.row(stranger.tenant_id, stranger.id) == stranger
    assert (await stores.keys.limits())[tenant] == TenantLimits(2, 3, 1)


async def test_moved_tasks_due_late_wake_nobody(stores: StoreSet) -> None:
    """No owner has them: whoever owns their new place will read them when their time comes."""
    ownership, tenant = await stores.join(), await stores.tenant(spread=256)
    rows = [
        await stores.create(tenant, ownership=ownership, due=due)
        for due in 4 * [100.0] + 4 * [7200.0]
    ]
    await stores.limit(tenant, TenantLimits(2, 3, 1))
    place = partition_of(tenant, rows[0].id, None, 1)
    assert {(await stores.row(tenant, row.id)).partition for row in rows} == {place}
    near = [row for row in rows[:4] if row.partition != place]
    assert near
    told = [(row.partition, row.id) for row in near] + [(place, row.id) for row in near]
    assert await stores.inspect.wakes() == sorted(told)


async def test_limits_are_read_for_the_requested_tenants(stores: StoreSet) -> None:
    one, other = await stores.tenant(max_running=3), await stores.tenant(max_running=4)
    assert await stores.keys.limits([one]) == {one: TenantLimits(1, 3, 1)}
    assert await stores.keys.limits([]) == {}
    assert (await stores.keys.limits()).keys() >= {one, other}


async def test_the_same_spread_moves_nothing(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant(spread=1)
    row = await stores.create(tenant, ownership=ownership)
    await stores.limit(tenant, TenantLimits(5, 3, 1))
    assert await stores.row(tenant, row.id) == row
    assert await stores.inspect.wakes() == []


async def test_a_moved_task_escapes_its_old_owner(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant(spread=256)
    rows = [await stores.create(tenant, ownership=ownership) for _ in range(4)]
    running = await stores.claim(ownership, rows[0])
    assert running is not None
    await stores.limit(tenant, TenantLimits(1, 1, 1))
    place = partition_of(tenant, rows[0].id, None, 1)
    for row in rows[1:]:
        assert (await stores.claim(ownership, row) is None) == (row.partition != place)
    assert len(await stores.engine.retry(ownership, [retry(running)])) == 1
