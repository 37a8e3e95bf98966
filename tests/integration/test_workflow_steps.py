"""How runs move on in the store: counters, joins, conditions, lists, and what a person may do."""

import asyncio
from functools import partial
from random import Random

import asyncpg
import pytest

from mainspring.domain.ids import TaskIds
from mainspring.domain.outcome_rules import RetryLater
from mainspring.domain.task import TaskState
from mainspring.errors import Conflict
from mainspring.postgres.database import DatabaseOptions, connect
from mainspring.store.task_refs import TaskRef
from mainspring.store.upkeep.housekeeping import HousekeepingStore
from mainspring.store.workflows.step_rows import Moved, RunHead, RunTransaction, StartingStep
from mainspring.store.workflows.steps import StepTasks
from support.runs import RunWorld, finish, step, workflow
from support.waiting import eventually

DIAMOND = workflow(step("a"), step("b", "a"), step("c", "a"), step("d", "b", "c"), step("e", "d"))


async def test_a_diamond_runs_in_order(world: RunWorld) -> None:
    run = await world.begin(DIAMOND)
    assert await world.states(run) == {
        "a": "scheduled", "b": "blocked", "c": "blocked", "d": "blocked", "e": "blocked"
    }  # fmt: skip
    order = await world.drain(run)
    assert (order[0], *order[3:]) == ("a", "d", "e")
    assert sorted(order) == ["a", "b", "c", "d", "e"]
    assert await world.state(run) == "completed"
    assert set((await world.states(run)).values()) == {"completed"}


async def test_a_join_whose_parents_end_concurrently_starts_once(
    world: RunWorld,
) -> None:
    """The last two of them must see each other: else the join starts never, or twice."""
    parents = [f"p{n}" for n in range(40)]
    run = await world.begin(workflow(*map(step, parents), step("join", *parents)))
    executions = await world.claim(run)
    answers = await asyncio.gather(*(world.report([a]) for a in executions))
    released = [row for answer in answers for row in answer.moved.rows]
    assert len(released) == 1
    assert (await world.step(run, "join")).finished == 40
    assert await world.drain(run) == ["join"]
    assert await world.state(run) == "completed"


async def test_an_outcome_that_is_written_twice_counts_once(world: RunWorld) -> None:
    run = await world.begin(workflow(step("a"), step("b"), step("c", "a", "b")))
    first, _second = await world.claim(run)
    assert len((await world.report([first])).accepted) == 1
    again = await world.report([first])
    assert (again.accepted, again.moved.rows) == (set(), [])
    assert (await world.step(run, "c")).finished == 1


async def test_an_unmet_condition_skips_the_step_and_those_after_it(
    world: RunWorld,
) -> None:
    definition = workflow(
        step("a"),
        step("b", "a", condition="steps.a.result.rows > 3", uses=("a",)),
        *(step(f"c{n}", "b" if n == 0 else f"c{n - 1}") for n in range(50)),
        step("always", "c49", when="all_finished"),
    )
    run = await world.begin(definition)
    await world.report(await world.claim(run), result=b'{"rows": 2}')
    assert await world.drain(run) == ["always"]
    states = await world.states(run)
    assert (states["b"], states["c0"], states["c49"]) == ("skipped", "skipped", "skipped")
    assert await world.state(run) == "completed"


async def test_results_reach_the_payload_of_the_next_step(world: RunWorld) -> None:
    payload = (
        '{"rows": "{{steps.a.result.rows}}", "text": "{{input.day}}: {{steps.a.result.rows}}"}'
    )
    run = await world.begin(
        workflow(step("a"), step("b", "a", payload=payload, uses=("a",))), '{"day": "monday"}'
    )
    await world.report(await world.claim(run), result=b'{"rows": [1, 2]}')
    [second] = await world.claim(run)
    assert second.payload == b'{"rows": [1,2], "text": "monday: [1,2]"}'


async def test_a_template_that_cannot_be_filled_fails_its_step(world: RunWorld) -> None:
    run = await world.begin(
        workflow(step("a"), step("b", "a", payload='"{{steps.a.result.x}}"', uses=("a",)))
    )
    await world.report(await world.claim(run), result=b'{"y": 1}')
    failed = await world.step(run, "b")
    assert failed.state == "failed"
    assert failed.error is not None
    assert failed.error["code"] == "template"
    assert await world.state(run) == "failed"


async def test_failing_fast_skips_steps_that_need_a_success(
    world: RunWorld,
) -> None:
    definition = workflow(
        step("a"),
        step("b"),
        step("c", "b"),
        step("alert", "a", when="any_failed"),
        step("tidy", "c", cleanup=True),
    )
    run = await world.begin(definition)
    a, b = await world.claim(run)
    await world.report([a], TaskState.FAILED)
    assert (await world.states(run))["c"] == "skipped"
    await world.report([b])
    assert sorted(await world.drain(run)) == ["alert", "tidy"]
    assert await world.state(run) == "failed"


async def test_continuing_after_a_failure_runs_independent_steps(world: RunWorld) -> None:
    definition = workflow(
        step("a"), step("b", "a"), step("c"), step("d", "c"), on_failure="continue"
    )
    run = await world.begin(definition)
    assert await world.drain(run, failing=["a"]) == ["a", "c", "d"]
    assert await world.states(run) == {
        "a": "failed", "b": "skipped", "c": "completed", "d": "completed"
    }  # fmt: skip
    assert await world.state(run) == "failed"


async def test_cancelling_ends_what_waits_asks_what_runs_and_cleans_up(world: RunWorld) -> None:
    definition = workflow(
        step("a"), step("b", "a"), step("c", delay=3600), step("tidy", "a", "b", "c", cleanup=True)
    )
    run = await world.begin(definition)
    [running] = await world.claim(run)
    args = (world.ownership, world.tenant_id, run, "me", await world.now())
    assert await world.runs.cancel(*args) is not None
    assert await world.runs.cancel(*args) is not None, "calling twice is harmless"
    states = await world.states(run)
    assert (states["a"], states["b"], states["c"]) == ("running", "cancelled", "cancelled")
    [asked] = (await world.engine.look_at([(world.tenant_id, running.id)])).rows
    assert asked.cancel_requested
    await world.report([running], TaskState.CANCELLED)
    assert await world.drain(run) == ["tidy"]
    assert await world.state(run) == "cancelled"
    with pytest.raises(Conflict):
        await world.runs.pause(world.ownership, world.tenant_id, run, "me", await world.now())


async def test_a_paused_run_starts_nothing_until_it_is_resumed(world: RunWorld) -> None:
    run = await world.begin(workflow(step("a"), step("b"), step("c", "a", "b"), step("d", "a")))
    [first] = await world.claim(run, limit=1)
    await world.runs.pause(world.ownership, world.tenant_id, run, "me", await world.now())
    assert await world.claim(run) == []
    await world.report([first])
    assert await world.claim(run) == []
    assert await world.state(run) == "paused"
    await world.runs.resume(world.ownership, world.tenant_id, run, "me", await world.now())
    assert sorted(await world.drain(run)) == ["b", "c", "d"]
    assert await world.state(run) == "completed"


async def test_a_retry_repeats_failed_steps_and_those_after_them(world: RunWorld) -> None:
    definition = workflow(
        step("a"), step("b", "a"), step("c", "b"), step("alert", "b", when="any_failed"),
        step("d", "a"),
    )  # fmt: skip
    run = await world.begin(definition)
    assert await world.drain(run, failing=["b"]) == ["a", "b", "d", "alert"]
    assert await world.state(run) == "failed"
    await world.runs.retry(world.ownership, world.tenant_id, run, "me", await world.now())
    assert await world.state(run) == "running"
    assert await world.drain(run) == ["b", "c"]
    assert (await world.states(run))["alert"] == "skipped"
    assert await world.state(run) == "completed"
    with pytest.raises(Conflict):
        await world.runs.retry(world.ownership, world.tenant_id, run, "me", await world.now())


async def test_skipping_a_step_lets_the_run_go_on(world: RunWorld) -> None:
    run = await world.begin(workflow(step("a"), step("b", "a"), step("c", "b")))
    assert await world.drain(run, failing=["a"]) == ["a"]
    assert await world.state(run) == "failed"
    now = await world.now()
    await world.runs.skip(world.ownership, world.tenant_id, run, "me", now, "a")
    assert await world.drain(run) == ["b", "c"]
    assert await world.state(run) == "completed"
    assert (await world.step(run, "a")).waived
    noted = await world.database.fetch("SELECT action FROM audit WHERE subject = $1", str(run))
    assert [row["action"] for row in noted] == ["workflow_step.skipped"]


async def test_one_success_is_enough_for_a_step_that_says_so(world: RunWorld) -> None:
    run = await world.begin(
        workflow(step("a"), step("b"), step("first", "a", "b", when="one_succeeded"))
    )
    a, b = await world.claim(run)
    await world.report([a])
    [first] = await world.claim(run)
    await world.report([b, first])
    assert await world.state(run) == "completed"


async def test_a_deadline_ends_a_run_as_failed(world: RunWorld) -> None:
    run = await world.begin(workflow(step("a", delay=3600), step("b", "a"), deadline=0.0))
    assert await world.outcomes.overdue(world.ownership) == [(world.tenant_id, run)]
    await world.outcomes.stop(world.ownership, world.tenant_id, run, "deadline", await world.now())
    assert await world.state(run) == "failed"
    assert await world.outcomes.overdue(world.ownership) == []


@pytest.mark.parametrize(
    "result", [b"1e999", b'"' + b"x" * 300_000 + b'"', b"[" * 5000 + b"]" * 5000]
)
async def test_an_unusable_result_fails_the_steps_that_need_it(
    world: RunWorld, result: bytes
) -> None:
    run = await world.begin(
        workflow(
            step("a"), step("b", "a", payload='"{{steps.a.result}}"', uses=("a",)), step("c", "a")
        )
    )
    await world.report(await world.claim(run), result=result)
    states = await world.states(run)
    assert (states["a"], states["b"]) == ("completed", "failed")
    assert await world.state(run) == "failed"


async def test_a_step_that_two_release_at_once_is_released_by_one(world: RunWorld) -> None:
    """The last guard, should nobody hold the run: from blocked to scheduled goes once."""
    definition = workflow(step("a"), step("b", "a"))
    run = await world.begin(definition)
    stored = await world.runs.get(world.tenant_id, run)
    assert stored is not None
    head = RunHead(world.tenant_id, run, "flow", stored.version, "running", None, 2, 0)
    start = StartingStep(head, definition.by_id["b"], await world.now(), None)
    tasks, moved = StepTasks(TaskIds(Random(1))), [Moved() for _ in range(4)]

    async def release(told: Moved) -> None:
        await world.database.transact(
            lambda c: tasks.release(RunTransaction(c, world.ownership, start.due, told), [start])
        )

    await asyncio.gather(*map(release, moved))
    assert [len(told.rows) for told in moved].count(1) == 1
    assert sum(len(told.rows) for told in moved) == 1
    [row] = await world.database.fetch("SELECT rev FROM tasks WHERE step = 'b'")
    assert row["rev"] == 2


async def test_a_lost_step_with_a_requested_cancel_ends_its_run(world: RunWorld) -> None:
    run = await world.begin(workflow(step("a"), step("b", "a")))
    [held] = await world.claim(run, lease=0.0)
    now = await world.now()
    await world.runs.cancel(world.ownership, world.tenant_id, run, "me", now)
    ref = TaskRef(held.tenant_id, held.id, held.fence)
    seen = await world.engine.expire_leases([ref])
    assert (seen.rows, seen.gone) == ([], []), "its end concerns its run"
    done = await world.outcomes.expire_leases(world.ownership, [ref], now)
    assert done.accepted == {held.id}
    assert await world.state(run) == "cancelled"
    assert await lost_executions(world) == [("lost", None)]


async def lost_executions(world: RunWorld) -> list[tuple[str, object]]:
    """What is said of executions that were lost: why, and when they began."""
    rows = await world.database.fetch("SELECT error, started_at FROM executions")
    return [(row["error"]["code"], row["started_at"]) for row in rows]


async def test_a_step_that_expires_is_counted_as_lost(world: RunWorld) -> None:
    run = await world.begin(
        workflow(step("a", delay=3600), step("b", "a"), step("c", "a", when="any_failed"))
    )
    await world.database.fetch(
        "UPDATE tasks SET expires_at = clock_timestamp() WHERE workflow_run_id = $1 AND step = 'a'",
        run,
    )
    assert await world.engine.expire(world.ownership, limit=100) == []
    leaving = await world.outcomes.expiring(world.ownership)
    await world.outcomes.expire(world.ownership, leaving, await world.now())
    assert await world.drain(run) == ["c"]
    assert (await world.states(run))["a"] == "expired"
    assert await world.state(run) == "failed"


async def test_old_runs_are_forgotten_with_their_steps(world: RunWorld) -> None:
    old, young, going = [await world.begin(DIAMOND) for _ in range(3)]
    await world.drain(old)
    await world.drain(young)
    await world.database.fetch(
        "UPDATE workflow_runs SET finished_at = now() - interval '40 days' WHERE id = $1", old
    )
    assert await HousekeepingStore(world.database).forget_runs(30) == 1
    assert await world.runs.get(world.tenant_id, old) is None
    assert await world.states(old) == {}
    assert len(await world.states(young)) == len(await world.states(going)) == 5


async def test_a_step_that_kills_every_worker_fails_its_run(world: RunWorld) -> None:
    run = await world.begin(workflow(step("a"), step("b", "a")))
    [held] = await world.claim(run, lease=0.0)
    await world.database.fetch(
        "UPDATE tasks SET incarnation = 'one', capability = capability || ';alone', losses = 2,"
        " began = true, began_alone = true WHERE id = $1",
        held.id,
    )
    ref = TaskRef(held.tenant_id, held.id, held.fence)
    seen = await world.engine.expire_leases([ref], count_crash=[held.id])
    assert (seen.rows, seen.gone) == ([], []), "its end concerns its run"
    await world.outcomes.expire_leases(
        world.ownership, [ref], await world.now(), count_crash=[held.id]
    )
    assert await world.states(run) == {"a": "failed", "b": "skipped"}
    assert await world.state(run) == "failed"
    [letter] = await world.database.fetch("SELECT * FROM dead_letters")
    assert (letter["reason"], letter["final_error"]["code"]) == ("poison", "poison")
    assert [attempt["error"]["code"] for attempt in letter["attempts"]] == ["lost"]
    assert await lost_executions(world) == [("lost", None)]


@pytest.mark.parametrize(
    "otherwise",
    [
        "began = false",
        "began_alone = false",
        "losses = 0, unproven_losses = 2",
        "losses = 1, unproven_losses = 0",
        "capability = replace(capability, ';alone', '')",
        "incarnation = NULL",
    ],
)
async def test_a_step_is_given_up_by_the_rules_of_other_tasks(
    world: RunWorld, otherwise: str
) -> None:
    run = await world.begin(workflow(step("a")))
    [held] = await world.claim(run, lease=0.0)
    await world.database.fetch(
        "UPDATE tasks SET incarnation = 'one', capability = capability || ';alone', losses = 1,"
        " unproven_losses = 1, began = true, began_alone = true WHERE id = $1",
        held.id,
    )
    await world.database.fetch(f"UPDATE tasks SET {otherwise} WHERE id = $1", held.id)
    ref = TaskRef(held.tenant_id, held.id, held.fence)
    done = await world.outcomes.expire_leases(
        world.ownership, [ref], await world.now(), count_crash=[held.id]
    )
    assert not done.accepted
    seen = await world.engine.expire_leases([ref], count_crash=[held.id])
    assert [row.id for row in seen.rows] == [held.id]


async def test_an_unreadable_input_fails_only_the_steps_that_use_it(
    world: RunWorld,
) -> None:
    definition = workflow(
        step("a"),
        step("plain", "a"),
        step("b", "a", payload='"{{input.x}}"'),
        step("c", "a", condition="input.x > 1"),
        on_failure="continue",
    )
    run = await world.begin(definition, '{"x": 1e999}')
    [first] = await world.claim(run)
    assert (await world.report([first])).accepted == {first.id}
    assert await world.drain(run) == ["plain"]
    states = await world.states(run)
    assert states == {"a": "completed", "plain": "completed", "b": "failed", "c": "failed"}
    assert (await world.step(run, "b")).error == {
        "code": "template", "message": "the input of the run cannot be read"
    }  # fmt: skip


async def test_retrying_or_skipping_steps_keeps_a_paused_run_paused(
    world: RunWorld,
) -> None:
    definition = workflow(
        step("a"), step("b", "a"), step("x"), step("y", "x"), step("z"), on_failure="continue"
    )
    run = await world.begin(definition)
    await world.report(await world.claim(run, names=["a", "x"]), TaskState.FAILED)
    await world.runs.pause(world.ownership, world.tenant_id, run, "me", await world.now())
    args = (world.ownership, world.tenant_id, run, "me", await world.now())
    await world.runs.retry(*args, step="a")
    await world.runs.skip(*args, step="x")
    assert await world.state(run) == "paused"
    assert await world.claim(run) == []
    await world.runs.resume(*args)
    assert sorted(await world.drain(run)) == ["a", "b", "y", "z"]
    assert await world.state(run) == "completed"


@pytest.mark.parametrize("lost", [False, True])
async def test_an_execution_that_ends_in_a_paused_run_is_not_followed(
    world: RunWorld, lost: bool
) -> None:
    run = await world.begin(workflow(step("a"), step("b", "a")))
    [held] = await world.claim(run, lease=0.0)
    await world.runs.pause(world.ownership, world.tenant_id, run, "me", await world.now())
    if lost:
        ref = TaskRef(held.tenant_id, held.id, held.fence)
        [row] = (await world.engine.expire_leases([ref])).rows
    else:
        retry = RetryLater(finish(held, TaskState.FAILED).report, 0.0)
        [row] = await world.engine.retry(world.ownership, [retry])
    assert row.state == "paused"
    assert await world.claim(run) == []
    await world.runs.resume(world.ownership, world.tenant_id, run, "me", await world.now())
    assert await world.drain(run) == ["a", "b"]


async def test_a_retry_that_meets_a_pause_is_paused(world: RunWorld, database_url: str) -> None:
    """The pause did not see it waiting, and the retry not the pause."""
    run = await world.begin(workflow(step("a")))
    [held] = await world.claim(run)
    retry = RetryLater(finish(held, TaskState.FAILED).report, 0.0)
    other = await connect(DatabaseOptions(database_url))
    try:
        async with other.transaction():
            await other.execute("UPDATE workflow_runs SET state = 'paused' WHERE id = $1", run)
            retrying = asyncio.create_task(world.engine.retry(world.ownership, [retry]))
            await eventually(partial(_waits, other), within=5, what="the retry waits")
        [row] = await retrying
    finally:
        await other.close()
    assert row.state == "paused"


@pytest.mark.parametrize(
    "change",
    [
        "state = 'scheduled', lease_until = NULL, worker = NULL, picked_at = NULL",
        "state = 'running', lease_until = now(), worker = 'x', picked_at = now()",
    ],
    ids=["retried", "claimed"],
)
async def test_cancelling_reaches_a_step_being_retried_or_claimed(
    world: RunWorld, database_url: str, change: str
) -> None:
    run = await world.begin(workflow(step("a")))
    was = await world.claim(run) if "scheduled" in change else []
    [task] = await world.database.fetch("SELECT id FROM tasks WHERE workflow_run_id = $1", run)
    other = await connect(DatabaseOptions(database_url))
    now = await world.now()
    try:
        async with other.transaction():
            await other.execute(
                f"UPDATE tasks SET {change}, rev = rev + 1 WHERE id = $1", task["id"]
            )
            cancelling = asyncio.create_task(
                world.runs.cancel(world.ownership, world.tenant_id, run, "me", now)
            )
            await eventually(partial(_waits, other), within=5, what="cancelling waits")
        await cancelling
    finally:
        await other.close()
    if was:
        assert await world.state(run) == "cancelled"
    else:
        [row] = (await world.engine.look_at([(world.tenant_id, task["id"])])).rows
        assert row.cancel_requested


async def _waits(connection: asyncpg.Connection) -> bool:
    count: int = await connection.fetchval(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    return count > 0
