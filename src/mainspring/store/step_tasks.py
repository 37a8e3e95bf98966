"""The tasks of steps: made, released and ended, within the transaction that moves their run on."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import asyncpg

from mainspring.domain.ids import TaskIds
from mainspring.domain.placement import Ownership
from mainspring.domain.rows import TaskRow
from mainspring.domain.task import TaskState
from mainspring.domain.workflow.definition import FEW, TaskTemplate
from mainspring.postgres import named_sql as queries
from mainspring.postgres.database import sparse
from mainspring.postgres.planner import BULK_ROWS
from mainspring.postgres.planner import SQL as PLANNER
from mainspring.store.step_rows import (
    Ended,
    Moved,
    NewRun,
    NewStep,
    RunHead,
    StartingStep,
    end_arguments,
)

SQL = queries.load("steps")
ADD_STEPS = SQL["add_steps"]


class StepTasks:
    """Writes what was decided about steps of runs that the caller holds."""

    def __init__(self, ids: TaskIds) -> None:
        self._ids = ids

    async def release(
        self,
        connection: asyncpg.Connection,
        ownership: Ownership,
        starts: Sequence[StartingStep],
        moved: Moved,
    ) -> None:
        """Schedule the tasks of steps that were blocked: each once, however often it is asked."""
        if not starts:
            return
        ordered = sorted(starts, key=lambda s: (s.run.tenant_id, s.run.id, s.step.id))
        per_run = Counter(start.run.id for start in starts)
        made = [start.template for start in ordered]
        rows = await connection.fetch(
            SQL["release"],
            ownership.node_id,
            ownership.epoch,
            list(ownership.partitions),
            [s.run.tenant_id for s in ordered],
            [s.run.id for s in ordered],
            [s.step.id for s in ordered],
            [s.due for s in ordered],
            [per_run[s.run.id] > FEW for s in ordered],
            sparse([t and t.spec.encode() for t in made]),
            sparse([t and t.payload.encode() for t in made]),
            sparse([t and t.capability for t in made]),
            sparse([t and t.concurrency_key for t in made]),
            sparse([t and t.name for t in made]),
            sparse([t and t.labels for t in made]),
        )
        moved.rows += [TaskRow(*row) for row in rows]
        await _analyze_if_grown(connection, len(rows))

    async def fan_out(
        self,
        connection: asyncpg.Connection,
        ownership: Ownership,
        start: StartingStep,
        made: Sequence[TaskTemplate],
        moved: Moved,
    ) -> bool:
        """One task per item of a step's list, but for those that are done; the step's own waits to
        join them. Answers whether all are done."""
        head, step, due = start.run, start.step, start.due
        expanded = await connection.fetchrow(
            SQL["expand"], head.tenant_id, head.id, step.id, len(made), due
        )
        if expanded is None or not made:
            return False
        kept = frozenset(expanded["items"])
        own = {"queue": expanded["queue"], "priority": expanded["priority"]}
        added = [
            NewStep(
                step.id, index, "released", 0, (step.id,), self._ids.make(due), due,
                replace(template, **own),
            )
            for index, template in enumerate(made)
            if index not in kept
        ]  # fmt: skip
        if not added:
            return True
        moved.rows += await self.add(connection, ownership, head, added)
        return False

    async def end(
        self, connection: asyncpg.Connection, leaving: Sequence[Ended], moved: Moved
    ) -> list[Ended]:
        """Move tasks of steps that do not run to history; answers which did. To be settled."""
        if not leaving:
            return []
        ordered = sorted(leaving, key=lambda e: (e.tenant_id, e.run_id, e.step, e.item))
        rows = await connection.fetch(SQL["end_tasks"], *end_arguments(ordered))
        moved.told |= {row["partition"] for row in rows if row["state"] == "scheduled"}
        gone = {(row["run_id"], row["plain_step"], row["item"]) for row in rows}
        ended = [e for e in ordered if (e.run_id, e.step, e.item) in gone]
        moved.skipped += sum(e.state is TaskState.SKIPPED for e in ended)
        return ended

    async def add(
        self,
        connection: asyncpg.Connection,
        ownership: Ownership,
        head: RunHead,
        steps: Sequence[NewStep],
        run: NewRun | None = None,
    ) -> list[TaskRow]:
        """Insert rows and tasks of steps, of a new run with the run itself; answers the tasks that
        are scheduled at once."""
        rows = await connection.fetch(ADD_STEPS, *add_arguments(ownership, head, steps, run))
        await _analyze_if_grown(connection, len(steps))
        return [TaskRow(*row) for row in rows]

    async def add_tasks(
        self,
        connection: asyncpg.Connection,
        ownership: Ownership,
        head: RunHead,
        steps: Sequence[NewStep],
    ) -> list[TaskRow]:
        """The tasks alone, where the rows are there."""
        arguments = _task_arguments(ownership, head, steps)
        nothing: tuple[object, ...] = (*([[]] * 9), *_NO_RUN)
        return [TaskRow(*r) for r in await connection.fetch(ADD_STEPS, *arguments, *nothing)]


async def _analyze_if_grown(connection: asyncpg.Connection, crowd: int) -> None:
    """A crowd enters tables that may have been empty: what releases and claims it would go by a
    plan that was made for a handful of rows, and compare each with each."""
    if crowd >= BULK_ROWS:
        await connection.execute(PLANNER["analyze_tasks"])
        await connection.execute(PLANNER["analyze_steps"])


_NO_RUN = (None,) * 8


def add_arguments(
    ownership: Ownership, head: RunHead, steps: Sequence[NewStep], run: NewRun | None
) -> tuple[object, ...]:
    """What the statement `add_steps` wants."""
    return (
        *_task_arguments(ownership, head, steps),
        [s.step for s in steps],
        [s.item for s in steps],
        [s.state for s in steps],
        [s.needed for s in steps],
        [",".join(s.children) for s in steps],
        [s.task_id for s in steps],
        [s.due if s.state == "released" else None for s in steps],
        [s.plain for s in steps],
        [s.inside for s in steps],
        *(_NO_RUN if run is None else _run_arguments(run)),
    )


def _run_arguments(run: NewRun) -> tuple[object, ...]:
    return (
        run.workflow,
        run.version,
        len(run.definition.steps),
        run.input,
        run.now,
        run.deadline,
        run.schedule_id,
        run.nominal,
    )


def _task_arguments(
    ownership: Ownership, head: RunHead, steps: Sequence[NewStep]
) -> tuple[object, ...]:
    made = [s.template for s in steps]
    return (
        ownership.node_id,
        ownership.epoch,
        list(ownership.partitions),
        head.tenant_id,
        head.id,
        [s.task_id for s in steps],
        [s.label for s in steps],
        ["scheduled" if s.state == "released" else "blocked" for s in steps],
        [s.due for s in steps],
        [t.spec.encode() for t in made],
        [t.payload.encode() for t in made],
        [t.capability for t in made],
        [t.queue for t in made],
        [t.priority for t in made],
        sparse([t.name for t in made]),
        sparse([t.labels for t in made]),
        sparse([t.concurrency_key for t in made]),
        sparse([t.concurrency_limit for t in made]),
        sum(s.state == "released" for s in steps) > FEW,
    )
