"""Random graphs, outcomes, orders of completion and crashes, against a model of a run.

After every transaction the database and the model agree on what may start: so no step starts before
those before it allow it, every step ends, each join starts once, and the end is the model's.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mainspring.domain.execution import Execution
from mainspring.domain.task import TaskState
from mainspring.domain.workflows.checks import with_implied_needs
from mainspring.domain.workflows.definition import Step, WorkflowDefinition
from mainspring.postgres.database import Database, DatabaseOptions
from mainspring.store.workflows.step_rows import NO_STEP_LEASES, StepLeaseOffer
from support.run_model import RunModel
from support.runs import RunWorld, finish, step

T = TypeVar("T")
EXAMPLES = 60
KINDS = ("plain", "plain", "plain", "if", "each", "cleanup")
WHENS = ("all_succeeded", "all_succeeded", "all_finished", "any_failed", "one_succeeded")
ENDS = (TaskState.COMPLETED, TaskState.COMPLETED, TaskState.COMPLETED, TaskState.FAILED)


class Crash(Exception):
    """The process dies: what it has not committed never happened."""


class Plan:
    """One example: a graph, and all the luck that its run has."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data
        self.sizes: dict[str, int] = {}
        self.holds: dict[str, bool] = {}
        self._capability = data.draw(st.sampled_from(("http", "handler:work")), label="run by")
        self._kinds = data.draw(st.sampled_from((KINDS, KINDS, ("plain",))), label="kinds")
        steps: list[Step] = []
        for number in range(data.draw(st.integers(2, 8), label="steps")):
            earlier = [s.id for s in steps if not s.cleanup]
            steps.append(self._step(f"s{number}", earlier))
        fail_fast = data.draw(st.booleans(), label="fail fast")
        self.definition = WorkflowDefinition(
            "flow",
            tuple(with_implied_needs(steps)),
            on_failure="fail_fast" if fail_fast else "continue",
        )

    def _step(self, name: str, earlier: list[str]) -> Step:
        draw = self._data.draw
        needs = draw(st.lists(st.sampled_from(earlier), unique=True)) if earlier else []
        fields: dict[str, Any] = {}
        kind = draw(st.sampled_from(self._kinds))
        if kind == "if":
            self.holds[name] = draw(st.booleans())
            fields["condition"] = "2 > 1" if self.holds[name] else "1 > 2"
        elif kind == "each":
            self.sizes[name] = draw(st.integers(0, 3))
            fields["foreach"] = json.dumps(list(range(self.sizes[name])))
        if kind == "cleanup" and earlier:
            fields["cleanup"] = True
        elif needs and len(self._kinds) > 1:
            fields["when"] = draw(st.sampled_from(WHENS))
        made = step(name, *needs, **fields)
        return replace(made, template=replace(made.template, capability=self._capability))

    def some(self, of: list[T], *, least: int = 0) -> list[T]:
        """Some of these, in any order."""
        if not of:
            return []
        size = self._data.draw(st.integers(min(least, len(of)), len(of)))
        return self._data.draw(st.permutations(of))[:size]

    def outcome(self) -> TaskState:
        return self._data.draw(st.sampled_from(ENDS))

    def offer(self) -> StepLeaseOffer:
        return StepLeaseOffer(self._data.draw(st.integers(0, 3)), "node:one", 60.0)

    def crash(self) -> str:
        return self._data.draw(st.sampled_from(("", "", "", "before", "after")))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_runs_do_what_the_model_does(database_url: str) -> None:
    with asyncio.Runner() as runner:
        database = Database(DatabaseOptions(database_url, connections=4))
        runner.run(database.open())
        world = RunWorld(database)
        runner.run(world.open())

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        )
        @given(st.data())
        def explore(data: st.DataObject) -> None:
            runner.run(_work_off(world, Plan(data)))

        explore()
        runner.run(database.close())


async def _work_off(world: RunWorld, plan: Plan) -> None:
    model = RunModel(plan.definition, plan.sizes, plan.holds)
    run = await world.begin(plan.definition)
    held: dict[str, Execution] = {}
    await _agree(world, run, model)
    while model.released or model.running:
        nothing_runs = not held
        chosen = plan.some(sorted(model.released), least=1 if nothing_runs else 0)
        held |= await _start(world, run, chosen)
        model.start(chosen)
        done = plan.some(sorted(held), least=1)
        outcomes = {task: plan.outcome() for task in done}
        begun = await _end(world, plan, held, outcomes)
        model.end(outcomes)
        model.start(begun)
        held = {task: a for task, a in held.items() if task not in outcomes} | begun
        await _agree(world, run, model)
    assert await world.state(run) == model.state
    await _sound(world, run, model)


async def _start(world: RunWorld, run: UUID, chosen: list[str]) -> dict[str, Execution]:
    wanted = await world.claim(run, names=chosen)
    assert sorted(a.step or "" for a in wanted) == sorted(chosen)
    return {a.step or "": a for a in wanted}


async def _end(
    world: RunWorld, plan: Plan, held: dict[str, Execution], outcomes: dict[str, TaskState]
) -> dict[str, Execution]:
    """Record ends, at once or (where the order does not matter) on two connections; return what
    started by that."""
    finishes = [finish(held[task], state) for task, state in outcomes.items()]
    crash, offer = plan.crash(), plan.offer()
    if crash == "before":
        await _dying(world, partial(world.record, finishes, offer))
    middle = len(finishes) // 2 if plan.definition.on_failure == "continue" else 0
    parts = [part for part in (finishes[:middle], finishes[middle:]) if part]
    if len(parts) > 1:
        offer = NO_STEP_LEASES  # which of them has to go the long way is up to chance
    answers = await asyncio.gather(*(world.record(part, offer) for part in parts))
    accepted = {task for answer in answers for task in answer.accepted}
    assert accepted == {f.report.execution.id for f in finishes}
    if crash == "after":
        again = await world.record(finishes, offer)
        assert (again.accepted, again.moved.rows) == (set(), [])
    return {a.step or "": a for answer in answers for _row, a in answer.moved.leased}


async def _dying(world: RunWorld, act: Callable[[], Awaitable[object]]) -> None:
    """The process is killed when all is written and nothing committed."""
    transact = world.database.transact

    async def dies(work: Callable[[asyncpg.Connection], Awaitable[T]]) -> T:
        async def killed(connection: asyncpg.Connection) -> T:
            await work(connection)
            raise Crash

        return await transact(killed)

    async def dies_alone(sql: str, *args: object) -> list[asyncpg.Record]:
        return await dies(lambda connection: connection.fetch(sql, *args))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.database, "transact", dies)
        patch.setattr(world.database, "fetch", dies_alone)
        with suppress(Crash):
            await act()


async def _agree(world: RunWorld, run: UUID, model: RunModel) -> None:
    rows = await world.database.fetch(
        "SELECT step, state FROM tasks WHERE workflow_run_id = $1 AND state <> 'blocked'", run
    )
    assert {row["step"] for row in rows if row["state"] == "scheduled"} == model.released
    assert {row["step"] for row in rows if row["state"] == "running"} == model.running
    found = await world.database.fetch(
        "SELECT step, state FROM workflow_steps WHERE run_id = $1 AND item = -1", run
    )
    assert {row["step"]: row["state"] for row in found} == model.steps


async def _sound(world: RunWorld, run: UUID, model: RunModel) -> None:
    """Each task started once, and every step left one task behind."""
    executions = await world.database.fetch(
        "SELECT h.step, count(*) AS times FROM executions e JOIN task_history h ON h.id = e.task_id"
        " WHERE h.workflow_run_id = $1 GROUP BY h.step",
        run,
    )
    assert {row["step"]: row["times"] for row in executions} == dict.fromkeys(model.started, 1)
    ended = await world.database.fetch(
        "SELECT step FROM task_history WHERE workflow_run_id = $1", run
    )
    assert sorted(row["step"] for row in ended) == sorted({*model.steps, *model.tasks})
