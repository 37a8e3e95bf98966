"""The shapes of requests about many tasks, dead letters and effects, and of the answers to them."""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from msgspec import Meta, Raw, Struct, field

from mainspring.domain.task import Resolution, TaskState
from mainspring.wire import patterns
from mainspring.wire.tasks import DAY, Delay, Instant, Labels, TaskOut
from mainspring.wire.values import Json, OpenEnum

MOST_REPLAYED = 10_000
LONGEST_EFFECT = 366 * DAY

Text = Annotated[str, Meta(max_length=500, pattern=patterns.TEXT)]
LabelPair = Annotated[str, Meta(max_length=601, pattern=patterns.LABEL_PAIR)]
EffectKey = Annotated[str, Meta(min_length=1, max_length=255, pattern=patterns.LINE)]


class WorkFilterIn(Struct, forbid_unknown_fields=True):
    """By what tasks and dead letters are both found; labels may come in two forms."""

    name: Text | None = None
    queue: Text | None = None
    label: LabelPair | list[LabelPair] | None = None
    labels: Labels | None = None


class TaskFilterIn(WorkFilterIn, forbid_unknown_fields=True):
    """Which tasks are meant. What is not named is not looked at; labels may come in two forms."""

    state: TaskState | None = None
    due_after: Instant | None = None
    due_before: Instant | None = None
    schedule_id: UUID | None = None
    workflow_run_id: UUID | None = None


class LetterFilterIn(WorkFilterIn, forbid_unknown_fields=True):
    """Which dead letters are meant; only unresolved ones can be replayed."""

    fingerprint: Text | None = None
    died_after: Instant | None = None
    died_before: Instant | None = None
    resolved: bool | None = None


class CancelIn(Struct, forbid_unknown_fields=True):
    """Cancel all that match; an empty filter, which means all, has to be written out."""

    filter: TaskFilterIn
    dry_run: bool = False


class CancelledOut(Struct):
    """How many tasks ended, and how many running ones were asked to stop."""

    cancelled: int
    cancel_requested: int


class ReplayIn(Struct, forbid_unknown_fields=True):
    """Replay what matches, oldest first."""

    filter: LetterFilterIn
    first: Annotated[int, Meta(ge=1, le=MOST_REPLAYED)] = MOST_REPLAYED
    stop_on_failure_rate: Annotated[float, Meta(ge=0, le=1)] | None = None


class ReplayedOut(Struct):
    """The new tasks, and whether the replay ended before all that matched were replayed."""

    replayed: int
    ids: list[UUID]
    stopped: bool = False
    stopped_because: OpenEnum[Literal["failure_rate", "time"]] | None = None


class AttemptOut(Struct):
    """One execution of a task that died."""

    attempt: int
    outcome: str
    error: dict[str, Any] | None
    finished_at: datetime


class DeadLetterOut(Struct, kw_only=True):
    """A task that failed for good, and what was done about it."""

    id: UUID
    task: TaskOut
    attempts: list[AttemptOut] = field(default_factory=list)
    final_error: dict[str, str] | None = None
    reason: str
    fingerprint: str
    resolution: OpenEnum[Resolution] | None = None
    resolved_at: datetime | None = None
    replayed_as: UUID | None = None
    died_at: datetime


class DeadLetterPage(Struct):
    """Some dead letters, newest first, and where the list goes on."""

    items: list[DeadLetterOut]
    next_cursor: str | None


class DeadLetterGroupOut(Struct):
    """Dead letters that died of the same thing."""

    fingerprint: str
    error: dict[str, str] | None
    count: int
    first_at: datetime
    last_at: datetime
    example_id: UUID


class DeadLetterGroups(Struct):
    """What went wrong, the most frequent first."""

    items: list[DeadLetterGroupOut]


class EffectIn(Struct, forbid_unknown_fields=True):
    """Something that shall be done once; `answer` is what came of it."""

    key: EffectKey
    answer: Raw = field(default_factory=Raw(b"null").copy)
    ttl: Delay | None = None


class EffectOut(Struct):
    """Whether this call was the first to tell of the effect, and what the first one told."""

    key: str
    first: bool
    answer: Json
    created_at: datetime
