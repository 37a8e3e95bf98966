"""Leases of workers: what each predicate of these statements is for."""

from uuid import UUID

from contract.store_set import StoreSet, finish, held
from mainspring.domain.capability import Offer
from mainspring.domain.execution import Execution, Outcome
from mainspring.domain.partitions import Ownership
from mainspring.store.claims import ExtendedLease
from mainspring.store.leases import HeldHeartbeat
from mainspring.store.task_refs import WorkerPick

OFFER = Offer(frozenset({"default"}), frozenset({"work"}))


async def leased(stores: StoreSet, ownership: Ownership, tenant: int, **more: object) -> Execution:
    found = await stores.lease(ownership, await stores.create(tenant), **more)  # type: ignore[arg-type]
    assert found is not None
    return found


async def beat(stores: StoreSet, task: Execution, **more: object) -> list[ExtendedLease]:
    told = {"worker": "w", "incarnation": "1", "fence": task.fence, "grace": 5.0, **more}
    return await stores.leases.extend_for(
        task.tenant_id,
        str(told["worker"]),
        str(told["incarnation"]),
        [HeldHeartbeat(task.id, int(str(told["fence"])), started=bool(told.get("started", True)))],
        lease=60.0,
        grace=float(str(told["grace"])),
    )


async def test_a_lease_names_its_worker(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    task = await leased(stores, ownership, tenant)
    row = await stores.row(tenant, task.id)
    assert (row.state, row.worker, row.incarnation, row.fence) == ("running", "w", "1", 1)
    assert await stores.lease(ownership, row) is None
    assert await stores.lease(ownership, row._replace(rev=row.rev)) is None


async def test_a_fenced_node_leases_nothing(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    row = await stores.create(tenant)
    stale = Ownership(ownership.node_id, ownership.epoch + 1, ownership.partitions)
    assert await stores.lease(stale, row) is None
    assert await stores.lease(ownership, row._replace(rev=9)) is None
    assert await stores.lease(ownership, row) is not None


async def test_a_worker_gets_no_task_before_due_or_after_expiry(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    assert await stores.lease(ownership, await stores.create(tenant, due=30.0)) is None
    assert (
        await stores.lease(ownership, await stores.create(tenant, due=-9.0, expires=-1.0)) is None
    )
    assert await stores.lease(ownership, await stores.create(tenant, expires=60.0)) is not None


async def test_an_incarnation_that_was_replaced_gets_nothing(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    assert await stores.register(tenant, "w", "1", OFFER, None)
    assert await stores.register(tenant, "w", "1", OFFER, None)
    row = await stores.create(tenant)
    assert await stores.register(tenant, "w", "2", OFFER, None)
    assert await stores.lease(ownership, row, incarnation="1") is None
    assert not await stores.register(tenant, "w", "1", OFFER, None), "it cannot come back"
    assert await stores.register(tenant, "v", "9", OFFER, None), "another worker is no successor"
    assert await stores.lease(ownership, row, incarnation="2") is not None


async def test_a_lost_claim_is_read_and_cannot_come_late(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    rows = mine, others, strangers, late = [await stores.create(tenant) for _ in range(4)]
    assert await stores.lease(ownership, mine)
    assert await stores.lease(ownership, others, incarnation="2")
    assert await stores.lease(ownership, strangers, worker="v")
    picks = [WorkerPick(tenant, row.id, row.rev, "w", "1") for row in rows]
    found = await stores.leases.claimed_for(picks)
    assert [item.execution.id for item in found] == [mine.id]
    assert await stores.lease(ownership, late) is None


async def test_a_lost_claim_is_not_taken_from_an_earlier_execution(stores: StoreSet) -> None:
    """The database was set back between the claim and the question."""
    ownership, tenant = await stores.join(), await stores.tenant()
    row = await stores.create(tenant)
    assert await stores.lease(ownership, row)
    later = WorkerPick(tenant, row.id, row.rev + 2, "w", "1")
    assert await stores.leases.claimed_for([later]) == []


async def test_a_heartbeat_extends_its_own_present_executions_only(stores: StoreSet) -> None:
    ownership, tenant, stranger = await stores.join(), await stores.tenant(), await stores.tenant()
    task = await leased(stores, ownership, tenant, lease=1.0)
    (item,) = await beat(stores, task)
    assert item.lease_end > task.lease_end + 50
    assert not item.cancel_requested
    assert not item.overdue
    assert await beat(stores, task, worker="other") == []
    assert await beat(stores, task, incarnation="2") == []
    assert await beat(stores, task, fence=2) == []
    assert await beat(stores, task._replace(tenant_id=stranger)) == []
    await stores.ask_to_cancel(task)
    assert (await beat(stores, task))[0].cancel_requested
    await stores.engine.finish(ownership, [finish(task)])
    assert await beat(stores, task) == []


async def test_announcing_a_start_does_not_extend_a_fresh_lease(stores: StoreSet) -> None:
    """Its worker, should it die, is missed as soon as without that word."""
    ownership, tenant = await stores.join(), await stores.tenant()
    fresh = await leased(stores, ownership, tenant, lease=30.0)
    (item,) = await beat(stores, fresh)
    assert abs(item.lease_end - fresh.lease_end) < 0.001
    (item,) = await beat(stores, fresh)
    assert item.lease_end > fresh.lease_end + 20, "the next one is about the lease"
    old = await leased(stores, ownership, tenant, lease=19.0)
    (item,) = await beat(stores, old)
    assert item.lease_end > old.lease_end + 20
    waiting = await leased(stores, ownership, tenant, lease=30.0)
    (item,) = await beat(stores, waiting, started=False)
    assert item.lease_end > waiting.lease_end + 20, "what has not begun is kept"


async def test_nothing_is_extended_far_beyond_its_hard_timeout(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    task = await leased(stores, ownership, tenant, lease=1.0)
    (item,) = await beat(stores, task, grace=-10.0)  # the timeout is 30 s, the lease would be 60 s
    assert not item.overdue
    assert abs(item.lease_end - (task.picked + 20 + 30)) < 0.001


async def test_nothing_is_extended_past_its_hard_timeout(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    task = await leased(stores, ownership, tenant, lease=1.0)
    (item,) = await beat(stores, task, grace=-100.0)  # the timeout is 30 s
    assert item.overdue
    assert abs(item.lease_end - task.lease_end) < 0.001


async def test_only_the_present_execution_counts_as_leased(stores: StoreSet) -> None:
    ownership, tenant, stranger = await stores.join(), await stores.tenant(), await stores.tenant()
    task = await leased(stores, ownership, tenant)
    own = await stores.running(ownership, tenant)
    executions = [(task.id, 1), (task.id, 2), (own.id, 1)]
    (found,) = await stores.leases.held(tenant, executions)
    assert (found.execution.id, found.execution.fence) == (task.id, 1)
    assert await stores.leases.held(stranger, executions) == []


async def test_nobody_is_blamed_for_a_node(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    row = await stores.create(tenant)
    for _ in range(4):
        task = await stores.lease(ownership, row, lease=0.0)
        assert task is not None
        (row,) = (await stores.engine.expire_leases([held(task)])).rows
        assert row.capability == "handler:work"
    own = await stores.claim(ownership, row, lease=0.0)
    assert own is not None
    (row,) = (await stores.engine.expire_leases([held(own)], count_crash=[own.id])).rows
    assert row.capability == "handler:work", "a node's own executor is no worker"


async def test_a_restart_ends_leases_that_would_last(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    await stores.register(tenant, "w", "1", OFFER, None)
    task = await leased(stores, ownership, tenant)
    assert (await stores.engine.expire_leases([held(task)])).rows == []
    await stores.register(tenant, "another", "2", OFFER, None)
    assert (await stores.engine.expire_leases([held(task)])).rows == []
    await stores.register(tenant, "w", "2", OFFER, None)
    (row,) = (await stores.engine.expire_leases([held(task)], count_crash=[task.id])).rows
    assert row.state == "scheduled"


async def test_a_lease_of_another_node_reads_as_its_claim_returned_it(stores: StoreSet) -> None:
    ownership, tenant, stranger = await stores.join(), await stores.tenant(), await stores.tenant()
    task = await leased(stores, ownership, tenant)
    own = await stores.running(ownership, tenant)
    (found,) = await stores.leases.leased(tenant, [(task.id, 1), (task.id, 2), (own.id, 1)])
    assert (found.execution.id, found.execution.fence) == (task.id, 1)
    assert (found.queue, found.capability) == ("default", "handler:work")
    assert await stores.leases.leased(stranger, [(task.id, 1)]) == []


async def test_reports_that_changed_nothing_get_a_reason(stores: StoreSet) -> None:
    """The same report again, another of the same execution, one of an execution that is over,
    one of a task that never was."""
    ownership, tenant = await stores.join(), await stores.tenant()
    done, late, gone, off = [await leased(stores, ownership, tenant, lease=0.0) for _ in range(4)]
    await stores.engine.finish(ownership, [finish(done)])
    await stores.engine.finish(ownership, [finish(off, outcome=Outcome.CANCELLED)])
    await stores.engine.finish(ownership, [finish(late, outcome=Outcome.TIMED_OUT)])
    await stores.engine.expire_leases([held(gone)])
    unknown = stores.ids.make(1_800_000_000.0)

    async def judged(task_id: UUID, fence: int, outcome: Outcome) -> tuple[bool, bool]:
        (found,) = await stores.leases.judge(tenant, [(task_id, fence, outcome)])
        assert (found.id, found.fence, found.outcome) == (task_id, fence, outcome.value)
        return found.recorded, found.known

    assert await judged(done.id, 1, Outcome.SUCCEEDED) == (True, True)
    assert await judged(done.id, 2, Outcome.SUCCEEDED) == (False, True)
    assert await judged(done.id, 1, Outcome.FAILED) == (False, True), "it said the contrary before"
    assert await judged(off.id, 1, Outcome.FAILED) == (True, True), "this is how it was cancelled"
    assert await judged(off.id, 1, Outcome.SUCCEEDED) == (False, True)
    assert await judged(late.id, 1, Outcome.FAILED) == (False, True), "we ended it, not the worker"
    assert await judged(late.id, 1, Outcome.TIMED_OUT) == (True, True)
    assert await judged(gone.id, 1, Outcome.SUCCEEDED) == (False, True)
    assert await judged(unknown, 1, Outcome.SUCCEEDED) == (False, False)
