"""Tasks and executions, as callers send and read them. Rules about one field are said here, those
that join several fields in `api/tasks/validation.py`.

Structs that make up a task's spec are frozen and hash by value, so that the same spec sent again is
neither checked nor encoded again.
"""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from mainspring.domain.execution import Outcome
from mainspring.domain.task import LONGEST_URL, Requirements, TaskState
from mainspring.wire import patterns
from mainspring.wire.values import Json, JsonOrNull, OpenEnum

Line = Annotated[str, Meta(min_length=1, max_length=200, pattern=patterns.LINE)]
Queue = Annotated[str, Meta(pattern=patterns.NAME)]
WorkflowName = Annotated[str, Meta(pattern=patterns.NAME)]
HandlerName = Annotated[str, Meta(pattern=patterns.HANDLER)]
Argument = Annotated[str, Meta(max_length=32768, pattern=patterns.TEXT)]
Url = Annotated[
    str, Meta(min_length=1, max_length=LONGEST_URL, extra_json_schema={"format": "uri"})
]
HeaderName = Annotated[str, Meta(pattern=patterns.HEADER_NAME)]
HeaderValue = Annotated[str, Meta(max_length=8192, pattern=patterns.HEADER_VALUE)]
LabelName = Annotated[str, Meta(pattern=patterns.LABEL_NAME)]
LabelValue = Annotated[str, Meta(max_length=500, pattern=patterns.LINE)]
Labels = Annotated[dict[LabelName, LabelValue], Meta(max_length=64)]

Instant = Annotated[datetime, Meta(tz=True)]
TIME_FORM = "write it with seconds and an offset, like 2027-01-01T08:00:00Z"
DAY = 86400.0
# The bound that counts is a matter of configuration, and told by whoever checks it.
FARTHEST = {"maximum": 36600 * DAY}
Duration = Annotated[str, Meta(max_length=64, extra_json_schema={"format": "duration"})]
# Of numbers the decoder sees to it, of texts whoever makes seconds of them.
TIMEOUTS = Meta(gt=0, le=DAY)
SLAS = Meta(ge=0, le=365 * DAY)
JITTERS = Meta(ge=0, le=DAY)
BACKOFFS = Meta(ge=0, le=30 * DAY)
Delay = Annotated[float, Meta(ge=0, extra_json_schema=FARTHEST)] | Duration
Timeout = Annotated[float, TIMEOUTS] | Duration
Sla = Annotated[float, SLAS] | Duration
Jitter = Annotated[float, JITTERS] | Duration
Backoff = Annotated[float, BACKOFFS] | Duration
Priority = Annotated[int, Meta(ge=0, le=9)]

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"]


Secret = Annotated[str, Meta(min_length=1, max_length=8192, pattern=patterns.SECRET)]


class AuthIn(Struct, frozen=True, forbid_unknown_fields=True):
    """How to prove to the receiver who is calling. Kept encrypted, and never shown again."""

    bearer: Secret


class HttpTarget(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="http"):
    """Call a URL; the payload's bytes are the request's body."""

    url: Url
    method: Method = "POST"
    headers: Annotated[dict[HeaderName, HeaderValue], Meta(max_length=50)] | None = None
    auth: AuthIn | None = None
    secret_headers: Annotated[dict[HeaderName, HeaderValue], Meta(max_length=50)] | None = None


class HandlerTarget(
    Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="handler"
):
    """Call a function that a worker offers under this name."""

    name: HandlerName


class CommandTarget(
    Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="command"
):
    """Run a program on a worker."""

    argv: Annotated[tuple[Argument, ...], Meta(min_length=1, max_length=1000)]


TargetIn = HttpTarget | HandlerTarget | CommandTarget


class RetryIn(Struct, frozen=True, forbid_unknown_fields=True):
    """How failed executions are repeated."""

    max_attempts: Annotated[int, Meta(ge=1, le=1000)] = 5
    initial: Backoff = 10.0
    factor: Annotated[float, Meta(ge=1, le=100)] = 3.0
    max_delay: Backoff = 3600.0
    jitter: Annotated[float, Meta(ge=0, le=1)] = 0.1
    on: (
        Annotated[
            tuple[Annotated[int, Meta(ge=300, le=599)] | Literal["timeout", "connection"], ...],
            Meta(max_length=100),
        ]
        | None
    ) = None


class ConcurrencyIn(Struct, frozen=True, forbid_unknown_fields=True):
    """At most `limit` tasks of this key run at once."""

    key: Line
    limit: Annotated[int, Meta(ge=1, le=1_000_000)] = 1


class RequiresIn(Struct, frozen=True, forbid_unknown_fields=True):
    """What a worker must offer beside the handler."""

    tags: Annotated[tuple[Line, ...], Meta(max_length=50)] = ()
    memory_mb: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    cpu: Annotated[float, Meta(ge=0, le=100_000)] | None = None


DEFAULT_RETRY = RetryIn()
EMPTY = Raw(b"{}")


class TimelessTask(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A task without times of its own: what schedules and steps of workflows make."""

    target: TargetIn
    payload: Raw = field(default_factory=EMPTY.copy)
    name: Line | None = None
    queue: Queue = "default"
    priority: Priority = 5
    timeout: Timeout = 30.0
    sla: Sla = 30.0
    retry: RetryIn = DEFAULT_RETRY
    concurrency: ConcurrencyIn | None = None
    requires: RequiresIn | None = None
    labels: Labels | None = None


class TaskIn(Struct, forbid_unknown_fields=True):
    """A task as a caller asks for it."""

    target: TargetIn
    # A factory, because a default of this type cannot be shown in a schema.
    payload: Raw = field(default_factory=EMPTY.copy)
    name: Line | None = None
    run_at: Instant | None = None
    delay: Delay | None = None
    queue: Queue = "default"
    priority: Priority = 5
    timeout: Timeout = 30.0
    sla: Sla = 30.0
    jitter: Jitter = 0.0
    retry: RetryIn = DEFAULT_RETRY
    expires_at: Instant | None = None
    concurrency: ConcurrencyIn | None = None
    requires: RequiresIn | None = None
    labels: Labels | None = None


class BatchIn(Struct, forbid_unknown_fields=True):
    """Many tasks: all of them are created or none."""

    tasks: Annotated[list[TaskIn], Meta(extra_json_schema={"minItems": 1, "maxItems": 10_000})]


class RawBatchIn(Struct, forbid_unknown_fields=True):
    """A batch whose tasks are still bytes: for finding every task that cannot be read."""

    tasks: list[Raw]


class TaskPatch(Struct, forbid_unknown_fields=True):
    """What shall differ. A field that is given replaces the old value whole."""

    target: TargetIn | UnsetType = UNSET
    payload: Raw | UnsetType = UNSET
    name: Line | UnsetType | None = UNSET
    run_at: Instant | UnsetType = UNSET
    delay: Delay | UnsetType = UNSET
    queue: Queue | UnsetType = UNSET
    priority: Priority | UnsetType = UNSET
    timeout: Timeout | UnsetType = UNSET
    sla: Sla | UnsetType = UNSET
    jitter: Jitter | UnsetType = UNSET
    retry: RetryIn | UnsetType = UNSET
    expires_at: Instant | UnsetType | None = UNSET
    requires: RequiresIn | UnsetType | None = UNSET
    labels: Labels | UnsetType | None = UNSET
    concurrency: ConcurrencyIn | UnsetType | None = UNSET


# As stored, these are plain texts and mappings; for readers they have a shape.
Time = Annotated[datetime, Meta(tz=True)]
State = Annotated[str, Meta(extra_json_schema={"enum": list(TaskState)})]
OutcomeOut = Annotated[str, Meta(extra_json_schema={"enum": list(Outcome)})]
Blame = Annotated[str, Meta(extra_json_schema={"enum": ["scheduler", "limits", "capacity"]})]
ErrorOut = Annotated[
    dict[str, str],
    Meta(
        description="A stable code for programs, a sentence for people.",
        extra_json_schema={"required": ["code", "message"]},
    ),
]
ResponseOut = Annotated[
    Any, Meta(extra_json_schema={"anyOf": [{}, {"type": "string"}, {"type": "null"}]})
]
Lateness = Annotated[dict[str, float], Meta(description="Seconds of waiting by cause.")]


class TargetOut(Struct, omit_defaults=True):
    """A target, with the fields of its type only."""

    type: OpenEnum[Literal["http", "handler", "command"]]
    url: str | None = None
    method: str | None = None
    headers: dict[str, str] | None = None
    name: str | None = None
    argv: list[str] | None = None
    auth: dict[str, str] | None = None
    secret_headers: dict[str, str] | None = None


class RetryOut(Struct, omit_defaults=True):
    """How failed executions are repeated."""

    max_attempts: int
    initial: float
    factor: float
    max_delay: float
    jitter: float
    on: list[int | str] | None = None


class ConcurrencyOut(Struct):
    """At most `limit` tasks of this key run at once."""

    key: str
    limit: int


class TaskOut(Struct, kw_only=True):
    """A task as callers read it."""

    id: UUID
    name: str | None = None
    state: State
    cancel_requested: bool = False
    target: TargetOut
    payload: Json | UnsetType = UNSET
    run_at: Time
    due_at: Time
    expires_at: Time | None = None
    queue: str = "default"
    priority: int = 5
    timeout: float = 30.0
    sla: float = 30.0
    jitter: float = 0.0
    retry: RetryOut
    concurrency: ConcurrencyOut | None = None
    requires: Requirements | None = None
    labels: dict[str, str] = field(default_factory=dict)
    attempts: int = 0
    fence: int = 0
    created_at: Time
    picked_at: Time | None = None
    started_at: Time | None = None
    finished_at: Time | None = None
    result: JsonOrNull = None
    progress: JsonOrNull = None
    error: ErrorOut | None = None
    sla_met: bool | None = None
    blame: Blame | None = None
    lateness: Lateness = field(default_factory=dict)
    schedule_id: UUID | None = None
    nominal_at: Time | None = None
    workflow_run_id: UUID | None = None
    step: str | None = None
    replay_of: UUID | None = None


class TaskPage(Struct):
    """Some tasks, and where the list goes on."""

    items: list[TaskOut]
    next_cursor: str | None


class ExecutionOut(Struct):
    """One execution of a task."""

    attempt: int
    fence: int
    worker: str
    due_at: Time
    picked_at: Time
    started_at: Time | None
    finished_at: Time
    outcome: OutcomeOut
    status_code: int | None
    response: ResponseOut
    error: ErrorOut | None
    duration_ms: float
    lateness: Lateness


class ExecutionList(Struct):
    """The executions of a task."""

    items: list[ExecutionOut]


class Ids(Struct):
    """The new tasks' ids, in the order of the batch."""

    ids: list[UUID]


class GateOut(Struct):
    """One question on the way to the start, in the order in which they are asked."""

    gate: str
    passed: bool
    detail: str


class ExplanationOut(Struct, kw_only=True):
    """`verdict` is the first gate that says no, or `ready`, `running`, `finished`.

    `source` says who tells: the task's owner knows most, the database alone knows less.
    """

    task_id: UUID
    state: str
    verdict: str
    gates: list[GateOut] = field(default_factory=list)
    position: int | None = None
    estimated_start: datetime | None = None
    unblock: str
    source: OpenEnum[Literal["owner", "database"]] = "owner"
    sla_met: bool | None = None
    blame: str | None = None
    lateness: dict[str, float] = field(default_factory=dict)


class CompleteIn(Struct, forbid_unknown_fields=True):
    """How the work ended that a receiver had accepted with `Mainspring-Complete: later`."""

    fence: int
    status: Literal["succeeded", "failed"]
    result: Raw = field(default_factory=Raw)
    error: Annotated[str, Meta(max_length=10_000)] | None = None
    retryable: bool = True
