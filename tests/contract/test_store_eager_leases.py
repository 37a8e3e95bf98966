"""Tasks that are leased as they are written: what each predicate is for."""

from typing import Any
from uuid import uuid4

from contract.store_set import StoreSet, finish
from mainspring.domain.partitions import NO_OWNERSHIP, Ownership, partition_of
from mainspring.store.creation import Creation, EagerLeaseOffer, Keyed, Made


async def made(stores: StoreSet, ownership: Ownership, tenant: int, **fields: Any) -> Made:
    """One new task that may start at once."""
    new = stores.new(tenant, **fields)
    start = EagerLeaseOffer({new.id: new}, stores.worker, 60.0)
    return await stores.tasks.create([Creation(tenant, [new])], ownership, start)


async def test_what_may_start_is_running_when_it_is_there(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    [(row, execution)] = (await made(stores, ownership, tenant)).leased
    found = await stores.row(tenant, row.id)
    assert (found.state, found.rev, found.fence, found.lease_end) == (
        "running", 2, 1, execution.lease_end,
    )  # fmt: skip
    assert (row.state, row.rev, row.fence, row.lease_end) == (
        "running", 2, 1, execution.lease_end,
    )  # fmt: skip
    assert execution.lease_end - execution.picked > 59
    assert await stores.inspect.wakes() == []


async def test_an_eager_lease_reads_like_a_claim(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    [(row, given)] = (await made(stores, ownership, tenant)).leased
    claimed = await stores.claim(ownership, await stores.create(tenant))
    assert claimed is not None
    assert given == claimed._replace(
        id=row.id, partition=row.partition, due=given.due, run=given.run, picked=given.picked,
        lease_end=given.lease_end,
    )  # fmt: skip


async def test_its_outcome_is_recorded(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    [(row, execution)] = (await made(stores, ownership, tenant)).leased
    assert await stores.engine.finish(ownership, [finish(execution)]) == {row.id}


async def test_only_what_was_named_starts(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    one, other = stores.new(tenant), stores.new(tenant)
    start = EagerLeaseOffer({one.id: one}, stores.worker, 60.0)
    done = await stores.tasks.create([Creation(tenant, [one, other])], ownership, start)
    assert [row.id for row, _ in done.leased] == [one.id]
    assert (await stores.row(tenant, other.id)).state == "scheduled"


async def test_what_is_not_due_waits(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    done = await made(stores, ownership, tenant, due=30.0)
    assert done.leased == []
    [task_id] = done.partitions
    assert (await stores.row(tenant, task_id)).state == "scheduled"


async def test_what_has_a_key_or_an_expiry_waits(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    assert (await made(stores, ownership, tenant, key="red")).leased == []
    assert (await made(stores, ownership, tenant, expires=60.0)).leased == []


async def test_the_task_of_a_limited_tenant_waits(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant(max_running=256, spread=256)
    assert (await made(stores, ownership, tenant)).leased == []


async def test_a_node_leases_only_in_its_own_partitions(stores: StoreSet) -> None:
    tenant = await stores.tenant(spread=1)
    here = partition_of(tenant, uuid4(), None, 1)
    ownership = await stores.join(frozenset({(here + 1) % 256}))
    done = await made(stores, ownership, tenant)
    assert (len(done.partitions), done.leased) == (1, [])
    assert len(await stores.inspect.wakes()) == 1
    assert len((await made(stores, await stores.join(frozenset({here})), tenant)).leased) == 1


async def test_a_node_with_an_old_epoch_creates_and_does_not_lease(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    assert await stores.cluster.hand_over(ownership, {}) == ownership.epoch + 1
    for stale in (ownership, NO_OWNERSHIP):
        done = await made(stores, stale, tenant)
        assert (len(done.partitions), done.leased) == (1, [])


async def test_a_taken_key_leases_nothing(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    leased = []
    for _ in range(2):
        new = stores.new(tenant)
        keyed = Keyed("k", b"hash", b"{}", 60.0)
        start = EagerLeaseOffer({new.id: new}, stores.worker, 60.0)
        done = await stores.tasks.create([Creation(tenant, [new], keyed)], ownership, start)
        leased.append(len(done.leased))
    assert leased == [1, 0]


async def test_what_a_lost_answer_leased_is_found(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    [(row, execution)] = (await made(stores, ownership, tenant)).leased
    waiting = await stores.create(tenant)
    names = [(tenant, row.id), (tenant, waiting.id)]
    [found] = await stores.engine.leased_to(names, worker=stores.worker)
    assert (found.id, found.fence) == (execution.id, execution.fence)
    assert await stores.engine.leased_to(names, worker="node:another") == []
