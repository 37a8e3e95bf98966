"""Reading schedules: one, a page, what comes and what was decided; previews of unsaved ones."""

import base64
import binascii
import struct
from datetime import UTC, datetime
from typing import get_args
from uuid import UUID

import msgspec
from starlette.datastructures import QueryParams
from starlette.responses import Response

from mainspring.api.decoding import decode_as
from mainspring.api.parameters import encode_cursor, flag, schedule_query
from mainspring.api.routing import Call, json_response
from mainspring.api.schedule_validation import ScheduleValidator, raise_if
from mainspring.api.schedule_views import instant, occurrence_out, schedule_out, upcoming_out
from mainspring.api.schedule_wire import (
    OccurrencePage,
    PreviewIn,
    PreviewOut,
    SchedulePage,
    StateName,
    Upcoming,
)
from mainspring.clock import Clock
from mainspring.config import Config
from mainspring.domain import describe
from mainspring.domain.misfire import Decision
from mainspring.errors import InvalidRequest, NotFound, Problem
from mainspring.store import timezones
from mainspring.store.schedule_rows import StoredSchedule
from mainspring.store.schedules import Schedules

_PREVIEW = msgspec.json.Decoder(PreviewIn)
_DEFAULT_TIMES = 10
_MOST_TIMES = 1000
_CURSOR = struct.Struct(">dB")


class ScheduleReading:
    """GET under /v1/schedules, and the preview."""

    def __init__(
        self, config: Config, clock: Clock, schedules: Schedules, validator: ScheduleValidator
    ) -> None:
        self._config = config
        self._clock = clock
        self._schedules = schedules
        self._validator = validator

    async def page(self, call: Call) -> Response:
        params = call.request.query_params
        query = schedule_query(params, {"state": get_args(StateName)})
        overdue = self._config.overdue_after if flag(params, "overdue") else None
        found = await self._schedules.page(
            call.tenant_id,
            before=query.before,
            limit=query.limit,
            state=query.where["state"],
            name=query.where["name"],
            overdue=overdue,
        )
        items = [schedule_out(schedule, self._config.overdue_after) for schedule in found]
        full = len(found) == query.limit
        return json_response(SchedulePage(items, encode_cursor(found[-1].id) if full else None))

    async def one(self, call: Call) -> Response:
        return self.response(await existing_schedule(self._schedules, call))

    def response(self, schedule: StoredSchedule) -> Response:
        shown = schedule_out(schedule, self._config.overdue_after)
        return json_response(shown, headers={"ETag": f'"{schedule.edition}"'})

    async def upcoming(self, call: Call) -> Response:
        most = _number(call.request.query_params)
        schedule = await existing_schedule(self._schedules, call)
        times: list[float] = []
        if schedule.state == "active":
            times = schedule.timetable.upcoming(schedule.decided_to, most)
            if (limit := schedule.definition.max_runs) is not None:
                times = times[: max(0, limit - schedule.runs)]
        items = [upcoming_out(at, schedule.offset) for at in times]
        return json_response(Upcoming([instant(at) for at in times], items))

    async def occurrences(self, call: Call) -> Response:
        choices = {"decision": tuple(decision.value for decision in Decision)}
        query = schedule_query(call.request.query_params, choices, with_cursor=False)
        before = _decode_place(call.request.query_params.get("cursor"))
        schedule = await existing_schedule(self._schedules, call)
        lines = await self._schedules.occurrences(
            call.tenant_id,
            schedule.id,
            before=before,
            decision=query.where["decision"],
            limit=query.limit,
        )
        cursor = None
        if len(lines) == query.limit:
            cursor = _encode_place(lines[-1].nominal_at.timestamp(), lines[-1].attempt)
        return json_response(OccurrencePage([occurrence_out(line) for line in lines], cursor))

    async def preview(self, call: Call) -> Response:
        wanted = decode_as(
            _PREVIEW, await call.body(), lambda w: [w.task.payload] if w.task else []
        )
        most = _number(call.request.query_params)
        now = self._clock.now()
        problems: list[Problem] = []
        checked = await self._validator.timing(call.tenant_id, wanted, now, problems)
        if wanted.task is not None:
            definition = checked.definition if checked else None
            self._validator.template(wanted.task, definition, problems)
        if checked is None and problems and all("never fires" in p.detail for p in problems):
            # To show that is what a preview is for; saving it is refused.
            told = [f"it {problem.detail}" for problem in problems]
            return json_response(PreviewOut([], told, "Never.", timezones.version()))
        raise_if(problems)
        assert checked is not None
        table, after = checked.timetable, _after(call.request.query_params) or now
        times = table.upcoming(after, min(most, checked.definition.max_runs or most))
        return json_response(
            PreviewOut(
                [instant(at) for at in times],
                describe.warnings(checked.definition, table, after),
                describe.describe(checked.definition),
                timezones.version(),
            )
        )


async def existing_schedule(schedules: Schedules, call: Call) -> StoredSchedule:
    """The schedule, or the one answer for all that are not there or not yours."""
    schedule_id = schedule_id_in(call)
    schedule = await schedules.get(call.tenant_id, schedule_id)
    if schedule is None:
        raise no_such_schedule(str(schedule_id))
    return schedule


def schedule_id_in(call: Call) -> UUID:
    return call.id_or(no_such_schedule)


def no_such_schedule(text: str) -> NotFound:
    return NotFound(f"there is no schedule {text[:64]!r}")


def _number(params: QueryParams) -> int:
    text = params.get("n", str(_DEFAULT_TIMES))
    if text.isascii() and text.isdigit() and len(text) <= 4 and 1 <= int(text) <= _MOST_TIMES:
        return int(text)
    raise _refused("n", f"is not a number between 1 and {_MOST_TIMES}")


def _after(params: QueryParams) -> float | None:
    text = params.get("after")
    if text is None:
        return None
    try:
        # In a query an unescaped plus sign means a space: take the offset as it was meant.
        found = datetime.fromisoformat(text[:11] + text[11:].replace(" ", "+"))
    except ValueError:
        raise _refused("after", "is not an ISO 8601 time with an offset") from None
    if found.tzinfo is None or not 1970 <= found.astimezone(UTC).year < 9000:
        raise _refused("after", "is not an ISO 8601 time with an offset")
    return found.timestamp()


def _encode_place(nominal: float, attempt: int) -> str:
    return base64.urlsafe_b64encode(_CURSOR.pack(nominal, attempt)).decode("ascii")


def _decode_place(text: str | None) -> tuple[float, int] | None:
    if text is None:
        return None
    try:
        nominal, attempt = _CURSOR.unpack(base64.urlsafe_b64decode(text.encode("ascii")))
    except (binascii.Error, UnicodeEncodeError, struct.error):
        raise _refused("cursor", "is not a cursor of this list") from None
    if not 0 <= nominal < 253_000_000_000 or attempt > 1:
        raise _refused("cursor", "is not a cursor of this list")
    return nominal, attempt


def _refused(name: str, detail: str) -> InvalidRequest:
    problem = Problem(f"/query/{name}", detail)
    return InvalidRequest("some query parameters do not make sense", [problem])
