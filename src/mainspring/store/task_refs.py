"""References to tasks with the rev or fence that guards a change, and tasks as they are now."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

import asyncpg

from mainspring.domain.lateness import Waited
from mainspring.domain.partitions import Ownership
from mainspring.domain.rows import TaskRow
from mainspring.postgres.rows import read_rows


class TaskRef(NamedTuple):
    """A task, and the number that a change of it is guarded by: its rev or its fence."""

    tenant_id: int
    id: UUID
    guard: int
    waited: Waited | None = None
    """Of a pick: what it waited for since it was due."""


class WorkerPick(NamedTuple):
    """A task that was picked for a worker, and the rev its claim is guarded by."""

    tenant_id: int
    id: UUID
    rev: int
    worker: str
    incarnation: str
    waited: Waited | None = None
    """What it waited for since it was due."""

    @property
    def ref(self) -> TaskRef:
        return TaskRef(self.tenant_id, self.id, self.rev, self.waited)


@dataclass(frozen=True, slots=True)
class Seen:
    """Tasks as they are now, and those that are no longer unfinished."""

    rows: list[TaskRow]
    gone: list[UUID]


def ref_columns(refs: Iterable[TaskRef], guards: str) -> dict[str, Sequence[object]]:
    """Return one array per field of these references, in lock order."""
    ordered = sorted(refs)
    return {
        "tenant_ids": [r.tenant_id for r in ordered],
        "ids": [r.id for r in ordered],
        guards: [r.guard for r in ordered],
    }


def seen_in(rows: Sequence[asyncpg.Record]) -> Seen:
    """Return the tasks of these rows; those without a rev are gone."""
    return Seen(
        read_rows(TaskRow, [row for row in rows if row["rev"] is not None]),
        [row["id"] for row in rows if row["rev"] is None],
    )


def owner_of(ownership: Ownership) -> dict[str, object]:
    """Return the arguments by which a statement checks an owner."""
    return {**node_of(ownership), "partitions": list(ownership.partitions)}


def node_of(ownership: Ownership) -> dict[str, object]:
    """Return those of a statement that names its partitions, or needs none."""
    return {
        "node_id": ownership.node_id,
        "epoch": ownership.epoch,
        "beats": ownership.beats,
    }
