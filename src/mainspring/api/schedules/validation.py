"""Validation of schedules: the rules that join fields, and the definition and template made."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from math import floor

import msgspec
from msgspec import UNSET

from mainspring.api.http.payloads import payload_problems
from mainspring.api.tasks.validation import TaskValidator, queueing, seconds_of
from mainspring.api.views import instant_or_none, view
from mainspring.domain.schedules import cron, rrule
from mainspring.domain.schedules.definition import ScheduleDefinition, Timetable, timetable
from mainspring.domain.schedules.policies import Misfire
from mainspring.domain.schedules.zones import DstPolicy, UnknownZone, zone
from mainspring.domain.task import RUN_WORKFLOW
from mainspring.errors import Problem
from mainspring.store.schedules.calendars import CalendarStore
from mainspring.store.schedules.schedules import Template
from mainspring.store.workflows.workflows import WorkflowStore
from mainspring.wire.schedules import WINDOWS, DstIn, MisfireIn, SchedulePatch, TemplateIn, TimingIn
from mainspring.wire.tasks import DAY, JITTERS, HandlerTarget, RetryIn

_KINDS = ("cron", "interval", "rrule")
_NO_KIND = "one of cron, interval and rrule is needed"
_NO_TASK = "one of task and workflow is needed"
_NEEDED = {_NO_KIND: ("/cron", "/interval", "/rrule"), _NO_TASK: ("/task", "/workflow")}
INTERVALS = (1.0, 3660 * 86400.0)
"""The shortest and the longest interval, in seconds."""

_LAST_YEAR = 9000
_SLOW_RULES = asyncio.Semaphore(2)


@dataclass(frozen=True, slots=True)
class Checked:
    """A valid definition, with the dates of its calendars."""

    definition: ScheduleDefinition
    holidays: tuple[str, ...]

    @property
    def timetable(self) -> Timetable:
        return timetable(self.definition, self.holidays)


@dataclass(frozen=True, slots=True)
class ScheduleValidator:
    """The rules of schedules; everything that is wrong is reported together."""

    tasks: TaskValidator
    calendars: CalendarStore
    workflows: WorkflowStore
    max_payload: int

    async def timing(
        self,
        tenant_id: int,
        wanted: TimingIn,
        now: float,
        problems: list[Problem],
        *,
        anchor: float | None = None,
    ) -> Checked | None:
        """Return what the fields mean together; None when they are wrong."""
        found = await self.calendars.dates(tenant_id, wanted.calendars)
        problems += [
            Problem(f"/calendars/{index}", f"there is no calendar {name!r}")
            for index, name in enumerate(wanted.calendars)
            if name not in found
        ]
        definition = await _define(wanted, now, anchor, problems)
        return None if definition is None else Checked(definition, _holidays(found))

    async def workflow(self, tenant_id: int, name: str | None) -> list[Problem]:
        """Return the problem of the workflow that a schedule names, if it names one."""
        if name is None or await self.workflows.has(tenant_id, name):
            return []
        return [Problem("/workflow", f"there is no workflow {name!r}")]

    def template(
        self, wanted: TemplateIn, definition: ScheduleDefinition | None, problems: list[Problem]
    ) -> Template:
        """Return the task to make, compiled once for all occurrences."""
        spec = self.tasks.compile_timeless(wanted, wanted.target)
        payload = bytes(wanted.payload)
        found = [*spec.problems, *payload_problems(payload, self.max_payload)]
        problems += [p.at("/task" + p.pointer) for p in found]
        if wanted.concurrency is not None and definition is not None:
            problems += key_problems(definition)
        encoded = msgspec.Raw(spec.encoded)
        return Template(encoded, msgspec.Raw(payload), spec.capability, *queueing(wanted))


def wanted_task(
    task: TemplateIn | None,
    workflow: str | None,
    given: dict[str, msgspec.Raw],
    problems: list[Problem],
) -> TemplateIn:
    """Return the task to make: the one given, or one that runs a workflow to its end."""
    if task is not None:
        if workflow is not None:
            problems.append(Problem("/workflow", "cannot be given together with task"))
        return task
    if workflow is None:
        problems.append(Problem("/task", _NO_TASK))
    payload = msgspec.json.encode({"workflow": workflow or "", "input": given})
    return TemplateIn(
        target=HandlerTarget(RUN_WORKFLOW),
        payload=msgspec.Raw(payload),
        name=workflow,
        timeout=DAY,
        retry=RetryIn(max_attempts=1),
    )


def never_fires(checked: Checked, now: float) -> list[Problem]:
    """Return the problem of a definition that has no time left."""
    if checked.timetable.next(now) is not None:
        return []
    kind = next(name for name in _KINDS if getattr(checked.definition, name) is not None)
    pointer = f"/{kind}" if checked.definition.end_at is None else "/end_at"
    return [Problem(pointer, "never fires: no time is left")]


def merged(old: ScheduleDefinition, patch: SchedulePatch) -> TimingIn:
    """Return the fields of a schedule after a patch."""
    before = view(
        TimingIn,
        old,
        start_at=instant_or_none(old.start_at),
        end_at=instant_or_none(old.end_at),
        misfire=view(MisfireIn, old.misfire),
        dst=view(DstIn, old.dst),
        exclude=[date.fromisoformat(day) for day in old.exclude],
        calendars=list(old.calendars),
    )
    names = TimingIn.__struct_fields__
    given = {name: value for name in names if (value := getattr(patch, name)) is not UNSET}
    if not given.keys().isdisjoint(_KINDS):
        # One takes the place of another; a null alone leaves none, which is refused later.
        given = {**dict.fromkeys(_KINDS), **given}
    return msgspec.structs.replace(before, **given)


def kept_anchor(old: ScheduleDefinition, wanted: TimingIn) -> float | None:
    """Return the old anchor if interval and rule stay the same: their times must not shift."""
    same = (old.interval, old.rrule) == (_interval(wanted, []), wanted.rrule)
    return old.anchor if same else None


async def _define(
    wanted: TimingIn, now: float, anchor: float | None, problems: list[Problem]
) -> ScheduleDefinition | None:
    before = len(problems)
    given = [kind for kind in _KINDS if getattr(wanted, kind) is not None]
    if not given:
        problems.append(Problem("/cron", _NO_KIND))
    problems += [
        Problem(f"/{kind}", f"cannot be given together with {given[0]}") for kind in given[1:]
    ]
    start = wanted.start_at.timestamp() if wanted.start_at else None
    end = wanted.end_at.timestamp() if wanted.end_at else None
    problems += _time_problems(wanted)
    definition = ScheduleDefinition(
        timezone=wanted.timezone,
        cron=wanted.cron,
        interval=_interval(wanted, problems),
        rrule=wanted.rrule,
        anchor=start if start is not None else anchor if anchor is not None else float(floor(now)),
        start_at=start,
        end_at=end,
        max_runs=wanted.max_runs,
        jitter=seconds_of(wanted.jitter, "/jitter", problems, JITTERS),
        spread=seconds_of(wanted.spread, "/spread", problems, JITTERS),
        misfire=Misfire(
            wanted.misfire.policy,
            seconds_of(wanted.misfire.window, "/misfire/window", problems, WINDOWS),
            wanted.misfire.cap,
        ),
        overlap=wanted.overlap,
        max_running=wanted.max_running,
        dst=DstPolicy(wanted.dst.gap, wanted.dst.repeat),
        exclude=tuple(sorted({day.isoformat() for day in wanted.exclude})),
        calendars=tuple(dict.fromkeys(wanted.calendars)),
        stop_on_410=wanted.stop_on_410,
    )
    problems += _cron_problems(definition)
    if len(problems) == before:
        problems += await _rule_problems(definition)
    return None if len(problems) > before else definition


def _time_problems(wanted: TimingIn) -> list[Problem]:
    problems = []
    try:
        zone(wanted.timezone)
    except UnknownZone:
        problems.append(Problem("/timezone", "is not a zone of the tz database"))
    start, end = wanted.start_at, wanted.end_at
    for name, moment in (("start_at", start), ("end_at", end)):
        if moment is not None and not 1970 <= moment.year < _LAST_YEAR:
            detail = f"is out of range: the year is one of 1970 to {_LAST_YEAR - 1}"
            problems.append(Problem(f"/{name}", detail))
    if start is not None and end is not None and end < start:
        problems.append(Problem("/end_at", "is before start_at"))
    return problems


def _interval(wanted: TimingIn, problems: list[Problem]) -> float | None:
    """Return the interval in seconds; add to `problems` what is wrong with it."""
    if wanted.interval is None:
        return None
    found: list[Problem] = []
    seconds = seconds_of(wanted.interval, "/interval", found)
    if not found and not INTERVALS[0] <= seconds <= INTERVALS[1]:
        found.append(Problem("/interval", "is not between one second and ten years"))
    problems += found
    return seconds


def _cron_problems(definition: ScheduleDefinition) -> list[Problem]:
    if definition.cron is not None:
        try:
            cron.parse(definition.cron)
        except cron.CronError as error:
            return [Problem("/cron", str(error))]
    return []


async def _rule_problems(definition: ScheduleDefinition) -> list[Problem]:
    if definition.rrule is not None:
        begin = zone(definition.timezone).wall(definition.anchor)
        try:
            # A rule that matches seldom is followed for years: the others shall not wait for it,
            # nor for several of its kind at once.
            async with _SLOW_RULES:
                await asyncio.to_thread(rrule.parse, definition.rrule, begin, definition.timezone)
        except rrule.RuleError as error:
            return [Problem("/rrule", str(error))]
    return []


def key_problems(definition: ScheduleDefinition) -> list[Problem]:
    """Return the problem of a task with a concurrency key of its own: policies that make tasks wait
    need the key for the schedule's."""
    if definition.overlap not in ("queue", "cancel_running"):
        return []
    detail = f"cannot be given with overlap {definition.overlap!r}, which has a key of its own"
    return [Problem("/task/concurrency", detail)]


def _holidays(found: Mapping[str, Sequence[date]]) -> tuple[str, ...]:
    return tuple(sorted({day.isoformat() for days in found.values() for day in days}))


def follows(problem: Problem, refused: Sequence[Problem]) -> bool:
    """Whether a problem may be there only because something else could not be read."""
    return any(
        f"{one.pointer}/".startswith(f"{problem.pointer}/")
        or one.pointer in _NEEDED.get(problem.detail, ())
        for one in refused
    )
