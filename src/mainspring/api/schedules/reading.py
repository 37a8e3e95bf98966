"""Reading schedules: one, a page, what comes and what was decided; previews of unsaved ones."""

import asyncio
from collections.abc import Callable
from typing import TypeVar, get_args
from uuid import UUID

import msgspec
from starlette.datastructures import QueryParams
from starlette.responses import Response

from mainspring import timezones
from mainspring.api.http import parameters
from mainspring.api.http.decoding import decode_as
from mainspring.api.http.endpoint import TenantCall, json_response
from mainspring.api.http.parameters import (
    encode_cursor,
    flag,
    number_cursor,
    page_query,
    schedule_query,
)
from mainspring.api.schedules.validation import ScheduleValidator, raise_if
from mainspring.api.schedules.views import (
    instant,
    occurrence_out,
    schedule_out,
    upcoming_out,
)
from mainspring.clock import Clock
from mainspring.config import Config
from mainspring.domain.schedule import description as describe
from mainspring.domain.schedule.misfire import Decision
from mainspring.errors import InvalidRequest, NotFound, Problem
from mainspring.schedules.service import ScheduleService
from mainspring.store.schedule.schedules import StoredOccurrence, StoredSchedule
from mainspring.wire.schedules import (
    OccurrencePage,
    PreviewIn,
    PreviewOut,
    SchedulePage,
    StateName,
    Upcoming,
)

_PREVIEW = msgspec.json.Decoder(PreviewIn)
_DEFAULT_TIMES = 10
_MOST_TIMES = 1000
_WORKED_OUT = asyncio.Semaphore(2)

T = TypeVar("T")


class ScheduleReading:
    """GET under /v1/schedules, and the preview."""

    def __init__(
        self, config: Config, clock: Clock, schedules: ScheduleService, validator: ScheduleValidator
    ) -> None:
        self._config = config
        self._clock = clock
        self._schedules = schedules
        self._validator = validator

    async def page(self, call: TenantCall) -> Response:
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

    async def one(self, call: TenantCall) -> Response:
        return self.response(await existing_schedule(self._schedules, call))

    def response(self, schedule: StoredSchedule) -> Response:
        shown = schedule_out(schedule, self._config.overdue_after)
        return json_response(shown, headers={"ETag": f'"{schedule.edition}"'})

    async def upcoming(self, call: TenantCall) -> Response:
        most = _number(call.request.query_params)
        schedule = await existing_schedule(self._schedules, call)
        times: list[float] = []
        if schedule.state == "active":
            times = await _off_the_loop(
                lambda: schedule.timetable.upcoming(schedule.decided_to, most)
            )
            if (limit := schedule.definition.max_runs) is not None:
                times = times[: max(0, limit - schedule.runs)]
        items = [upcoming_out(at, schedule.offset) for at in times]
        return json_response(Upcoming([instant(at) for at in times], items))

    async def occurrences(self, call: TenantCall) -> Response:
        choices = {"decision": tuple(decision.value for decision in Decision)}
        query = page_query(call.request.query_params, choices=choices)
        schedule = await existing_schedule(self._schedules, call)
        lines = await self._schedules.occurrences(
            call.tenant_id,
            schedule.id,
            before=None if query.before is None else _place_of(query.before),
            decision=query.where["decision"],
            limit=query.limit,
        )
        cursor = number_cursor(lines, query.limit, _number_of(lines[-1]) if lines else None)
        return json_response(OccurrencePage([occurrence_out(line) for line in lines], cursor))

    async def preview(self, call: TenantCall) -> Response:
        wanted = decode_as(
            _PREVIEW, await call.body(), lambda w: [w.task.payload] if w.task else []
        )
        most = _number(call.request.query_params)
        now = self._clock.now()
        problems: list[Problem] = []
        checked = await self._validator.timing(call.tenant_id, wanted, now, problems)
        if wanted.task is not None:
            self._validator.template(wanted.task, checked.definition if checked else None, problems)
        if checked is None and problems and all("never fires" in p.detail for p in problems):
            # To show that is what a preview is for; saving it is refused.
            told = [f"it {problem.detail}" for problem in problems]
            return json_response(PreviewOut([], told, "Never.", timezones.version()))
        raise_if(problems)
        assert checked is not None
        definition, table = checked.definition, checked.timetable
        after = _after(call.request.query_params) or now
        times, warnings = await _off_the_loop(
            lambda: (
                table.upcoming(after, min(most, definition.max_runs or most)),
                describe.warnings(definition, table, after),
            )
        )
        lacking = await self._validator.workflow(call.tenant_id, wanted.workflow)
        told = [f"{problem.detail}: without one it is refused" for problem in lacking]
        return json_response(
            PreviewOut(
                [instant(at) for at in times],
                [*told, *warnings],
                describe.describe(definition),
                timezones.version(),
            )
        )


async def _off_the_loop(work: Callable[[], T]) -> T:
    """Work out many times in a thread, where they hold up no other request."""
    async with _WORKED_OUT:
        return await asyncio.to_thread(work)


async def existing_schedule(schedules: ScheduleService, call: TenantCall) -> StoredSchedule:
    """The schedule, or the one answer for all that are not there or not yours."""
    schedule_id = schedule_id_in(call)
    schedule = await schedules.get(call.tenant_id, schedule_id)
    if schedule is None:
        raise no_such_schedule(str(schedule_id))
    return schedule


def schedule_id_in(call: TenantCall) -> UUID:
    return call.id_or(no_such_schedule)


def no_such_schedule(text: str) -> NotFound:
    return NotFound(f"there is no schedule {text[:64]!r}")


def _number(params: QueryParams) -> int:
    text = params.get("n", str(_DEFAULT_TIMES))
    if text.isascii() and text.isdigit() and len(text) <= 4 and 1 <= int(text) <= _MOST_TIMES:
        return int(text)
    raise _refused("n", f"is not a number between 1 and {_MOST_TIMES}")


def _after(params: QueryParams) -> float | None:
    found = parameters.instant(params, "after")
    if found is not None and not 1970 <= found.year < 9000:
        raise _refused("after", "is out of range: the year is one of 1970 to 8999")
    return None if found is None else found.timestamp()


def _number_of(line: StoredOccurrence) -> int:
    """The place of a line in the ledger: its time in microseconds, then which pass it was."""
    return 2 * round(line.nominal_at.timestamp() * 1e6) + line.attempt


def _place_of(number: int) -> tuple[float, int]:
    return number // 2 / 1e6, number % 2


def _refused(name: str, detail: str) -> InvalidRequest:
    problem = Problem(f"/query/{name}", detail)
    return InvalidRequest("some query parameters do not make sense", [problem])
