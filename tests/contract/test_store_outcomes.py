"""Outcomes: at most one is accepted per execution, and it lands where it belongs."""

import pytest

from contract.store_set import End, StoreSet, finish, retry
from mainspring.domain.execution import Outcome
from mainspring.domain.task import TaskState


async def test_a_finished_task_is_history(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    task = await stores.running(ownership, tenant)
    assert await stores.engine.finish(ownership, [finish(task)]) == {task.id}
    seen = await stores.engine.look_at([(tenant, task.id)])
    assert (seen.rows, seen.gone) == ([], [task.id])
    assert await stores.inspect.end_of(task.id) == End("completed", 3, 1, 0)
    assert await stores.inspect.executions_of(task.id) == [(1, "succeeded")]
    assert await stores.inspect.dead_letter(task.id) is None


async def test_a_stale_execution_cannot_finish(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    first = await stores.running(ownership, tenant)
    (row,) = await stores.engine.retry(ownership, [retry(first, delay=None)])
    second = await stores.claim(ownership, row)
    assert second is not None
    assert second.fence == 2
    assert await stores.engine.finish(ownership, [finish(first)]) == set()
    assert await stores.engine.finish(ownership, [finish(second)]) == {first.id}


async def test_only_what_runs_can_finish(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    task = await stores.running(ownership, tenant)
    await stores.engine.retry(ownership, [retry(task)])
    assert await stores.engine.finish(ownership, [finish(task)]) == set()
    assert (await stores.row(tenant, task.id)).state == "scheduled"


async def test_an_outcome_is_accepted_once(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    task = await stores.running(ownership, tenant)
    assert await stores.engine.finish(ownership, [finish(task), finish(task)]) == {task.id}
    assert await stores.engine.finish(ownership, [finish(task)]) == set()
    assert await stores.engine.retry(ownership, [retry(task)]) == []
    assert await stores.inspect.executions_of(task.id) == [(1, "succeeded")]


async def test_a_retry_goes_back_to_scheduled(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    task = await stores.running(ownership, tenant)
    (row,) = await stores.engine.retry(ownership, [retry(task, delay=30.0)])
    assert (row.state, row.rev, row.fence, row.lease_end) == ("scheduled", 3, 1, None)
    assert 29 < row.due - task.picked < 40
    assert await stores.inspect.executions_of(task.id) == [(1, "failed")]


async def test_a_released_task_keeps_its_due_time_and_its_failures(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    task = await stores.running(ownership, tenant)
    (row,) = await stores.engine.retry(
        ownership, [retry(task, outcome=Outcome.RELEASED, delay=None)]
    )
    assert row.due == task.due
    again = await stores.claim(ownership, row)
    assert again is not None
    assert (again.attempt, again.failures) == (2, 0)


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.TIMED_OUT])
async def test_failures_are_counted(stores: StoreSet, outcome: Outcome) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    task = await stores.running(ownership, tenant)
    (row,) = await stores.engine.retry(ownership, [retry(task, outcome=outcome, delay=-1.0)])
    again = await stores.claim(ownership, row)
    assert again is not None
    assert again.failures == 1


async def test_a_stale_execution_cannot_be_retried(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    task = await stores.running(ownership, tenant)
    assert await stores.engine.retry(ownership, [retry(task, fence=7)]) == []
    assert (await stores.row(tenant, task.id)).state == "running"


async def test_only_what_runs_can_be_retried(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    task = await stores.running(ownership, tenant)
    assert len(await stores.engine.retry(ownership, [retry(task)])) == 1
    assert await stores.engine.retry(ownership, [retry(task)]) == []
    assert await stores.inspect.executions_of(task.id) == [(1, "failed")]


async def test_a_report_that_comes_twice_in_one_batch_counts_once(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    task = await stores.running(ownership, tenant)
    twice = retry(task)
    assert len(await stores.engine.retry(ownership, [twice, twice])) == 1
    assert await stores.inspect.executions_of(task.id) == [(1, "failed")]


async def test_a_task_asked_to_cancel_is_not_retried(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    task = await stores.running(ownership, tenant)
    await stores.ask_to_cancel(task)
    assert await stores.engine.retry(ownership, [retry(task)]) == []
    done = finish(task, outcome=Outcome.FAILED, state=TaskState.CANCELLED)
    assert await stores.engine.finish(ownership, [done]) == {task.id}
    assert await stores.inspect.end_of(task.id) == End("cancelled", 4, 1, 1)


async def test_a_final_failure_is_a_dead_letter_with_its_executions(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    first = await stores.running(ownership, tenant)
    (row,) = await stores.engine.retry(
        ownership, [retry(first, outcome=Outcome.TIMED_OUT, delay=-1.0)]
    )
    second = await stores.claim(ownership, row)
    assert second is not None
    done = finish(second, outcome=Outcome.FAILED, state=TaskState.FAILED, dead_because="exhausted")
    assert await stores.engine.finish(ownership, [done]) == {first.id}
    assert await stores.inspect.dead_letter(first.id) == ("exhausted", ["timed_out", "failed"])
    assert await stores.inspect.end_of(first.id) == End("failed", 5, 2, 2)


async def test_an_outcome_of_ones_own_partition_wakes_nobody(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    done, again = await stores.running(ownership, tenant), await stores.running(ownership, tenant)
    await stores.engine.finish(ownership, [finish(done)])
    await stores.engine.retry(ownership, [retry(again)])
    assert await stores.inspect.wakes() == []


async def test_an_outcome_for_another_owner_wakes_it(stores: StoreSet) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    done, again = await stores.running(ownership, tenant), await stores.running(ownership, tenant)
    elsewhere = ownership.__class__(ownership.node_id, ownership.epoch, frozenset())
    await stores.engine.finish(elsewhere, [finish(done)])
    await stores.engine.retry(elsewhere, [retry(again)])
    wanted = [(task.partition, task.id) for task in (done, again)]
    assert await stores.inspect.wakes() == sorted(wanted)


async def test_an_outcome_of_a_replaced_node_wakes_the_new_owner(
    stores: StoreSet,
) -> None:
    ownership, tenant = await stores.join(), await stores.tenant()
    done, again = await stores.running(ownership, tenant), await stores.running(ownership, tenant)
    await stores.cluster.hand_over(ownership, {})
    assert await stores.engine.finish(ownership, [finish(done)]) == {done.id}
    assert len(await stores.engine.retry(ownership, [retry(again)])) == 1
    wanted = [(task.partition, task.id) for task in (done, again)]
    assert await stores.inspect.wakes() == sorted(wanted)
