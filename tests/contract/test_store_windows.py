"""Reading: what an owner finds in its partitions, and what it is told of."""

from uuid import UUID, uuid4

import pytest

from contract.store_lab import Lab, finish
from mainspring.domain.placement import Ownership
from mainspring.domain.rows import StreamKey, TaskRow


def stream_of(row: TaskRow) -> StreamKey:
    return StreamKey(
        row.partition, row.tenant_id, row.queue, row.capability, row.concurrency_key, row.priority
    )


async def test_stock_holds_what_is_due_in_the_stretch(lab: Lab) -> None:
    tenant = await lab.tenant()
    early, near, far = [await lab.create(tenant, due=due) for due in (-50.0, 10.0, 100.0)]
    found = await lab.partition_loader([early.partition], after=early.due, until=near.due)
    assert found == [near]
    found = await lab.partition_loader([early.partition], after=0.0, until=far.due)
    assert {row.id for row in found} == {early.id, near.id, far.id}


async def test_stock_is_of_the_partitions_asked_for(lab: Lab) -> None:
    row = await lab.create(await lab.tenant())
    assert await lab.partition_loader([(row.partition + 1) % 256]) == []


async def test_stock_is_capped_per_stream_earliest_first(lab: Lab) -> None:
    tenant = await lab.tenant()
    rows = [await lab.create(tenant, due=due) for due in (-1.0, -3.0, -2.0)]
    urgent = await lab.create(tenant, priority=9)
    mail = await lab.create(tenant, queue="mail")
    keyed = await lab.create(tenant, key="red")
    found = await lab.partition_loader([rows[0].partition], cap=2)
    first_two = {rows[1].id, rows[2].id}
    assert {row.id for row in found} == first_two | {urgent.id, mail.id, keyed.id}


async def test_stock_holds_everything_that_runs(lab: Lab) -> None:
    ownership, tenant = await lab.join(), await lab.tenant()
    running = [await lab.running(ownership, tenant) for _ in range(3)]
    waiting = await lab.create(tenant)
    found = await lab.partition_loader([waiting.partition], cap=1)
    assert {row.id for row in found} == {task.id for task in running} | {waiting.id}
    assert {row.state for row in found} == {"running", "scheduled"}


async def test_stock_leaves_out_what_is_parked(lab: Lab) -> None:
    tenant = await lab.tenant()
    row = await lab.create(tenant)
    await lab.move(tenant, row.id, "paused")
    assert await lab.partition_loader([row.partition]) == []


async def test_more_of_a_stream(lab: Lab) -> None:
    tenant = await lab.tenant()
    rows = [await lab.create(tenant, due=due) for due in (-5.0, -4.0, -3.0, -2.0, 90.0)]
    found = await lab.engine.load_more(
        stream_of(rows[0]), since=rows[1].due, until=rows[3].due, known=[rows[2].id], limit=5
    )
    assert found == [rows[1], rows[3]]
    found = await lab.engine.load_more(
        stream_of(rows[0]), since=rows[1].due, until=rows[3].due, known=[], limit=2
    )
    assert found == rows[1:3]


@pytest.mark.parametrize("other", ["queue", "key", "priority", "tenant"])
async def test_more_of_a_stream_is_of_that_stream_only(lab: Lab, other: str) -> None:
    tenant = await lab.tenant()
    row = await lab.create(tenant, key="red")
    match other:
        case "queue":
            await lab.create(tenant, key="red", queue="mail")
        case "key":
            await lab.create(tenant)
        case "priority":
            await lab.create(tenant, key="red", priority=9)
        case "tenant":
            stranger = stream_of(row)._replace(tenant_id=await lab.tenant())
            assert await _everything(lab, stranger, row) == []
    assert await _everything(lab, stream_of(row), row) == [row]


async def test_more_of_a_stream_without_a_key(lab: Lab) -> None:
    tenant = await lab.tenant()
    row = await lab.create(tenant)
    await lab.create(tenant, key="red")
    assert await _everything(lab, stream_of(row), row) == [row]


async def test_more_holds_neither_what_runs_nor_what_is_parked(lab: Lab) -> None:
    ownership, tenant = await lab.join(), await lab.tenant()
    row = await lab.create(tenant, due=-9.0)
    parked = await lab.create(tenant)
    await lab.move(tenant, parked.id, "paused")
    assert await lab.claim(ownership, row) is not None
    assert await _everything(lab, stream_of(row), row) == []


async def test_more_of_a_stream_is_of_its_partition_only(lab: Lab) -> None:
    tenant = await lab.tenant(spread=256)
    rows = [await lab.create(tenant) for _ in range(8)]
    assert len({row.partition for row in rows}) > 1, "ids are made at random"
    same = [row for row in rows if row.partition == rows[0].partition]
    assert await _everything(lab, stream_of(rows[0]), rows[0]) == same


async def _everything(lab: Lab, stream: StreamKey, first: TaskRow) -> list[TaskRow]:
    return await lab.engine.load_more(stream, since=first.due, until=1e10, known=[], limit=9)


async def test_looking_tells_the_unfinished_from_the_gone(lab: Lab) -> None:
    ownership, tenant = await lab.join(), await lab.tenant()
    row, task = await lab.create(tenant), await lab.running(ownership, tenant)
    await lab.engine.finish(ownership, [finish(task)])
    seen = await lab.engine.look_at([(tenant, row.id), (tenant, task.id)])
    assert (seen.rows, seen.gone) == ([row], [task.id])


async def test_looking_names_the_tenant(lab: Lab) -> None:
    row = await lab.create(await lab.tenant())
    seen = await lab.engine.look_at([(await lab.tenant(), row.id)])
    assert (seen.rows, seen.gone) == ([], [row.id])


# Wake rows -------------------------------------------------------------------------------------


async def test_a_near_task_wakes_its_owner(lab: Lab) -> None:
    row = await lab.create(await lab.tenant(), ownership=await lab.join(frozenset()))
    assert await lab.inspect.wakes() == [(row.partition, row.id)]


async def test_a_task_of_ones_own_partition_wakes_nobody(lab: Lab) -> None:
    await lab.create(await lab.tenant(), ownership=await lab.join())
    assert await lab.inspect.wakes() == []


async def test_a_far_task_wakes_nobody(lab: Lab) -> None:
    await lab.create(await lab.tenant(), ownership=await lab.join(frozenset()), due=100.0)
    assert await lab.inspect.wakes() == []


async def test_a_replaced_node_cannot_keep_a_task_to_itself(lab: Lab) -> None:
    ownership = await lab.join()
    await lab.cluster.hand_over(ownership, {})
    row = await lab.create(await lab.tenant(), ownership=ownership)
    assert await lab.inspect.wakes() == [(row.partition, row.id)]


@pytest.mark.parametrize("state", ["paused", "cancelled"])
async def test_every_change_wakes_the_owner(lab: Lab, state: str) -> None:
    tenant = await lab.tenant()
    row = await lab.create(tenant, ownership=await lab.join())
    assert await lab.move(tenant, row.id, state) is True
    assert await lab.inspect.wakes() == [(row.partition, row.id)]


async def test_wakes_are_taken_once(lab: Lab) -> None:
    ownership, tenant = await lab.join(), await lab.tenant()
    row = await lab.create(tenant)
    gone = await lab.create(tenant)
    await lab.move(tenant, gone.id, "cancelled")
    seen = await lab.engine.poll_wakes(ownership, [], limit=100)
    assert (seen.rows, seen.gone, len(seen.wakes)) == ([row], [gone.id], 3)
    nothing = await lab.engine.poll_wakes(ownership, seen.wakes, limit=100)
    assert (nothing.rows, nothing.gone, nothing.wakes) == ([], [], [])
    assert await lab.inspect.wakes() == []


async def test_wakes_stay_until_they_are_named(lab: Lab) -> None:
    """An answer that was lost is asked for again. A statement that comes late takes nothing along
    that was written since."""
    ownership, tenant = await lab.join(), await lab.tenant()
    first = await lab.create(tenant)
    seen = await lab.engine.poll_wakes(ownership, [], limit=100)
    assert await lab.engine.poll_wakes(ownership, [], limit=100) == seen
    second = await lab.create(tenant)
    late = await lab.engine.poll_wakes(ownership, seen.wakes, limit=100)
    assert (seen.rows, late.rows) == ([first], [second])
    assert await lab.engine.poll_wakes(ownership, seen.wakes, limit=100) == late
    assert await lab.inspect.wakes() == [(second.partition, second.id)]


async def test_only_some_wakes_are_read_at_once(lab: Lab) -> None:
    ownership, tenant = await lab.join(), await lab.tenant()
    rows = [await lab.create(tenant) for _ in range(5)]
    found, heard = list[UUID](), list[int]()
    for expected in (2, 2, 1, 0):
        seen = await lab.engine.poll_wakes(ownership, heard, limit=2)
        assert len(seen.wakes) == expected
        found += [row.id for row in seen.rows]
        heard = seen.wakes
    assert sorted(found) == sorted(row.id for row in rows)


async def test_wakes_of_other_partitions_stay(lab: Lab) -> None:
    row = await lab.create(await lab.tenant())
    ownership = await lab.join(frozenset({(row.partition + 1) % 256}))
    assert (await lab.engine.poll_wakes(ownership, [], limit=100)).rows == []
    assert await lab.inspect.wakes() == [(row.partition, row.id)]


async def test_a_replaced_node_takes_no_wakes(lab: Lab) -> None:
    ownership = await lab.join()
    tenant = await lab.tenant()
    row = await lab.create(tenant)
    seen = await lab.engine.poll_wakes(ownership, [], limit=100)
    assert seen.rows == [row]
    other = await lab.create(tenant)
    await lab.cluster.hand_over(ownership, {})
    assert (await lab.engine.poll_wakes(ownership, seen.wakes, limit=100)).wakes == []
    unknown = Ownership(uuid4(), (await lab.join()).epoch, ownership.partitions)
    assert (await lab.engine.poll_wakes(unknown, seen.wakes, limit=100)).wakes == []
    assert await lab.inspect.wakes() == sorted((r.partition, r.id) for r in (row, other))
