"""Records of runs, as they are read."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple
from uuid import UUID

from mainspring.postgres import named_sql as queries
from mainspring.store.workflows.step_rows import Moved, NewRun

SQL = queries.load("workflow_runs")


class StoredRun(NamedTuple):
    """A run as it was found."""

    id: UUID
    workflow: str
    version: int
    rev: int
    state: str
    stopping: str | None
    total: int
    unfinished: int
    failed: int
    input: bytes
    created_at: datetime
    finished_at: datetime | None
    deadline_at: datetime | None
    schedule_id: UUID | None
    nominal_at: datetime | None


def started_run(run: NewRun, moved: Moved) -> StoredRun:
    """Return a run as it is right after its start; one without steps to take is over already."""
    now = datetime.fromtimestamp(run.now, UTC)
    deadline, nominal = (
        None if seconds is None else datetime.fromtimestamp(seconds, UTC)
        for seconds in (run.deadline, run.nominal)
    )
    state = next(iter(moved.ended), None)
    size = len(run.definition.steps)
    return StoredRun(
        id=run.id,
        workflow=run.workflow,
        version=run.version,
        rev=1,
        state=state or "running",
        stopping=None,
        total=size,
        unfinished=0 if state else size,
        failed=0,
        input=run.input,
        created_at=now,
        finished_at=now if state else None,
        deadline_at=deadline,
        schedule_id=run.schedule_id,
        nominal_at=nominal,
    )


class StoredStep(NamedTuple):
    """A step of a run, or an item of one, as it was found."""

    step: str
    item: int
    state: str
    task_id: UUID
    needed: int
    finished: int
    waived: bool
    due_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    attempts: int
    result: bytes | None
    error: dict[str, str] | None
    expanded: bool


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs a list shows."""

    workflow: str | None = None
    state: str | None = None
    schedule_id: UUID | None = None
