"""Leases that ended unreported: what is counted, and when a task is given up as poison."""

from typing import NamedTuple

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contract.store_set import StoreSet, held, memory_stores, retry
from mainspring.domain.capability import ALONE
from mainspring.domain.execution import Execution, Outcome
from mainspring.domain.partitions import Ownership
from mainspring.domain.rows import TaskRow
from mainspring.store.leases import HeldHeartbeat
from mainspring.store.task_refs import WorkerPick


class Loss(NamedTuple):
    """How a worker is lost with a task."""

    started: bool = False
    """Its worker said that the execution began,"""
    alone: bool = False
    """and that nothing else ran."""
    presumed: bool = False
    """The owner takes it as begun."""
    counted: bool = True
    """The worker got the task, as far as the owner knows."""

    @property
    def began(self) -> bool:
        return self.started or self.presumed


SILENT = Loss()
STARTED = Loss(started=True)
ALONE_STARTED = Loss(started=True, alone=True)
PRESUMED = Loss(presumed=True)
BY_NODE = Loss(started=True, alone=True, counted=False)


async def leased(
    stores: StoreSet, ownership: Ownership, row: TaskRow, lease: float = 0.0
) -> Execution:
    found = await stores.lease(ownership, row, lease=lease)
    assert found is not None
    return found


async def say(stores: StoreSet, task: Execution, loss: Loss) -> None:
    beat = HeldHeartbeat(task.id, task.fence, started=loss.started, alone=loss.alone)
    await stores.leases.extend_for(task.tenant_id, "w", "1", [beat], lease=0.0, grace=5.0)


async def expire_leases(
    stores: StoreSet, ownership: Ownership, row: TaskRow, loss: Loss
) -> TaskRow | None:
    """Lease it, and lose its worker. Return how it waits again; None if it is given up."""
    task = await leased(stores, ownership, row)
    await say(stores, task, loss)
    seen = await stores.engine.expire_leases(
        [held(task)],
        count_crash=[task.id] if loss.counted else [],
        presumed=[task.id] if loss.presumed else [],
    )
    assert len(seen.rows) + len(seen.gone) == 1
    return seen.rows[0] if seen.rows else None


async def lost_twice(stores: StoreSet, ownership: Ownership, tenant: int) -> TaskRow:
    """A task that was started by two workers, and lost with both."""
    row = await stores.create(tenant)
    for _ in range(2):
        lost = await expire_leases(stores, ownership, row, STARTED)
        assert lost is not None
        row = lost
    return row


async def test_three_losses_of_a_worker_that_never_tells_are_enough(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    row: TaskRow | None = await stores.create(tenant)
    assert row is not None
    task_id = row.id
    for expected in ("handler:work", f"handler:work{ALONE}"):
        row = await expire_leases(stores, ownership, row, PRESUMED)
        assert row is not None
        assert (row.capability, row.worker, row.incarnation) == (expected, None, None)
    assert await expire_leases(stores, ownership, row, PRESUMED) is None
    assert await stores.inspect.dead_letter(task_id) == ("poison", ["lost"] * 3)
    end = await stores.inspect.end_of(task_id)
    assert end is not None
    assert (end.state, end.failures) == ("failed", 0)


@pytest.mark.parametrize(
    ("losses", "given_up"),
    [
        ([SILENT, STARTED, ALONE_STARTED], True),
        ([STARTED, SILENT, ALONE_STARTED], True),
        ([SILENT, SILENT, ALONE_STARTED], False),  # it began once: that may be chance
        ([SILENT, SILENT, ALONE_STARTED, ALONE_STARTED], True),
        ([STARTED, STARTED, STARTED], False),  # others ran beside it
        ([STARTED, STARTED, SILENT], False),
        ([STARTED, STARTED, BY_NODE], False),
        ([STARTED, ALONE_STARTED], False),  # two are too few
        ([SILENT, STARTED, PRESUMED], True),
        ([SILENT] * 9, False),
    ],
)
async def test_what_is_poison(stores: StoreSet, losses: list[Loss], given_up: bool) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    row: TaskRow | None = await stores.create(tenant)
    for loss in losses:
        assert row is not None, "given up too early"
        row = await expire_leases(stores, ownership, row, loss)
    assert (row is None) is given_up


async def test_executions_that_did_not_start_are_counted_separately(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    row = await stores.create(tenant)
    for loss, expected in (
        (SILENT, (0, 1)),
        (STARTED, (1, 1)),
        (BY_NODE, (1, 1)),
        (STARTED, (2, 1)),
        (SILENT, (2, 2)),
    ):
        lost = await expire_leases(stores, ownership, row, loss)
        assert lost is not None
        assert await stores.inspect.losses_of(row.id) == expected
        row = lost
    assert [outcome for _, outcome in await stores.inspect.executions_of(row.id)] == ["lost"] * 5


async def test_each_lease_needs_its_own_proof(stores: StoreSet) -> None:
    """Word of an earlier execution, or of another worker, says nothing of this one."""
    ownership, tenant = await stores.join(), await stores.tenant()
    row = await stores.create(tenant)
    for loss in (ALONE_STARTED, ALONE_STARTED, SILENT, SILENT):
        lost = await expire_leases(stores, ownership, row, loss)
        assert lost is not None
        row = lost
    assert await stores.inspect.losses_of(row.id) == (2, 2)
    task = await leased(stores, ownership, row)
    for name, fence in (("other", task.fence), ("w", task.fence - 1)):
        beat = HeldHeartbeat(task.id, fence, started=True, alone=True)
        await stores.leases.extend_for(tenant, name, "1", [beat], lease=9.0, grace=5.0)
    assert (await stores.engine.expire_leases([held(task)], count_crash=[task.id])).rows
    assert await stores.inspect.losses_of(row.id) == (2, 3)


async def test_alone_counts_only_in_the_heartbeat_that_starts_it(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    row = await lost_twice(stores, ownership, tenant)
    task = await leased(stores, ownership, row)
    for loss in (Loss(started=False, alone=True), STARTED):
        await say(stores, task, loss)
    assert (await stores.engine.expire_leases([held(task)], count_crash=[task.id])).rows


async def test_what_was_lost_is_leased_as_suspect_until_it_reports(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    row = await stores.create(tenant)

    async def lease(row: TaskRow) -> tuple[Execution, bool]:
        pick = WorkerPick(tenant, row.id, row.rev, "w", "1")
        (found,) = await stores.leases.claim_for(ownership, [pick], lease=0.0)
        ((again),) = await stores.leases.leased(tenant, [(row.id, found.execution.fence)])
        (claimed,) = await stores.leases.claimed_for([pick])
        assert found.suspect == again.suspect == claimed.suspect
        return found.execution, found.suspect

    task, suspect = await lease(row)
    assert not suspect
    (row,) = (await stores.engine.expire_leases([held(task)])).rows
    task, suspect = await lease(row)
    assert not suspect, "a node was lost, no worker"
    (row,) = (await stores.engine.expire_leases([held(task)], count_crash=[task.id])).rows
    task, suspect = await lease(row)
    assert suspect
    (row,) = await stores.engine.retry(
        ownership, [retry(task, outcome=Outcome.RELEASED, delay=None)]
    )
    task, suspect = await lease(row)
    assert suspect
    (row,) = await stores.engine.retry(ownership, [retry(task, delay=0.0)])
    assert await stores.inspect.losses_of(row.id) == (0, 0)
    assert not (await lease(row))[1]


async def test_a_report_clears_the_suspicion_and_a_release_does_not(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    row = await lost_twice(stores, ownership, tenant)
    task = await leased(stores, ownership, row, 60.0)
    (row,) = await stores.engine.retry(
        ownership, [retry(task, outcome=Outcome.RELEASED, delay=None)]
    )
    assert row.capability.endswith(ALONE)
    task = await leased(stores, ownership, row, 60.0)
    (row,) = await stores.engine.retry(ownership, [retry(task, delay=0.0)])
    assert row.capability == "handler:work"


_losses = st.lists(
    st.builds(
        Loss,
        started=st.booleans(),
        alone=st.booleans(),
        presumed=st.booleans(),
        counted=st.booleans(),
    ),
    max_size=9,
)


async def check_history(stores: StoreSet, losses: list[Loss]) -> None:
    """Whatever the order: what never began is not counted, what did not begin alone is no poison,
    and what began alone and is lost again and again is."""
    ownership, tenant = await stores.join(), await stores.tenant()
    row: TaskRow | None = await stores.create(tenant)
    began = unproven = 0
    for loss in losses:
        assert row is not None
        task_id, was_alone = row.id, row.capability.endswith(ALONE)
        row = await expire_leases(stores, ownership, row, loss)
        began += loss.counted and loss.began
        unproven += loss.counted and not loss.began
        ran_alone = was_alone and (loss.presumed or (loss.started and loss.alone))
        poison = loss.counted and ran_alone and began >= 2 and began + unproven >= 3
        assert (row is None) is poison
        if row is None:
            return
        assert await stores.inspect.losses_of(task_id) == (began, unproven)
        assert row.capability.endswith(ALONE) is (began + unproven >= 2)


@settings(max_examples=200, database=None, deadline=None)
@given(_losses)
async def test_any_history_of_losses_in_memory(losses: list[Loss]) -> None:
    await check_history(memory_stores(), losses)


@pytest.mark.server
@settings(
    max_examples=60,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(losses=_losses)
async def test_any_history_of_losses(real_stores: StoreSet, losses: list[Loss]) -> None:
    await check_history(real_stores, losses)


@pytest.mark.server
async def test_proof_ends_with_its_lease(
    real_stores: StoreSet, connection: asyncpg.Connection
) -> None:
    """Nodes of the version before lease tasks without knowing of it."""
    ownership, tenant = await real_stores.join(), await real_stores.tenant()
    row: TaskRow | None = await real_stores.create(tenant)
    assert row is not None
    row = await expire_leases(real_stores, ownership, row, ALONE_STARTED)
    proof = "SELECT began OR began_alone FROM tasks"
    assert await connection.fetchval(proof) is False
    assert row is not None
    task = await leased(real_stores, ownership, row)
    await connection.execute("UPDATE tasks SET began = true, began_alone = true")
    await real_stores.engine.retry(ownership, [retry(task, delay=None)])
    assert await connection.fetchval(proof) is False
