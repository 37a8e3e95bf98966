"""The operations on schedules and calendars, in words and types."""

from typing import Annotated

from msgspec import Meta

from mainspring.api.openapi.operation import (
    CURSOR,
    DRY_RUN,
    ETAG,
    GONE,
    IF_MATCH,
    LIMIT,
    LOCATION,
    NUMBER_CURSOR,
    REPLAYED,
    AnyText,
    Body,
    Doc,
    Link,
    Param,
    ResponseDoc,
    never,
    none_of,
    only_null,
    several,
    span,
)
from mainspring.api.schedules.validation import INTERVALS
from mainspring.domain.schedule.policies import Decision
from mainspring.errors import Conflict, PreconditionFailed
from mainspring.wire.schedules import (
    BackfilledOut,
    BackfillIn,
    CalendarDates,
    CalendarIn,
    CalendarName,
    CalendarOut,
    CalendarPage,
    OccurrencePage,
    PreviewIn,
    PreviewOut,
    ScheduleIn,
    ScheduleOut,
    SchedulePage,
    SchedulePatch,
    StateName,
    Upcoming,
)
from mainspring.wire.tasks import Instant, TaskOut

TAG = "Schedules"
CALENDARS = "Calendars"

_REPORT = {
    "name": "daily-report",
    "cron": "0 8 * * MON-FRI",
    "timezone": "Europe/Berlin",
    "task": {"target": {"type": "http", "url": "https://api.example.com/report"}},
}
_HEARTBEAT = {
    "name": "heartbeat",
    "interval": "PT30S",
    "task": {"target": {"type": "handler", "name": "mainspring.noop"}},
}
_PAYDAY = {
    "name": "payday",
    "rrule": "FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1",
    "task": {"target": {"type": "handler", "name": "pay"}},
}
_KINDS = ("cron", "interval", "rrule")
_INTERVAL = {"interval": span(INTERVALS[1], least=INTERVALS[0])}
# Policies that make tasks wait have a concurrency key of their own.
_SECOND_KEY = {
    "required": ["overlap", "task"],
    "properties": {
        "overlap": {"type": "string", "enum": ["queue", "cancel_running"]},
        "task": {
            "type": "object",
            "required": ["concurrency"],
            "properties": {"concurrency": {"type": "object"}},
        },
    },
}
_TIMING = (none_of(*_KINDS), *several(*_KINDS), _SECOND_KEY)
_WHAT = (none_of("task", "workflow"), *several("task", "workflow"))
_SCHEDULE = {**never(*_TIMING, *_WHAT), "properties": _INTERVAL}
_PREVIEW = {**never(*_TIMING), "properties": _INTERVAL}
_PATCH = {**never(only_null(*_KINDS), *several(*_KINDS)), "properties": _INTERVAL}
_NIGHTLY = {"name": "nightly", "cron": "0 2 * * *", "workflow": "nightly", "input": {"full": True}}
_VERBS = ("pause", "resume", "run")
_AFTERWARDS = {
    "read": Link("getSchedule", {"id": "$response.body#/id"}, "read it again"),
    "upcoming": Link("upcomingTimes", {"id": "$response.body#/id"}, "its next times"),
    "occurrences": Link("listOccurrences", {"id": "$response.body#/id"}, "what was decided"),
    "edit": Link("editSchedule", {"id": "$response.body#/id"}, "change it"),
    "delete": Link("deleteSchedule", {"id": "$response.body#/id"}, "remove it"),
    **{verb: Link(f"{verb}Schedule", {"id": "$response.body#/id"}) for verb in _VERBS},
}
_THE_SCHEDULE = ResponseDoc(
    200, "The schedule as it is now.", ScheduleOut, [ETAG], links=_AFTERWARDS
)
_TIMES = Param("n", Annotated[int, Meta(ge=1, le=1000)], "How many times to show (10).")
# The characters of a name, in hexadecimal: see `calendars`.
_NAME_CURSOR = Param(
    "cursor",
    Annotated[
        str,
        Meta(
            pattern=r"^(2[de]|3[0-9]|4[1-9a-f]|5[0-9af]|6[1-9a-f]|7[0-9a]){1,100}$", max_length=200
        ),
    ],
    "Where to go on: `next_cursor` of the page before.",
)
_NAME = Param("id", CalendarName, "The calendar's name.", "path", required=True)

LIST = Doc(
    id="listSchedules",
    tag=TAG,
    summary="List schedules",
    description="Newest first.",
    params=[
        Param("state", StateName, "Only schedules in this state."),
        Param("name", AnyText, "Only the schedule of this name."),
        Param("overdue", bool, "Only those whose next time has passed without a decision."),
        LIMIT,
        CURSOR,
    ],
    replies=[ResponseDoc(200, "A page of schedules.", SchedulePage)],
)

CREATE = Doc(
    id="createSchedule",
    tag=TAG,
    summary="Create a schedule",
    description="Exactly one of `cron`, `interval` and `rrule` is needed. An expression that can "
    "never fire is refused. Strings in the task's payload may contain `{{scheduled_at}}`, "
    "`{{occurrence}}` and `{{schedule_id}}`; `\\{{` escapes. The workflow and the calendars that "
    "it names must be there.",
    params=[DRY_RUN],
    bodies=[
        Body(
            ScheduleIn,
            examples={
                "cron": _REPORT,
                "interval": _HEARTBEAT,
                "rrule": _PAYDAY,
                "workflow": _NIGHTLY,
            },
            rules={"ScheduleIn": _SCHEDULE},
        )
    ],
    replies=[
        ResponseDoc(
            201, "The new schedule.", ScheduleOut, [LOCATION, ETAG, REPLAYED], links=_AFTERWARDS
        ),
        ResponseDoc(
            200, "With `dry_run`: the schedule as it would be, and its fire times.", ScheduleOut
        ),
    ],
    problems=[Conflict],
)

PREVIEW = Doc(
    id="previewSchedule",
    tag=TAG,
    summary="Preview a schedule",
    description="The next times of a schedule that is not saved, what is worth knowing about them, "
    "and the same in plain English.",
    params=[_TIMES, Param("after", Instant, "Show times after this one, instead of after now.")],
    bodies=[
        Body(
            PreviewIn,
            examples={"nightly": {"cron": "30 2 * * *", "timezone": "Europe/Rome"}},
            rules={"PreviewIn": _PREVIEW},
        )
    ],
    replies=[ResponseDoc(200, "What it would do.", PreviewOut)],
)

READ = Doc(id="getSchedule", tag=TAG, summary="Read a schedule", replies=[_THE_SCHEDULE])

REPLACE = Doc(
    id="replaceSchedule",
    tag=TAG,
    summary="Replace a schedule",
    description="What came due before is decided by the old definition, all else by the new one. "
    "With `dry_run` the answer shows how the fire times would change.",
    params=[DRY_RUN, IF_MATCH],
    bodies=[Body(ScheduleIn, examples={"cron": _REPORT})],
    replies=[_THE_SCHEDULE],
    problems=[Conflict, PreconditionFailed],
)

EDIT = Doc(
    id="editSchedule",
    tag=TAG,
    summary="Change a schedule",
    description="A field that is given replaces the old value whole. With `dry_run` the answer "
    "shows how the fire times would change.",
    params=[DRY_RUN, IF_MATCH],
    bodies=[
        Body(
            SchedulePatch,
            examples={"later": {"cron": "0 9 * * MON-FRI"}},
            rules={"SchedulePatch": _PATCH},
        )
    ],
    replies=[_THE_SCHEDULE],
    problems=[Conflict, PreconditionFailed],
)

DELETE = Doc(
    id="deleteSchedule",
    tag=TAG,
    summary="Delete a schedule",
    description="With its occurrences. Tasks that it made stay as they are.",
    params=[IF_MATCH],
    replies=[GONE],
    problems=[PreconditionFailed],
)


def _verb(verb: str, summary: str, description: str) -> Doc:
    """What is done to a schedule by calling it."""
    return Doc(
        id=f"{verb}Schedule",
        tag=TAG,
        summary=summary,
        description=f"{description} Calling twice is harmless.",
        params=[IF_MATCH],
        replies=[_THE_SCHEDULE],
        problems=[Conflict, PreconditionFailed],
    )


PAUSE = _verb(
    "pause", "Pause a schedule", "Times that pass meanwhile are recorded as `skipped_paused`."
)
RESUME = _verb("resume", "Resume a paused schedule", "It goes on with the next time to come.")

RUN = Doc(
    id="runSchedule",
    tag=TAG,
    summary="Run a schedule's task now",
    description="Beside the timetable: nothing else of the schedule changes.",
    replies=[ResponseDoc(201, "The new task.", TaskOut, [LOCATION, ETAG, REPLAYED])],
)

BACKFILL = Doc(
    id="backfillSchedule",
    tag=TAG,
    summary="Make up for a stretch of the past",
    description="Makes a task for each occurrence from `from` to `to` that never had one, at most "
    "10000. At most `max_running` of them run at once. Excluded dates stay excluded.",
    bodies=[
        Body(
            BackfillIn,
            examples={
                "a day": {
                    "from": "2026-03-01T00:00:00Z",
                    "to": "2026-03-02T00:00:00Z",
                    "max_running": 2,
                }
            },
        )
    ],
    replies=[ResponseDoc(201, "The new tasks.", BackfilledOut, [REPLAYED])],
)

UPCOMING = Doc(
    id="upcomingTimes",
    tag=TAG,
    summary="Show a schedule's next times",
    params=[_TIMES],
    replies=[ResponseDoc(200, "The next times that are not excluded.", Upcoming)],
)

OCCURRENCES = Doc(
    id="listOccurrences",
    tag=TAG,
    summary="List what was decided",
    description="Newest first. One line per decision; occurrences in a row that were not run share "
    "one, with `to_at` and `count`.",
    params=[
        Param("decision", Decision, "Only these decisions."),
        LIMIT,
        NUMBER_CURSOR,
    ],
    replies=[ResponseDoc(200, "A page of the ledger.", OccurrencePage)],
)

LIST_CALENDARS = Doc(
    id="listCalendars",
    tag=CALENDARS,
    summary="List calendars",
    params=[LIMIT, _NAME_CURSOR],
    replies=[ResponseDoc(200, "A page of calendars, by name.", CalendarPage)],
)

CREATE_CALENDAR = Doc(
    id="createCalendar",
    tag=CALENDARS,
    summary="Create a calendar",
    bodies=[
        Body(
            CalendarIn,
            examples={"holidays": {"name": "holidays-de", "dates": ["2026-12-25", "2026-12-26"]}},
        )
    ],
    replies=[ResponseDoc(201, "The new calendar.", CalendarOut, [LOCATION, ETAG, REPLAYED])],
    problems=[Conflict],
)

READ_CALENDAR = Doc(
    id="getCalendar",
    tag=CALENDARS,
    summary="Read a calendar",
    params=[_NAME],
    replies=[ResponseDoc(200, "The calendar.", CalendarOut, [ETAG])],
)

PUT_CALENDAR = Doc(
    id="putCalendar",
    tag=CALENDARS,
    summary="Replace a calendar's dates",
    description="Counts for every schedule that names it, from its next decision on.",
    params=[_NAME, IF_MATCH],
    bodies=[Body(CalendarDates, examples={"one": {"dates": ["2026-12-25"]}})],
    replies=[ResponseDoc(200, "The calendar as it is now.", CalendarOut, [ETAG])],
    problems=[PreconditionFailed],
)

DELETE_CALENDAR = Doc(
    id="deleteCalendar",
    tag=CALENDARS,
    summary="Delete a calendar",
    description="While no schedule names it.",
    params=[_NAME],
    replies=[GONE],
    problems=[Conflict],
)
