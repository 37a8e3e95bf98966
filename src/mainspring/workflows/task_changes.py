"""Changes of tasks by a caller: edited, moved to another state, purged, cancelled many at once.

A step of a run is changed with its run locked, which advances with it.
"""

from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import asdict, dataclass
from typing import TypeVar
from uuid import UUID

import asyncpg

from mainspring.domain.task import TaskState
from mainspring.postgres.database import Database, transaction
from mainspring.store.audit import write_entry
from mainspring.store.lists.index_paths import TaskFilter
from mainspring.store.lists.paging import next_mark
from mainspring.store.tasks import SQL, LockedTask, TaskChange
from mainspring.store.upkeep.table_changes import SQL as TABLES
from mainspring.workflows.advancing import Steps

T = TypeVar("T")

CHUNK = 1000
"""Maximum number of tasks that one transaction cancels."""


@dataclass(frozen=True, slots=True)
class CancelCounts:
    """How many tasks ended, how many were asked to cancel, and the partitions of both."""

    ended: int = 0
    asked: int = 0
    partitions: Collection[int] = ()

    def __add__(self, other: "CancelCounts") -> "CancelCounts":
        return CancelCounts(
            self.ended + other.ended,
            self.asked + other.asked,
            {*self.partitions, *other.partitions},
        )


@dataclass(eq=False)
class TaskChangeService:
    """Changes of the tasks of every tenant."""

    _database: Database
    _steps: Steps
    _scan: int = 10_000

    @transaction
    async def change(
        self,
        connection: asyncpg.Connection,
        tenant_id: int,
        task_id: UUID,
        decide: Callable[[LockedTask], TaskChange | T],
    ) -> T | bool | None:
        """Lock a task, and write the change that `decide` returns: then True. Anything else that it
        returns is handed back; what it raises undoes everything. None: no such unfinished task."""
        await self._steps.lock_runs_of(connection, tenant_id, [task_id])
        key = {"tenant_id": tenant_id, "task_id": task_id}
        locked = await SQL["lock_task"].row(connection, LockedTask, **key)
        if locked is None:
            return None
        chosen = decide(locked)
        if not isinstance(chosen, TaskChange):
            return chosen
        if TaskState(chosen.state).final:
            written = await SQL["end_task"].found(
                connection, **key, rev=locked.rev, state=chosen.state
            )
            ended = (locked.workflow_run_id, locked.step)
            await self._steps.count_cancelled(connection, tenant_id, [ended])
        else:
            if locked.workflow_run_id is not None and locked.step is not None:
                run_id, step = locked.workflow_run_id, locked.step
                await self._steps.mark_step_changed(connection, tenant_id, run_id, step)
            written = await SQL["change_task"].found(
                connection, **key, rev=locked.rev, **asdict(chosen)
            )
        if not written:
            raise AssertionError("a locked task cannot have changed")
        await SQL["wake"].run(connection, partition=locked.partition, **key)
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
        """Remove a task and its traces except the audit entry; False: there is none. What `check`
        raises, which gets the task's rev, undoes everything."""
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

    async def count_cancellable(self, tenant_id: int, where: TaskFilter) -> CancelCounts:
        """Return what `cancel_matching` would do now."""
        total = CancelCounts()
        async for page in self._pages(tenant_id, where):
            asked = sum(state == TaskState.RUNNING for state in page.values())
            total += CancelCounts(len(page) - asked, asked)
        return total

    async def cancel_matching(
        self, tenant_id: int, where: TaskFilter, actor: str
    ) -> AsyncIterator[CancelCounts]:
        """Cancel all that match and exist now; yield what each transaction did."""
        async for page in self._pages(tenant_id, where):
            if page:
                yield await self._cancel(tenant_id, list(page), where, actor)

    async def _pages(self, tenant_id: int, where: TaskFilter) -> AsyncIterator[dict[UUID, str]]:
        """Yield all that match, oldest first, each with its state."""
        newest = await SQL["newest_task"].record(self._database, tenant_id=tenant_id)
        after: UUID | None = UUID(int=0) if newest else None
        while after is not None and newest is not None:
            rows = await SQL["find_cancellable"].fetch(
                self._database,
                tenant_id=tenant_id,
                after=after,
                newest=newest["id"],
                scan=self._scan,
                limit=CHUNK,
                **asdict(where),
            )
            page = {row["id"]: row["state"] for row in rows if row["id"] is not None}
            after = next_mark(UUID, rows, CHUNK, self._scan)
            yield page

    @transaction
    async def _cancel(
        self,
        connection: asyncpg.Connection,
        tenant_id: int,
        ids: list[UUID],
        where: TaskFilter,
        actor: str,
    ) -> CancelCounts:
        await self._steps.lock_runs_of(connection, tenant_id, ids)
        locked = await SQL["lock_cancellable"].fetch(
            connection, tenant_id=tenant_id, ids=ids, **asdict(where)
        )
        counts = await SQL["cancel_locked"].one(
            connection,
            CancelCounts,
            tenant_id=tenant_id,
            ids=[task["id"] for task in locked],
            revs=[task["rev"] for task in locked],
        )
        over = [task for task in locked if task["state"] != TaskState.RUNNING]
        await self._steps.count_cancelled(
            connection, tenant_id, [(task["workflow_run_id"], task["step"]) for task in over]
        )
        if counts.ended or counts.asked:
            await write_entry(
                connection, tenant_id, actor, "tasks.cancelled", f"{ids[0]}/{ids[-1]}",
                cancelled=counts.ended, cancel_requested=counts.asked,
            )  # fmt: skip
        return counts
