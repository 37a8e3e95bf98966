"""Claims and leases: what each predicate of these statements is for."""

from uuid import uuid4

from contract.store_set import StoreSet, finish, held, retry
from mainspring.domain.partitions import Ownership
from mainspring.store.creation import Creation
from mainspring.store.task_refs import TaskRef, WorkerPick


async def test_a_due_task_is_claimed_once(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    row = await stores.create(tenant)
    execution = await stores.claim(ownership, row)
    assert execution is not None
    assert (execution.fence, execution.attempt, execution.payload) == (1, 1, b"{}")
    assert await stores.claim(ownership, row) is None
    now = await stores.row(tenant, row.id)
    assert (now.state, now.rev, now.fence) == ("running", row.rev + 1, 1)


async def test_a_claim_names_the_rev_it_saw(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    row = await stores.create(tenant)
    assert await stores.claim(ownership, row, rev=row.rev + 1) is None
    assert await stores.claim(ownership, row) is not None


async def test_a_claim_names_the_tenant(stores: StoreSet) -> None:
    ownership, tenant, stranger = await stores.join(), await stores.tenant(), await stores.tenant()
    row = await stores.create(tenant)
    assert await stores.claim(ownership, row._replace(tenant_id=stranger)) is None


async def test_only_a_scheduled_task_is_claimed(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    row = await stores.create(tenant)
    await stores.move(tenant, row.id, "paused")
    assert await stores.claim(ownership, row, rev=row.rev + 1) is None
    await stores.move(tenant, row.id, "scheduled")
    assert await stores.claim(ownership, row, rev=row.rev + 2) is not None


async def test_a_running_task_is_not_claimed_again(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    row = await stores.create(tenant)
    assert await stores.claim(ownership, row) is not None
    assert await stores.claim(ownership, row, rev=row.rev + 1) is None


async def test_no_task_is_claimed_before_it_is_due(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    assert await stores.claim(ownership, await stores.create(tenant, due=30.0)) is None


async def test_no_task_is_claimed_after_its_expiry(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    assert (
        await stores.claim(ownership, await stores.create(tenant, due=-9.0, expires=-1.0)) is None
    )
    assert await stores.claim(ownership, await stores.create(tenant, expires=60.0)) is not None


async def test_a_node_with_an_old_epoch_claims_nothing(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    row = await stores.create(tenant)
    assert await stores.cluster.hand_over(ownership, {}) == ownership.epoch + 1
    assert await stores.claim(ownership, row) is None


async def test_a_node_nobody_knows_claims_nothing(stores: StoreSet) -> None:
    known, tenant = await stores.join(), await stores.tenant()
    row = await stores.create(tenant)
    stranger = Ownership(uuid4(), known.epoch, known.partitions)
    assert await stores.claim(stranger, row) is None
    assert await stores.claim(known, row) is not None


async def test_a_lost_answer_is_read_again(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    mine, waiting = await stores.create(tenant), await stores.create(tenant)
    await stores.claim(ownership, mine)
    refs = [TaskRef(tenant, row.id, row.rev) for row in (mine, waiting)]
    found = await stores.engine.claimed_by(refs, worker=stores.worker)
    assert [execution.id for execution in found] == [mine.id]
    assert found[0].fence == 1
    assert await stores.engine.claimed_by(refs, worker="node:other") == []


async def test_a_lost_answer_is_not_taken_from_an_earlier_execution(stores: StoreSet) -> None:
    """The database was set back between the claim and the question."""
    ownership, tenant = await stores.join(), await stores.tenant()
    row = await stores.create(tenant)
    await stores.claim(ownership, row)
    later = TaskRef(tenant, row.id, row.rev + 2)
    assert await stores.engine.claimed_by([later], worker=stores.worker) == []


async def test_a_claim_that_comes_late_comes_to_nothing(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    row = await stores.create(tenant)
    ref = TaskRef(tenant, row.id, row.rev)
    assert await stores.engine.claimed_by([ref], worker=stores.worker) == []
    assert await stores.claim(ownership, row) is None
    now = await stores.row(tenant, row.id)
    assert now.state == "scheduled"
    assert await stores.claim(ownership, now) is not None


async def test_reading_a_lost_answer_leaves_other_changes_alone(stores: StoreSet) -> None:
    tenant = await stores.tenant()
    row = await stores.create(tenant)
    await stores.move(tenant, row.id, "paused")
    for rev in (row.rev, row.rev + 1):
        await stores.engine.claimed_by([TaskRef(tenant, row.id, rev)], worker=stores.worker)
    assert (await stores.row(tenant, row.id)).rev == row.rev + 1
    await stores.move(tenant, row.id, "scheduled")
    await stores.engine.claimed_by([TaskRef(tenant, row.id, row.rev)], worker=stores.worker)
    assert (await stores.row(tenant, row.id)).rev == row.rev + 2


async def test_a_lease_is_extended(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    task = await stores.running(ownership, tenant, lease=1.0)
    (extended,) = await stores.engine.extend([held(task)], lease=60.0)
    assert extended.lease_end > task.lease_end + 50
    assert not extended.cancel_requested
    await stores.ask_to_cancel(task)
    (extended,) = await stores.engine.extend([held(task)], lease=60.0)
    assert extended.cancel_requested


async def test_only_the_current_execution_is_extended(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    task = await stores.running(ownership, tenant)
    assert await stores.engine.extend([held(task, fence=7)], lease=60.0) == []
    await stores.engine.retry(ownership, [retry(task)])
    assert await stores.engine.extend([held(task)], lease=60.0) == []


async def test_a_lease_that_ran_out_is_lost(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    task = await stores.running(ownership, tenant, lease=-1.0)
    seen = await stores.engine.expire_leases([held(task)])
    assert [(row.id, row.state, row.fence) for row in seen.rows] == [(task.id, "scheduled", 1)]
    assert seen.gone == []
    assert seen.rows[0].due == task.due
    assert await stores.inspect.executions_of(task.id) == [(1, "lost")]


async def test_a_lease_that_holds_is_not_lost(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    task = await stores.running(ownership, tenant, lease=60.0)
    seen = await stores.engine.expire_leases([held(task)])
    assert (seen.rows, seen.gone) == ([], [])


async def test_only_the_current_execution_is_lost(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    task = await stores.running(ownership, tenant, lease=-1.0)
    seen = await stores.engine.expire_leases([held(task, fence=7)])
    assert (seen.rows, seen.gone) == ([], [])
    assert await stores.engine.finish(ownership, [finish(task)]) == {task.id}
    seen = await stores.engine.expire_leases([held(task)])
    assert (seen.rows, seen.gone) == ([], [])


async def test_a_lost_task_that_was_asked_to_cancel_is_cancelled(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    task = await stores.running(ownership, tenant, lease=-1.0)
    await stores.ask_to_cancel(task)
    seen = await stores.engine.expire_leases([held(task)])
    assert (seen.rows, seen.gone) == ([], [task.id])
    end = await stores.inspect.end_of(task.id)
    assert end is not None
    assert end.state == "cancelled"


async def test_expiry_ends_what_did_not_start(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    late = await stores.create(tenant, due=-9.0, expires=-1.0)
    parked = await stores.create(tenant, due=-9.0, expires=-1.0)
    await stores.move(tenant, parked.id, "paused")
    early = await stores.create(tenant, expires=60.0)
    assert set(await stores.engine.expire(ownership, limit=100)) == {late.id, parked.id}
    assert await stores.is_unfinished(early)
    end = await stores.inspect.end_of(late.id)
    assert end is not None
    assert (end.state, end.rev) == ("expired", late.rev + 1)


async def test_expiry_spares_what_runs(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    running, waiting = [await stores.create(tenant, expires=0.2) for _ in range(2)]
    assert await stores.claim(ownership, running) is not None
    while not (ended := await stores.engine.expire(ownership, limit=100)):
        continue
    while waiting.id not in ended:
        ended += await stores.engine.expire(ownership, limit=100)
    assert ended == [waiting.id]
    assert await stores.is_unfinished(running)


async def test_expiry_comes_some_at_a_time(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    rows = [await stores.create(tenant, due=-9.0, expires=-5.0 + n) for n in range(3)]
    ended = [await stores.engine.expire(ownership, limit=2) for _ in range(3)]
    assert [set(ids) for ids in ended] == [{rows[0].id, rows[1].id}, {rows[2].id}, set()]


async def test_expiry_is_the_owners_business(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    row = await stores.create(tenant, due=-9.0, expires=-1.0)
    elsewhere = await stores.join(frozenset({(row.partition + 1) % 256}))
    assert await stores.engine.expire(elsewhere, limit=100) == []
    await stores.cluster.hand_over(ownership, {})
    assert await stores.engine.expire(ownership, limit=100) == []
    assert await stores.is_unfinished(row)


async def test_a_spec_that_cannot_be_read_takes_no_other_task_along(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    odd = stores.new(tenant)._replace(spec=b'{"target":{"type":"handler","name":5}}')
    plain = stores.new(tenant)
    await stores.tasks.create([Creation(tenant, [odd, plain])], ownership)
    refs = [TaskRef(tenant, new.id, 1) for new in (odd, plain)]
    names = [(tenant, new.id) for new in (odd, plain)]
    for found in (
        await stores.engine.claim(ownership, refs, worker=stores.worker, lease=60.0),
        await stores.engine.claimed_by(refs, worker=stores.worker),
        await stores.engine.leased_to(names, worker=stores.worker),
    ):
        told = {execution.id: execution.unreadable for execution in found}
        assert told.pop(plain.id) is None
        assert "$.target.name" in (told[odd.id] or "")


async def test_nor_in_a_claim_for_workers(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    odd, plain = stores.new(tenant)._replace(spec=b"\xff"), stores.new(tenant)
    await stores.tasks.create([Creation(tenant, [odd, plain])], ownership)
    picks = [WorkerPick(tenant, new.id, 1, "w", "1") for new in (odd, plain)]
    executions = [(new.id, 1) for new in (odd, plain)]
    for found in (
        await stores.leases.claim_for(ownership, picks, lease=60.0),
        await stores.leases.claimed_for(picks),
        await stores.leases.leased(tenant, executions),
        await stores.leases.held(tenant, executions),
    ):
        told = {task.execution.id: task.execution.unreadable for task in found}
        assert told.pop(plain.id) is None
        assert told[odd.id]
