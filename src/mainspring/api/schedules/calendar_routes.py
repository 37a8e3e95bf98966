"""The routes of calendars."""

from typing import Annotated

from msgspec import Meta

from mainspring.api.openapi import operation as docs
from mainspring.api.routes import Routes, Tag, created, ok
from mainspring.api.schedules.calendars import CalendarResource
from mainspring.errors import Conflict, PreconditionFailed
from mainspring.wire import schedules as wire

_CALENDARS = Tag("Calendars")
# The characters of a name, in hexadecimal: see `calendars`.
_HEX_OF_NAME = r"^(2[de]|3[0-9]|4[1-9a-f]|5[0-9af]|6[1-9a-f]|7[0-9a]){1,100}$"
_NAME_CURSOR = docs.Param(
    "cursor",
    Annotated[str, Meta(pattern=_HEX_OF_NAME, max_length=200)],
    "Where to go on: `next_cursor` of the page before.",
)
_NAME = docs.Param("id", wire.CalendarName, "The calendar's name.", "path", required=True)


def calendar_routes(calendars: CalendarResource) -> Routes:
    holidays = {"name": "holidays-de", "dates": ["2026-12-25", "2026-12-26"]}
    return {
        "GET /v1/calendars": _CALENDARS.tenant(
            "read", calendars.page, "listCalendars", "List calendars", "",
            ok("A page of calendars, by name.", wire.CalendarPage),
            params=[docs.LIMIT, _NAME_CURSOR],
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
            params=[_NAME, docs.IF_MATCH], problems=[PreconditionFailed],
            body=docs.Body(wire.CalendarDates, examples={"one": {"dates": ["2026-12-25"]}}),
        ),
        "DELETE /v1/calendars/{id}": _CALENDARS.tenant(
            "write", calendars.delete, "deleteCalendar", "Delete a calendar",
            "While no schedule names it.",
            docs.GONE, params=[_NAME], problems=[Conflict],
        ),
    }  # fmt: skip
