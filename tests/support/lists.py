"""Tasks of every kind, written straight into the tables: for tests of lists."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from mainspring.domain.task import UNFINISHED
from mainspring.postgres.database import Database
from mainspring.store.lists.index_paths import TaskFilter


@dataclass(frozen=True, slots=True)
class Row:
    """A task as far as lists look at it."""

    id: UUID
    created: datetime
    due: datetime
    state: str = "completed"
    queue: str = "default"
    name: str | None = None
    labels: dict[str, str] | None = None
    schedule_id: UUID | None = None
    workflow_run_id: UUID | None = None


def matches(row: Row, where: TaskFilter) -> bool:
    """Whether a filter means this task, in plain words."""
    return (
        where.state in (None, row.state)
        and where.queue in (None, row.queue)
        and where.name in (None, row.name)
        and (where.labels or {}).items() <= (row.labels or {}).items()
        and (where.due_after is None or row.due >= where.due_after)
        and (where.due_before is None or row.due < where.due_before)
        and where.schedule_id in (None, row.schedule_id)
        and where.workflow_run_id in (None, row.workflow_run_id)
    )


async def write_rows(database: Database, tenant_id: int, rows: Sequence[Row]) -> None:
    """Insert each into the table where tasks in its state are."""
    for statement, wanted in ((_HOT, True), (_HISTORY, False)):
        chosen = [row for row in rows if (row.state in UNFINISHED) is wanted]
        await database.fetch(
            statement,
            tenant_id,
            [row.id for row in chosen],
            [row.created for row in chosen],
            [row.due for row in chosen],
            [row.state for row in chosen],
            [row.queue for row in chosen],
            [row.name for row in chosen],
            [row.labels for row in chosen],
            [row.schedule_id for row in chosen],
            [row.workflow_run_id for row in chosen],
        )


_INPUT = """
FROM unnest($2::uuid[], $3::timestamptz[], $4::timestamptz[], $5::text[], $6::text[], $7::text[],
    $8::jsonb[], $9::uuid[], $10::uuid[])
    AS i (id, created, due, state, queue, name, labels, schedule_id, workflow_run_id)
"""
_HOT = f"""
INSERT INTO tasks (id, created_at, run_at, due_at, picked_at, lease_until, worker, tenant_id,
    partition, priority, state, parked, queue, capability, name, labels, spec, payload, schedule_id,
    workflow_run_id, step)
SELECT id, created, due, due, CASE WHEN state = 'running' THEN created END,
    CASE WHEN state = 'running' THEN now() + interval '1 day' END,
    CASE WHEN state = 'running' THEN 'node:one' END, $1, 0, 5, state,
    state IN ('blocked', 'paused'), queue, 'handler:mainspring.noop', name, labels, '{{}}', '{{}}',
    schedule_id, workflow_run_id, CASE WHEN workflow_run_id IS NOT NULL THEN 'step' END
{_INPUT}
"""
_HISTORY = f"""
INSERT INTO task_history (id, created_at, run_at, due_at, finished_at, tenant_id, rev, fence,
    attempts, failures, priority, state, queue, capability, name, labels, spec, payload,
    schedule_id, workflow_run_id, step)
SELECT id, created, due, due, created + interval '1 hour', $1, 1, 0, 0, 0, 5, state, queue,
    'handler:mainspring.noop', name, labels, '{{}}', '{{}}', schedule_id, workflow_run_id,
    CASE WHEN workflow_run_id IS NOT NULL THEN 'step' END
{_INPUT}
"""
