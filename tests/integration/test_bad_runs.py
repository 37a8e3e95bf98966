"""Runs that the store refuses to touch: they hold up no other."""

import asyncio
from collections.abc import Mapping
from typing import cast
from uuid import UUID

import asyncpg
import msgspec

from mainspring.domain.execution import Execution, Outcome, Report
from mainspring.domain.partitions import Ownership
from mainspring.engine.core import Engine, EngineSettings
from mainspring.node.deadlines import Deadlines
from mainspring.node.run_starter import RunStarter
from mainspring.node.signals import Announcer
from mainspring.node.state import NodeState
from mainspring.store.workflows.step_rows import Moved
from mainspring.workflows.task_runs import TaskRuns
from support.manual_clock import ManualClock
from support.rows import execution, row, task_id
from support.runs import RunWorld, step, workflow
from support.waiting import eventually


class _Listener:
    """In place of the announcer."""

    def announce_runs(self, moved: Moved) -> None:
        """There is no engine to tell."""


class _Runs:
    """In place of the store: it refuses the run of task 1, and fails oddly the first time."""

    def __init__(self) -> None:
        self.asked = 0
        self.cancelled: list[int] = []

    async def begin(
        self, _ownership: Ownership, of: Execution, _name: str, _given: Mapping[str, msgspec.Raw]
    ) -> Moved:
        self.asked += 1
        if self.asked == 1:
            raise RuntimeError("nobody thought of this")
        if of.id == task_id(1):
            raise asyncpg.CharacterNotInRepertoireError("invalid byte sequence")
        return Moved()

    async def cancel(self, _ownership: Ownership, of: Execution, _now: float) -> Moved:
        self.cancelled.append(of.id.int)
        if of.id == task_id(2):
            raise asyncpg.DataError("invalid")
        return Moved()

    async def ended(self, tasks: list[Execution]) -> list[tuple[UUID, str]]:
        return [(task_id(3), "completed")] if 3 in {t.id.int for t in tasks} else []


def _state() -> NodeState:
    return NodeState(Engine(EngineSettings()), ManualClock())


async def test_a_task_whose_run_is_refused_fails_and_the_others_go_on() -> None:
    runs, reports = _Runs(), list[Report]()
    starter = RunStarter(
        ManualClock(), _state(), cast(TaskRuns, runs), cast(Announcer, _Listener()), reports.extend
    )
    tasks = [execution(row(n))._replace(payload=b'{"workflow": "flow"}') for n in (1, 2, 3)]
    nul = execution(row(4))._replace(payload=b'{"workflow": "a\\u0000b"}')
    try:
        starter.start([*tasks, nul])

        async def three() -> bool:
            return len(reports) == 3

        await eventually(three, within=5, what="all but the one that lasts are reported")
        found = {r.execution.id.int: (r.outcome, r.error and r.error.code) for r in reports}
        assert found == {
            1: (Outcome.FAILED, "bad-payload"),
            3: (Outcome.SUCCEEDED, None),
            4: (Outcome.FAILED, "bad-payload"),
        }
        more = execution(row(5))._replace(payload=b'{"workflow": "flow"}')
        starter.start([more])
        starter.cancel(task_id(2), 1)
        starter.cancel(task_id(5), 1)

        async def both() -> bool:
            return runs.cancelled == [2, 5]

        await eventually(both, within=5, what="the one is not cancelled, the other is")
    finally:
        await starter.stop(0)


async def test_a_run_that_cannot_be_ended_holds_up_no_other(world: RunWorld) -> None:
    broken = workflow(step("a", delay=3600), step("b", "a"))
    sound = workflow(step("a", delay=3600), step("c", "a"))
    runs = {}
    for name in ("late", "expired"):
        runs[name] = [await world.begin(broken), await world.begin(sound)]
    await world.database.fetch(
        "UPDATE workflow_versions SET definition = '{}' WHERE version IN"
        " (SELECT version FROM workflow_runs WHERE id = ANY ($1))",
        [found[0] for found in runs.values()],
    )
    past = "clock_timestamp() - interval '1 second'"
    await world.database.fetch(
        f"UPDATE workflow_runs SET deadline_at = {past} WHERE id = ANY ($1)", runs["late"]
    )
    await world.database.fetch(
        f"UPDATE tasks SET expires_at = {past} WHERE workflow_run_id = ANY ($1) AND step = 'a'",
        runs["expired"],
    )
    state = _state()
    state.engine.own(world.ownership.partitions, (), 0.0)
    state.node_id, state.epoch = world.ownership.node_id, world.ownership.epoch
    deadlines = Deadlines(state, world.outcomes, cast(Announcer, _Listener()))
    looking = asyncio.create_task(deadlines.run())

    async def over() -> bool:
        return [await world.state(found[1]) for found in runs.values()] == ["failed", "failed"]

    try:
        await eventually(over, within=5, what="the sound runs end")
        assert [await world.state(found[0]) for found in runs.values()] == ["running", "running"]
        assert not looking.done()
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
