"""RRULE (RFC 5545) over a wall clock.

A rule is read a day at a time: which days match is looked up for the kind of the year, and which
seconds of a day is a number with a bit for each (`rrule_days`). An answer takes some thousand days
at most, of a few microseconds each, whatever the rule says: no rule takes long.
"""

import re
from bisect import bisect_left, bisect_right
from calendar import isleap, monthrange
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import IntEnum
from functools import lru_cache
from itertools import islice
from typing import TypeVar

from mainspring.domain.schedules.rrule_days import (
    DAY,
    KINDS,
    DayParts,
    TimesOfDay,
    bits,
    kind_of,
    lowest,
    matching_days,
    nth,
    places,
    recurring,
)
from mainspring.domain.schedules.zones import zone

T = TypeVar("T")

_KNOWN = {
    *("FREQ", "INTERVAL", "COUNT", "UNTIL", "WKST", "BYSECOND", "BYMINUTE", "BYHOUR", "BYDAY"),
    *("BYMONTHDAY", "BYYEARDAY", "BYWEEKNO", "BYMONTH", "BYSETPOS"),
}
_WEEKDAYS = {name: number for number, name in enumerate(("MO", "TU", "WE", "TH", "FR", "SA", "SU"))}
_MOST_COUNT = 10_000
_LONGEST = 1000
_HORIZON = 45
"""Years after which a next time is looked for no more (see `recurrence.SEARCH_SECONDS`)."""
_COUNTED_YEARS = 200
"""Years after which COUNT no longer matters: nobody lives to see the end of it."""
_MOST_DAYS = 366 * _HORIZON
"""Days of which the times are worked out for one answer, and twice as many for COUNT."""
_FEW = 64
"""Maximum steps of a day that are looked at one by one; more are computed at once."""
_MOST_KNOWN = 5000
_LAST_DAY = date(9999, 12, 30).toordinal()
_INSTANT = timedelta(seconds=1)
_UNTIL = re.compile(r"(\d{8})(?:T(\d{6})(Z?))?")
_NUMBER = re.compile(r"[+-]?[0-9]{1,7}")
_WEEKDAY = re.compile(r"([+-]?[0-9]{1,2})?(MO|TU|WE|TH|FR|SA|SU)")


class RuleError(ValueError):
    """The rule makes no sense, or never matches; the message says why."""


class RuleNeverFires(RuleError):
    """It can be read, but nothing matches."""


class Freq(IntEnum):
    """How long a period is, the longest first."""

    YEARLY = 0
    MONTHLY = 1
    WEEKLY = 2
    DAILY = 3
    HOURLY = 4
    MINUTELY = 5
    SECONDLY = 6


_ZERO = TimesOfDay((0,), (0,), (0,))
_MOST_DAYS_OF = {Freq.YEARLY: 366, Freq.MONTHLY: 31, Freq.WEEKLY: 7}
_UNITS = {Freq.HOURLY: 3600, Freq.MINUTELY: 60, Freq.SECONDLY: 1}


@dataclass(frozen=True, slots=True)
class _Parts:
    """What a rule says, and what its beginning implies."""

    freq: Freq
    interval: int
    days: DayParts
    clock: TimesOfDay
    positions: frozenset[int]
    every_hour: bool


class _Times:
    """The times of each day, as bits of a number, before BYSETPOS of periods beyond a day."""

    def __init__(self, parts: _Parts, begin: datetime) -> None:
        self._unit = _UNITS.get(parts.freq, 0)
        self._every = self._unit * parts.interval
        self._begin = begin.toordinal() * DAY + _second(begin)
        self._begin -= self._begin % (self._unit or 1)
        self.all = _chosen_times(parts)
        self._steps = 0
        if 0 < self._every <= DAY // _FEW:
            self._steps = recurring(self._unit, self._every)
        self._empty: set[int] = set()
        """Where the steps of a day begin if none of them meets a time."""

    def of(self, ordinal: int) -> int:
        """Return the times of a day."""
        if self._every <= self._unit:
            return self.all
        first = (self._begin - ordinal * DAY) % self._every
        if first in self._empty:
            return 0
        if self._steps:
            found = (self._steps << first) & self.all
        else:
            stretch = (1 << self._unit) - 1
            starts = range(first, DAY, self._every)
            found = sum(((self.all >> start) & stretch) << start for start in starts)
        if not found and len(self._empty) < _MOST_KNOWN:
            self._empty.add(first)
        return found


class Rule:
    """A rule with its beginning, with the same methods as `cron.Cron`."""

    seconds_at_once = 2 * 366 * 86400.0
    """Seconds of which the times can be counted at once."""

    def __init__(
        self, parts: _Parts, begin: datetime, until: datetime | None, counted: int | None
    ) -> None:
        self._parts = parts
        self._begin = begin
        self._until = until
        self._first = begin.toordinal()
        self._week = self._first - (begin.weekday() - parts.days.week_start) % 7
        self._month = 12 * begin.year + begin.month
        self._times = _Times(parts, begin)
        self._positions = parts.positions if parts.freq < Freq.DAILY else frozenset[int]()
        """Of periods longer than a day; `_Times` applies those of shorter ones."""
        self._last_day: tuple[int, int] | None = None
        self._last_period: tuple[int, dict[int, int]] | None = None
        self._asked: tuple[datetime, datetime] | None = None
        """The last question and its answer: between the two every question has the same answer."""
        self.every_hour = parts.every_hour
        if not any(matching_days(parts.days, kind) for kind in KINDS):
            raise RuleNeverFires("never fires: no day of any year matches")
        if not self._times.all or not self._can_choose():
            raise RuleNeverFires("never fires: no period has so many times as BYSETPOS asks for")
        if self.next(begin - _INSTANT) is None:
            raise RuleNeverFires("never fires")
        if counted is not None:
            self._until = self._last_counted(counted)

    def next(self, after: datetime) -> datetime | None:
        if self._until is not None and after >= self._until:
            return None
        asked = self._asked  # once: previews ask in threads of their own
        if asked is not None and asked[0] <= after < asked[1]:
            return self._within(asked[1])
        near = max(after, self._begin - _INSTANT)
        for ordinal, seconds in self._after(near, _HORIZON):
            found = _wall(ordinal, lowest(seconds))
            self._asked = (after, found)
            return self._within(found)
        return None

    def _can_choose(self) -> bool:
        """Whether a period can have as many times as BYSETPOS counts up to."""
        most = _MOST_DAYS_OF.get(self._parts.freq, 0) * self._times.all.bit_count()
        return not self._positions or any(abs(place) <= most for place in self._positions)

    def _within(self, wall: datetime) -> datetime | None:
        return None if self._until is not None and wall > self._until else wall

    def count(self, after: datetime, until: datetime) -> int:
        """Return how many lie in (after, until]."""
        return sum(seconds.bit_count() for _, seconds in self._between(after, until))

    def recent(self, after: datetime, until: datetime, most: int) -> list[datetime]:
        """The last of (after, until], at most that many, in order."""
        found: list[datetime] = []
        for ordinal, seconds in self._between(after, until, backwards=True):
            left = seconds
            while left and len(found) < most:
                last = left.bit_length() - 1
                found.append(_wall(ordinal, last))
                left ^= 1 << last
            if len(found) >= most:
                break
        return found[::-1]

    def _after(
        self, near: datetime, years: int, most: int = _MOST_DAYS
    ) -> Iterator[tuple[int, int]]:
        """The days with times after that one, and these times."""
        first, cut = near.toordinal(), _second(near) + 1
        days = self._days(first, min(first + 366 * years, _LAST_DAY))
        for ordinal in islice(days, most):
            seconds = self._seconds(ordinal)
            if ordinal == first:
                seconds = seconds >> cut << cut
            if seconds:
                yield ordinal, seconds

    def _between(
        self, after: datetime, until: datetime, *, backwards: bool = False
    ) -> Iterator[tuple[int, int]]:
        """The days of (after, until] that have times, and these times."""
        after = max(after, self._begin - _INSTANT)
        until = until if self._until is None else min(until, self._until)
        if until <= after:
            return
        first, last = after.toordinal(), min(until.toordinal(), _LAST_DAY)
        for ordinal in self._days(first, last, backwards=backwards):
            seconds = self._seconds(ordinal)
            if ordinal == first:
                cut = _second(after) + 1
                seconds = seconds >> cut << cut
            if ordinal == until.toordinal():
                seconds &= (2 << _second(until)) - 1
            if seconds:
                yield ordinal, seconds

    def _days(self, first: int, last: int, *, backwards: bool = False) -> Iterator[int]:
        """The ordinals of days that match, from the first to the last of them."""
        last = min(last, date.max.toordinal())
        years = range(date.fromordinal(first).year, date.fromordinal(last).year + 1)
        yearly, interval = self._parts.freq is Freq.YEARLY, self._parts.interval
        for year in reversed(years) if backwards else years:
            if yearly and (year - self._begin.year) % interval:
                continue
            start = date(year, 1, 1).toordinal()
            days = matching_days(self._parts.days, kind_of(year))
            days = days[bisect_left(days, first - start) : bisect_right(days, last - start)]
            for day in reversed(days) if backwards else days:
                if self._in_step(start + day):
                    yield start + day

    def _in_step(self, ordinal: int) -> bool:
        """Whether the period of a day is one that the interval reaches."""
        freq, interval = self._parts.freq, self._parts.interval
        if interval == 1:
            return True
        if freq is Freq.DAILY:
            return (ordinal - self._first) % interval == 0
        if freq is Freq.WEEKLY:
            return (ordinal - self._week) // 7 % interval == 0
        if freq is Freq.MONTHLY:
            day = date.fromordinal(ordinal)
            return (12 * day.year + day.month - self._month) % interval == 0
        return True  # years are left out as a whole; hours and less are steps within the day

    def _seconds(self, ordinal: int) -> int:
        """The times of a day that matches."""
        known = self._last_day
        if known is None or known[0] != ordinal:
            seconds = self._chosen(ordinal) if self._positions else self._times.of(ordinal)
            known = self._last_day = (ordinal, seconds)
        return known[1]

    def _chosen(self, ordinal: int) -> int:
        """Those of a day's times that BYSETPOS chooses among all of its period."""
        first, following = self._period(ordinal)
        known = self._last_period
        if known is None or known[0] != first:
            days, each = list(self._days(first, following - 1)), self._parts.clock.size
            chosen: dict[int, int] = {}
            for place in places(len(days) * each, self._positions):
                day = days[place // each]
                chosen[day] = chosen.get(day, 0) | 1 << self._parts.clock.time(place % each)
            known = self._last_period = (first, chosen)
        return known[1].get(ordinal, 0)

    def _period(self, ordinal: int) -> tuple[int, int]:
        """The first day of the year, month or week of that one, and the first after it."""
        if self._parts.freq is Freq.WEEKLY:
            first = ordinal - (ordinal - self._week) % 7
            return first, first + 7
        day = date.fromordinal(ordinal)
        if self._parts.freq is Freq.MONTHLY:
            first = ordinal - day.day + 1
            return first, first + monthrange(day.year, day.month)[1]
        first = date(day.year, 1, 1).toordinal()
        return first, first + 365 + isleap(day.year)

    def _last_counted(self, counted: int) -> datetime | None:
        """The time that COUNT ends with; None when that is too far away to matter."""
        begin, left = self._begin - _INSTANT, counted
        for ordinal, seconds in self._after(begin, _COUNTED_YEARS, 2 * _MOST_DAYS):
            size = seconds.bit_count()
            if size >= left:
                return _wall(ordinal, nth(seconds, left - 1))
            left -= size
        return None


@lru_cache(1024)
def parse(text: str, begin: datetime, zone_name: str) -> Rule:
    """Read a rule that begins at a wall time; RuleError when it makes no sense or never matches."""
    if len(text) > _LONGEST or "\n" in text:
        raise RuleError("is not one line of a rule")
    given: dict[str, str] = {}
    for part in text.strip().upper().removeprefix("RRULE:").split(";"):
        name, equals, value = part.partition("=")
        if not equals or name not in _KNOWN:
            raise RuleError(f"{part[:40]} is not a part of a rule")
        if given.setdefault(name, value) != value:
            raise RuleError(f"{name} is given twice")
    if "FREQ" not in given:
        raise RuleError("FREQ is missing")
    if "COUNT" in given and "UNTIL" in given:
        raise RuleError("COUNT and UNTIL cannot be given together")
    until = _until(given["UNTIL"], zone_name) if "UNTIL" in given else None
    counted = _single("COUNT", given["COUNT"], _MOST_COUNT) if "COUNT" in given else None
    begin = begin.replace(microsecond=0)
    return Rule(_parts(given, begin), begin, until, counted)


# Reading ----------------------------------------------------------------------------------------


def _parts(given: dict[str, str], begin: datetime) -> _Parts:
    freq = _named("FREQ", given["FREQ"], Freq.__members__)
    return _Parts(
        freq,
        _single("INTERVAL", given.get("INTERVAL", "1"), 10**6),
        _day_parts(given, freq, begin),
        TimesOfDay(
            _clock("BYHOUR", given, 24, begin.hour if freq < Freq.HOURLY else None),
            _clock("BYMINUTE", given, 60, begin.minute if freq < Freq.MINUTELY else None),
            _clock("BYSECOND", given, 60, begin.second if freq < Freq.SECONDLY else None),
        ),
        frozenset(_numbers("BYSETPOS", given, range(-366, 367))),
        freq >= Freq.HOURLY and "BYHOUR" not in given,
    )


def _day_parts(given: dict[str, str], freq: Freq, begin: datetime) -> DayParts:
    """Return the parts that choose days; numbers that no month, week or year has are allowed."""
    anywhere = range(-(10**7), 10**7)
    months = _numbers("BYMONTH", given, anywhere)
    month_days = _numbers("BYMONTHDAY", given, anywhere)
    year_days = _numbers("BYYEARDAY", given, anywhere)
    weeks = _numbers("BYWEEKNO", given, anywhere)
    weekdays, nth_weekdays = _weekdays(given, freq)
    if not any((month_days, year_days, weeks, weekdays, nth_weekdays)):
        if freq is Freq.YEARLY and not months:
            months = [begin.month]
        if freq <= Freq.MONTHLY:
            month_days = [begin.day]
        elif freq is Freq.WEEKLY:
            weekdays = {begin.weekday()}
    return DayParts(
        months=frozenset(months),
        month_days=frozenset(month_days),
        year_days=frozenset(year_days),
        weeks=frozenset(weeks),
        weekdays=frozenset(weekdays),
        nth_weekdays=frozenset(nth_weekdays),
        nth_of_year=freq is Freq.YEARLY and not months,
        week_start=_named("WKST", given.get("WKST", "MO"), _WEEKDAYS),
    )


def _weekdays(given: dict[str, str], freq: Freq) -> tuple[set[int], set[tuple[int, int]]]:
    plain: set[int] = set()
    numbered: set[tuple[int, int]] = set()
    for item in given["BYDAY"].split(",") if "BYDAY" in given else ():
        match = _WEEKDAY.fullmatch(item)
        if match is None or (match[1] is not None and int(match[1]) == 0):
            raise RuleError(f"BYDAY: {item[:40]} is not a weekday")
        if match[1] is None or freq > Freq.MONTHLY:
            plain.add(_WEEKDAYS[match[2]])
        else:
            numbered.add((int(match[1]), _WEEKDAYS[match[2]]))
    return plain, numbered


def _clock(name: str, given: dict[str, str], end: int, implied: int | None) -> Sequence[int]:
    if name in given:
        return sorted(set(_numbers(name, given, range(end), zero=True)))
    return range(end) if implied is None else (implied,)


def _numbers(name: str, given: dict[str, str], bounds: range, *, zero: bool = False) -> list[int]:
    if name not in given:
        return []
    items = given[name].split(",")
    for item in items:
        if not _NUMBER.fullmatch(item) or int(item) not in bounds or not (zero or int(item)):
            raise RuleError(f"{name}: {item[:40]} is not understood")
    return [int(item) for item in items]


def _single(name: str, text: str, most: int) -> int:
    if not _NUMBER.fullmatch(text) or not 1 <= int(text) <= most:
        raise RuleError(f"{name} is not between 1 and {most}")
    return int(text)


def _named(name: str, text: str, names: Mapping[str, T]) -> T:
    if text not in names:
        raise RuleError(f"{name}={text[:40]} is not understood")
    return names[text]


def _until(text: str, zone_name: str) -> datetime:
    match = _UNTIL.fullmatch(text)
    if match is None:
        raise RuleError(f"UNTIL={text[:40]} is not a date or time")
    try:
        wall = datetime.strptime(match[1] + (match[2] or "235959"), "%Y%m%d%H%M%S")
    except ValueError:
        raise RuleError(f"UNTIL={text[:40]} is not a date or time") from None
    try:
        return zone(zone_name).wall(wall.replace(tzinfo=UTC).timestamp()) if match[3] else wall
    except OverflowError:  # at an end of the calendar, where hours do not matter
        return wall


def _chosen_times(parts: _Parts) -> int:
    """Return the times of any day that BYSETPOS leaves in its day, hour, minute or second."""
    if not parts.positions or parts.freq < Freq.DAILY:
        return parts.clock.day
    shared = parts.freq - Freq.DAILY  # of hour, minute and second
    starts = TimesOfDay(*parts.clock[:shared], *_ZERO[shared:])
    period = TimesOfDay(*_ZERO[:shared], *parts.clock[shared:])
    chosen = bits(period.time(place) for place in places(period.size, parts.positions))
    return chosen * starts.day  # a copy at each start: they do not overlap


def _second(wall: datetime) -> int:
    return 3600 * wall.hour + 60 * wall.minute + wall.second


def _wall(ordinal: int, second: int) -> datetime:
    return datetime.fromordinal(ordinal) + timedelta(seconds=second)
