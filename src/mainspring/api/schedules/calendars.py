"""/v1/calendars: named lists of dates on which schedules do not run."""

from dataclasses import dataclass

from starlette.responses import Response

from mainspring.api.http.bodies import json_response
from mainspring.api.http.decoding import decode_as
from mainspring.api.http.operations import TenantCall
from mainspring.api.http.parameters import Parameters, bad_parameter, read_one
from mainspring.api.views import NAME, existing, item_response, name_in, no_such_calendar, view
from mainspring.errors import Conflict
from mainspring.store.schedules.calendars import CalendarStore, StoredCalendar
from mainspring.wire.schedules import CalendarDates, CalendarIn, CalendarOut, CalendarPage


@dataclass(frozen=True, slots=True)
class CalendarResource:
    """Make, read, list, replace and delete calendars. A change counts from the next decision on."""

    calendars: CalendarStore

    async def create(self, call: TenantCall) -> Response:
        wanted = decode_as(CalendarIn, await call.body())
        made = await self.calendars.create(
            call.tenant_id, wanted.name, sorted(set(wanted.dates)), call.remember(_created)
        )
        if made is None:
            raise Conflict(f"there is a calendar {wanted.name!r} already")
        return _created(made)

    async def page(self, call: TenantCall) -> Response:
        limit = read_one(call.query, Parameters.limit)
        after = _decode(call.query.get("cursor"))
        found = await self.calendars.page(call.tenant_id, after=after, limit=limit)
        cursor = _encode(found[-1].name) if len(found) == limit else None
        items = [view(CalendarOut, calendar) for calendar in found]
        return json_response(CalendarPage(items, cursor))

    async def one(self, call: TenantCall) -> Response:
        name = name_in(call, no_such_calendar)
        found = await self.calendars.get(call.tenant_id, name)
        return _shown(existing(found, no_such_calendar, name))

    async def put(self, call: TenantCall) -> Response:
        name = name_in(call, no_such_calendar)
        existing(await self.calendars.get(call.tenant_id, name), no_such_calendar, name)
        wanted = decode_as(CalendarDates, await call.body())
        changed = await self.calendars.replace(
            call.tenant_id, name, sorted(set(wanted.dates)), lambda old: call.check_rev(old.rev)
        )
        return _shown(existing(changed, no_such_calendar, name))

    async def delete(self, call: TenantCall) -> Response:
        name = name_in(call, no_such_calendar)
        if not await self.calendars.delete(call.tenant_id, name):
            existing(await self.calendars.get(call.tenant_id, name), no_such_calendar, name)
            raise Conflict("a schedule names this calendar")
        return Response(status_code=204)


def _shown(calendar: StoredCalendar) -> Response:
    return item_response(view(CalendarOut, calendar), calendar.rev)


def _created(calendar: StoredCalendar) -> Response:
    shown, path = view(CalendarOut, calendar), f"/v1/calendars/{calendar.name}"
    return item_response(shown, calendar.rev, 201, path)


def _encode(name: str) -> str:
    return name.encode().hex()


def _decode(cursor: str | None) -> str:
    if cursor is None:
        return ""
    try:
        name = bytes.fromhex(cursor).decode("ascii")
    except ValueError:
        name = "?"
    if not NAME.fullmatch(name) or _encode(name) != cursor:
        raise bad_parameter("cursor", "is not a cursor of this list")
    return name
