"""Access paths of lists: by which index the tasks that a filter means are looked at.

An ordered path goes through all tasks that match, newest first, and through others beside them; a
filter that no ordered index serves goes through all tasks of the tenant. A shortcut reads what
matches in no order: it counts only if that is little, and then replaces a long way.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from mainspring.domain.task import TaskState
from mainspring.postgres.named_sql import Statement

MOST = 20_000
"""Most rows that one statement looks at."""

# The limit, which is never exceeded, is for the planner: where it does not know a limit it expects
# to need a tenth of the table, and would sort a million rows to show fifty.
_ALL = f"tenant_id = :tenant_id AND id < :before ORDER BY id DESC LIMIT {MOST}"


@dataclass(frozen=True, slots=True)
class TaskFilter:
    """Which tasks a list shows."""

    state: str | None = None
    queue: str | None = None
    name: str | None = None
    labels: dict[str, str] | None = None
    due_after: datetime | None = None
    due_before: datetime | None = None
    schedule_id: UUID | None = None
    workflow_run_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class ListPath:
    """The rows of both tables to look at, and the index of history that this needs."""

    unfinished: str = _ALL
    finished: str = _ALL
    index: str | None = None

    def of(self, statement: Statement) -> Statement:
        """Return the statement that takes this path."""
        return statement.filled(unfinished=self.unfinished, finished=self.finished)


def _by(column: str, parameter: str, indexed: str) -> str:
    """The rows of one value, by the index on (tenant_id, column, id) WHERE `indexed`.

    A plain equation would say the same, but leave the planner two ways that can go wrong: by id,
    where it believes that all rows have this value, and by sorting, where it believes that few
    have. No other index has this order, and of a value that it does not know it believes neither.
    """
    value = f"(SELECT {parameter})"
    return (
        f"tenant_id = :tenant_id AND ({column}, id) < ({value}, :before) AND {column} >= {value} "
        f"AND {indexed} ORDER BY {column} DESC, id DESC LIMIT :scan"
    )


def _everywhere(column: str, parameter: str, index: str, indexed: str | None = None) -> ListPath:
    rows = _by(column, parameter, indexed or f"{column} IS NOT NULL")
    return ListPath(rows, rows, index)


def _in_any_order(condition: str) -> str:
    """The rows for which an indexed condition holds; the planner shall use no other index."""
    return (
        f"{condition} AND (tenant_id = :tenant_id) IS TRUE AND (id < :before) IS TRUE LIMIT {MOST}"
    )


_EVERYTHING = ListPath()
_RUN = _everywhere("workflow_run_id", ":workflow_run_id::uuid", "task_history_run")
_SCHEDULE = _everywhere("schedule_id", ":schedule_id::uuid", "task_history_schedule")
_NAME = _everywhere('name COLLATE "C"', ":name::text", "task_history_name")
# Most tasks complete, and most are in this queue: indexing those would cost much and help little.
_STATE = ListPath(
    finished=_by('state COLLATE "C"', ":state::text", "state <> 'completed'"),
    index="task_history_state",
)
_QUEUE = _everywhere(
    'queue COLLATE "C"', ":queue::text", "task_history_queue", "queue <> 'default'"
)
_PARKED = ListPath(unfinished=f"parked AND {_ALL}")

# The tenant is part of the value that is indexed, so nobody pays for the labels of others.
_LABELS = _in_any_order(
    "labels IS NOT NULL AND jsonb_set('{}', ARRAY[tenant_id::text], labels) "
    "@> jsonb_set('{}', ARRAY[:tenant_id::integer::text], :labels::jsonb)"
)
_BY_LABEL = ListPath(_LABELS, _LABELS, "task_history_label")
_DUE = (
    "due_at >= coalesce(:due_after::timestamptz, '-infinity') "
    "AND due_at < coalesce(:due_before::timestamptz, 'infinity')"
)
_PARTITIONS = "partition = ANY (ARRAY(SELECT generate_series(0, 255)::smallint))"
_BY_DUE = ListPath(
    _in_any_order(f"(NOT parked AND {_PARTITIONS} AND {_DUE} OR parked AND {_DUE})"),
    _in_any_order(_DUE),
    "task_history_due",
)
# What runs is due, and state is in no index.
_RUNNING = ListPath(
    unfinished=_in_any_order(f"NOT parked AND {_PARTITIONS} AND due_at <= now()"),
    finished=_in_any_order("false"),
)

LIST_PATHS = (_EVERYTHING, _RUN, _SCHEDULE, _NAME, _STATE, _QUEUE, _PARKED)
SHORTCUTS = (_BY_LABEL, _BY_DUE, _RUNNING)
INDEXES = frozenset(path.index for path in LIST_PATHS + SHORTCUTS if path.index is not None)


def paths_of(where: TaskFilter, ready: frozenset[str]) -> list[ListPath]:
    """Return the paths that lead to what a filter wants, by the indexes that are `ready`."""
    found = [path for path in _named(where) if path.index is None or path.index in ready]
    return found or [_EVERYTHING]


def shortcuts_of(where: TaskFilter, ready: frozenset[str]) -> list[ListPath]:
    """Return the shortcuts to what a filter wants, by the indexes that are `ready`."""
    found = []
    if where.labels:
        found.append(_BY_LABEL)
    if where.state == TaskState.RUNNING:
        found.append(_RUNNING)
    if where.due_after is not None or where.due_before is not None:
        found.append(_BY_DUE)
    return [path for path in found if path.index is None or path.index in ready]


def _named(where: TaskFilter) -> Iterator[ListPath]:
    if where.workflow_run_id is not None:
        yield _RUN
    if where.schedule_id is not None:
        yield _SCHEDULE
    if where.name is not None:
        yield _NAME
    if where.state in (TaskState.BLOCKED, TaskState.PAUSED):
        yield _PARKED
    finished = where.state is None or TaskState(where.state).final
    if finished and where.state not in (None, TaskState.COMPLETED):
        yield _STATE
    if where.queue not in (None, "default"):
        yield _QUEUE
