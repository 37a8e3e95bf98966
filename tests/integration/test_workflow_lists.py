"""Steps that are done once for each item of a list, and joined."""

from dataclasses import replace

from mainspring.domain.task import TaskState
from mainspring.store.tasks import TaskChange
from mainspring.workflows.task_changes import TaskChangeService
from support.runs import RunWorld, finish, step, workflow


async def test_a_list_is_done_item_by_item_and_joined(world: RunWorld) -> None:
    definition = workflow(
        step("a"),
        step("each", "a", payload='{"n": "{{item}}"}', foreach='"{{steps.a.result}}"', uses=("a",)),
        step("sum", "each", payload='"{{steps.each.result}}"', uses=("each",)),
    )
    run = await world.begin(definition)
    await world.report(await world.claim(run), result=b"[3, 4, 5]")
    items = await world.claim(run)
    assert [(a.step, a.payload) for a in items] == [
        ("each[0]", b'{"n": 3}'), ("each[1]", b'{"n": 4}'), ("each[2]", b'{"n": 5}')
    ]  # fmt: skip
    for n, item in enumerate(reversed(items)):
        await world.report([item], result=str(n).encode())
    [last] = await world.claim(run)
    assert (last.step, last.payload) == ("sum", b"[2,1,0]")
    await world.report([last])
    assert await world.state(run) == "completed"


async def test_an_empty_list_is_done_at_once(world: RunWorld) -> None:
    run = await world.begin(workflow(step("each", foreach="[]"), step("b", "each")))
    assert await world.drain(run) == ["b"]
    assert (await world.step(run, "each")).result == b"[]"


async def test_a_failed_list_is_joined_before_other_steps_are_decided(world: RunWorld) -> None:
    """Both end in one transaction: the run has failed, so what waited for one success is left
    out, and never released."""
    run = await world.begin(
        workflow(
            step("list", foreach="[1]"),
            step("other"),
            step("either", "list", "other", when="one_succeeded"),
            on_failure="fail_fast",
        )
    )
    by_name = {a.step: a for a in await world.claim(run)}
    finishes = [finish(by_name["list[0]"], TaskState.FAILED), finish(by_name["other"])]
    done = await world.record(finishes)
    assert done.moved.rows == []
    assert (await world.states(run))["either"] == "skipped"


async def test_a_restarted_list_with_all_items_done_is_joined(
    world: RunWorld,
) -> None:
    run = await world.begin(workflow(step("list", foreach="[1, 2]"), on_failure="continue"))
    items = await world.claim(run)
    tasks = TaskChangeService(world.database, world.steps)
    [row] = await world.database.fetch("SELECT id FROM tasks WHERE step = 'list'")
    await tasks.change(
        world.tenant_id, row["id"], lambda locked: replace(TaskChange.of(locked), state="cancelled")
    )
    await world.report(items, result=b"7")
    assert await world.state(run) == "cancelled"
    await world.runs.retry(world.ownership, world.tenant_id, run, "test", await world.now())
    assert await world.claim(run) == [], "nothing is done twice"
    assert await world.state(run) == "completed"
    assert (await world.step(run, "list")).result == b"[7,7]"
