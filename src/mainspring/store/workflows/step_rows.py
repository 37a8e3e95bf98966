"""Records of runs and steps, as they are read and written."""

from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

import asyncpg

from mainspring.domain.capability import needs_worker
from mainspring.domain.execution import Execution, TaskError
from mainspring.domain.partitions import Ownership
from mainspring.domain.rows import TaskRow
from mainspring.domain.task import TaskState
from mainspring.domain.workflows.definition import RunState, Step, TaskTemplate, WorkflowDefinition

ITSELF = -1
"""The `item` of a step's own row; its items count from 0."""


class Ended(NamedTuple):
    """A step, or an item of one, that is over."""

    tenant_id: int
    run_id: UUID
    step: str
    state: TaskState
    item: int = ITSELF
    started: float | None = None
    finished: float | None = None
    attempts: int = 0
    result: bytes | None = None
    error: TaskError | None = None
    waived: bool = False


class RunHead(NamedTuple):
    """The columns of a run that deciding on its steps needs."""

    tenant_id: int
    id: UUID
    workflow: str
    version: int
    state: str
    stopping: str | None
    unfinished: int
    failed: int

    @property
    def key(self) -> dict[str, object]:
        """The arguments by which a statement names the run."""
        return {"tenant_id": self.tenant_id, "run_id": self.id}


class WaitingStep(NamedTuple):
    """A step that waits: for those before it, or for its own items."""

    step: str
    state: str
    needed: int
    finished: int
    succeeded: int
    failed: int

    @property
    def skipped(self) -> int:
        return self.finished - self.succeeded - self.failed


class StepLeaseOffer(NamedTuple):
    """How many steps may start as they are released, on which worker, leased for how long."""

    most: int
    worker: str
    lease: float


NO_STEP_LEASES = StepLeaseOffer(0, "", 0.0)


class StartingStep(NamedTuple):
    """A step that starts, with the task to write; None: the task as it was stored."""

    run: RunHead
    step: Step
    due: float
    template: TaskTemplate | None


class NewRun(NamedTuple):
    """A run that is about to begin; times in seconds since the epoch."""

    tenant_id: int
    id: UUID
    workflow: str
    version: int
    definition: WorkflowDefinition
    input: bytes
    now: float
    schedule_id: UUID | None = None
    nominal: float | None = None

    @property
    def head(self) -> RunHead:
        size = len(self.definition.steps)
        return RunHead(
            self.tenant_id, self.id, self.workflow, self.version, "running", None, size, 0
        )

    @property
    def deadline(self) -> float | None:
        after = self.definition.deadline
        return None if after is None else self.now + after


class NewStep(NamedTuple):
    """A step or an item that is about to be inserted, with its task."""

    step: str
    item: int
    state: str
    needed: int
    children: tuple[str, ...]
    task_id: UUID
    due: float
    template: TaskTemplate
    plain: bool = False

    @property
    def inside(self) -> bool:
        """Whether the node itself runs it, with nothing to wait for."""
        template = self.template
        return not needs_worker(template.capability) and template.concurrency_key is None

    @property
    def label(self) -> str:
        """The label of its task."""
        return self.step if self.item == ITSELF else f"{self.step}[{self.item}]"


@dataclass(slots=True)
class Moved:
    """What a transaction did, to be announced after the commit."""

    rows: list[TaskRow] = field(default_factory=list)
    """Tasks that were released."""
    leased: list[tuple[TaskRow, Execution]] = field(default_factory=list)
    """Those of them that are leased to this node already, to be started."""
    told: set[int] = field(default_factory=set)
    """Partitions with new wake rows."""
    ended: dict[str, int] = field(default_factory=dict)
    """Runs that ended, by state."""

    def count_end(self, state: RunState) -> None:
        """Count a run that ended."""
        self.ended[state.value] = self.ended.get(state.value, 0) + 1


@dataclass(slots=True)
class RunTransaction:
    """A transaction that advances runs whose rows it has locked, and what it did so far."""

    connection: asyncpg.Connection
    ownership: Ownership
    now: float
    moved: Moved = field(default_factory=Moved)


def parse_label(label: str) -> tuple[str, int]:
    """Return the step and the item that a task's label names."""
    step, _, item = label.partition("[")
    return step, int(item[:-1]) if item else ITSELF
