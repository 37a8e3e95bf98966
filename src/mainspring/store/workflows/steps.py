"""The tasks of steps: inserted, released and ended, within the transaction that advances a run."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import asyncpg

from mainspring.domain.ids import TaskIds
from mainspring.domain.partitions import Ownership
from mainspring.domain.rows import TaskRow
from mainspring.domain.workflows.definition import FEW, TaskTemplate
from mainspring.postgres import named_sql as queries
from mainspring.postgres.database import columns_of, sparse
from mainspring.postgres.named_sql import Queryable
from mainspring.store.task_refs import owner_of
from mainspring.store.upkeep.statistics import BULK_ROWS
from mainspring.store.upkeep.statistics import SQL as PLANNER
from mainspring.store.workflows.step_rows import (
    Ended,
    NewRun,
    NewStep,
    RunHead,
    RunTransaction,
    StartingStep,
)

SQL = queries.load("steps")
_END = ("tenant_id", "run_id", "step", "item", "state", "result", "error")


class StepTasks:
    """Writes of what was decided about steps, within a transaction that has locked their runs."""

    def __init__(self, ids: TaskIds) -> None:
        self._ids = ids

    async def release(self, tx: RunTransaction, starts: Sequence[StartingStep]) -> None:
        """Schedule the tasks of steps that were blocked: each once, however often it is asked."""
        if not starts:
            return
        ordered = sorted(starts, key=lambda s: (s.run.tenant_id, s.run.id, s.step.id))
        per_run = Counter(start.run.id for start in starts)
        released = await SQL["release"].rows(
            tx.connection,
            TaskRow,
            **owner_of(tx.ownership),
            tenant_ids=[s.run.tenant_id for s in ordered],
            run_ids=[s.run.id for s in ordered],
            steps=[s.step.id for s in ordered],
            due=[s.due for s in ordered],
            wide=[per_run[s.run.id] > FEW for s in ordered],
            **_templates([s.template for s in ordered]),
        )
        tx.moved.rows += released
        await _analyze_if_grown(tx.connection, len(released))

    async def fan_out(
        self, tx: RunTransaction, start: StartingStep, made: Sequence[TaskTemplate]
    ) -> bool:
        """Create a task per item of a step's list, except for items that are done; the step's own
        task waits for them. Return whether all are done."""
        head, step, due = start.run, start.step, start.due
        expanded = await SQL["expand"].record(
            tx.connection, **head.key, step=step.id, needed=len(made), due=due
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
        tx.moved.rows += await self.add(tx, head, added)
        return False

    async def end(self, tx: RunTransaction, leaving: Sequence[Ended]) -> list[Ended]:
        """Move tasks of steps that do not run to history; return which did."""
        if not leaving:
            return []
        ordered = sorted(leaving, key=lambda e: (e.tenant_id, e.run_id, e.step, e.item))
        rows = await SQL["end_tasks"].fetch(tx.connection, **columns_of(_END, ordered))
        tx.moved.told |= {row["partition"] for row in rows if row["state"] == "scheduled"}
        gone = {(row["run_id"], row["plain_step"], row["item"]) for row in rows}
        return [e for e in ordered if (e.run_id, e.step, e.item) in gone]

    async def add(
        self, tx: RunTransaction, head: RunHead, steps: Sequence[NewStep], run: NewRun | None = None
    ) -> list[TaskRow]:
        """Insert steps with their tasks, and a new run; return the tasks that are scheduled now."""
        added = await add_steps(tx.connection, tx.ownership, head, steps, run=run)
        await _analyze_if_grown(tx.connection, len(steps))
        return added


async def _analyze_if_grown(connection: asyncpg.Connection, added: int) -> None:
    """Analyze after many inserts: plans made for a handful of rows would compare each with each."""
    if added >= BULK_ROWS:
        await PLANNER["analyze_tasks"].run(connection)
        await PLANNER["analyze_steps"].run(connection)


async def add_steps(
    on: Queryable,
    ownership: Ownership,
    head: RunHead,
    steps: Sequence[NewStep],
    *,
    run: NewRun | None = None,
    tasks_only: bool = False,
) -> list[TaskRow]:
    """Insert steps with their tasks, and a new run; or only new tasks of steps that exist. Return
    the tasks that are scheduled at once."""
    rows = _rows([] if tasks_only else steps)
    return await SQL["add_steps"].rows(
        on, TaskRow, **_tasks(ownership, head, steps), **rows, **(_run(run) if run else _NO_RUN)
    )


def _rows(steps: Sequence[NewStep]) -> dict[str, object]:
    fields = ("step", "item", "state", "needed", "task_id", "plain", "inside")
    return {
        **columns_of(fields, steps),
        "children": [",".join(s.children) for s in steps],
        "released": [s.due if s.state == "released" else None for s in steps],
    }


def _run(run: NewRun) -> dict[str, object]:
    return {
        "workflow": run.workflow,
        "version": run.version,
        "total": len(run.definition.steps),
        "input": run.input,
        "created": run.now,
        "deadline": run.deadline,
        "schedule_id": run.schedule_id,
        "nominal": run.nominal,
    }


_NO_RUN: dict[str, object] = dict.fromkeys(
    ("workflow", "version", "total", "input", "created", "deadline", "schedule_id", "nominal")
)


def _templates(made: Sequence[TaskTemplate | None]) -> dict[str, object]:
    """Return the columns that new and released tasks take from their templates."""
    return {
        "specs": sparse([t and t.spec.encode() for t in made]),
        "payloads": sparse([t and t.payload.encode() for t in made]),
        "capabilities": sparse([t and t.capability for t in made]),
        "concurrency_keys": sparse([t and t.concurrency_key for t in made]),
        "names": sparse([t and t.name for t in made]),
        "labels": sparse([t and t.labels for t in made]),
    }


def _tasks(ownership: Ownership, head: RunHead, steps: Sequence[NewStep]) -> dict[str, object]:
    made = [s.template for s in steps]
    return {
        **owner_of(ownership),
        "tenant_id": head.tenant_id,
        "run_id": head.id,
        "ids": [s.task_id for s in steps],
        "labels_of_steps": [s.label for s in steps],
        "task_states": ["scheduled" if s.state == "released" else "blocked" for s in steps],
        "due": [s.due for s in steps],
        **_templates(made),
        **columns_of(("queue", "priority", "concurrency_limit"), made),
        "wide": sum(s.state == "released" for s in steps) > FEW,
    }
