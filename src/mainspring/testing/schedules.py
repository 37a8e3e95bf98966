"""Schedules in virtual time: the same rules as on a server, over definitions in memory."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from mainspring.clock import utc
from mainspring.domain.schedules import misfire
from mainspring.domain.schedules.definition import (
    ScheduleDefinition,
    spread_of,
    timetable,
)
from mainspring.domain.schedules.misfire import BacklogDecision
from mainspring.domain.schedules.policies import Misfire
from mainspring.domain.schedules.template import Values, expand
from mainspring.domain.schedules.zones import DstPolicy
from mainspring.errors import Conflict, InvalidRequest, NotFound, Problem
from mainspring.testing.tasks import in_seconds

_PLAIN = (
    *("cron", "interval", "rrule", "timezone", "max_runs", "jitter", "spread"),
    *("overlap", "max_running", "stop_on_410"),
)


@dataclass
class VirtualSchedule:
    """A schedule and where it stands."""

    id: UUID
    body: dict[str, Any]
    definition: ScheduleDefinition
    made: float
    decided_to: float
    next: float | None
    runs: int = 0

    @property
    def name(self) -> str:
        return str(self.body["name"])

    @property
    def offset(self) -> float:
        return spread_of(self.id, self.definition.spread)

    def shown(self) -> dict[str, Any]:
        """Return it as the API shows it."""
        return {
            **self.body,
            "id": self.id,
            "state": "ended" if self.next is None else "active",
            "runs": self.runs,
            "next_run_at": None if self.next is None else utc(self.next),
            "created_at": utc(self.made),
            "updated_at": utc(self.made),
        }

    def decide(self, now: float, unfinished: int) -> BacklogDecision:
        """Return what becomes of what is due, by the rules of `domain/schedules/misfire.py`."""
        assert self.next is not None
        verdict, self.decided_to, self.next = misfire.decide_due(
            self.definition,
            timetable(self.definition),
            first=self.next,
            decided_to=self.decided_to,
            now=now - self.offset,
            unfinished=unfinished,
            runs=self.runs,
        )
        self.runs += len(verdict.fired)
        return verdict

    def payload_at(self, nominal: float, number: int) -> bytes:
        payload = msgspec.json.encode(self.body["task"].get("payload", {}))
        at = utc(nominal).isoformat().replace("+00:00", "Z")
        values: Values = {"scheduled_at": at, "occurrence": number, "schedule_id": str(self.id)}
        return expand(payload, values)


class VirtualSchedules:
    """All schedules of a virtual world, and the routes that make them."""

    def __init__(
        self, now: Callable[[], float], make_id: Callable[[], UUID], changed: Callable[[], None]
    ) -> None:
        self._now = now
        self._make_id = make_id
        self._changed = changed
        self.found: dict[UUID, VirtualSchedule] = {}

    def next_at(self) -> float | None:
        """Return when the next schedule is due."""
        times = [s.next + s.offset for s in self.found.values() if s.next]
        return min(times, default=None)

    def due(self, now: float) -> list[VirtualSchedule]:
        return [
            schedule
            for schedule in self.found.values()
            if schedule.next is not None and schedule.next + schedule.offset <= now
        ]

    # Routes ----------------------------------------------------------------------------------

    def create(self, body: dict[str, Any], _key: str | None) -> tuple[int, object]:
        if any(schedule.name == body["name"] for schedule in self.found.values()):
            raise Conflict(f"there is a schedule {body['name']!r} already")
        made = self._built(self._make_id(), body)
        self.found[made.id] = made
        self._changed()
        return 201, made.shown()

    def page(self, query: Mapping[str, str]) -> tuple[int, object]:
        name = query.get("name")
        items = [s.shown() for s in self.found.values() if name is None or s.name == name]
        return 200, {"items": items, "next_cursor": None}

    def one(self, schedule_id: str, _query: Mapping[str, str]) -> tuple[int, object]:
        return 200, self._existing(schedule_id).shown()

    def replace(self, schedule_id: str, body: dict[str, Any]) -> tuple[int, object]:
        old = self._existing(schedule_id)
        new = self._built(old.id, body)
        new.runs = old.runs
        self.found[old.id] = new
        self._changed()
        return 200, new.shown()

    def delete(self, schedule_id: str) -> tuple[int, object]:
        del self.found[self._existing(schedule_id).id]
        return 204, None

    def _existing(self, schedule_id: str) -> VirtualSchedule:
        found = self.found.get(UUID(schedule_id))
        if found is None:
            raise NotFound(f"there is no schedule {schedule_id!r}")
        return found

    def _built(self, schedule_id: UUID, body: dict[str, Any]) -> VirtualSchedule:
        now = self._now()
        try:
            body = in_seconds(body)
            definition = _definition(body, now)
            following = timetable(definition).next(now)
        except ValueError as problem:
            where = next((name for name in ("cron", "rrule") if name in body), "timezone")
            detail = "the schedule does not make sense"
            raise InvalidRequest(detail, [Problem(f"/{where}", str(problem))]) from None
        return VirtualSchedule(schedule_id, body, definition, now, now, following)


def _definition(body: Mapping[str, Any], now: float) -> ScheduleDefinition:
    given: dict[str, Any] = {name: body[name] for name in _PLAIN if body.get(name) is not None}
    times: dict[str, Any] = {
        name: datetime.fromisoformat(body[name]).timestamp()
        for name in ("start_at", "end_at")
        if body.get(name) is not None
    }
    if sum(body.get(kind) is not None for kind in ("cron", "interval", "rrule")) != 1:
        raise ValueError("exactly one of cron, interval and rrule has to be given")
    return ScheduleDefinition(
        **given,
        **times,
        anchor=times.get("start_at", now),
        misfire=Misfire(**body.get("misfire", {})),
        dst=DstPolicy(**body.get("dst", {})),
        exclude=tuple(str(day) for day in body.get("exclude", ())),
    )
