"""Schedules as callers read them."""

import msgspec
from msgspec import UNSET, Raw, Struct

from mainspring.api.tasks.views import target_out, task_view
from mainspring.api.views import instant, instant_or_none, view
from mainspring.domain.schedules.definition import Timetable
from mainspring.domain.schedules.description import describe
from mainspring.domain.task import RUN_WORKFLOW
from mainspring.store.schedules.schedules import StoredSchedule, Template
from mainspring.wire import schedules as wire

_MOST_COMPARED = 100


def schedule_out(schedule: StoredSchedule, overdue_after: float) -> wire.ScheduleOut:
    """Return the view of a stored schedule."""
    definition = schedule.definition
    asked = requested_run(schedule.template)
    following = None
    if schedule.state == "active" and schedule.next is not None:
        following = schedule.timetable.next_run(max(schedule.decided_to, schedule.next - 1e-6))
    return view(
        wire.ScheduleOut, schedule, definition,
        start_at=instant_or_none(definition.start_at),
        end_at=instant_or_none(definition.end_at),
        dst=view(wire.DstIn, definition.dst),
        task=None if asked else _template_out(schedule.template),
        workflow=asked.workflow if asked else None,
        input=asked.input if asked else None,
        description=describe(definition),
        next_run_at=instant_or_none(following),
        next_due_at=instant_or_none(None if following is None else following + schedule.offset),
        last_run_at=instant_or_none(schedule.last),
        overdue=schedule.overdue > overdue_after,
        fire_times=UNSET,
    )  # fmt: skip


class RequestedRun(Struct):
    """The payload of a task that runs a workflow."""

    workflow: str
    input: dict[str, Raw]


def requested_run(template: Template) -> RequestedRun | None:
    """Return the workflow run that a schedule makes in place of a task, if it does."""
    if template.capability != f"handler:{RUN_WORKFLOW}":
        return None
    try:
        return msgspec.json.decode(template.payload, type=RequestedRun)
    except msgspec.MsgspecError:
        return None


def compare_fire_times(old: Timetable | None, new: Timetable | None, now: float) -> wire.FireTimes:
    """Return how the next fire times differ, up to the last time that both show."""
    before = old.upcoming(now, _MOST_COMPARED) if old else []
    after = new.upcoming(now, _MOST_COMPARED) if new else []
    full = [times[-1] for times in (before, after) if len(times) == _MOST_COMPARED]
    horizon = min(full, default=float("inf"))
    was, will = ({t for t in times if t <= horizon} for times in (before, after))
    return wire.FireTimes(
        [instant(t) for t in sorted(will - was)],
        [instant(t) for t in sorted(was - will)],
        len(was & will),
    )


def _template_out(template: Template) -> wire.TemplateOut:
    spec = template.decoded_spec
    payload = Raw(bytes(template.payload))
    target = target_out(spec.target)
    return task_view(wire.TemplateOut, template, spec, target=target, payload=payload)
