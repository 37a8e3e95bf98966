"""Claims and leases: what each predicate of these statements is for."""

from uuid import uuid4

from contract.store_lab import Lab, finish, held, retry
from mainspring.domain.placement import Ownership
from mainspring.store.creation import Creation
from mainspring.store.task_refs import TaskRef, WorkerPick


async def test_a_due_task_is_claimed_once(lab: Lab) -> None:
    ownership, tenant = await lab.join(), await lab.tenant()
    row = await lab.create(tenant)
    execution = await lab.claim(ownership, row)
    assert execution is not None
    assert (execution.fence, execution.attempt, execution.payload) == (1, 1, b"{}")
    assert await lab.claim(ownership, row) is None
    now = await lab.row(tenant, row.id)
    assert (now.state, now.rev, now.fence) == ("running", row.rev + 1, 1)


async def test_a_claim_names_the_rev_it_saw(lab: Lab) -> None:
    ownership, tenant = await lab.join(), await lab.tenant()
    row = await lab.create(tenant)
    assert await lab.claim(ownership, row, rev=row.rev + 1) is None
    assert await lab.claim(ownership, row) is not None


async def test_a_claim_names_the_tenant(lab: Lab) -> None:
    ownership, tenant, stranger = await lab.join(), await lab.tenant(), await lab.tenant()
    row = await lab.create(tenant)
    assert await lab.claim(ownership, row._replace(tenant_id=stranger)) is None


async def test_only_a_scheduled_task_is_claimed(lab: Lab) -> None:
    ownership, tenant = await lab.join(), await lab.tenant()
    row = await lab.create(tenant)
    await lab.move(tenant, row.id, "paused")
    assert await lab.claim(ownership, row, rev=row.rev + 1) is None
    await lab.move(tenant, row.id, "scheduled")
    assert await lab.claim(ownership, row, rev=row.rev + 2) is not None


async def test_a_running_task_is_not_claimed_again(lab: Lab) -> None:
    ownership, tenant = await lab.join(), await lab.tenant()
    row = await lab.create(tenant)
    assert await lab.claim(ownership, row) is not None
    assert await lab.claim(ownership, row, rev=row.rev + 1) is None


async def test_no_task_is_claimed_before_it_is_due(lab: Lab) -> None:
    ownership, tenant = await lab.join(), await lab.tenant()
    assert await lab.claim(ownership, await lab.create(tenant, due=30.0)) is None


async def test_no_task_is_claimed_after_its_expiry(lab: Lab) -> None:
    ownership, tenant = await lab.join(), await lab.tenant()
    assert await lab.claim(ownership, await lab.create(tenant, due=-9.0, expires=-1.0)) is None
    assert await lab.claim(ownership, await lab.create(tenant, expires=60.0)) is not None


async def test_a_node_with_an_old_epoch_claims_nothing(lab: Lab) -> None:
    ownership, tenant = await lab.join(), await lab.tenant()
    row = await lab.create(tenant)
    assert await lab.cluster.hand_over(ownership, {}) == ownership.epoch + 1
    assert await lab.claim(ownership, row) is None


async def test_a_node_nobody_knows_claims_nothing(lab: Lab) -> None:
    known, tenant = await lab.join(), await lab.tenant()
    row = await lab.create(tenant)
    stranger = Ownership(uuid4(), known.epoch, known.partitions)
    assert await lab.claim(stranger, row) is None
    assert await lab.claim(known, row) is not None


async def test_a_lost_answer_is_read_again(lab: Lab) -> None:
    ownership, tenant = await lab.join(), await lab.tenant()
    mine, waiting = await lab.create(tenant), await lab.create(tenant)
    await lab.claim(ownership, mine)
    refs = [TaskRef(tenant, row.id, row.rev) for row in (mine, waiting)]
    found = await lab.engine.claimed_by(refs, worker=lab.worker)
    assert [execution.id for execution in found] == [mine.id]
    assert found[0].fence == 1
    assert await lab.engine.claimed_by(refs, worker="node:other") == []


async def test_a_lost_answer_is_not_taken_from_an_earlier_execution(lab: Lab) -> None:
    """The database was set back between the claim and the question."""
    ownership, tenant = await lab.join(), await lab.tenant()
    row = await lab.create(tenant)
    await lab.claim(ownership, row)
    later = TaskRef(tenant, row.id, row.rev + 2)
    assert await lab.engine.claimed_by([later], worker=lab.worker) == []


async def test_a_claim_that_comes_late_comes_to_nothing(lab: Lab) -> None:
    ownership, tenant = await lab.join(), await lab.tenant()
    row = await lab.create(tenant)
    ref = TaskRef(tenant, row.id, row.rev)
    assert await lab.engine.claimed_by([ref], worker=lab.worker) == []
    assert await lab.claim(ownership, row) is None
    now = await lab.row(tenant, row.id)
    assert now.state == "scheduled"
    assert await lab.claim(ownership, now) is not None


async def test_reading_a_lost_answer_leaves_other_changes_alone(lab: Lab) -> None:
    tenant = await lab.tenant()
    row = await lab.create(tenant)
    await lab.move(tenant, row.id, "paused")
    for rev in (row.rev, row.rev + 1):
        await lab.engine.claimed_by([TaskRef(tenant, row.id, rev)], worker=lab.worker)
    assert (await lab.row(tenant, row.id)).rev == row.rev + 1
    await lab.move(tenant, row.id, "scheduled")
    await lab.engine.claimed_by([TaskRef(tenant, row.id, row.rev)], worker=lab.worker)
    assert (await lab.row(tenant, row.id)).rev == row.rev + 2


async def test_a_lease_is_extended(lab: Lab) -> None:
    ownership, tenant = await lab.join(), await lab.tenant()
    task = await lab.running(ownership, tenant, lease=1.0)
    (extended,) = await lab.engine.extend([held(task)], lease=60.0)
    assert extended.lease_end > task.lease_end + 50
    assert not extended.cancel_requested
    await lab.ask_to_cancel(task)
    (extended,) = await lab.engine.extend([held(task)], lease=60.0)
    assert extended.cancel_requested


async def test_only_the_current_try_is_extended(lab: Lab) -> None:
    ownership, tenant = await lab.join(), await lab.tenant()
    task = await lab.running(ownership, tenant)
    assert await lab.engine.extend([held(task, fence=7)], lease=60.0) == []
    await lab.engine.retry(ownership, [retry(task)])
    assert await lab.engine.extend([held(task)], lease=60.0) == []


async def test_a_lease_that_ran_out_is_lost(lab: Lab) -> None:
    ownership, tenant = await lab.join(), await lab.tenant()
    task = await lab.running(ownership, tenant, lease=-1.0)
    seen = await lab.engine.expire_leases([held(task)])
    assert [(row.id, row.state, row.fence) for row in seen.rows] == [(task.id, "scheduled", 1)]
    assert seen.gone == []
    assert seen.rows[0].due == task.due
    assert await lab.inspect.tries_of(task.id) == [(1, "lost")]


async def test_a_lease_that_holds_is_not_lost(lab: Lab) -> None:
    ownership, tenant = await lab.join(), await lab.tenant()
    task = await lab.running(ownership, tenant, lease=60.0)
    seen = await lab.engine.expire_leases([held(task)])
    assert (seen.rows, seen.gone) == ([], [])


async def test_only_the_current_try_is_lost(lab: Lab) -> None:
    ownership, tenant = await lab.join(), await lab.tenant()
    task = await lab.running(ownership, tenant, lease=-1.0)
    seen = await lab.engine.expire_leases([held(task, fence=7)])
    assert (seen.rows, seen.gone) == ([], [])
    assert await lab.engine.finish(ownership, [finish(task)]) == {task.id}
    seen = await lab.engine.expire_leases([held(task)])
    assert (seen.rows, seen.gone) == ([], [])


async def test_a_lost_task_that_was_asked_to_cancel_is_cancelled(lab: Lab) -> None:
    ownership, tenant = await lab.join(), await lab.tenant()
    task = await lab.running(ownership, tenant, lease=-1.0)
    await lab.ask_to_cancel(task)
    seen = await lab.engine.expire_leases([held(task)])
    assert (seen.rows, seen.gone) == ([], [task.id])
    end = await lab.inspect.end_of(task.id)
    assert end is not None
    assert end.state == "cancelled"


async def test_expiry_ends_what_did_not_start(lab: Lab) -> None:
    ownership, tenant = await lab.join(), await lab.tenant()
    late = await lab.create(tenant, due=-9.0, expires=-1.0)
    parked = await lab.create(tenant, due=-9.0, expires=-1.0)
    await lab.move(tenant, parked.id, "paused")
    early = await lab.create(tenant, expires=60.0)
    assert set(await lab.engine.expire(ownership, limit=100)) == {late.id, parked.id}
    assert await lab.is_unfinished(early)
    end = await lab.inspect.end_of(late.id)
    assert end is not None
    assert (end.state, end.rev) == ("expired", late.rev + 1)


async def test_expiry_spares_what_runs(lab: Lab) -> None:
    ownership, tenant = await lab.join(), await lab.tenant()
    running, waiting = [await lab.create(tenant, expires=0.2) for _ in range(2)]
    assert await lab.claim(ownership, running) is not None
    while not (ended := await lab.engine.expire(ownership, limit=100)):
        continue
    while waiting.id not in ended:
        ended += await lab.engine.expire(ownership, limit=100)
    assert ended == [waiting.id]
    assert await lab.is_unfinished(running)


async def test_expiry_comes_some_at_a_time(lab: Lab) -> None:
    ownership, tenant = await lab.join(), await lab.tenant()
    rows = [await lab.create(tenant, due=-9.0, expires=-5.0 + n) for n in range(3)]
    ended = [await lab.engine.expire(ownership, limit=2) for _ in range(3)]
    assert [set(ids) for ids in ended] == [{rows[0].id, rows[1].id}, {rows[2].id}, set()]


async def test_expiry_is_the_owners_business(lab: Lab) -> None:
    ownership, tenant = await lab.join(), await lab.tenant()
    row = await lab.create(tenant, due=-9.0, expires=-1.0)
    elsewhere = await lab.join(frozenset({(row.partition + 1) % 256}))
    assert await lab.engine.expire(elsewhere, limit=100) == []
    await lab.cluster.hand_over(ownership, {})
    assert await lab.engine.expire(ownership, limit=100) == []
    assert await lab.is_unfinished(row)


async def test_a_spec_that_cannot_be_read_takes_no_other_task_along(lab: Lab) -> None:
    ownership, tenant = await lab.join(), await lab.tenant()
    odd = lab.new(tenant)._replace(spec=b'{"target":{"type":"handler","name":5}}')
    plain = lab.new(tenant)
    await lab.tasks.create([Creation(tenant, [odd, plain])], ownership)
    refs = [TaskRef(tenant, new.id, 1) for new in (odd, plain)]
    names = [(tenant, new.id) for new in (odd, plain)]
    for found in (
        await lab.engine.claim(ownership, refs, worker=lab.worker, lease=60.0),
        await lab.engine.claimed_by(refs, worker=lab.worker),
        await lab.engine.leased_to(names, worker=lab.worker),
    ):
        told = {execution.id: execution.unreadable for execution in found}
        assert told.pop(plain.id) is None
        assert "$.target.name" in (told[odd.id] or "")


async def test_nor_in_a_claim_for_workers(lab: Lab) -> None:
    ownership, tenant = await lab.join(), await lab.tenant()
    odd, plain = lab.new(tenant)._replace(spec=b"\xff"), lab.new(tenant)
    await lab.tasks.create([Creation(tenant, [odd, plain])], ownership)
    picks = [WorkerPick(tenant, new.id, 1, "w", "1") for new in (odd, plain)]
    tries = [(new.id, 1) for new in (odd, plain)]
    for found in (
        await lab.leases.claim_for(ownership, picks, lease=60.0),
        await lab.leases.claimed_for(picks),
        await lab.leases.leased(tenant, tries),
        await lab.leases.held(tenant, tries),
    ):
        told = {task.execution.id: task.execution.unreadable for task in found}
        assert told.pop(plain.id) is None
        assert told[odd.id]
