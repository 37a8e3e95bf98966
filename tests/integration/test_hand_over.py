"""A step that needs no queueing starts in the transaction that releases it: when, and when not."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from mainspring.domain.execution import Assignment
from mainspring.domain.placement import PARTITIONS, Tenure
from mainspring.domain.task import TaskState
from mainspring.domain.workflow import Step
from mainspring.store.database import Database, DatabaseOptions
from mainspring.store.step_outcomes import StepsFinished
from mainspring.store.step_rows import HandOver
from support.runs import RunWorld, finish, step, workflow


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[RunWorld]:
    database = Database(DatabaseOptions(database_url))
    await database.open()
    made = RunWorld(database)
    await made.open()
    yield made
    await database.close()


def inside(name: str, *needs: str, **fields: Any) -> Step:
    """A step that the node itself runs."""
    made = step(name, *needs)
    return replace(made, template=replace(made.template, capability="http", **fields))


async def end(
    world: RunWorld,
    assignments: list[Assignment],
    tenure: Tenure | None = None,
    tenants: list[int] | None = None,
    state: TaskState = TaskState.COMPLETED,
) -> StepsFinished:
    hand_over = HandOver([world.tenant_id] if tenants is None else tenants, "node:one", 15.0)
    finishes = [finish(a, state) for a in assignments]
    return await world.outcomes.finish(
        tenure or world.tenure, finishes, await world.now(), hand_over
    )


async def task(world: RunWorld, name: str) -> asyncpg.Record:
    row = await world.database.fetch_row("SELECT * FROM tasks WHERE step = $1", name)
    assert row is not None
    return row


async def test_the_next_step_is_leased_as_it_is_released(world: RunWorld) -> None:
    run = await world.begin(workflow(inside("a"), inside("b", "a"), inside("c", "b")))
    done = await end(world, await world.claim(run))
    [(row, assignment)] = done.moved.begun
    stored = await task(world, "b")
    assert (stored["state"], stored["worker"], stored["attempts"]) == ("running", "node:one", 1)
    assert (row.state, row.fence, row.rev) == ("running", stored["fence"], stored["rev"])
    assert (assignment.id, assignment.fence, assignment.step) == (row.id, 1, "b")
    assert assignment.lease_end == pytest.approx(assignment.picked + 15, abs=0.1)
    assert assignment.due <= assignment.picked

    await end(world, [assignment])
    last = [a for _, a in (await end(world, [assignment])).moved.begun]
    assert last == [], "an outcome that is written twice starts nothing twice"
    assert (await task(world, "c"))["state"] == "running"


async def test_a_lease_that_came_that_way_ends_a_run(world: RunWorld) -> None:
    run = await world.begin(workflow(inside("a"), inside("b", "a")))
    [(_, assignment)] = (await end(world, await world.claim(run))).moved.begun
    done = await end(world, [assignment])
    assert done.moved.ended == {"completed": 1}
    assert await world.state(run) == "completed"


@pytest.mark.parametrize("tenants", [[], [99]])
async def test_who_may_not_hurry_queues(world: RunWorld, tenants: list[int]) -> None:
    run = await world.begin(workflow(inside("a"), inside("b", "a")))
    done = await end(world, await world.claim(run), tenants=tenants)
    assert done.moved.begun == []
    assert [row.state for row in done.moved.rows] == ["scheduled"]


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
    assert done.moved.begun == []
    assert (await task(world, "b"))["state"] == "scheduled"


async def test_a_node_that_was_replaced_starts_nothing(world: RunWorld) -> None:
    run = await world.begin(workflow(inside("a"), inside("b", "a")))
    stale = replace(world.tenure, epoch=world.tenure.epoch + 1)
    done = await end(world, await world.claim(run), stale)
    assert (done.moved.begun, (await task(world, "b"))["state"]) == ([], "scheduled")
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
    [assignment] = await world.claim(run)
    others = frozenset(range(PARTITIONS)) - {assignment.partition}
    done = await end(world, [assignment], replace(world.tenure, partitions=others))
    assert (done.moved.begun, (await task(world, "b"))["state"]) == ([], "scheduled")


async def test_a_join_with_a_parent_that_was_left_out_is_decided_on(world: RunWorld) -> None:
    """The counters alone would let it wait for ever; also for a node that has not seen why."""
    left_out = replace(inside("b", "a"), condition="1 > 2")
    run = await world.begin(
        workflow(inside("a"), left_out, inside("c", "a"), inside("d", "b", "c"))
    )
    await end(world, await world.claim(run))
    [c] = await world.claim(run)
    other = RunWorld(world.database)
    other.tenant_id, other.tenure = world.tenant_id, world.tenure
    await end(other, [c])
    assert (await world.states(run))["d"] == "skipped"
    assert await world.state(run) == "completed"


async def test_a_failure_beside_a_success_is_decided_on_together(world: RunWorld) -> None:
    run = await world.begin(workflow(inside("a"), inside("b"), inside("c", "a")))
    by_name = {a.step: a for a in await world.claim(run)}
    finishes = [finish(by_name["a"]), finish(by_name["b"], TaskState.FAILED)]
    hand_over = HandOver([world.tenant_id], "node:one", 15.0)
    done = await world.outcomes.finish(world.tenure, finishes, await world.now(), hand_over)
    assert done.moved.begun == []
    assert (await world.states(run))["c"] == "skipped"


async def test_a_stale_report_of_a_step_changes_nothing(world: RunWorld) -> None:
    run = await world.begin(workflow(inside("a"), inside("b", "a")))
    [assignment] = await world.claim(run)
    done = await end(world, [assignment._replace(fence=assignment.fence + 1)])
    assert (done.accepted, done.moved.rows) == (set(), [])
    assert (await world.states(run)) == {"a": "running", "b": "blocked"}
    other = assignment._replace(id=uuid4())
    assert (await end(world, [other])).accepted == set()


async def test_a_report_after_the_loss_was_noticed_changes_nothing(world: RunWorld) -> None:
    run = await world.begin(workflow(inside("a"), inside("b", "a")))
    [assignment] = await world.claim(run)
    await world.database.fetch(
        "UPDATE tasks SET state = 'scheduled', picked_at = NULL, lease_until = NULL, worker = NULL"
        " WHERE id = $1",
        assignment.id,
    )
    assert (await end(world, [assignment])).accepted == set()
