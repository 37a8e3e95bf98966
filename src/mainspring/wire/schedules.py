"""The shapes of schedules and calendars, as callers send and read them."""

from datetime import date
from typing import Annotated, Literal
from uuid import UUID

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from mainspring.domain.schedules.policies import (
    Decision,
    GapPolicy,
    Misfire,
    MisfirePolicy,
    OverlapPolicy,
    RepeatPolicy,
)
from mainspring.domain.task import Requirements
from mainspring.wire import patterns
from mainspring.wire.tasks import (
    DAY,
    ConcurrencyOut,
    Delay,
    Duration,
    Instant,
    Jitter,
    Line,
    RetryOut,
    TargetOut,
    Time,
    TimelessTask,
    WorkflowName,
)
from mainspring.wire.values import OpenEnum

Cron = Annotated[str, Meta(min_length=1, max_length=1000, extra_json_schema={"format": "cron"})]
Rule = Annotated[str, Meta(min_length=1, max_length=1000, extra_json_schema={"format": "rrule"})]
ZoneName = Annotated[
    str, Meta(min_length=1, max_length=64, extra_json_schema={"format": "timezone"})
]
CalendarName = Annotated[str, Meta(pattern=patterns.NAME)]
Dates = Annotated[list[date], Meta(max_length=2000)]
WINDOWS = Meta(ge=0, le=366 * DAY)
StateName = Literal["active", "paused", "ended"]


class MisfireIn(Struct, frozen=True, forbid_unknown_fields=True):
    """What to do about occurrences that were missed."""

    policy: MisfirePolicy = "latest"
    window: Annotated[float, WINDOWS] | Duration = 3600.0
    cap: Annotated[int, Meta(ge=1, le=1000)] = 100


class DstIn(Struct, frozen=True, forbid_unknown_fields=True):
    """What to do when the clock skips or repeats a time."""

    gap: GapPolicy = "shift"
    repeat: RepeatPolicy = "first"


class TemplateIn(TimelessTask, frozen=True):
    """The task to make at each occurrence: a task without times of its own."""


class TimingIn(Struct, kw_only=True, forbid_unknown_fields=True):
    """When, and by which policies: exactly one of cron, interval and rrule is given."""

    cron: Cron | None = None
    interval: Delay | None = None
    rrule: Rule | None = None
    timezone: ZoneName = "UTC"
    start_at: Instant | None = None
    end_at: Instant | None = None
    max_runs: Annotated[int, Meta(ge=1, le=2**53)] | None = None
    jitter: Jitter = 0.0
    spread: Jitter = 0.0
    misfire: MisfireIn = MisfireIn()
    overlap: OverlapPolicy = "skip"
    max_running: Annotated[int, Meta(ge=1, le=10_000)] = 1
    dst: DstIn = DstIn()
    exclude: Dates = field(default_factory=list)
    calendars: Annotated[list[CalendarName], Meta(max_length=20)] = field(default_factory=list)
    stop_on_410: bool = False


class PreviewIn(TimingIn, kw_only=True, forbid_unknown_fields=True):
    """A schedule that nobody saved: only its times matter."""

    name: Line | None = None
    task: TemplateIn | None = None
    workflow: WorkflowName | None = None
    input: dict[str, Raw] = field(default_factory=dict)


class ScheduleIn(PreviewIn, kw_only=True, forbid_unknown_fields=True):
    """A schedule as a caller asks for it."""

    name: Line


class SchedulePatch(Struct, kw_only=True, forbid_unknown_fields=True):
    """What shall differ. A field that is given replaces the old value whole; giving one of cron,
    interval and rrule replaces whichever there was. A null is allowed only beside another one."""

    name: Line | UnsetType = UNSET
    cron: Cron | UnsetType | None = UNSET
    interval: Delay | UnsetType | None = UNSET
    rrule: Rule | UnsetType | None = UNSET
    timezone: ZoneName | UnsetType = UNSET
    start_at: Instant | UnsetType | None = UNSET
    end_at: Instant | UnsetType | None = UNSET
    max_runs: Annotated[int, Meta(ge=1, le=2**53)] | UnsetType | None = UNSET
    jitter: Jitter | UnsetType = UNSET
    spread: Jitter | UnsetType = UNSET
    misfire: MisfireIn | UnsetType = UNSET
    overlap: OverlapPolicy | UnsetType = UNSET
    max_running: Annotated[int, Meta(ge=1, le=10_000)] | UnsetType = UNSET
    dst: DstIn | UnsetType = UNSET
    exclude: Dates | UnsetType = UNSET
    calendars: Annotated[list[CalendarName], Meta(max_length=20)] | UnsetType = UNSET
    stop_on_410: bool | UnsetType = UNSET
    task: TemplateIn | UnsetType = UNSET
    workflow: WorkflowName | UnsetType = UNSET
    input: dict[str, Raw] | UnsetType = UNSET


class BackfillIn(Struct, kw_only=True, forbid_unknown_fields=True):
    """Which stretch of the past to make up for, and how many at once."""

    from_: Instant = field(name="from")
    to: Instant
    max_running: Annotated[int, Meta(ge=1, le=10_000)] | None = None


class CalendarIn(Struct, forbid_unknown_fields=True):
    """A named list of dates."""

    name: CalendarName
    dates: Dates


class CalendarDates(Struct, forbid_unknown_fields=True):
    """The dates of a calendar whose name is in the path."""

    dates: Dates


# As they are read -----------------------------------------------------------------------------


class TemplateOut(Struct):
    """The task that is made at each occurrence."""

    target: TargetOut
    payload: Raw
    name: str | None
    queue: str
    priority: int
    timeout: float
    sla: float
    retry: RetryOut
    concurrency: ConcurrencyOut | None
    requires: Requirements | None
    labels: dict[str, str]


class FireTimes(Struct):
    """How the next fire times would change."""

    added: list[Time]
    removed: list[Time]
    kept: int


class ScheduleOut(Struct, kw_only=True):
    """A schedule as callers read it."""

    id: UUID
    name: str
    state: OpenEnum[StateName]
    cron: str | None = None
    interval: float | None = None
    rrule: str | None = None
    timezone: str = "UTC"
    start_at: Time | None = None
    end_at: Time | None = None
    max_runs: int | None = None
    jitter: float = 0.0
    spread: float = 0.0
    misfire: Misfire
    overlap: OpenEnum[OverlapPolicy] = "skip"
    max_running: int = 1
    dst: DstIn
    exclude: list[str] = field(default_factory=list)
    calendars: list[str] = field(default_factory=list)
    stop_on_410: bool = False
    task: TemplateOut | None = None
    workflow: str | None = None
    input: dict[str, Raw] | None = None
    description: str = ""
    next_run_at: Time | None = None
    next_due_at: Time | None = None
    last_run_at: Time | None = None
    runs: int = 0
    overdue: bool = False
    created_at: Time
    updated_at: Time
    fire_times: FireTimes | UnsetType = UNSET


class SchedulePage(Struct):
    """Some schedules, and where the list goes on."""

    items: list[ScheduleOut]
    next_cursor: str | None


class UpcomingOut(Struct):
    """A time to come: as the definition says, and after the schedule's share of the spread."""

    nominal_at: Time
    due_at: Time


class Upcoming(Struct):
    """The next times."""

    times: list[Time]
    items: list[UpcomingOut] = field(default_factory=list)


class OccurrenceOut(Struct):
    """One decision, about one nominal time or a range of them."""

    nominal_at: Time
    to_at: Time
    decision: Decision
    reason: str
    task_id: UUID | None
    count: int
    decided_at: Time


class OccurrencePage(Struct):
    """Some decisions, newest first, and where the list goes on."""

    items: list[OccurrenceOut]
    next_cursor: str | None


class PreviewOut(Struct):
    """What an unsaved schedule would do."""

    times: list[Time]
    warnings: list[str]
    description: str
    tzdata: str


class BackfilledOut(Struct):
    """The tasks of a backfill, in the order of their nominal times."""

    count: int
    task_ids: list[UUID]


class CalendarOut(Struct):
    """A calendar as callers read it."""

    name: str
    dates: list[date]
    updated_at: Time


class CalendarPage(Struct):
    """Some calendars, by name, and where the list goes on."""

    items: list[CalendarOut]
    next_cursor: str | None
