"""Lists that are done once more: what completed stays, unless it may be another list by then."""

from random import Random
from typing import Any
from uuid import UUID

import pytest

from mainspring.domain.task import TaskState
from mainspring.domain.workflows.definition import Step, WorkflowDefinition
from support.runs import RunWorld, step, workflow


def each(*needs: str, **fields: Any) -> Step:
    """One task per item of what `a` found, with what others found besides."""
    payload = (
        '{"n": "{{item}}", "b": "{{steps.b.result}}"}' if "b" in fields.get("uses", ()) else "{}"
    )
    return step("each", *needs, payload=payload, foreach='"{{steps.a.result}}"', **fields)


LISTED = workflow(
    step("a"),
    each("a", uses=("a",)),
    step("sum", "each", payload='"{{steps.each.result}}"', uses=("each",)),
    on_failure="continue",
)


async def listed(world: RunWorld, definition: WorkflowDefinition = LISTED) -> UUID:
    """A run whose first step found three items, of which the second one failed."""
    run = await world.begin(definition)
    await world.report(await world.claim(run, names=["a"]), result=b"[3, 4, 5]")
    for item in await world.claim(run, names=["each[0]", "each[1]", "each[2]"]):
        failed = item.step == "each[1]"
        state = TaskState.FAILED if failed else TaskState.COMPLETED
        await world.report([item], state, result=None if failed else b'"first"')
    return run


async def retry(world: RunWorld, run: UUID, name: str | None = None) -> list[str | None]:
    """What starts at once."""
    now = await world.now()
    moved = await world.runs.retry(world.ownership, world.tenant_id, run, "me", now, name)
    assert moved is not None
    ids = [row.id for row in moved.rows]
    rows = await world.database.fetch("SELECT step FROM tasks WHERE id = ANY ($1::uuid[])", ids)
    return sorted(row["step"] for row in rows)


ALL = ["each[0]", "each[1]", "each[2]"]


@pytest.mark.parametrize("name", [None, "each"])
async def test_a_retried_list_repeats_what_did_not_complete(
    world: RunWorld, name: str | None
) -> None:
    run = await listed(world)
    assert await world.state(run) == "failed"
    for _ in range(2):
        assert await retry(world, run, name) == ["each[1]"]
        await world.report(await world.claim(run), TaskState.FAILED)
        assert await world.state(run) == "failed"
    assert await retry(world, run, name) == ["each[1]"]
    waiting = await world.step(run, "each")
    assert (waiting.expanded, waiting.needed, waiting.finished) == (True, 3, 2)
    await world.report(await world.claim(run), result=b'"second"')
    assert (await world.step(run, "each")).result == b'["first","second","first"]'
    [last] = await world.claim(run)
    assert last.payload == b'["first","second","first"]'
    await world.report([last])
    assert await world.state(run) == "completed"


async def letters_of(world: RunWorld, run: UUID) -> dict[str, tuple[str | None, UUID | None]]:
    rows = await world.database.fetch(
        "SELECT step, resolution, replayed_as FROM dead_letters WHERE workflow_run_id = $1", run
    )
    return {row["step"]: (row["resolution"], row["replayed_as"]) for row in rows}


async def test_dead_letters_of_retried_steps_are_resolved(world: RunWorld) -> None:
    """With the task that does the work now; that of a list stands for its items."""
    run = await listed(world, workflow(*LISTED.steps, step("b"), step("c"), on_failure="continue"))
    await world.drain(run, failing=["b", "c"])
    still_open = (None, None)
    assert await letters_of(world, run) == dict.fromkeys(["each[1]", "b", "c"], still_open)
    assert await retry(world, run, "b") == ["b"]
    b = (await world.step(run, "b")).task_id
    assert await letters_of(world, run) == {
        "each[1]": still_open, "b": ("replayed", b), "c": still_open
    }  # fmt: skip
    await world.drain(run)
    assert await retry(world, run) == ["c", "each[1]"]
    tasks = {name: (await world.step(run, name)).task_id for name in ("each", "c")}
    assert await letters_of(world, run) == {
        "each[1]": ("replayed", tasks["each"]), "b": ("replayed", b), "c": ("replayed", tasks["c"])
    }  # fmt: skip
    rows = await world.database.fetch("SELECT actor FROM audit WHERE action LIKE 'dead_letter%'")
    assert [row["actor"] for row in rows] == ["me"] * 3


async def test_dead_letters_of_skipped_steps_are_archived(world: RunWorld) -> None:
    """Until it is done after all."""
    run = await listed(world, workflow(*LISTED.steps, step("b"), on_failure="continue"))
    await world.drain(run, failing=["b"])
    for name in ("each", "b"):
        await world.runs.skip(world.ownership, world.tenant_id, run, "me", await world.now(), name)
    archived = ("archived", None)
    assert await letters_of(world, run) == {"each[1]": archived, "b": archived}
    await world.drain(run)
    await retry(world, run, "b")
    again = (await world.step(run, "b")).task_id
    assert await letters_of(world, run) == {"each[1]": archived, "b": ("replayed", again)}


async def test_a_list_that_was_cut_short_goes_on_where_it_was(world: RunWorld) -> None:
    run = await world.begin(LISTED)
    await world.report(await world.claim(run), result=b"[3, 4, 5]")
    await world.report(await world.claim(run, names=["each[2]"]))
    now = await world.now()
    await world.runs.cancel(world.ownership, world.tenant_id, run, "me", now)
    assert await world.state(run) == "cancelled"
    assert await retry(world, run) == ["each[0]", "each[1]"]
    assert await world.drain(run) == ["each[0]", "each[1]", "sum"]
    assert await world.state(run) == "completed"


async def test_a_list_after_a_step_that_is_repeated_is_another_list(world: RunWorld) -> None:
    run = await listed(world)
    assert await retry(world, run, "a") == ["a"]
    await world.report(await world.claim(run), result=b"[6, 7]")
    assert await world.drain(run) == ["each[0]", "each[1]", "sum"]
    assert (await world.step(run, "each")).result == b"[null,null]"


async def test_a_list_that_completed_is_repeated_as_a_whole(world: RunWorld) -> None:
    run = await world.begin(LISTED)
    await world.report(await world.claim(run), result=b"[3, 4, 5]")
    assert await world.drain(run) == [*ALL, "sum"]
    assert await retry(world, run, "each") == ALL
    assert await world.drain(run) == [*ALL, "sum"]


async def test_a_list_started_before_its_inputs_end_is_repeated_whole(
    world: RunWorld,
) -> None:
    """Its items saw nothing of it then, and do now."""
    hasty = each("a", "b", uses=("a", "b"), when="one_succeeded")
    run = await listed(world, workflow(step("a"), step("b"), hasty, on_failure="continue"))
    await world.report(await world.claim(run, names=["b"]), result=b'"late"')
    assert await world.state(run) == "failed"
    assert await retry(world, run) == ALL
    assert [a.payload for a in await world.claim(run)] == [
        b'{"n": %d, "b": "late"}' % n for n in (3, 4, 5)
    ]


async def test_a_list_after_a_manually_skipped_step_is_repeated_whole(
    world: RunWorld,
) -> None:
    """It may speak of the state of that step, which is another one now."""
    definition = workflow(
        step("a"),
        step("b", "a"),
        each("a", "b", uses=("a", "b"), when="all_finished"),
        on_failure="continue",
    )
    run = await world.begin(definition)
    await world.report(await world.claim(run), result=b"[3, 4, 5]")
    await world.report(await world.claim(run), TaskState.FAILED)
    assert await world.drain(run, failing=["each[1]"]) == ALL
    await world.runs.skip(world.ownership, world.tenant_id, run, "me", await world.now(), "b")
    assert await world.drain(run) == ALL
    assert await world.state(run) == "completed"


async def test_a_paused_run_drops_list_items_when_the_list_may_change(
    world: RunWorld,
) -> None:
    definition = workflow(*LISTED.steps, step("idle", delay=3600), on_failure="continue")
    run = await listed(world, definition)
    await world.runs.pause(world.ownership, world.tenant_id, run, "me", await world.now())
    assert await retry(world, run, "each") == []
    assert await retry(world, run, "a") == []
    await world.runs.resume(world.ownership, world.tenant_id, run, "me", await world.now())
    await world.report(await world.claim(run, names=["a"]), result=b"[6]")
    assert await world.drain(run) == ["each[0]", "sum"]


async def test_a_list_after_steps_that_waited_for_theirs_is_the_same(world: RunWorld) -> None:
    definition = workflow(step("a"), step("b", "a"), each("b", uses=("a",)), on_failure="continue")
    run = await world.begin(definition)
    await world.report(await world.claim(run), result=b"[3, 4, 5]")
    await world.report(await world.claim(run))
    assert await world.drain(run, failing=["each[1]"]) == ALL
    assert await retry(world, run) == ["each[1]"]


# --- runs that failed fast ------------------------------------------------------------------------


async def test_a_retry_does_what_failing_fast_left_out(world: RunWorld) -> None:
    """Also what does not come after the step that failed: it would have been done."""
    definition = workflow(
        step("a"), step("b"), step("c", "b"), step("never", "b", when="any_failed"),
        step("odd", "b", condition="false"), step("last", "c", "odd", when="all_finished"),
    )  # fmt: skip
    run = await world.begin(definition)
    a, b = await world.claim(run, names=["a", "b"])
    await world.report([a], TaskState.FAILED)
    await world.report([b])
    assert await world.drain(run) == ["last"]
    assert await world.state(run) == "failed"
    assert (await world.states(run))["c"] == "skipped"
    await retry(world, run)
    assert await world.drain(run) == ["a", "c", "last"]
    states = await world.states(run)
    assert (states["never"], states["odd"]) == ("skipped", "skipped")
    assert await world.state(run) == "completed"


async def test_skipping_the_failed_step_does_so_too(world: RunWorld) -> None:
    run = await world.begin(workflow(step("a"), step("b"), step("c", "b")))
    a, b = await world.claim(run)
    await world.report([a], TaskState.FAILED)
    await world.report([b])
    await world.runs.skip(world.ownership, world.tenant_id, run, "me", await world.now(), "a")
    assert await world.drain(run) == ["c"]
    assert await world.state(run) == "completed"


async def test_of_two_steps_that_failed_one_can_be_retried(world: RunWorld) -> None:
    run = await world.begin(workflow(step("a"), step("b"), step("c", "b"), step("d", "a")))
    await world.report(await world.claim(run), TaskState.FAILED)
    assert await retry(world, run, "a") == ["a"]
    assert await world.drain(run) == ["a", "d"]
    assert await world.states(run) == {
        "a": "completed", "b": "failed", "c": "skipped", "d": "completed"
    }  # fmt: skip
    assert await world.state(run) == "failed"
    assert await retry(world, run) == ["b"]
    assert await world.drain(run) == ["b", "c"]
    assert await world.state(run) == "completed"


# --- any run ------------------------------------------------------------------------------------


async def test_a_run_retried_until_it_succeeds_ends_like_a_success(
    world: RunWorld,
) -> None:
    for seed in range(30):
        rng = Random(seed)
        definition = _any_workflow(rng)
        untroubled = await world.begin(definition)
        await world.drain(untroubled)
        run = await world.begin(definition)
        for chance in (0.5, 0.3, 0.3, 0.0):
            await _drain_with_luck(world, run, rng, chance)
            if await world.state(run) == "failed":
                await retry(world, run)
        assert await world.states(run) == await world.states(untroubled), f"seed {seed}"
        assert await world.state(run) == "completed", f"seed {seed}"


def _any_workflow(rng: Random) -> WorkflowDefinition:
    steps: list[Step] = []
    for number in range(rng.randint(3, 8)):
        earlier = [s.id for s in steps if not s.cleanup]
        needs = rng.sample(earlier, rng.randint(0, min(3, len(earlier))))
        whens = ("all_succeeded", "all_succeeded", "all_finished", "any_failed", "one_succeeded")
        fields: dict[str, Any] = {"when": rng.choice(whens)} if needs else {}
        if needs and rng.random() < 0.15:
            fields = {"cleanup": True}
        if rng.random() < 0.4:
            fields["foreach"] = "[1, 2, 3]"
        steps.append(step(f"s{number}", *needs, **fields))
    return workflow(*steps, on_failure=rng.choice(["fail_fast", "continue"]))


async def _drain_with_luck(world: RunWorld, run: UUID, rng: Random, chance: float) -> None:
    """Work a run off, in any order; what was asked to stop may end in any way."""
    while executions := await world.claim(run):
        rng.shuffle(executions)
        for execution in executions:
            lost = rng.random() < chance
            await world.report([execution], TaskState.FAILED if lost else TaskState.COMPLETED)
