"""Changes of a task by a caller: edited, moved to another state, purged.

A step of a run is changed with its run locked, which moves on with it.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TypeVar
from uuid import UUID

import asyncpg

from mainspring.domain.task import TaskState
from mainspring.postgres.database import Database, transaction
from mainspring.store.audit import write_entry
from mainspring.store.tasks import SQL, LockedTask, TaskChange
from mainspring.store.upkeep.table_changes import SQL as TABLES
from mainspring.workflows.advancing import Steps

T = TypeVar("T")


@dataclass(eq=False)
class TaskChangeService:
    """Changes of the tasks of every tenant."""

    _database: Database
    _steps: Steps

    @transaction
    async def change(
        self,
        connection: asyncpg.Connection,
        tenant_id: int,
        task_id: UUID,
        decide: Callable[[LockedTask], TaskChange | T],
    ) -> T | bool | None:
        """Lock a task, let `decide` choose, and write what it chose.

        None: no such unfinished task. True: the change was written. Anything else `decide` returns
        is handed back without a write; what it raises undoes everything.
        """
        await self._steps.lock_runs_of(connection, tenant_id, [task_id])
        key = {"tenant_id": tenant_id, "task_id": task_id}
        locked = await SQL["lock_task"].row(connection, LockedTask, **key)
        if locked is None:
            return None
        chosen = decide(locked)
        if not isinstance(chosen, TaskChange):
            return chosen
        await self._write(connection, tenant_id, locked, chosen)
        return True

    @transaction
    async def purge(
        self,
        connection: asyncpg.Connection,
        tenant_id: int,
        task_id: UUID,
        actor: str,
        check: Callable[[int], None],
    ) -> bool:
        """Remove a task and its traces but for the audit entry. False: there is no such task. What
        `check` raises, which is told its rev, undoes everything."""
        await self._steps.lock_runs_of(connection, tenant_id, [task_id])
        await TABLES["allow_purge"].run(connection)
        key = {"tenant_id": tenant_id, "task_id": task_id}
        hot = await SQL["purge_task"].record(connection, **key)
        gone = hot or await SQL["purge_history"].record(connection, **key)
        if gone is None:
            return False
        check(gone["rev"])
        for trace in ("purge_executions", "purge_dead_letter", "purge_logs"):
            await SQL[trace].run(connection, **key)
        await write_entry(connection, tenant_id, actor, "task.purged", str(task_id))
        if hot is not None:
            await SQL["wake"].run(connection, partition=hot["partition"], **key)
            ended = (hot["workflow_run_id"], hot["step"])
            await self._steps.count_cancelled(connection, tenant_id, [ended])
        return True

    async def _write(
        self, connection: asyncpg.Connection, tenant_id: int, locked: LockedTask, change: TaskChange
    ) -> None:
        key = {"tenant_id": tenant_id, "task_id": locked.id}
        if TaskState(change.state).final:
            written = await SQL["end_task"].found(
                connection, **key, rev=locked.rev, state=change.state
            )
            ended = (locked.workflow_run_id, locked.step)
            await self._steps.count_cancelled(connection, tenant_id, [ended])
        else:
            if locked.workflow_run_id is not None and locked.step is not None:
                run_id, step = locked.workflow_run_id, locked.step
                await self._steps.mark_step_changed(connection, tenant_id, run_id, step)
            written = await SQL["change_task"].found(
                connection, **key, rev=locked.rev, **asdict(change)
            )
        if not written:
            raise AssertionError("a locked task cannot have changed")
        await SQL["wake"].run(connection, partition=locked.partition, **key)
