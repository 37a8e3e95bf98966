"""Reading: what an owner finds in its partitions, and what it is told of."""

from uuid import UUID, uuid4

import pytest

from contract.store_set import StoreSet, finish
from mainspring.domain.partitions import Ownership
from mainspring.domain.rows import StreamKey, TaskRow


def stream_of(row: TaskRow) -> StreamKey:
    return StreamKey(
        row.partition, row.tenant_id, row.queue, row.capability, row.concurrency_key, row.priority
    )


async def test_window_holds_what_is_due_in_the_stretch(stores: StoreSet) -> None:
    tenant = await stores.tenant()
    early, near, far = [await stores.create(tenant, due=due) for due in (-50.0, 10.0, 100.0)]
    found = await stores.partition_loader([early.partition], after=early.due, until=near.due)
    assert found == [near]
    found = await stores.partition_loader([early.partition], after=0.0, until=far.due)
    assert {row.id for row in found} == {early.id, near.id, far.id}


async def test_window_is_of_the_partitions_asked_for(stores: StoreSet) -> None:
    row = await stores.create(await stores.tenant())
    assert await stores.partition_loader([(row.partition + 1) % 256]) == []


async def test_window_is_capped_per_stream_earliest_first(stores: StoreSet) -> None:
    tenant = await stores.tenant()
    rows = [await stores.create(tenant, due=due) for due in (-1.0, -3.0, -2.0)]
    urgent = await stores.create(tenant, priority=9)
    mail = await stores.create(tenant, queue="mail")
    keyed = await stores.create(tenant, key="red")
    found = await stores.partition_loader([rows[0].partition], cap=2)
    first_two = {rows[1].id, rows[2].id}
    assert {row.id for row in found} == first_two | {urgent.id, mail.id, keyed.id}


async def test_window_holds_everything_that_runs(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    running = [await stores.running(ownership, tenant) for _ in range(3)]
    waiting = await stores.create(tenant)
    found = await stores.partition_loader([waiting.partition], cap=1)
    assert {row.id for row in found} == {task.id for task in running} | {waiting.id}
    assert {row.state for row in found} == {"running", "scheduled"}


async def test_window_leaves_out_what_is_parked(stores: StoreSet) -> None:
    tenant = await stores.tenant()
    row = await stores.create(tenant)
    await stores.move(tenant, row.id, "paused")
    assert await stores.partition_loader([row.partition]) == []


async def test_more_of_a_stream(stores: StoreSet) -> None:
    tenant = await stores.tenant()
    rows = [await stores.create(tenant, due=due) for due in (-5.0, -4.0, -3.0, -2.0, 90.0)]
    found = await stores.engine.load_more(
        stream_of(rows[0]), since=rows[1].due, until=rows[3].due, known=[rows[2].id], limit=5
    )
    assert found == [rows[1], rows[3]]
    found = await stores.engine.load_more(
        stream_of(rows[0]), since=rows[1].due, until=rows[3].due, known=[], limit=2
    )
    assert found == rows[1:3]


@pytest.mark.parametrize("other", ["queue", "key", "priority", "tenant"])
async def test_more_of_a_stream_is_of_that_stream_only(stores: StoreSet, other: str) -> None:
    tenant = await stores.tenant()
    row = await stores.create(tenant, key="red")
    match other:
        case "queue":
            await stores.create(tenant, key="red", queue="mail")
        case "key":
            await stores.create(tenant)
        case "priority":
            await stores.create(tenant, key="red", priority=9)
        case "tenant":
            stranger = stream_of(row)._replace(tenant_id=await stores.tenant())
            assert await _everything(stores, stranger, row) == []
    assert await _everything(stores, stream_of(row), row) == [row]


async def test_more_of_a_stream_without_a_key(stores: StoreSet) -> None:
    tenant = await stores.tenant()
    row = await stores.create(tenant)
    await stores.create(tenant, key="red")
    assert await _everything(stores, stream_of(row), row) == [row]


async def test_more_holds_neither_what_runs_nor_what_is_parked(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    row = await stores.create(tenant, due=-9.0)
    parked = await stores.create(tenant)
    await stores.move(tenant, parked.id, "paused")
    assert await stores.claim(ownership, row) is not None
    assert await _everything(stores, stream_of(row), row) == []


async def test_more_of_a_stream_is_of_its_partition_only(stores: StoreSet) -> None:
    tenant = await stores.tenant(spread=256)
    rows = [await stores.create(tenant) for _ in range(8)]
    assert len({row.partition for row in rows}) > 1, "ids are made at random"
    same = [row for row in rows if row.partition == rows[0].partition]
    assert await _everything(stores, stream_of(rows[0]), rows[0]) == same


async def _everything(stores: StoreSet, stream: StreamKey, first: TaskRow) -> list[TaskRow]:
    return await stores.engine.load_more(stream, since=first.due, until=1e10, known=[], limit=9)


async def test_looking_tells_the_unfinished_from_the_gone(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    row, task = await stores.create(tenant), await stores.running(ownership, tenant)
    await stores.engine.finish(ownership, [finish(task)])
    seen = await stores.engine.look_at([(tenant, row.id), (tenant, task.id)])
    assert (seen.rows, seen.gone) == ([row], [task.id])


async def test_looking_names_the_tenant(stores: StoreSet) -> None:
    row = await stores.create(await stores.tenant())
    seen = await stores.engine.look_at([(await stores.tenant(), row.id)])
    assert (seen.rows, seen.gone) == ([], [row.id])


# Wake rows -------------------------------------------------------------------------------------


async def test_a_near_task_wakes_its_owner(stores: StoreSet) -> None:
    row = await stores.create(await stores.tenant(), ownership=await stores.join(frozenset()))
    assert await stores.inspect.wakes() == [(row.partition, row.id)]


async def test_a_task_of_ones_own_partition_wakes_nobody(stores: StoreSet) -> None:
    await stores.create(await stores.tenant(), ownership=await stores.join())
    assert await stores.inspect.wakes() == []


async def test_a_far_task_wakes_nobody(stores: StoreSet) -> None:
    await stores.create(await stores.tenant(), ownership=await stores.join(frozenset()), due=100.0)
    assert await stores.inspect.wakes() == []


async def test_a_replaced_node_cannot_keep_a_task_to_itself(stores: StoreSet) -> None:
    ownership = await stores.join()
    await stores.cluster.hand_over(ownership, {})
    row = await stores.create(await stores.tenant(), ownership=ownership)
    assert await stores.inspect.wakes() == [(row.partition, row.id)]


@pytest.mark.parametrize("state", ["paused", "cancelled"])
async def test_every_change_wakes_the_owner(stores: StoreSet, state: str) -> None:
    tenant = await stores.tenant()
    row = await stores.create(tenant, ownership=await stores.join())
    assert await stores.move(tenant, row.id, state) is True
    assert await stores.inspect.wakes() == [(row.partition, row.id)]


async def test_wakes_are_taken_once(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    row = await stores.create(tenant)
    gone = await stores.create(tenant)
    await stores.move(tenant, gone.id, "cancelled")
    seen = await stores.engine.poll_wakes(ownership, [], limit=100)
    assert (seen.rows, seen.gone, len(seen.wakes)) == ([row], [gone.id], 3)
    nothing = await stores.engine.poll_wakes(ownership, seen.wakes, limit=100)
    assert (nothing.rows, nothing.gone, nothing.wakes) == ([], [], [])
    assert await stores.inspect.wakes() == []


async def test_wakes_stay_until_they_are_named(stores: StoreSet) -> None:
    """An answer that was lost is asked for again. A statement that comes late takes nothing along
    that was written since."""
    ownership, tenant = await stores.join(), await stores.tenant()
    first = await stores.create(tenant)
    seen = await stores.engine.poll_wakes(ownership, [], limit=100)
    assert await stores.engine.poll_wakes(ownership, [], limit=100) == seen
    second = await stores.create(tenant)
    late = await stores.engine.poll_wakes(ownership, seen.wakes, limit=100)
    assert (seen.rows, late.rows) == ([first], [second])
    assert await stores.engine.poll_wakes(ownership, seen.wakes, limit=100) == late
    assert await stores.inspect.wakes() == [(second.partition, second.id)]


async def test_only_some_wakes_are_read_at_once(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    rows = [await stores.create(tenant) for _ in range(5)]
    found, heard = list[UUID](), list[int]()
    for expected in (2, 2, 1, 0):
        seen = await stores.engine.poll_wakes(ownership, heard, limit=2)
        assert len(seen.wakes) == expected
        found += [row.id for row in seen.rows]
        heard = seen.wakes
    assert sorted(found) == sorted(row.id for row in rows)


async def test_wakes_of_other_partitions_stay(stores: StoreSet) -> None:
    row = await stores.create(await stores.tenant())
    ownership = await stores.join(frozenset({(row.partition + 1) % 256}))
    assert (await stores.engine.poll_wakes(ownership, [], limit=100)).rows == []
    assert await stores.inspect.wakes() == [(row.partition, row.id)]


async def test_a_replaced_node_takes_no_wakes(stores: StoreSet) -> None:
    ownership = await stores.join()
    tenant = await stores.tenant()
    row = await stores.create(tenant)
    seen = await stores.engine.poll_wakes(ownership, [], limit=100)
    assert seen.rows == [row]
    other = await stores.create(tenant)
    await stores.cluster.hand_over(ownership, {})
    assert (await stores.engine.poll_wakes(ownership, seen.wakes, limit=100)).wakes == []
    unknown = Ownership(uuid4(), (await stores.join()).epoch, ownership.partitions)
    assert (await stores.engine.poll_wakes(unknown, seen.wakes, limit=100)).wakes == []
    assert await stores.inspect.wakes() == sorted((r.partition, r.id) for r in (row, other))
