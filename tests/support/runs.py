"""Runs of workflows in a real database, driven by hand: claim, report, kill and look."""

from collections.abc import Iterable, Sequence
from random import Random
from typing import Any
from uuid import UUID

import msgspec

from mainspring.domain.execution import (
    Execution,
    Outcome,
    Report,
    TaskError,
)
from mainspring.domain.outcome_rules import Finish
from mainspring.domain.partitions import Ownership
from mainspring.domain.task import Target, TaskSpec, TaskState
from mainspring.domain.workflows.definition import Step, TaskTemplate, WorkflowDefinition
from mainspring.postgres.database import Database
from mainspring.store.task_refs import TaskRef
from mainspring.store.workflows.definitions import Definitions
from mainspring.store.workflows.step_rows import NO_STEP_LEASES, NewRun, StepLeaseOffer
from mainspring.store.workflows.workflow_runs import StoredStep
from mainspring.store.workflows.workflows import WorkflowStore
from mainspring.workflows.advancing import Steps
from mainspring.workflows.outcomes import StepOutcomes, StepsFinished
from mainspring.workflows.runs import WorkflowRunService
from support.store import OwnerWorld

_SPEC = msgspec.json.encode(TaskSpec(Target("handler", name="work")).stored()).decode()


def template(payload: str = "{}", **fields: Any) -> TaskTemplate:
    dynamic = "{{" in payload
    return TaskTemplate(_SPEC, payload, "handler:work", dynamic=dynamic, **fields)


def step(name: str, *needs: str, payload: str = "{}", **fields: Any) -> Step:
    return Step(name, template(payload), tuple(needs), **fields)


def workflow(*steps: Step, **fields: Any) -> WorkflowDefinition:
    return WorkflowDefinition("flow", steps, **fields)


class RunWorld(OwnerWorld):
    """An owner's world, and the runs of workflows in it."""

    def __init__(self, database: Database, seed: int = 7) -> None:
        super().__init__(database, seed)
        definitions = Definitions()
        self.steps = steps = Steps(definitions, self._ids, Random(seed))
        self.outcomes = StepOutcomes(database, steps)
        self.runs = WorkflowRunService(database, steps, definitions, self._ids)
        self._workflows = WorkflowStore(database)

    async def begin(self, definition: WorkflowDefinition, given: str = "{}") -> UUID:
        """A run of a new version of the workflow."""
        stored = await self._workflows.put(self.tenant_id, definition, "test")
        assert stored is not None
        now = await self.now()
        run = NewRun(
            self.tenant_id, self._ids.make(now), stored.name, stored.version, definition,
            given.encode(), now,
        )  # fmt: skip
        await self.runs.create(self.ownership, run)
        return run.id

    async def claim(
        self,
        run_id: UUID,
        limit: int = 100_000,
        names: Sequence[str] | None = None,
        lease: float = 60,
    ) -> list[Execution]:
        """Lease what of a run may start now, or what of it is named."""
        rows = await self.database.fetch(
            "SELECT tenant_id, id, rev FROM tasks WHERE workflow_run_id = $1"
            " AND state = 'scheduled' AND due_at <= clock_timestamp()"
            " AND ($3::text[] IS NULL OR step = ANY ($3)) ORDER BY step LIMIT $2",
            run_id,
            limit,
            None if names is None else list(names),
        )
        picks = [TaskRef(*row) for row in rows]
        if not picks:
            return []
        return await self.engine.claim(self.ownership, picks, worker="node:one", lease=lease)

    async def report(
        self, executions: Iterable[Execution], state: TaskState = TaskState.COMPLETED,
        result: bytes | None = None,
    ) -> StepsFinished:  # fmt: skip
        return await self.record([finish(a, state, result) for a in executions])

    async def record(
        self,
        finishes: Sequence[Finish],
        offer: StepLeaseOffer = NO_STEP_LEASES,
        ownership: Ownership | None = None,
    ) -> StepsFinished:
        """Record ends as a node does: the fast path, and the full one for the rest."""
        ownership = ownership or self.ownership
        done = await self.outcomes.finish_fast(ownership, finishes, offer)
        rest = [f for f in finishes if f.report.execution.id not in done.accepted]
        if not rest:
            return done
        more = await self.outcomes.finish(ownership, rest, await self.now())
        more.moved.rows += done.moved.rows
        more.moved.leased += done.moved.leased
        return StepsFinished(done.accepted | more.accepted, more.moved)

    async def drain(self, run_id: UUID, failing: Sequence[str] = ()) -> list[str]:
        """Work a run off, step by step; return the steps in the order in which they started."""
        order: list[str] = []
        while executions := await self.claim(run_id):
            for a in executions:
                order.append(a.step or "")
                lost = (a.step or "") in failing
                await self.report([a], TaskState.FAILED if lost else TaskState.COMPLETED)
        return order

    async def states(self, run_id: UUID) -> dict[str, str]:
        return {s.step: s.state for s in await self.runs.steps(self.tenant_id, run_id)}

    async def step(self, run_id: UUID, name: str) -> StoredStep:
        found = await self.runs.steps(self.tenant_id, run_id)
        return next(s for s in found if s.step == name)

    async def state(self, run_id: UUID) -> str:
        run = await self.runs.get(self.tenant_id, run_id)
        assert run is not None
        return run.state


def finish(
    execution: Execution, state: TaskState = TaskState.COMPLETED, result: bytes | None = None
) -> Finish:
    """The outcome of an execution."""
    outcome = {
        TaskState.COMPLETED: Outcome.SUCCEEDED,
        TaskState.CANCELLED: Outcome.CANCELLED,
    }.get(state, Outcome.FAILED)
    error = TaskError("failed", "on purpose") if outcome is Outcome.FAILED else None
    report = Report(execution, outcome, execution.picked, execution.picked, result, error)
    return Finish(report, state, "exhausted" if outcome is Outcome.FAILED else None)
