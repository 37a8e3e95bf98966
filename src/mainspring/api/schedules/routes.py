"""The routes of schedules and calendars."""

from functools import partial
from typing import Annotated

from msgspec import Meta

from mainspring.api.http.operations import TenantOperation
from mainspring.api.openapi import operation as docs
from mainspring.api.routes import Routes, Tag, created, created_without_path, links_by, ok
from mainspring.api.schedules.calendars import CalendarResource
from mainspring.api.schedules.changes import ScheduleChangeResource
from mainspring.api.schedules.reading import ScheduleReading
from mainspring.api.schedules.validation import INTERVALS
from mainspring.domain.schedules.policies import Decision
from mainspring.errors import Conflict
from mainspring.wire import schedules as wire
from mainspring.wire.tasks import Instant, TaskOut

_SCHEDULES = Tag("Schedules")
_EXAMPLES = {
    "cron": {
        "name": "daily-report",
        "cron": "0 8 * * MON-FRI",
        "timezone": "Europe/Berlin",
        "task": {"target": {"type": "http", "url": "https://api.example.com/report"}},
    },
    "interval": {
        "name": "heartbeat",
        "interval": "PT30S",
        "task": {"target": {"type": "handler", "name": "mainspring.noop"}},
    },
    "rrule": {
        "name": "payday",
        "rrule": "FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1",
        "task": {"target": {"type": "handler", "name": "pay"}},
    },
    "workflow": {
        "name": "nightly",
        "cron": "0 2 * * *",
        "workflow": "nightly",
        "input": {"full": True},
    },
}
_KINDS = ("cron", "interval", "rrule")
_INTERVAL = {"interval": docs.span(INTERVALS[1], least=INTERVALS[0])}
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
_TIMING = (docs.none_of(*_KINDS), *docs.several(*_KINDS), _SECOND_KEY)
_WHAT = (docs.none_of("task", "workflow"), *docs.several("task", "workflow"))
_RULES = {
    "ScheduleIn": {**docs.never(*_TIMING, *_WHAT), "properties": _INTERVAL},
    "PreviewIn": {**docs.never(*_TIMING), "properties": _INTERVAL},
    "SchedulePatch": {
        **docs.never(docs.only_null(*_KINDS), *docs.several(*_KINDS)),
        "properties": _INTERVAL,
    },
}
_AFTERWARDS = links_by(
    "id",
    read=("getSchedule", "read it again"),
    upcoming=("upcomingTimes", "its next times"),
    occurrences=("listOccurrences", "what was decided"),
    edit=("editSchedule", "change it"),
    delete=("deleteSchedule", "remove it"),
    **{verb: (f"{verb}Schedule", "") for verb in ("pause", "resume", "run")},
)
_THE_SCHEDULE = ok("The schedule as it is now.", wire.ScheduleOut, docs.ETAG, links=_AFTERWARDS)
_FILTERS = (
    docs.Param("state", wire.StateName, "Only schedules in this state."),
    docs.Param("name", docs.AnyText, "Only the schedule of this name."),
    docs.Param("overdue", bool, "Only those whose next time has passed without a decision."),
    *docs.PAGED,
)
_AFTER = docs.Param("after", Instant, "Show times after this one, instead of after now.")
_TIMES = docs.Param("n", Annotated[int, Meta(ge=1, le=1000)], "How many times to show (10).")
_CALENDARS = Tag("Calendars")
# The characters of a name, in hexadecimal: see `calendars`.
_HEX_OF_NAME = r"^(2[de]|3[0-9]|4[1-9a-f]|5[0-9af]|6[1-9a-f]|7[0-9a]){1,100}$"
_BY_NAME = docs.page_by(Annotated[str, Meta(pattern=_HEX_OF_NAME, max_length=200)])
_NAME = docs.Param("id", wire.CalendarName, "The calendar's name.", "path")


def schedule_routes(reading: ScheduleReading, changes: ScheduleChangeResource) -> Routes:
    return {
        "GET /v1/schedules": _SCHEDULES.tenant(
            "read", reading.page, "listSchedules", "List schedules", "Newest first.",
            ok("A page of schedules.", wire.SchedulePage), params=_FILTERS,
        ),
        "POST /v1/schedules": _SCHEDULES.tenant(
            "write", changes.create, "createSchedule", "Create a schedule",
            "Exactly one of `cron`, `interval` and `rrule` is needed. An expression that can never "
            "fire is refused. Strings in the task's payload may contain `{{scheduled_at}}`, "
            "`{{occurrence}}` and `{{schedule_id}}`; `\\{{` escapes. The workflow and the "
            "calendars that it names must be there.",
            created("The new schedule.", wire.ScheduleOut, docs.ETAG, links=_AFTERWARDS),
            ok(
                "With `dry_run`: the schedule as it would be, and its fire times.",
                wire.ScheduleOut,
            ),
            params=[docs.DRY_RUN], problems=[Conflict],
            body=docs.Body(wire.ScheduleIn, examples=_EXAMPLES, rules=_RULES),
        ),
        "POST /v1/schedules/preview": _preview(reading),
        "GET /v1/schedules/{id}": _SCHEDULES.tenant(
            "read", reading.one, "getSchedule", "Read a schedule", "", _THE_SCHEDULE
        ),
        **_change_routes(changes),
        **_verb_routes(changes),
        "GET /v1/schedules/{id}/upcoming": _SCHEDULES.tenant(
            "read", reading.upcoming, "upcomingTimes", "Show a schedule's next times", "",
            ok("The next times that are not excluded.", wire.Upcoming), params=[_TIMES],
        ),
        "GET /v1/schedules/{id}/occurrences": _SCHEDULES.tenant(
            "read", reading.occurrences, "listOccurrences", "List what was decided",
            "Newest first. One line per decision; occurrences in a row that were not run share "
            "one, with `to_at` and `count`.",
            ok("A page of the ledger.", wire.OccurrencePage),
            params=[docs.Param("decision", Decision, "Only these decisions."), *docs.NUMBERED],
        ),
    }  # fmt: skip


def _preview(reading: ScheduleReading) -> TenantOperation:
    nightly = {"nightly": {"cron": "30 2 * * *", "timezone": "Europe/Rome"}}
    return _SCHEDULES.tenant(
        "read", reading.preview, "previewSchedule", "Preview a schedule",
        "The next times of a schedule that is not saved, what is worth knowing about them, and "
        "the same in plain English.",
        ok("What it would do.", wire.PreviewOut), params=[_TIMES, _AFTER],
        body=docs.Body(wire.PreviewIn, examples=nightly),
    )  # fmt: skip


def _change_routes(changes: ScheduleChangeResource) -> Routes:
    return {
        "PUT /v1/schedules/{id}": _SCHEDULES.tenant(
            "write", changes.replace, "replaceSchedule", "Replace a schedule",
            "What came due before is decided by the old definition, all else by the new one. With "
            "`dry_run` the answer shows how the fire times would change.",
            _THE_SCHEDULE, params=[docs.DRY_RUN], if_match=True,
            body=docs.Body(wire.ScheduleIn, examples={"cron": _EXAMPLES["cron"]}),
            problems=[Conflict],
        ),
        "PATCH /v1/schedules/{id}": _SCHEDULES.tenant(
            "write", changes.edit, "editSchedule", "Change a schedule",
            "A field that is given replaces the old value whole. With `dry_run` the answer shows "
            "how the fire times would change.",
            _THE_SCHEDULE, params=[docs.DRY_RUN], if_match=True,
            body=docs.Body(wire.SchedulePatch, examples={"later": {"cron": "0 9 * * MON-FRI"}}),
            problems=[Conflict],
        ),
        "DELETE /v1/schedules/{id}": _SCHEDULES.tenant(
            "write", changes.delete, "deleteSchedule", "Delete a schedule",
            "With its occurrences. Tasks that it made stay as they are.", docs.GONE, if_match=True,
        ),
    }  # fmt: skip


def _verb_routes(changes: ScheduleChangeResource) -> Routes:
    day = {"from": "2026-03-01T00:00:00Z", "to": "2026-03-02T00:00:00Z", "max_running": 2}
    return {
        **_SCHEDULES.verbs(
            "/v1/schedules/{id}", "Schedule", _THE_SCHEDULE, if_match=True,
            pause=(
                partial(changes.set_state, "paused"), "Pause a schedule",
                "Times that pass meanwhile are recorded as `skipped_paused`. Calling twice is "
                "harmless.",
            ),
            resume=(
                partial(changes.set_state, "active"), "Resume a paused schedule",
                "It goes on with the next time to come. Calling twice is harmless.",
            ),
        ),
        "POST /v1/schedules/{id}/run": _SCHEDULES.tenant(
            "write", changes.run, "runSchedule", "Run a schedule's task now",
            "Beside the timetable: nothing else of the schedule changes.",
            created("The new task.", TaskOut, docs.ETAG),
        ),
        "POST /v1/schedules/{id}/backfill": _SCHEDULES.tenant(
            "write", changes.backfill, "backfillSchedule", "Make up for a stretch of the past",
            "Makes a task for each occurrence from `from` to `to` that never had one, at most "
            "10000. At most `max_running` of them run at once. Excluded dates stay excluded.",
            created_without_path("The new tasks.", wire.BackfilledOut),
            body=docs.Body(wire.BackfillIn, examples={"a day": day}),
        ),
    }  # fmt: skip


def calendar_routes(calendars: CalendarResource) -> Routes:
    holidays = {"name": "holidays-de", "dates": ["2026-12-25", "2026-12-26"]}
    return {
        "GET /v1/calendars": _CALENDARS.tenant(
            "read", calendars.page, "listCalendars", "List calendars", "",
            ok("A page of calendars, by name.", wire.CalendarPage),
            params=_BY_NAME,
        ),
        "POST /v1/calendars": _CALENDARS.tenant(
            "write", calendars.create, "createCalendar", "Create a calendar", "",
            created("The new calendar.", wire.CalendarOut, docs.ETAG),
            body=docs.Body(wire.CalendarIn, examples={"holidays": holidays}), problems=[Conflict],
        ),
        "GET /v1/calendars/{id}": _CALENDARS.tenant(
            "read", calendars.one, "getCalendar", "Read a calendar", "",
            ok("The calendar.", wire.CalendarOut, docs.ETAG), params=[_NAME],
        ),
        "PUT /v1/calendars/{id}": _CALENDARS.tenant(
            "write", calendars.put, "putCalendar", "Replace a calendar's dates",
            "Counts for every schedule that names it, from its next decision on.",
            ok("The calendar as it is now.", wire.CalendarOut, docs.ETAG),
            params=[_NAME], if_match=True,
            body=docs.Body(wire.CalendarDates, examples={"one": {"dates": ["2026-12-25"]}}),
        ),
        "DELETE /v1/calendars/{id}": _CALENDARS.tenant(
            "write", calendars.delete, "deleteCalendar", "Delete a calendar",
            "While no schedule names it.", docs.GONE, params=[_NAME], problems=[Conflict],
        ),
    }  # fmt: skip
