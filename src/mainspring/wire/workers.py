"""The shapes of the worker protocol."""

from collections.abc import Sequence
from typing import Annotated, Literal
from uuid import UUID

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from mainspring.wire import patterns
from mainspring.wire.tasks import HandlerName, Instant, Line, Queue, TargetOut, Time
from mainspring.wire.values import OpenEnum

MOST_LEASES = 1000
MOST_ENTRIES = 10_000
LONGEST_WAIT = 60.0

WorkerName = Annotated[str, Meta(pattern=patterns.WORKER)]
Incarnation = Annotated[str, Meta(pattern=patterns.INCARNATION)]
Fence = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Amount = Annotated[float, Meta(ge=0, le=1e15)]
LogLevel = Literal["debug", "info", "warning", "error", "stdout", "stderr"]
Names = Annotated[dict[Line, Line], Meta(max_length=50)]


class ResourcesIn(Struct, frozen=True, forbid_unknown_fields=True):
    """What a worker has for tasks that ask for it."""

    memory_mb: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    cpu: Annotated[float, Meta(ge=0, le=100_000)] | None = None


class AboutIn(Struct, frozen=True, forbid_unknown_fields=True):
    """What a worker tells about itself, for people; all of it is optional."""

    host: Line | None = None
    pid: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    slots: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    versions: Names | None = None
    cpu_percent: Amount | None = None
    memory_bytes: Amount | None = None
    statistics: Annotated[dict[Line, Amount], Meta(max_length=50)] | None = None


class HeldIn(Struct, frozen=True, forbid_unknown_fields=True):
    """An execution that a worker runs."""

    id: UUID
    fence: Fence


class BeatIn(HeldIn, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An execution that a worker runs, whether it has begun, with nothing else beside it, and how
    far it has come."""

    progress: Raw | UnsetType = UNSET
    started: bool = True
    alone: bool = False


class LeaseIn(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A worker with free slots."""

    worker: WorkerName
    incarnation: Incarnation
    queues: Annotated[tuple[Queue, ...], Meta(min_length=1, max_length=1000)] = ("default",)
    handlers: Annotated[tuple[HandlerName, ...], Meta(max_length=10_000)] = ()
    commands: bool = False
    tags: Annotated[tuple[Line, ...], Meta(max_length=100)] = ()
    max: Annotated[int, Meta(ge=1, le=MOST_LEASES)] = 1
    wait: Annotated[float, Meta(ge=0, le=LONGEST_WAIT)] = 5.0
    running: Annotated[tuple[HeldIn, ...], Meta(max_length=MOST_ENTRIES)] | None = None
    resources: ResourcesIn | None = None
    about: AboutIn | None = None
    announces_starts: bool = False


class HeartbeatIn(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A worker is alive, and runs these."""

    worker: WorkerName
    incarnation: Incarnation
    running: Annotated[tuple[BeatIn, ...], Meta(max_length=MOST_ENTRIES)] = ()
    about: AboutIn | None = None


class ErrorIn(Struct, frozen=True, forbid_unknown_fields=True):
    """Why an execution failed. The code `timeout` means that its time was over."""

    message: Annotated[str, Meta(max_length=10_000)]
    code: Annotated[str, Meta(pattern=patterns.ERROR_CODE)] = "failed"


class OutcomeIn(HeldIn, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How an execution ended."""

    status: Literal["succeeded", "failed", "released"]
    result: Raw | UnsetType = UNSET
    error: ErrorIn | Annotated[str, Meta(max_length=10_000)] | None = None
    retryable: bool = True
    retry_after: Annotated[float, Meta(ge=0, le=30 * 86400)] | None = None
    started_at: Instant | None = None
    finished_at: Instant | None = None


class ReportIn(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Executions that ended."""

    outcomes: Annotated[tuple[OutcomeIn, ...], Meta(max_length=MOST_ENTRIES)]
    worker: WorkerName | None = None
    incarnation: Incarnation | None = None


class LeaseContext(Struct):
    """What else a handler may want to know about the task it runs."""

    name: str | None
    queue: str
    labels: dict[str, str]
    run_at: Time
    due_at: Time
    deadline: Time
    max_attempts: int
    failures: int
    suspect: bool
    alone: bool
    schedule_id: UUID | None
    nominal_at: Time | None
    workflow_run_id: UUID | None = None
    step: str | None = None


class LeaseOut(Struct):
    """A leased task."""

    id: UUID
    fence: int
    attempt: int
    lease_until: Time
    target: TargetOut
    payload: Raw
    timeout: float
    context: LeaseContext


class LeasesOut(Struct, omit_defaults=True):
    """The tasks that a worker got; none when nothing came while it waited. `wait` is there where
    the node waits no longer than that, and was asked to."""

    tasks: Sequence[LeaseOut]
    wait: float | None = None


class PulseOut(Struct, kw_only=True):
    """What to do about an execution: go on, stop because it was cancelled, or stop because it is
    lost."""

    id: UUID
    lease_until: Time | None = None
    action: OpenEnum[Literal["continue", "cancel", "lost"]]


class PulsesOut(Struct):
    """What to do about each execution, in the order of the request."""

    tasks: list[PulseOut]


class JudgedOut(Struct):
    """What became of a report."""

    id: UUID
    status: OpenEnum[Literal["accepted", "fenced", "unknown"]]


class JudgedListOut(Struct):
    """What became of each report, in the order of the request."""

    outcomes: list[JudgedOut]


class LogLineIn(HeldIn, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A line about an execution. A longer message is cut."""

    message: Annotated[str, Meta(max_length=100_000)]
    at: Instant | None = None
    level: LogLevel = "info"


class LogsIn(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Lines that handlers and programs wrote."""

    lines: Annotated[tuple[LogLineIn, ...], Meta(max_length=1000)]
    worker: WorkerName | None = None
    incarnation: Incarnation | None = None


class LogsTakenOut(Struct):
    """How many lines were kept. Lines of unknown tasks, and beyond a task's cap, are dropped."""

    accepted: int
    dropped: int


class LogLineOut(Struct):
    """A line that was logged about an execution."""

    fence: int
    at: Time
    level: str
    message: str


class LogPage(Struct):
    """Lines in the order in which they came, and where they go on."""

    items: list[LogLineOut]
    next_cursor: str | None


class StatisticsOut(Struct):
    """What a worker has done since it is known."""

    leased: int
    succeeded: int
    failed: int
    released: int


class WorkerOut(Struct):
    """A worker. `about` is what it tells about itself: host, versions, slots, CPU, memory."""

    name: str
    incarnation: str
    state: OpenEnum[Literal["alive", "silent"]]
    queues: list[str]
    handlers: list[str]
    commands: bool
    tags: list[str]
    resources: ResourcesIn
    about: AboutIn
    leases: int
    statistics: StatisticsOut
    started_at: Time
    seen_at: Time


class WorkerPage(Struct):
    """Workers by name, and where the list goes on."""

    items: list[WorkerOut]
    next_cursor: str | None


class NodeAddressOut(Struct):
    """A node that a worker may ask; without a url it cannot be reached directly."""

    id: UUID
    url: str | None
    partitions: int


class NodeAddressList(Struct):
    """The nodes that are alive."""

    nodes: list[NodeAddressOut]
