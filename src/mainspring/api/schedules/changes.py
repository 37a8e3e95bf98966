"""Making and changing schedules: create, replace, edit, delete, pause, resume, run now, backfill.

Every change is decided on the locked row, after what was due before has been decided by the old
definition: an edit while a schedule fires meets the old or the new one, never a mix.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, NamedTuple

import msgspec
from msgspec import UNSET
from starlette.responses import Response

from mainspring.api.http.bodies import encode_json, json_response
from mainspring.api.http.body_errors import readable_as
from mainspring.api.http.decoding import decode_as
from mainspring.api.http.operations import TenantCall
from mainspring.api.http.problems import raise_if
from mainspring.api.node_ports import NodePort
from mainspring.api.schedules import validation
from mainspring.api.schedules.reading import ScheduleReading, existing_schedule
from mainspring.api.schedules.views import compare_fire_times, requested_run, schedule_out
from mainspring.api.tasks.views import new_task_out
from mainspring.api.views import existing, instant, item_response, no_such_schedule
from mainspring.clock import Clock, monotonic
from mainspring.config import Config
from mainspring.domain.ids import TaskIds
from mainspring.domain.schedules.definition import Timetable, spread_of
from mainspring.errors import Conflict, InvalidRequest, Problem, RequestError, StoreUnavailable
from mainspring.schedules.occurrences import DecidedSchedules
from mainspring.schedules.service import NameTaken, ScheduleChange, ScheduleService
from mainspring.store.creation import window_row
from mainspring.store.schedules.schedules import StoredSchedule, Template
from mainspring.wire import schedules as wire

MOST_BACKFILLED = 10_000
_BACKFILL_TIMEOUT = 5.0


class _Wanted(NamedTuple):
    """A checked schedule from a request."""

    name: str
    checked: validation.Checked
    template: Template


@dataclass(frozen=True, slots=True)
class ScheduleChangeResource:
    """POST, PUT, PATCH, DELETE and the verbs of /v1/schedules."""

    config: Config
    clock: Clock
    ids: TaskIds
    schedules: ScheduleService
    validator: validation.ScheduleValidator
    reading: ScheduleReading
    node: NodePort

    async def create(self, call: TenantCall) -> Response:
        now = self.clock.now()
        wanted = await self._wanted(call, now)
        schedule_id = self.ids.make(now)
        definition, table = wanted.checked.definition, wanted.checked.timetable
        following = table.next(now)
        if call.dry_run:
            moment = instant(now)
            unsaved = StoredSchedule(
                call.tenant_id, schedule_id, 1, 1, 0, "active", wanted.name,
                encode_json(definition), encode_json(wanted.template), moment, moment,
                now, following, None, 0, list(wanted.checked.holidays), now,
            )  # fmt: skip
            return self._previewed(unsaved, None, table, now)
        decided_to = now - spread_of(schedule_id, definition.spread)
        new = ScheduleChange(
            "active", wanted.name, definition, wanted.template, decided_to, following
        )
        made = await self.schedules.create(
            call.tenant_id, schedule_id, new, call.remember(self._created)
        )
        if made is None:
            raise _name_taken(wanted.name)
        self._announce(DecidedSchedules(), made.partition)
        return self._created(made)

    def _created(self, schedule: StoredSchedule) -> Response:
        response = self.reading.response(schedule)
        response.status_code = 201
        response.headers["Location"] = f"/v1/schedules/{schedule.id}"
        return response

    async def replace(self, call: TenantCall) -> Response:
        old = await existing_schedule(self.schedules, call)
        call.check_rev(old.edition)
        return await self._replace(call, old, await self._wanted(call, self.clock.now(), old))

    async def edit(self, call: TenantCall) -> Response:
        patch = decode_as(wire.SchedulePatch, await call.body(), _payloads)
        old = await existing_schedule(self.schedules, call)
        call.check_rev(old.edition)
        now = self.clock.now()
        problems: list[Problem] = []
        timing = validation.merged(old.definition, patch)
        anchor = validation.kept_anchor(old.definition, timing)
        checked = await self.validator.timing(call.tenant_id, timing, now, problems, anchor=anchor)
        template = old.template
        if patch.workflow is not UNSET:
            # One that stays as it is may have been deleted: that is no reason to refuse the rest.
            problems += await self.validator.workflow(call.tenant_id, patch.workflow)
        if (task := _patched_task(old, patch, problems)) is not None:
            definition = checked.definition if checked else None
            template = self.validator.template(task, definition, problems)
        elif checked is not None and template.concurrency_key is not None:
            problems += validation.key_problems(checked.definition)
        if checked is not None:
            problems += validation.never_fires(checked, now)
        raise_if(problems)
        assert checked is not None
        name = old.name if patch.name is UNSET else patch.name
        return await self._replace(call, old, _Wanted(name, checked, template))

    async def delete(self, call: TenantCall) -> Response:
        schedule_id = call.id_or(no_such_schedule)
        if not await self.schedules.delete(
            call.tenant_id, schedule_id, call.actor, lambda s: call.check_rev(s.edition)
        ):
            raise no_such_schedule(schedule_id)
        return Response(status_code=204)

    async def set_state(self, state: Literal["paused", "active"], call: TenantCall) -> Response:
        return await self._change(call, partial(_in_state, state))

    async def run(self, call: TenantCall) -> Response:
        schedule_id = call.id_or(no_such_schedule)
        done = await self.schedules.run_now(call.tenant_id, schedule_id, call.remember(_first_task))
        decided = existing(done, no_such_schedule, schedule_id)
        self._announce(decided)
        return _first_task(decided)

    async def backfill(self, call: TenantCall) -> Response:
        schedule_id = (await existing_schedule(self.schedules, call)).id
        wanted = decode_as(wire.BackfillIn, await call.body())
        first, last = max(0.0, wanted.from_.timestamp()), wanted.to.timestamp()
        if wanted.to < wanted.from_:
            raise InvalidRequest("the range is empty", [Problem("/to", "is before from")])

        def choose(schedule: StoredSchedule) -> list[float]:
            return _fire_times(schedule.timetable, first, min(last, schedule.now - schedule.offset))

        remember = call.remember(_all_tasks)
        done = await self.schedules.backfill(
            call.tenant_id, schedule_id, choose, wanted.max_running, remember
        )
        decided = existing(done, no_such_schedule, schedule_id)
        self._announce(decided)
        return _all_tasks(decided)

    # Details ----------------------------------------------------------------------------------

    async def _wanted(
        self, call: TenantCall, now: float, old: StoredSchedule | None = None
    ) -> _Wanted:
        """Return the schedule that a body describes completely."""
        body = await call.body()
        problems: list[Problem] = []
        try:
            wanted = decode_as(wire.ScheduleIn, body, _payloads)
        except RequestError as error:
            rest = readable_as(wire.ScheduleIn, body)
            if rest is not None:
                with suppress(StoreUnavailable):  # what is known to be wrong is enough
                    await self._check(call, rest, now, old, problems)
            found = [p for p in problems if not validation.follows(p, error.problems)]
            raise type(error)(error.detail, [*error.problems, *found]) from None
        checked, template = await self._check(call, wanted, now, old, problems)
        raise_if(problems)
        assert checked is not None
        return _Wanted(wanted.name, checked, template)

    async def _check(
        self,
        call: TenantCall,
        wanted: wire.ScheduleIn,
        now: float,
        old: StoredSchedule | None,
        problems: list[Problem],
    ) -> tuple[validation.Checked | None, Template]:
        task = validation.wanted_task(wanted.task, wanted.workflow, wanted.input, problems)
        problems += await self.validator.workflow(call.tenant_id, wanted.workflow)
        anchor = validation.kept_anchor(old.definition, wanted) if old else None
        checked = await self.validator.timing(call.tenant_id, wanted, now, problems, anchor=anchor)
        definition = checked.definition if checked else None
        template = self.validator.template(task, definition, problems)
        if checked is not None:
            problems += validation.never_fires(checked, now)
        return checked, template

    async def _replace(self, call: TenantCall, old: StoredSchedule, wanted: _Wanted) -> Response:
        table = wanted.checked.timetable
        if call.dry_run:
            return self._previewed(_as_replaced(old, wanted), old.timetable, table, old.now)

        def change(locked: StoredSchedule) -> ScheduleChange:
            after = max(locked.now - locked.offset, locked.decided_to)
            following = table.next(after)
            state = "paused" if locked.state == "paused" else "active"
            return replace(
                ScheduleChange.of(locked),
                state="ended" if following is None else state,
                name=wanted.name,
                definition=wanted.checked.definition,
                template=wanted.template,
                decided_to=after,
                next=following,
            )

        try:
            return await self._change(call, change)
        except NameTaken:
            raise _name_taken(wanted.name) from None

    def _previewed(
        self, schedule: StoredSchedule, before: Timetable | None, after: Timetable, now: float
    ) -> Response:
        """Return the schedule as it would be, and how its fire times would change."""
        shown = schedule_out(schedule, self.config.overdue_after)
        shown.fire_times = compare_fire_times(before, after, now)
        return json_response(shown)

    async def _change(
        self, call: TenantCall, decide: Callable[[StoredSchedule], ScheduleChange | None]
    ) -> Response:
        schedule_id = call.id_or(no_such_schedule)

        def checked(locked: StoredSchedule) -> ScheduleChange | None:
            call.check_rev(locked.edition)
            return decide(locked)

        done = await self.schedules.change(call.tenant_id, schedule_id, checked)
        changed = existing(done, no_such_schedule, schedule_id)
        self._announce(changed.decisions, changed.schedule.partition)
        return self.reading.response(changed.schedule)

    def _announce(self, decided: DecidedSchedules, partition: int | None = None) -> None:
        """Tell the owners of new tasks, of cancelled ones and of the schedule itself."""
        ours = self.node.ownership().partitions
        rows = [window_row(m.task, m.partition) for m in decided.made if m.partition in ours]
        concerned = {made.partition for made in decided.made} | decided.cancelled_in
        if partition is not None:
            concerned.add(partition)
        self.node.announce(rows, concerned)


def _payloads(body: wire.ScheduleIn | wire.SchedulePatch) -> list[msgspec.Raw]:
    """Return the parts of a body that are kept as they came."""
    task = [] if body.task is UNSET or body.task is None else [body.task.payload]
    return task if body.input is UNSET else [*task, *body.input.values()]


def _patched_task(
    old: StoredSchedule, patch: wire.SchedulePatch, problems: list[Problem]
) -> wire.TemplateIn | None:
    """Return the task that a patch asks for; None when that stays as it is."""
    asked = requested_run(old.template)
    task = None if patch.task is UNSET else patch.task
    if task is None and patch.workflow is UNSET and patch.input is UNSET:
        return None
    if task is not None and patch.workflow is UNSET:
        return task
    if patch.workflow is UNSET and asked is None:
        problems.append(Problem("/input", "is for schedules that run a workflow"))
        return None
    workflow = patch.workflow if patch.workflow is not UNSET else asked.workflow if asked else None
    given = patch.input if patch.input is not UNSET else asked.input if asked else {}
    return validation.wanted_task(task, workflow, given, problems)


def _first_task(decided: DecidedSchedules) -> Response:
    task = decided.made[0].task
    return item_response(new_task_out(task), 1, 201, f"/v1/tasks/{task.id}")


def _all_tasks(decided: DecidedSchedules) -> Response:
    ids = [made.task.id for made in decided.made]
    return json_response(wire.BackfilledOut(len(ids), ids), 201)


def _in_state(
    state: Literal["paused", "active"], schedule: StoredSchedule
) -> ScheduleChange | None:
    """Return the change to a state, from any but the end; None when it is in that state."""
    if schedule.state == state:
        return None
    if schedule.state == "ended":
        verb = "paused" if state == "paused" else "resumed"
        raise Conflict(f"a schedule that has ended cannot be {verb}")
    return replace(ScheduleChange.of(schedule), state=state)


def _as_replaced(old: StoredSchedule, wanted: _Wanted) -> StoredSchedule:
    """Return the schedule as it would read after the change."""
    definition = wanted.checked.definition
    after = max(old.now, old.decided_to)
    return replace(
        old,
        name=wanted.name,
        definition_bytes=encode_json(definition),
        template_bytes=encode_json(wanted.template),
        holidays=list(wanted.checked.holidays),
        decided_to=after,
        next=wanted.checked.timetable.next(after),
    )


def _name_taken(name: str) -> Conflict:
    return Conflict(f"there is a schedule {name!r} already")


def _fire_times(table: Timetable, first: float, last: float) -> list[float]:
    """Return the times to backfill, limited in number and in the time to compute them."""
    deadline = monotonic() + _BACKFILL_TIMEOUT
    chosen: list[float] = []
    at = table.next_run(first - 1e-6)
    while at is not None and at <= last:
        chosen.append(at)
        if len(chosen) > MOST_BACKFILLED or monotonic() > deadline:
            detail = f"more than {MOST_BACKFILLED} occurrences, or too much to work out at once"
            raise InvalidRequest("the range is too long", [Problem("/to", detail)])
        at = table.next_run(at)
    return chosen
