"""What the store in memory keeps: its tables, row by row."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from uuid import UUID

from mainspring.domain.execution import TaskError
from mainspring.domain.lateness import Earlier, Waited
from mainspring.domain.rows import StreamKey, TaskRow
from mainspring.domain.schedules.definition import ScheduleDefinition
from mainspring.domain.task import TaskState
from mainspring.domain.tenant import TenantLimits
from mainspring.store.creation import NewTask

PARKED = frozenset({TaskState.BLOCKED, TaskState.PAUSED})
"""States in which time does not matter: such rows stay out of the owner's window."""


@dataclass(slots=True)
class Task:
    """A row of `tasks`."""

    made: NewTask = field(repr=False)
    partition: int
    run: float
    due: float
    expires: float | None
    priority: int
    queue: str
    capability: str
    name: str | None
    labels: Mapping[str, str] | None
    spec: bytes = field(repr=False)
    payload: bytes = field(repr=False)
    rev: int = 1
    fence: int = 0
    attempts: int = 0
    failures: int = 0
    state: str = "scheduled"
    cancel_requested: bool = False
    picked: float | None = None
    lease_until: float | None = None
    worker: str | None = None
    incarnation: str | None = None
    losses: int = 0
    unproven_losses: int = 0
    began: bool = False
    began_alone: bool = False
    error: TaskError | None = None
    waited: Waited | None = None
    earlier: Earlier | None = None
    past: tuple[int, int, str, float, int, bool] | None = field(default=None, repr=False)
    """How a watcher saw it last."""

    def __str__(self) -> str:
        return f"{self.id} {self!r}"

    @property
    def id(self) -> UUID:
        return self.made.id

    @property
    def tenant_id(self) -> int:
        return self.made.tenant_id

    @property
    def key(self) -> str | None:
        return self.made.concurrency_key

    @property
    def parked(self) -> bool:
        return self.state in PARKED

    def row(self) -> TaskRow:
        return TaskRow(
            self.tenant_id, self.id, self.rev, self.partition, self.state, self.queue,
            self.capability, self.key, self.made.concurrency_limit, self.priority, self.due,
            self.expires, self.fence, self.lease_until, self.cancel_requested, self.worker,
            self.incarnation, self.waited,
        )  # fmt: skip

    def stream(self) -> StreamKey:
        return StreamKey(
            self.partition, self.tenant_id, self.queue, self.capability, self.key, self.priority
        )

    def back_to_scheduled(self) -> None:
        self.state, self.rev = "scheduled", self.rev + 1
        self.picked = self.lease_until = self.worker = self.incarnation = None


@dataclass(frozen=True, slots=True)
class Finished:
    """A row of `task_history`."""

    tenant_id: int
    id: UUID
    rev: int
    fence: int
    state: str
    failures: int
    finished: float


@dataclass(frozen=True, slots=True)
class ExecutionRow:
    """A row of `executions`, and the fence of the execution that this was told about."""

    tenant_id: int
    id: UUID
    fence: int
    attempt: int
    outcome: str
    worker: str
    told_by: int
    lateness: Waited | None = None


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A row of `dead_letters`; `attempts` are the outcomes of all executions, oldest first."""

    reason: str
    attempts: tuple[str, ...]


@dataclass(slots=True)
class ScheduleRow:
    """A row of `schedules`."""

    tenant_id: int
    id: UUID
    partition: int
    definition: ScheduleDefinition
    template: bytes = field(repr=False)
    decided_to: float
    next: float
    offset: float
    state: str = "active"
    rev: int = 1
    runs: int = 0

    @property
    def wake(self) -> float:
        return self.next + self.offset


@dataclass(frozen=True, slots=True)
class Line:
    """A row of `occurrences`."""

    schedule_id: UUID
    first: float
    last: float
    count: int
    decision: str
    task_id: UUID | None


@dataclass(slots=True)
class NodeRow:
    """A row of `nodes`."""

    id: UUID
    name: str
    heartbeat: float
    server: int = 0
    beats: int = 0
    epoch: int = 1
    state: str = "active"


@dataclass(slots=True)
class FloorRow:
    """The row of `fence_floor`."""

    floor: int = 0
    before: float = float("-inf")
    server: int | None = None


@dataclass(slots=True)
class PartitionRow:
    """A row of `partitions`."""

    owner: UUID | None = None
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class KeyRow:
    """A row of `idempotency_keys`."""

    answer: bytes
    expires: float


@dataclass(slots=True)
class Tables:
    """What is in the database."""

    tasks: dict[UUID, Task] = field(default_factory=dict)
    history: dict[UUID, Finished] = field(default_factory=dict)
    executions: list[ExecutionRow] = field(default_factory=list)
    dead_letters: dict[UUID, DeadLetter] = field(default_factory=dict)
    wakes: dict[int, tuple[int, int, UUID]] = field(default_factory=dict)
    wake_ids: Iterator[int] = field(default_factory=partial(count, 1))
    nodes: dict[UUID, NodeRow] = field(default_factory=dict)
    partitions: dict[int, PartitionRow] = field(default_factory=dict)
    fence_floor: FloorRow = field(default_factory=FloorRow)
    tenants: dict[int, TenantLimits] = field(default_factory=dict)
    idempotency: dict[tuple[int, str], KeyRow] = field(default_factory=dict)
    schedules: dict[UUID, ScheduleRow] = field(default_factory=dict)
    occurrences: list[Line] = field(default_factory=list)
    workers: dict[tuple[int, str], str] = field(default_factory=dict)
    """The present incarnation of each worker."""
    former_workers: set[tuple[int, str, str | None]] = field(default_factory=set)
    letters: dict[UUID, list[bytes]] = field(default_factory=dict)
    """What nodes wrote to each other."""

    def outcome_of(self, task_id: UUID, fence: int) -> str | None:
        """How an execution ended, if it did."""
        found = (e.outcome for e in self.executions if (e.id, e.fence) == (task_id, fence))
        return next(found, None)
