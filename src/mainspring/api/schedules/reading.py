"""Reading schedules: one, a page, next times and past decisions; previews of unsaved ones."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

from starlette.datastructures import QueryParams
from starlette.responses import Response

from mainspring import timezones
from mainspring.api.http.bodies import json_response
from mainspring.api.http.decoding import decode_as
from mainspring.api.http.operations import TenantCall
from mainspring.api.http.parameters import (
    Parameters,
    bad_parameter,
    next_cursor,
    page_query,
    read_one,
)
from mainspring.api.http.problems import raise_if
from mainspring.api.schedules.validation import ScheduleValidator
from mainspring.api.schedules.views import schedule_out
from mainspring.api.views import T, existing, instant, item_response, no_such_schedule, view
from mainspring.clock import Clock
from mainspring.config import Config
from mainspring.domain.schedules import description as describe
from mainspring.domain.schedules.policies import Decision
from mainspring.errors import Problem
from mainspring.schedules.service import ScheduleService
from mainspring.store.schedules.schedules import StoredOccurrence, StoredSchedule
from mainspring.wire import schedules as wire

_DEFAULT_TIMES = 10
_MOST_TIMES = 1000
_SLOW_TIMES = asyncio.Semaphore(2)


@dataclass(frozen=True, slots=True)
class ScheduleReading:
    """GET under /v1/schedules, and the preview."""

    config: Config
    clock: Clock
    schedules: ScheduleService
    validator: ScheduleValidator

    async def page(self, call: TenantCall) -> Response:
        params = call.query
        given = Parameters(params)
        name, state = given.text("name"), given.choice("state", get_args(wire.StateName))
        before, limit = given.cursor(), given.limit()
        overdue = self.config.overdue_after if given.flag("overdue") else None
        given.check()
        found = await self.schedules.page(
            call.tenant_id, before=before, limit=limit, state=state, name=name, overdue=overdue
        )
        items = [schedule_out(schedule, self.config.overdue_after) for schedule in found]
        last = found[-1].id if len(found) == limit else None
        return json_response(wire.SchedulePage(items, next_cursor(last)))

    async def one(self, call: TenantCall) -> Response:
        return self.response(await existing_schedule(self.schedules, call))

    def response(self, schedule: StoredSchedule) -> Response:
        shown = schedule_out(schedule, self.config.overdue_after)
        return item_response(shown, schedule.edition)

    async def upcoming(self, call: TenantCall) -> Response:
        most = _count(call.query)
        schedule = await existing_schedule(self.schedules, call)
        times: list[float] = []
        if schedule.state == "active":
            times = await _off_the_loop(
                lambda: schedule.timetable.upcoming(schedule.decided_to, most)
            )
            if (limit := schedule.definition.max_runs) is not None:
                times = times[: max(0, limit - schedule.runs)]
        items = [wire.UpcomingOut(instant(at), instant(at + schedule.offset)) for at in times]
        return json_response(wire.Upcoming([instant(at) for at in times], items))

    async def occurrences(self, call: TenantCall) -> Response:
        choices = {"decision": tuple(decision.value for decision in Decision)}
        query = page_query(call.query, choices=choices)
        schedule = await existing_schedule(self.schedules, call)
        lines = await self.schedules.occurrences(
            call.tenant_id,
            schedule.id,
            before=None if query.before is None else _place_of(query.before),
            decision=query.where["decision"],
            limit=query.limit,
        )
        cursor = query.cursor_after([_number_of(line) for line in lines])
        items = [view(wire.OccurrenceOut, o, decision=Decision(o.decision)) for o in lines]
        return json_response(wire.OccurrencePage(items, cursor))

    async def preview(self, call: TenantCall) -> Response:
        wanted = decode_as(
            wire.PreviewIn, await call.body(), lambda w: [w.task.payload] if w.task else []
        )
        most = _count(call.query)
        now = self.clock.now()
        problems: list[Problem] = []
        checked = await self.validator.timing(call.tenant_id, wanted, now, problems)
        if wanted.task is not None:
            self.validator.template(wanted.task, checked.definition if checked else None, problems)
        if checked is None and problems and all("never fires" in p.detail for p in problems):
            # To show that is what a preview is for; saving it is refused.
            told = [f"it {problem.detail}" for problem in problems]
            return json_response(wire.PreviewOut([], told, "Never.", timezones.version()))
        raise_if(problems)
        assert checked is not None
        definition, table = checked.definition, checked.timetable
        after = _after(call.query) or now
        times, warnings = await _off_the_loop(
            lambda: (
                table.upcoming(after, min(most, definition.max_runs or most)),
                describe.warnings(definition, table, after),
            )
        )
        lacking = await self.validator.workflow(call.tenant_id, wanted.workflow)
        told = [f"{problem.detail}: without one it is refused" for problem in lacking]
        return json_response(
            wire.PreviewOut(
                [instant(at) for at in times],
                [*told, *warnings],
                describe.describe(definition),
                timezones.version(),
            )
        )


async def _off_the_loop(work: Callable[[], T]) -> T:
    """Compute many times in a thread, so that other requests need not wait."""
    async with _SLOW_TIMES:
        return await asyncio.to_thread(work)


async def existing_schedule(schedules: ScheduleService, call: TenantCall) -> StoredSchedule:
    """Return the schedule in the path; raise when there is none."""
    schedule_id = call.id_or(no_such_schedule)
    found = await schedules.get(call.tenant_id, schedule_id)
    return existing(found, no_such_schedule, schedule_id)


def _count(params: QueryParams) -> int:
    return read_one(params, lambda given: given.number("n", _MOST_TIMES)) or _DEFAULT_TIMES


def _after(params: QueryParams) -> float | None:
    found = read_one(params, lambda given: given.instant("after"))
    if found is not None and not 1970 <= found.year < 9000:
        raise bad_parameter("after", "is out of range: the year is one of 1970 to 8999")
    return None if found is None else found.timestamp()


def _number_of(line: StoredOccurrence) -> int:
    """Return the place of a line in the ledger: its time in microseconds, then its attempt."""
    return 2 * round(line.nominal_at.timestamp() * 1e6) + line.attempt


def _place_of(number: int) -> tuple[float, int]:
    return number // 2 / 1e6, number % 2
