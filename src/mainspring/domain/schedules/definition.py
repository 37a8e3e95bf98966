"""A schedule: the definition of something that recurs, and its timetable.

The timetable answers when: the next nominal time, and what has become due since the last decision,
in bulk. What is then done about it is decided in `misfire`.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from functools import lru_cache
from hashlib import sha256
from itertools import pairwise
from typing import NamedTuple
from uuid import UUID

from mainspring.domain.schedules import cron, rrule
from mainspring.domain.schedules.policies import Misfire, OverlapPolicy
from mainspring.domain.schedules.recurrence import (
    SEARCH_SECONDS,
    Interval,
    Recurrence,
    ZonedRecurrence,
)
from mainspring.domain.schedules.zones import DstPolicy, zone

INSTANT = 1e-6
"""The smallest difference between two stored times."""
EXCLUDED_AHEAD = 3600.0
"""Seconds of an excluded day that are decided at once: an edit counts within the hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleDefinition:
    """What a user asked for, checked. Times are seconds since the epoch."""

    timezone: str = "UTC"
    cron: str | None = None
    interval: float | None = None
    rrule: str | None = None
    anchor: float = 0.0
    """Where intervals and rules are counted from: start_at, or else the time of creation."""
    start_at: float | None = None
    end_at: float | None = None
    max_runs: int | None = None
    jitter: float = 0.0
    spread: float = 0.0
    misfire: Misfire = field(default_factory=Misfire)
    overlap: OverlapPolicy = "skip"
    max_running: int = 1
    dst: DstPolicy = field(default_factory=DstPolicy)
    exclude: tuple[str, ...] = ()
    calendars: tuple[str, ...] = ()
    stop_on_410: bool = False


class Span(NamedTuple):
    """Some occurrences in a row: the first, the last, and how many."""

    first: float
    last: float
    size: int


class Backlog(NamedTuple):
    """Occurrences that became due since the last decision, in order: the older ones in bulk."""

    excluded: Sequence[Span]
    older: Sequence[Span]
    recent: Sequence[float]
    until: float
    """Everything up to here is in it."""


@lru_cache(8192)
def recurrence_of(definition: ScheduleDefinition) -> Recurrence:
    """Return the recurrence of a definition, without its bounds."""
    if definition.interval is not None:
        return Interval(round(definition.anchor * 1e6), round(definition.interval * 1e6))
    where = zone(definition.timezone)
    if definition.cron is not None:
        return ZonedRecurrence(cron.parse(definition.cron), where, definition.dst)
    assert definition.rrule is not None, "one of cron, interval and rrule is given"
    rule = rrule.parse(definition.rrule, where.wall(definition.anchor), definition.timezone)
    return ZonedRecurrence(rule, where, definition.dst)


@lru_cache(8192)
def timetable(definition: ScheduleDefinition, holidays: tuple[str, ...] = ()) -> "Timetable":
    """Return the timetable of a definition; `holidays` are the dates of its calendars."""
    days = sorted({date.fromisoformat(day) for day in (*definition.exclude, *holidays)})
    return Timetable(definition, days)


class Timetable:
    """When a schedule is due. Nominal times strictly rise."""

    def __init__(self, definition: ScheduleDefinition, excluded: Sequence[date]) -> None:
        self._series = recurrence_of(definition)
        self._zone = zone(definition.timezone)
        self._excluded = excluded
        self._excluded_days = frozenset(excluded)
        self._first = definition.start_at if definition.start_at is not None else float("-inf")
        self._last = definition.end_at if definition.end_at is not None else float("inf")

    def next(self, after: float) -> float | None:
        """The first nominal time after that instant, excluded or not."""
        found = self._series.next(max(after, self._first - INSTANT))
        return None if found is None or found > self._last else found

    def next_run(self, after: float) -> float | None:
        """The first nominal time after that instant that is not excluded."""
        found = self.next(after)
        while found is not None and self.excludes(found):
            following = self._zone.day(found) + timedelta(1)
            found = self.next(self._zone.start_of(following) - INSTANT)
        return found

    def upcoming(self, after: float, most: int) -> list[float]:
        """The next nominal times that are not excluded, as far ahead as one is looked for."""
        times: list[float] = []
        at = self.next_run(after)
        end = max(after, self._first) + SEARCH_SECONDS
        while at is not None and at <= end and len(times) < most:
            times.append(at)
            at = self.next_run(at)
        return times

    def excludes(self, nominal: float) -> bool:
        return bool(self._excluded) and self._zone.day(nominal) in self._excluded_days

    def backlog(self, after: float, until: float, *, most: int, cut: float) -> Backlog:
        """Return what is due in (after, until]: the last ones one by one, those before in spans,
        none of which lies on both sides of `cut`. An excluded day is looked at a little ahead; what
        is slow to count is counted in stretches, `until` says how far."""
        until = min(until, self._series.reach(max(after, self._first - INSTANT)))
        if self.excludes(until):
            end = self._zone.start_of(self._zone.day(until) + timedelta(1)) - INSTANT
            until = min(end, until + EXCLUDED_AHEAD)
        low, high = max(after, self._first - INSTANT), min(until, self._last)
        excluded: list[Span] = []
        older: list[Span] = []
        recent: list[float] = []
        for start, end, out in reversed(list(self._pieces(low, high, cut))):
            total = self._series.count(start, end)
            if total == 0:
                continue
            taken = [] if out else self._series.recent(start, end, most - len(recent))
            recent[:0] = taken
            if total > len(taken):
                last = taken[0] - INSTANT if taken else end
                span = self._span(start, last, total - len(taken))
                (excluded if out else older).insert(0, span)
        return Backlog(excluded, older, recent, until)

    def _span(self, start: float, end: float, size: int) -> Span:
        first = self._series.next(start)
        assert first is not None, "what was counted is there"
        return Span(first, self._series.recent(start, end, 1)[0], size)

    def _pieces(
        self, after: float, until: float, cut: float
    ) -> Iterator[tuple[float, float, bool]]:
        """(after, until] in pieces that are excluded or not as a whole."""
        if after >= until:
            return
        borders = [cut]
        first = bisect_left(self._excluded, self._zone.day(after))
        for day in self._excluded[first : bisect_right(self._excluded, self._zone.day(until))]:
            borders += (self._zone.start_of(day), self._zone.start_of(day + timedelta(1)))
        # What is due at a border belongs to the piece that begins there.
        edges = {edge for border in borders if after < (edge := border - INSTANT) < until}
        for start, end in pairwise(sorted({after, until} | edges)):
            yield start, end, self.excludes(end)


def spread_of(schedule_id: UUID, spread: float) -> float:
    """Return a schedule's share of the spread: always the same, and even over many schedules."""
    if spread <= 0:
        return 0.0
    share = int.from_bytes(sha256(schedule_id.bytes).digest()[:6], "big") / 2**48
    return round(share * spread, 3)
