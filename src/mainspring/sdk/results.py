"""What the API answers, as typed values. Fields that a newer server adds are ignored."""

from datetime import date, datetime
from typing import Any, Literal
from uuid import UUID

from msgspec import Struct, field

State = Literal[
    "scheduled",
    "blocked",
    "paused",
    "running",
    "completed",
    "failed",
    "cancelled",
    "expired",
    "skipped",
]
FINAL = frozenset({"completed", "failed", "cancelled", "expired", "skipped"})


class TaskTarget(Struct, kw_only=True, omit_defaults=True):
    """What a task calls; the fields of its type are set."""

    type: str
    url: str | None = None
    method: str | None = None
    headers: dict[str, str] | None = None
    name: str | None = None
    argv: list[str] | None = None
    auth: dict[str, str] | None = None
    secret_headers: dict[str, str] | None = None


class Task(Struct, kw_only=True):
    """A task. Lists leave the payload out unless it is asked for."""

    id: UUID
    state: State
    target: TaskTarget
    run_at: datetime
    due_at: datetime
    name: str | None = None
    cancel_requested: bool = False
    payload: Any = None
    expires_at: datetime | None = None
    queue: str = "default"
    priority: int = 5
    timeout: float = 30.0
    sla: float = 30.0
    jitter: float = 0.0
    retry: dict[str, Any] = field(default_factory=dict)
    concurrency: dict[str, Any] | None = None
    requires: dict[str, Any] | None = None
    labels: dict[str, str] = field(default_factory=dict)
    attempts: int = 0
    fence: int = 0
    created_at: datetime | None = None
    picked_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    result: Any = None
    error: dict[str, str] | None = None
    sla_met: bool | None = None
    blame: str | None = None
    lateness: dict[str, float] = field(default_factory=dict)
    progress: Any = None
    """How far it has come, as its handler said last."""
    schedule_id: UUID | None = None
    nominal_at: datetime | None = None
    workflow_run_id: UUID | None = None
    step: str | None = None
    replay_of: UUID | None = None
    etag: str | None = None

    @property
    def finished(self) -> bool:
        return self.state in FINAL


class Execution(Struct, kw_only=True):
    """One try of a task."""

    attempt: int
    fence: int
    worker: str
    outcome: str
    finished_at: datetime
    due_at: datetime | None = None
    picked_at: datetime | None = None
    started_at: datetime | None = None
    """None if nobody knows that it started: it was lost, or went back."""
    status_code: int | None = None
    response: Any = None
    error: dict[str, str] | None = None
    duration_ms: float = 0.0
    lateness: dict[str, float] = field(default_factory=dict)
    """Where the seconds between due and start went, by cause."""


class Gate(Struct):
    """One question on the way to the start."""

    gate: str
    passed: bool
    detail: str


class Explanation(Struct, kw_only=True):
    """Why a task is not running, or where the seconds of its lateness went."""

    task_id: UUID
    state: str
    verdict: str
    unblock: str
    gates: list[Gate] = field(default_factory=list)
    position: int | None = None
    estimated_start: datetime | None = None
    source: str = "owner"
    sla_met: bool | None = None
    blame: str | None = None
    lateness: dict[str, float] = field(default_factory=dict)


class Definition(Struct, kw_only=True):
    """One version of a workflow."""

    name: str
    version: int
    steps: list[dict[str, Any]]
    on_failure: str
    created_at: datetime
    deadline: float | None = None
    input: dict[str, Any] = field(default_factory=dict)
    etag: str | None = None


class WorkflowSummary(Struct, kw_only=True):
    """A workflow in a list: its latest version, without the steps."""

    name: str
    version: int
    step_count: int
    on_failure: str
    created_at: datetime
    updated_at: datetime


class RunItem(Struct, kw_only=True):
    """One task of a step that is done for a list."""

    index: int
    state: State
    task_id: UUID
    attempts: int = 0
    started_at: datetime | None = None
    finished_at: datetime | None = None
    result: Any = None
    error: dict[str, str] | None = None


class RunStep(Struct, kw_only=True):
    """A step of a run."""

    id: str
    state: State
    task_id: UUID
    needs: list[str] = field(default_factory=list)
    attempts: int = 0
    due_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    result: Any = None
    error: dict[str, str] | None = None
    skipped_by_hand: bool = False
    items_total: int | None = None
    items_finished: int | None = None
    items: list[RunItem] | None = None


class Run(Struct, kw_only=True):
    """A run of a workflow. Lists leave out the input, the steps and the graph."""

    id: UUID
    workflow: str
    version: int
    state: Literal["running", "paused", "completed", "failed", "cancelled"]
    created_at: datetime
    ending: str | None = None
    steps_total: int = 0
    steps_unfinished: int = 0
    steps_failed: int = 0
    finished_at: datetime | None = None
    deadline_at: datetime | None = None
    schedule_id: UUID | None = None
    nominal_at: datetime | None = None
    input: Any = None
    steps: list[RunStep] = field(default_factory=list)
    graph: dict[str, Any] | None = None
    etag: str | None = None

    @property
    def finished(self) -> bool:
        return self.finished_at is not None

    def step(self, step_id: str) -> RunStep:
        """The step of this id."""
        return next(step for step in self.steps if step.id == step_id)


class LogLine(Struct, kw_only=True):
    """A line that a handler or a command wrote."""

    message: str
    at: datetime | None = None
    level: str = "info"
    fence: int | None = None


class Cancelled(Struct):
    """How many tasks ended, and how many running ones were asked to stop."""

    cancelled: int
    cancel_requested: int


class Attempt(Struct, kw_only=True):
    """One try of a task that died."""

    attempt: int
    outcome: str
    finished_at: datetime
    error: dict[str, Any] | None = None


class DeadLetter(Struct, kw_only=True):
    """A task that failed for good, and what was done about it."""

    id: UUID
    task: Task
    reason: str
    fingerprint: str
    died_at: datetime
    attempts: list[Attempt] = field(default_factory=list)
    final_error: dict[str, str] | None = None
    resolution: str | None = None
    resolved_at: datetime | None = None
    replayed_as: UUID | None = None


class DeadLetterGroup(Struct, kw_only=True):
    """Dead letters that died of the same thing."""

    fingerprint: str
    count: int
    first_at: datetime
    last_at: datetime
    example_id: UUID
    error: dict[str, str] | None = None


class Replayed(Struct, kw_only=True):
    """The new tasks of a replay, and whether it ended early."""

    replayed: int
    ids: list[UUID]
    stopped: bool = False
    stopped_because: str | None = None


class Schedule(Struct, kw_only=True):
    """A schedule: when, by which policies, and which task."""

    id: UUID
    name: str
    state: str
    task: dict[str, Any] | None = None
    cron: str | None = None
    interval: float | None = None
    rrule: str | None = None
    timezone: str = "UTC"
    start_at: datetime | None = None
    end_at: datetime | None = None
    max_runs: int | None = None
    jitter: float = 0.0
    spread: float = 0.0
    misfire: dict[str, Any] = field(default_factory=dict)
    overlap: str = "skip"
    max_running: int = 1
    dst: dict[str, str] = field(default_factory=dict)
    exclude: list[str] = field(default_factory=list)
    calendars: list[str] = field(default_factory=list)
    stop_on_410: bool = False
    description: str = ""
    next_run_at: datetime | None = None
    next_due_at: datetime | None = None
    last_run_at: datetime | None = None
    runs: int = 0
    overdue: bool = False
    created_at: datetime | None = None
    updated_at: datetime | None = None
    etag: str | None = None


class Occurrence(Struct, kw_only=True):
    """One decision about one nominal time, or about a range of them."""

    nominal_at: datetime
    decision: str
    reason: str
    to_at: datetime | None = None
    task_id: UUID | None = None
    count: int = 1
    decided_at: datetime | None = None


class Preview(Struct, kw_only=True):
    """What an unsaved schedule would do."""

    times: list[datetime]
    warnings: list[str] = field(default_factory=list)
    description: str = ""
    tzdata: str = ""


class Backfilled(Struct):
    """The tasks of a backfill, in the order of their nominal times."""

    count: int
    task_ids: list[UUID]


class Calendar(Struct, kw_only=True):
    """A named list of dates on which schedules do not run."""

    name: str
    dates: list[date]
    updated_at: datetime | None = None
    etag: str | None = None


class Key(Struct, kw_only=True):
    """A key as it may be shown; `api_key` is there once, when it was made."""

    id: str
    scopes: list[str]
    created_at: datetime
    prefix: str | None = None
    name: str | None = None
    expires_at: datetime | None = None
    last_used_at: datetime | None = None
    revoked_at: datetime | None = None
    api_key: str | None = None


class Tenant(Struct, kw_only=True):
    """A tenant and its limits; `api_key` is there once, when it was made."""

    id: int
    name: str
    weight: int
    spread: int
    created_at: datetime
    max_running: int | None = None
    api_key: str | None = None


class Limits(Struct, kw_only=True):
    """What a tenant may use, and what it uses now."""

    weight: int
    spread: int
    running: int
    keys: int
    max_keys: int
    max_running: int | None = None
    requests_per_second: float | None = None
    running_at_least: bool = False
    """There are so many tasks that not all were looked at: more may be running."""


class AuditEntry(Struct, kw_only=True):
    """Who did what."""

    id: int
    at: datetime
    actor: str
    action: str
    subject: str
    detail: dict[str, Any] | None = None


class Secret(Struct, kw_only=True):
    """A signing secret; `secret` is there once, when it was made."""

    id: UUID
    kind: str
    created_at: datetime
    name: str | None = None
    public_key: str | None = None
    expires_at: datetime | None = None
    secret: str | None = None


class RotatedSecret(Struct):
    """The new secret, and the old one with its end."""

    current: Secret
    previous: Secret


class Egress(Struct, kw_only=True):
    """What a tenant's webhooks may call, and its TLS identity."""

    allow: list[str] = field(default_factory=list)
    deny: list[str] = field(default_factory=list)
    ca: str | None = None
    certificate: str | None = None


class Effect(Struct, kw_only=True):
    """Whether this call was the first to tell of the effect, and what the first one told."""

    key: str
    first: bool
    answer: Any = None
    created_at: datetime | None = None


class Worker(Struct, kw_only=True):
    """A worker as the registry knows it."""

    name: str
    incarnation: str
    state: str
    seen_at: datetime
    started_at: datetime | None = None
    queues: list[str] = field(default_factory=list)
    handlers: list[str] = field(default_factory=list)
    commands: bool = False
    tags: list[str] = field(default_factory=list)
    resources: dict[str, Any] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    """What it tells about itself: host, versions, slots, CPU and memory."""
    leases: int = 0
    statistics: dict[str, Any] = field(default_factory=dict)


class Node(Struct, kw_only=True):
    """A node of the cluster."""

    id: UUID
    name: str
    state: str
    epoch: int
    url: str | None = None
    version: str = ""
    started_at: datetime | None = None
    silent: float = 0.0
    partitions: int = 0


class Partition(Struct, kw_only=True):
    """A partition and its owner."""

    partition: int
    epoch: int
    owner: UUID | None = None


class Cluster(Struct, kw_only=True):
    """The cluster; `skew` is the largest share of partitions over a fair one."""

    nodes: list[Node]
    partitions: list[Partition]
    unowned: int = 0
    skew: float = 1.0
