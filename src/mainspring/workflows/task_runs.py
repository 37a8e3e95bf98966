"""Runs that belong to a task: begun when it starts, found again when it is retried."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import asyncpg
import msgspec

from mainspring.domain.execution import Execution
from mainspring.domain.partitions import Ownership
from mainspring.postgres.database import Database, transaction
from mainspring.postgres.rows import read_row
from mainspring.store.workflows.step_rows import Moved, NewRun, RunHead, RunTransaction
from mainspring.store.workflows.workflow_runs import SQL
from mainspring.store.workflows.workflows import WorkflowStore
from mainspring.workflows.advancing import Steps
from mainspring.workflows.results import unreadable
from mainspring.workflows.runs import WorkflowRunService

_INPUT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encode = msgspec.json.Encoder().encode


@dataclass(eq=False)
class TaskRuns:
    """Runs of tasks that the node executes."""

    _database: Database
    _steps: Steps
    _runs: WorkflowRunService
    _workflows: WorkflowStore

    async def begin(
        self,
        ownership: Ownership,
        execution: Execution,
        workflow: str,
        given: Mapping[str, msgspec.Raw],
    ) -> Moved | None:
        """Begin the run of a task, unless it was begun before. None: there is no such workflow;
        ValueError: its templates could not read the input."""
        if await self._runs.get(execution.tenant_id, execution.id) is not None:
            return Moved()
        found = await self._workflows.get(execution.tenant_id, workflow)
        if found is None:
            return None
        row = await SQL["whose_task"].record(self._database, **_task_key(execution))
        if row is None:
            return Moved()  # not ours any more
        merged = _encode({**_INPUT.decode(found.definition.input), **given})
        if text := unreadable(merged):
            raise ValueError(f"input: {text}")
        run = NewRun(
            execution.tenant_id, execution.id, found.name, found.version, found.definition, merged,
            execution.picked, row["schedule_id"], row["nominal"],
        )  # fmt: skip
        try:
            return await self._runs.create(ownership, run)
        except asyncpg.UniqueViolationError:
            return Moved()  # another execution of the task was quicker

    async def ended(self, tasks: Sequence[Execution]) -> list[tuple[UUID, str]]:
        """Return those of the runs of these tasks that have ended, with their states."""
        rows = await SQL["which_ended"].fetch(
            self._database, tenant_ids=[t.tenant_id for t in tasks], ids=[t.id for t in tasks]
        )
        return [(row["id"], row["state"]) for row in rows]

    @transaction
    async def cancel(
        self, connection: asyncpg.Connection, ownership: Ownership, execution: Execution, now: float
    ) -> Moved | None:
        """Cancel the run of a task that was asked to cancel. None: the execution is not current."""
        row = await SQL["lock_run"].record(
            connection, tenant_id=execution.tenant_id, run_id=execution.id
        )
        task = await SQL["whose_task"].record(connection, **_task_key(execution))
        if row is None or task is None or not task["cancel_requested"]:
            return None
        tx = RunTransaction(connection, ownership, now)
        return await self._steps.stop_run(tx, read_row(RunHead, row), "cancel")


def _task_key(execution: Execution) -> dict[str, object]:
    tenant_id, task_id, fence = execution.tenant_id, execution.id, execution.fence
    return {"tenant_id": tenant_id, "task_id": task_id, "fence": fence}
