"""/v1/calendars: named lists of dates on which schedules do not run."""

import re

import msgspec
from starlette.responses import Response

from mainspring.api.http.decoding import decode_as
from mainspring.api.http.endpoint import TenantCall, json_response
from mainspring.api.http.parameters import schedule_query
from mainspring.api.tasks.changes import check_rev, if_match
from mainspring.errors import Conflict, InvalidRequest, NotFound, Problem
from mainspring.store.schedule.calendars import CalendarStore, StoredCalendar
from mainspring.wire.schedules import (
    CalendarDates,
    CalendarIn,
    CalendarOut,
    CalendarPage,
)

_CALENDAR = msgspec.json.Decoder(CalendarIn)
_DATES = msgspec.json.Decoder(CalendarDates)
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}", re.ASCII)


class CalendarResource:
    """Make, read, list, replace and delete calendars. A change counts from the next decision on."""

    def __init__(self, calendars: CalendarStore) -> None:
        self._calendars = calendars

    async def create(self, call: TenantCall) -> Response:
        wanted = decode_as(_CALENDAR, await call.body())
        made = await self._calendars.create(
            call.tenant_id, wanted.name, sorted(set(wanted.dates)), call.remember(_created)
        )
        if made is None:
            raise Conflict(f"there is a calendar {wanted.name!r} already")
        return _created(made)

    async def page(self, call: TenantCall) -> Response:
        query = schedule_query(call.request.query_params, {}, with_cursor=False)
        after = _decode(call.request.query_params.get("cursor"))
        found = await self._calendars.page(call.tenant_id, after=after, limit=query.limit)
        cursor = _encode(found[-1].name) if len(found) == query.limit else None
        return json_response(CalendarPage([_out(calendar) for calendar in found], cursor))

    async def one(self, call: TenantCall) -> Response:
        name = _name_in(call)
        calendar = await self._calendars.get(call.tenant_id, name)
        if calendar is None:
            raise _no_such_calendar(name)
        return _shown(calendar)

    async def put(self, call: TenantCall) -> Response:
        name = _name_in(call)
        if await self._calendars.get(call.tenant_id, name) is None:
            raise _no_such_calendar(name)
        wanted = decode_as(_DATES, await call.body())
        revs = if_match(call.request)
        changed = await self._calendars.replace(
            call.tenant_id, name, sorted(set(wanted.dates)), lambda old: check_rev(revs, old.rev)
        )
        if changed is None:
            raise _no_such_calendar(name)
        return _shown(changed)

    async def delete(self, call: TenantCall) -> Response:
        name = _name_in(call)
        if not await self._calendars.delete(call.tenant_id, name):
            if await self._calendars.get(call.tenant_id, name) is None:
                raise _no_such_calendar(name)
            raise Conflict("a schedule names this calendar")
        return Response(status_code=204)


def _out(calendar: StoredCalendar) -> CalendarOut:
    return CalendarOut(calendar.name, calendar.dates, calendar.updated_at)


def _shown(
    calendar: StoredCalendar, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    return json_response(_out(calendar), status, {"ETag": f'"{calendar.rev}"', **(headers or {})})


def _created(calendar: StoredCalendar) -> Response:
    return _shown(calendar, 201, {"Location": f"/v1/calendars/{calendar.name}"})


def _name_in(call: TenantCall) -> str:
    name: str = call.request.path_params["id"]
    if not _NAME.fullmatch(name):
        raise _no_such_calendar(name)
    return name


def _no_such_calendar(name: str) -> NotFound:
    return NotFound(f"there is no calendar {name[:64]!r}")


def _encode(name: str) -> str:
    return name.encode().hex()


def _decode(cursor: str | None) -> str:
    if cursor is None:
        return ""
    try:
        name = bytes.fromhex(cursor).decode("ascii")
    except ValueError:
        name = "?"
    if not _NAME.fullmatch(name) or _encode(name) != cursor:
        problem = Problem("/query/cursor", "is not a cursor of this list")
        raise InvalidRequest("some query parameters do not make sense", [problem])
    return name
