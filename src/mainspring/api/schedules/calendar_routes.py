"""The routes of calendars."""

from typing import Annotated

from msgspec import Meta

from mainspring.api.openapi.operation import ETAG, GONE, IF_MATCH, LIMIT, Body, Param
from mainspring.api.routes import Routes, Tag, created, ok
from mainspring.api.schedules.calendars import CalendarResource
from mainspring.errors import Conflict, PreconditionFailed
from mainspring.wire.schedules import (
    CalendarDates,
    CalendarIn,
    CalendarName,
    CalendarOut,
    CalendarPage,
)

_CALENDARS = Tag("Calendars")
# The characters of a name, in hexadecimal: see `calendars`.
_HEX_OF_NAME = r"^(2[de]|3[0-9]|4[1-9a-f]|5[0-9af]|6[1-9a-f]|7[0-9a]){1,100}$"
_NAME_CURSOR = Param(
    "cursor",
    Annotated[str, Meta(pattern=_HEX_OF_NAME, max_length=200)],
    "Where to go on: `next_cursor` of the page before.",
)
_NAME = Param("id", CalendarName, "The calendar's name.", "path", required=True)


def calendar_routes(calendars: CalendarResource) -> Routes:
    holidays = {"name": "holidays-de", "dates": ["2026-12-25", "2026-12-26"]}
    return {
        "GET /v1/calendars": _CALENDARS.tenant(
            "read", calendars.page, "listCalendars", "List calendars", "",
            ok("A page of calendars, by name.", CalendarPage), params=[LIMIT, _NAME_CURSOR],
        ),
        "POST /v1/calendars": _CALENDARS.tenant(
            "write", calendars.create, "createCalendar", "Create a calendar", "",
            created("The new calendar.", CalendarOut, ETAG),
            body=Body(CalendarIn, examples={"holidays": holidays}), problems=[Conflict],
        ),
        "GET /v1/calendars/{id}": _CALENDARS.tenant(
            "read", calendars.one, "getCalendar", "Read a calendar", "",
            ok("The calendar.", CalendarOut, ETAG), params=[_NAME],
        ),
        "PUT /v1/calendars/{id}": _CALENDARS.tenant(
            "write", calendars.put, "putCalendar", "Replace a calendar's dates",
            "Counts for every schedule that names it, from its next decision on.",
            ok("The calendar as it is now.", CalendarOut, ETAG), params=[_NAME, IF_MATCH],
            body=Body(CalendarDates, examples={"one": {"dates": ["2026-12-25"]}}),
            problems=[PreconditionFailed],
        ),
        "DELETE /v1/calendars/{id}": _CALENDARS.tenant(
            "write", calendars.delete, "deleteCalendar", "Delete a calendar",
            "While no schedule names it.",
            GONE, params=[_NAME], problems=[Conflict],
        ),
    }  # fmt: skip
