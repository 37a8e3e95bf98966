"""What the start of a task depends on, as the database knows it: for `explain`."""

from typing import NamedTuple
from uuid import UUID

from mainspring.domain.rows import TaskRow
from mainspring.postgres import named_sql as queries
from mainspring.postgres.database import Store
from mainspring.postgres.rows import read_row

SQL = queries.load("explaining")

_SCAN = 10_000


class Dependency(NamedTuple):
    """What a blocked step waits for: steps before it, or its own items."""

    open: int
    needed: int
    has_items: bool
    run_paused: bool
    open_steps: list[str] | None


class WaitingTask(NamedTuple):
    """An unfinished task, with the share of its tenant's limit that its partition has."""

    row: TaskRow
    attempts: int
    tenant_limit: int | None
    dependency: Dependency | None = None


class RunningBeside(NamedTuple):
    """What runs in a task's partition of its own tenant, and under its own key."""

    running: int
    under_key: int


class ExplainStore(Store):
    """The reads of `explain`."""

    async def waiting(self, tenant_id: int, task_id: UUID) -> WaitingTask | None:
        """The task, while it is unfinished."""
        row = await SQL["waiting_task"].record(self._database, tenant_id=tenant_id, task_id=task_id)
        if row is None:
            return None
        dependency = None if row["open"] is None else read_row(Dependency, row)
        return WaitingTask(read_row(TaskRow, row), row["attempts"], row["tenant_limit"], dependency)

    async def running_beside(self, row: TaskRow) -> RunningBeside:
        """Count what runs beside a task; behind a long backlog the count ends early."""
        return await SQL["running_beside"].one(
            self._database,
            RunningBeside,
            partition=row.partition,
            tenant_id=row.tenant_id,
            concurrency_key=row.concurrency_key,
            scan=_SCAN,
        )
