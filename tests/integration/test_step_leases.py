"""A step that needs no queueing starts in the transaction that releases it: when, and when not."""

import asyncio
from dataclasses import replace
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from mainspring.domain.execution import Execution
from mainspring.domain.partitions import PARTITIONS, Ownership
from mainspring.domain.task import TaskState
from mainspring.domain.workflows.definition import Step
from mainspring.store.tasks import TaskChange
from mainspring.store.workflows.step_rows import Moved, StepLeaseOffer
from mainspring.workflows.outcomes import StepsFinished
from mainspring.workflows.task_changes import TaskChangeService
from support.runs import RunWorld, finish, step, workflow
from support.waiting import eventually


def inside(name: str, *needs: str, **fields: Any) -> Step:
    """A step that the node itself runs."""
    made = step(name, *needs)
    return replace(made, template=replace(made.template, capability="http", **fields))


async def end(
    world: RunWorld,
    executions: list[Execution],
    ownership: Ownership | None = None,
    most: int = 9,
    state: TaskState = TaskState.COMPLETED,
) -> StepsFinished:
    offer = StepLeaseOffer(most, "node:one", 15.0)
    return await world.record([finish(a, state) for a in executions], offer, ownership)


async def _somebody_waits(world: RunWorld) -> bool:
    return bool(
        await world.database.fetch("SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
    )


async def task(world: RunWorld, name: str) -> asyncpg.Record:
    row = await world.database.fetch_row("SELECT * FROM tasks WHERE step = $1", name)
    assert row is not None
    return row


async def change(world: RunWorld, name: str, **fields: Any) -> None:
    """As a caller of the API does."""
    tasks = TaskChangeService(world.database, world.steps)
    found = await task(world, name)
    written = await tasks.change(
        world.tenant_id, found["id"], lambda locked: replace(TaskChange.of(locked), **fields)
    )
    assert written is True


async def test_the_next_step_is_leased_as_it_is_released(world: RunWorld) -> None:
    run = await world.begin(workflow(inside("a"), inside("b", "a"), inside("c", "b")))
    done = await end(world, await world.claim(run))
    [(row, execution)] = done.moved.leased
    stored = await task(world, "b")
    assert (stored["state"], stored["worker"], stored["attempts"]) == ("running", "node:one", 1)
    assert (row.state, row.fence, row.rev) == ("running", stored["fence"], stored["rev"])
    assert (execution.id, execution.fence, execution.step) == (row.id, 1, "b")
    assert execution.lease_end == pytest.approx(execution.picked + 15, abs=0.1)
    assert execution.due <= execution.picked

    await end(world, [execution])
    last = [a for _, a in (await end(world, [execution])).moved.leased]
    assert last == [], "an outcome that is written twice starts nothing twice"
    assert (await task(world, "c"))["state"] == "running"


async def test_a_step_that_was_there_before_a_restore_is_leased_above(world: RunWorld) -> None:
    run = await world.begin(workflow(inside("a"), inside("b", "a"), inside("c", "b")))
    await world.database.fetch(
        "UPDATE fence_floor SET floor = 1000, before = clock_timestamp() + interval '1 minute'"
    )
    [first] = await world.claim(run)
    [(row, execution)] = (await end(world, [first])).moved.leased
    assert (first.fence, row.fence, execution.fence) == (1000, 1000, 1000)
    await end(world, [execution], most=0)
    assert (await task(world, "c"))["fence"] == 0, "it is not leased yet"


async def test_a_node_of_another_server_leases_no_step(world: RunWorld) -> None:
    run = await world.begin(workflow(inside("a"), inside("b", "a")))
    [first] = await world.claim(run)
    await world.database.fetch("UPDATE nodes SET server_started = '2001-01-01'")
    done = await end(world, [first])
    assert (done.accepted, done.moved.leased) == ({first.id}, [])
    released = await task(world, "b")
    assert (released["state"], released["fence"]) == ("scheduled", 0)
    [wake] = await world.database.fetch("SELECT task_id FROM wakes WHERE task_id <> $1", first.id)
    assert wake["task_id"] == released["id"]


async def test_a_lease_that_came_that_way_ends_a_run(world: RunWorld) -> None:
    run = await world.begin(workflow(inside("a"), inside("b", "a")))
    [(_, execution)] = (await end(world, await world.claim(run))).moved.leased
    done = await end(world, [execution])
    assert done.moved.ended == {"completed": 1}
    assert await world.state(run) == "completed"


async def test_no_more_steps_are_leased_than_slots_are_free(world: RunWorld) -> None:
    run = await world.begin(workflow(inside("a"), *(inside(f"b{n}", "a") for n in range(5))))
    done = await end(world, await world.claim(run), most=2)
    assert len(done.moved.leased) == 2
    assert sorted(row.state for row in done.moved.rows) == ["running"] * 2 + ["scheduled"] * 3


async def test_steps_of_a_tenant_with_a_limit_queue(world: RunWorld) -> None:
    """Also when the node has not heard of the limit yet."""
    run = await world.begin(workflow(inside("a"), inside("b", "a")))
    claimed = await world.claim(run)
    await world.database.fetch(
        "UPDATE tenants SET max_running = 256 WHERE id = $1", world.tenant_id
    )
    done = await end(world, claimed)
    assert (done.moved.leased, [row.state for row in done.moved.rows]) == ([], ["scheduled"])


async def test_a_manually_changed_step_queues(world: RunWorld) -> None:
    """Nobody here may be able to run it any more."""
    run = await world.begin(workflow(inside("a"), inside("b", "a")))
    await change(world, "b", capability="handler:send_mail")
    done = await end(world, await world.claim(run))
    assert (done.moved.leased, (await task(world, "b"))["state"]) == ([], "scheduled")


async def test_what_changed_while_the_run_was_waited_for_is_seen(
    world: RunWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A retry makes a step wait again that was cancelled. Who records a parent meanwhile must count
    it there, or the run waits for ever."""
    steps = (inside("x"), inside("y"), inside("d", "x", "y"))
    run = await world.begin(workflow(*steps, on_failure="continue"))
    by_name = {a.step: a for a in await world.claim(run)}
    await change(world, "d", state="cancelled")
    assert (await world.states(run))["d"] == "cancelled"

    reached, go_on, reconsider = asyncio.Event(), asyncio.Event(), world.steps.reconsider

    async def hesitate(*arguments: Any) -> Moved:
        reached.set()
        await go_on.wait()
        return await reconsider(*arguments)

    monkeypatch.setattr(world.steps, "reconsider", hesitate)
    now = await world.now()
    retrying = asyncio.create_task(
        world.runs.retry(world.ownership, world.tenant_id, run, "test", now)
    )
    await reached.wait()
    recording = asyncio.create_task(end(world, [by_name["y"]]))
    await eventually(lambda: _somebody_waits(world), within=10, what="somebody waits")
    go_on.set()
    await asyncio.gather(retrying, recording)
    await end(world, [by_name["x"]], most=0)
    while executions := await world.claim(run):
        await end(world, executions, most=0)
    assert await world.state(run) == "completed"


@pytest.mark.parametrize(
    "next_step",
    [
        step("b", "a"),
        inside("b", "a", concurrency_key="k", concurrency_limit=1),
        replace(inside("b", "a"), delay=60.0),
        replace(inside("b", "a"), condition="1 < 2"),
    ],
    ids=["for workers", "with a key", "later", "with a condition"],
)
async def test_what_has_to_wait_or_to_be_asked_queues(world: RunWorld, next_step: Step) -> None:
    run = await world.begin(workflow(inside("a"), next_step))
    done = await end(world, await world.claim(run))
    assert done.moved.leased == []
    assert (await task(world, "b"))["state"] == "scheduled"


async def test_a_node_that_was_replaced_starts_nothing(world: RunWorld) -> None:
    run = await world.begin(workflow(inside("a"), inside("b", "a")))
    stale = replace(world.ownership, epoch=world.ownership.epoch + 1)
    done = await end(world, await world.claim(run), stale)
    assert (done.moved.leased, (await task(world, "b"))["state"]) == ([], "scheduled")
    assert (
        len(
            await world.database.fetch(
                "SELECT FROM wakes WHERE task_id = $1", done.moved.rows[0].id
            )
        )
        == 1
    )


async def test_a_node_starts_nothing_in_partitions_of_others(world: RunWorld) -> None:
    run = await world.begin(workflow(inside("a"), inside("b", "a")))
    [execution] = await world.claim(run)
    others = frozenset(range(PARTITIONS)) - {execution.partition}
    done = await end(world, [execution], replace(world.ownership, partitions=others))
    assert (done.moved.leased, (await task(world, "b"))["state"]) == ([], "scheduled")


async def test_a_join_with_a_parent_that_was_left_out_is_decided_on(world: RunWorld) -> None:
    """The counters alone would let it wait for ever; also for a node that has not seen why."""
    left_out = replace(inside("b", "a"), condition="1 > 2")
    run = await world.begin(
        workflow(inside("a"), left_out, inside("c", "a"), inside("d", "b", "c"))
    )
    await end(world, await world.claim(run))
    [c] = await world.claim(run)
    other = RunWorld(world.database)
    other.tenant_id, other.ownership = world.tenant_id, world.ownership
    await end(other, [c])
    assert (await world.states(run))["d"] == "skipped"
    assert await world.state(run) == "completed"


async def test_a_failure_beside_a_success_is_decided_on_together(world: RunWorld) -> None:
    run = await world.begin(workflow(inside("a"), inside("b"), inside("c", "a")))
    by_name = {a.step: a for a in await world.claim(run)}
    finishes = [finish(by_name["a"]), finish(by_name["b"], TaskState.FAILED)]
    done = await world.record(finishes, StepLeaseOffer(9, "node:one", 15.0))
    assert done.moved.leased == []
    assert (await world.states(run))["c"] == "skipped"


async def test_a_stale_report_of_a_step_changes_nothing(world: RunWorld) -> None:
    run = await world.begin(workflow(inside("a"), inside("b", "a")))
    [execution] = await world.claim(run)
    done = await end(world, [execution._replace(fence=execution.fence + 1)])
    assert (done.accepted, done.moved.rows) == (set(), [])
    assert (await world.states(run)) == {"a": "running", "b": "blocked"}
    other = execution._replace(id=uuid4())
    assert (await end(world, [other])).accepted == set()


async def test_a_report_after_the_loss_was_noticed_changes_nothing(world: RunWorld) -> None:
    run = await world.begin(workflow(inside("a"), inside("b", "a")))
    [execution] = await world.claim(run)
    await world.database.fetch(
        "UPDATE tasks SET state = 'scheduled', picked_at = NULL, lease_until = NULL, worker = NULL"
        " WHERE id = $1",
        execution.id,
    )
    assert (await end(world, [execution])).accepted == set()


async def test_a_step_not_due_by_the_databases_clock_queues(world: RunWorld) -> None:
    run = await world.begin(workflow(inside("a"), inside("b", "a")))
    [execution] = await world.claim(run)
    ended = finish(execution)
    ahead = ended._replace(report=ended.report._replace(finished=await world.now() + 60))
    done = await world.record([ahead], StepLeaseOffer(9, "node:one", 15.0))
    assert (done.moved.leased, [row.state for row in done.moved.rows]) == ([], ["scheduled"])
