"""Tasks that are leased as they are written: what each predicate is for."""

from typing import Any
from uuid import uuid4

from contract.store_lab import Lab, finish
from mainspring.domain.placement import NOBODY, Tenure, partition_of
from mainspring.store.creation import Creation, HeadStart, Keyed, Made


async def made(lab: Lab, tenure: Tenure, tenant: int, **fields: Any) -> Made:
    """One new task that may start at once."""
    new = lab.new(tenant, **fields)
    start = HeadStart({new.id: new}, lab.worker, 60.0)
    return await lab.tasks.create([Creation(tenant, [new])], tenure, start)


async def test_what_may_start_is_running_when_it_is_there(lab: Lab) -> None:
    tenure, tenant = await lab.join(), await lab.tenant()
    [(row, assignment)] = (await made(lab, tenure, tenant)).begun
    found = await lab.row(tenant, row.id)
    assert (found.state, found.rev, found.fence, found.lease_end) == (
        "running", 2, 1, assignment.lease_end,
    )  # fmt: skip
    assert (row.state, row.rev, row.fence, row.lease_end) == (
        "running", 2, 1, assignment.lease_end,
    )  # fmt: skip
    assert assignment.lease_end - assignment.picked > 59
    assert await lab.inspect.wakes() == []


async def test_it_is_told_as_a_claim_would_have_told_it(lab: Lab) -> None:
    tenure, tenant = await lab.join(), await lab.tenant()
    [(row, given)] = (await made(lab, tenure, tenant)).begun
    claimed = await lab.claim(tenure, await lab.create(tenant))
    assert claimed is not None
    assert given == claimed._replace(
        id=row.id, partition=row.partition, due=given.due, run=given.run, picked=given.picked,
        lease_end=given.lease_end,
    )  # fmt: skip


async def test_its_outcome_is_recorded(lab: Lab) -> None:
    tenure, tenant = await lab.join(), await lab.tenant()
    [(row, assignment)] = (await made(lab, tenure, tenant)).begun
    assert await lab.engine.finish(tenure, [finish(assignment)]) == {row.id}


async def test_only_what_was_named_starts(lab: Lab) -> None:
    tenure, tenant = await lab.join(), await lab.tenant()
    one, other = lab.new(tenant), lab.new(tenant)
    start = HeadStart({one.id: one}, lab.worker, 60.0)
    done = await lab.tasks.create([Creation(tenant, [one, other])], tenure, start)
    assert [row.id for row, _ in done.begun] == [one.id]
    assert (await lab.row(tenant, other.id)).state == "scheduled"


async def test_what_is_not_due_waits(lab: Lab) -> None:
    tenure, tenant = await lab.join(), await lab.tenant()
    done = await made(lab, tenure, tenant, due=30.0)
    assert done.begun == []
    [task_id] = done.partitions
    assert (await lab.row(tenant, task_id)).state == "scheduled"


async def test_what_has_a_key_or_an_expiry_waits(lab: Lab) -> None:
    tenure, tenant = await lab.join(), await lab.tenant()
    assert (await made(lab, tenure, tenant, key="red")).begun == []
    assert (await made(lab, tenure, tenant, expires=60.0)).begun == []


async def test_the_task_of_a_limited_tenant_waits(lab: Lab) -> None:
    tenure, tenant = await lab.join(), await lab.tenant(max_running=256, spread=256)
    assert (await made(lab, tenure, tenant)).begun == []


async def test_a_node_leases_only_in_its_own_partitions(lab: Lab) -> None:
    tenant = await lab.tenant(spread=1)
    here = partition_of(tenant, uuid4(), None, 1)
    tenure = await lab.join(frozenset({(here + 1) % 256}))
    done = await made(lab, tenure, tenant)
    assert (len(done.partitions), done.begun) == (1, [])
    assert len(await lab.inspect.wakes()) == 1
    assert len((await made(lab, await lab.join(frozenset({here})), tenant)).begun) == 1


async def test_a_node_with_an_old_epoch_creates_and_does_not_lease(lab: Lab) -> None:
    tenure, tenant = await lab.join(), await lab.tenant()
    assert await lab.cluster.hand_over(tenure, {}) == tenure.epoch + 1
    for stale in (tenure, NOBODY):
        done = await made(lab, stale, tenant)
        assert (len(done.partitions), done.begun) == (1, [])


async def test_a_taken_key_leases_nothing(lab: Lab) -> None:
    tenure, tenant = await lab.join(), await lab.tenant()
    begun = []
    for _ in range(2):
        new = lab.new(tenant)
        keyed = Keyed("k", b"hash", b"{}", 60.0)
        start = HeadStart({new.id: new}, lab.worker, 60.0)
        done = await lab.tasks.create([Creation(tenant, [new], keyed)], tenure, start)
        begun.append(len(done.begun))
    assert begun == [1, 0]


async def test_what_a_lost_answer_leased_is_found(lab: Lab) -> None:
    tenure, tenant = await lab.join(), await lab.tenant()
    [(row, assignment)] = (await made(lab, tenure, tenant)).begun
    waiting = await lab.create(tenant)
    names = [(tenant, row.id), (tenant, waiting.id)]
    [found] = await lab.engine.leased_to(names, worker=lab.worker)
    assert (found.id, found.fence) == (assignment.id, assignment.fence)
    assert await lab.engine.leased_to(names, worker="node:another") == []
