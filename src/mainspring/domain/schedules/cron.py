"""Cron expressions, over the fields of a wall clock: no zone, no instants (see `recurrence`).

Five fields (minute hour day month weekday) or six (with seconds first), names, ranges, lists,
steps, `L`, `L-n`, `LW`, `nW`, `n#k`, `nL` and `@daily` and its like. Weekdays are 0–7, Sunday is
0 and 7. As in Vixie's cron, a day matches if the day of month *or* the weekday does, when both are
restricted; a field that begins with `*` does not restrict.

Which days of a month match depends only on its length and its first weekday: 28 cases. So days are
found by looking at a small table, and an expression that can never match is known at once.
"""

import re
from bisect import bisect_left, bisect_right
from calendar import monthrange
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from functools import lru_cache
from math import inf
from typing import ClassVar

SUNDAY = 0
LONGEST_GAP_YEARS = 41
"""29 February on one weekday comes back after 40 years at the latest, around 2100."""

_NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
MONTH_NAMES = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
WEEKDAY_NAMES = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_MONTHS = {name: number for number, name in enumerate(MONTH_NAMES, 1)}
_WEEKDAYS = {name: number for number, name in enumerate(WEEKDAY_NAMES)}
_RANGE = re.compile(
    r"(?P<first>\w+)(?:-(?P<last>\w+))?(?:/(?P<step>\d{1,3}))?|\*(?:/(?P<every>\d{1,3}))?"
)
_LONGEST = 1000


class CronError(ValueError):
    """The expression makes no sense; the message says which part of it and why."""


class CronNeverFires(CronError):
    """It can be read, but no day of any year matches."""


@dataclass(frozen=True, slots=True)
class Days:
    """Which days of a month match."""

    dates: frozenset[int] = frozenset()
    before_last: frozenset[int] = frozenset()
    last_workday: bool = False
    nearest_workday: frozenset[int] = frozenset()
    weekdays: frozenset[int] = frozenset()
    nth_weekdays: frozenset[tuple[int, int]] = frozenset()
    last_weekdays: frozenset[int] = frozenset()
    either: bool = False
    """Both fields are restricted: one match is enough."""


@dataclass(frozen=True, slots=True)
class Cron:
    """A parsed expression. Walls are naive datetimes."""

    text: str
    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    months: frozenset[int]
    days: Days
    seconds_at_once: ClassVar[float] = inf

    @property
    def per_day(self) -> int:
        return len(self.seconds) * len(self.minutes) * len(self.hours)

    @property
    def every_hour(self) -> bool:
        """It names no hour, so it means elapsed time rather than times of the day."""
        return len(self.hours) == 24

    def next(self, after: datetime) -> datetime | None:
        """The first match after that wall time; None when the calendar ends before it comes."""
        index = self._upto(after.time())
        first = after.date()
        for day in self._dates(first):
            if day != first:
                return datetime.combine(day, self._time(0))
            if index < self.per_day:
                return datetime.combine(day, self._time(index))
        return None

    def count(self, after: datetime, until: datetime) -> int:
        """Return how many matches lie in (after, until]."""
        first, last = after.date(), until.date()
        total = sum(self._count_dates(first, last)) * self.per_day
        if self._matches(first):
            total -= self._upto(after.time())
        if self._matches(last):
            total -= self.per_day - self._upto(until.time())
        return max(0, total)

    def recent(self, after: datetime, until: datetime, most: int) -> list[datetime]:
        """The last matches of (after, until], at most that many, in order."""
        found: list[datetime] = []
        day, index = until.date(), self._upto(until.time())
        while day >= after.date() and len(found) < most:
            if self._matches(day):
                while index > 0 and len(found) < most:
                    index -= 1
                    found.append(datetime.combine(day, self._time(index)))
            day, index = day - timedelta(1), self.per_day
        return [wall for wall in reversed(found) if wall > after]

    def _time(self, index: int) -> time:
        rest, second = divmod(index, len(self.seconds))
        hour, minute = divmod(rest, len(self.minutes))
        return time(self.hours[hour], self.minutes[minute], self.seconds[second])

    def _upto(self, at: time) -> int:
        """Return how many of the times of a day are not after this one."""
        hour = bisect_left(self.hours, at.hour)
        total = hour * len(self.minutes) * len(self.seconds)
        if hour == len(self.hours) or self.hours[hour] != at.hour:
            return total
        minute = bisect_left(self.minutes, at.minute)
        total += minute * len(self.seconds)
        if minute == len(self.minutes) or self.minutes[minute] != at.minute:
            return total
        return total + bisect_right(self.seconds, at.second)

    def _dates(self, first: date) -> Iterator[date]:
        """Matching dates from that one on."""
        year, month, day = first.year, first.month, first.day
        for _ in range(12 * LONGEST_GAP_YEARS + 1):
            if month in self.months:
                for match in _days_in(self.days, year, month):
                    if match >= day:
                        yield date(year, month, match)
            year, month, day = year + month // 12, month % 12 + 1, 1
            if year > 9998:
                return

    def _count_dates(self, first: date, last: date) -> Iterator[int]:
        """Matching dates in [first, last], month by month."""
        year, month = first.year, first.month
        while (year, month) <= (last.year, last.month):
            if month in self.months:
                days = _days_in(self.days, year, month)
                low = first.day if (year, month) == (first.year, first.month) else 1
                high = last.day if (year, month) == (last.year, last.month) else 31
                yield bisect_right(days, high) - bisect_left(days, low)
            year, month = year + month // 12, month % 12 + 1

    def _matches(self, day: date) -> bool:
        return day.month in self.months and day.day in _days_in(self.days, day.year, day.month)


@lru_cache(4096)
def parse(text: str) -> Cron:
    """Read an expression; CronError when it makes no sense or can never match."""
    if len(text) > _LONGEST:
        raise CronError(f"is longer than {_LONGEST} characters")
    fields = _NICKNAMES.get(text.strip().lower(), text).upper().split()
    if len(fields) not in (5, 6):
        raise CronError(f"has {len(fields)} fields instead of 5, or 6 with seconds first")
    second, minute, hour, day, month, weekday = fields if len(fields) == 6 else ["0", *fields]
    cron = Cron(
        text,
        tuple(sorted(_numbers("second", second, 0, 59))),
        tuple(sorted(_numbers("minute", minute, 0, 59))),
        tuple(sorted(_numbers("hour", hour, 0, 23))),
        _numbers("month", month, 1, 12, _MONTHS),
        _days(day, weekday),
    )
    if not _can_match(cron):
        raise CronNeverFires("never fires: no month has such a day")
    return cron


def _can_match(cron: Cron) -> bool:
    lengths = {length for month in cron.months for length in _lengths(month)}
    return any(_matching(cron.days, w, length) for length in lengths for w in range(7))


def _lengths(month: int) -> tuple[int, ...]:
    return (28, 29) if month == 2 else (30,) if month in (4, 6, 9, 11) else (31,)


# Days -----------------------------------------------------------------------------------------


@lru_cache(8192)
def _days_in(days: Days, year: int, month: int) -> tuple[int, ...]:
    monday_first, length = monthrange(year, month)
    return _matching(days, (monday_first + 1) % 7, length)


@lru_cache(8192)
def _matching(days: Days, first_weekday: int, length: int) -> tuple[int, ...]:
    """The matching days of a month of that length whose first day is that weekday."""

    def weekday(day: int) -> int:
        return (first_weekday + day - 1) % 7

    by_date = {day for day in days.dates if day <= length}
    by_date |= {length - back for back in days.before_last if back < length}
    by_date |= {_workday(day, weekday, length) for day in days.nearest_workday if day <= length}
    if days.last_workday:
        by_date.add(_workday(length, weekday, length))
    by_weekday = {
        day
        for day in range(1, length + 1)
        if weekday(day) in days.weekdays
        or (weekday(day), (day + 6) // 7) in days.nth_weekdays
        or (weekday(day) in days.last_weekdays and day + 7 > length)
    }
    return tuple(sorted(by_date | by_weekday if days.either else by_date & by_weekday))


def _workday(day: int, weekday: Callable[[int], int], length: int) -> int:
    """The day from Monday to Friday that is nearest, in the same month."""
    if weekday(day) == 6:
        return day - 1 if day > 1 else day + 2
    if weekday(day) == SUNDAY:
        return day + 1 if day < length else day - 2
    return day


# Reading --------------------------------------------------------------------------------------


def _days(day: str, weekday: str) -> Days:
    dates: set[int] = set()
    before_last: set[int] = set()
    nearest: set[int] = set()
    last_workday = False
    for item in _items("day of month", "*" if day == "?" else day):
        if item == "LW":
            last_workday = True
        elif item == "L" or re.fullmatch(r"L-\d{1,2}", item):
            before_last.add(int(item[2:] or 0))
        elif re.fullmatch(r"\d{1,2}W", item):
            nearest.add(_number("day of month", item[:-1], 1, 31))
        else:
            dates |= _range("day of month", item, 1, 31)
    if max(before_last, default=0) > 30:
        raise CronError("day of month: no month has so many days before its last")
    weekdays, nth, last = _weekday_sets("*" if weekday == "?" else weekday)
    either = day[0] not in "*?" and weekday[0] not in "*?"
    return Days(
        frozenset(dates), frozenset(before_last), last_workday, frozenset(nearest),
        weekdays, nth, last, either,
    )  # fmt: skip


def _weekday_sets(text: str) -> tuple[frozenset[int], frozenset[tuple[int, int]], frozenset[int]]:
    plain: set[int] = set()
    nth: set[tuple[int, int]] = set()
    last: set[int] = set()
    for item in _items("weekday", text):
        if match := re.fullmatch(r"(\w+)#(\d)", item):
            if not 1 <= int(match[2]) <= 5:
                raise CronError(f"weekday: {item}: a month has at most five of a weekday")
            nth.add((_weekday(match[1]), int(match[2])))
        elif match := re.fullmatch(r"(\w+)L", item):
            last.add(_weekday(match[1]))
        else:
            plain |= {number % 7 for number in _range("weekday", item, 0, 7, _WEEKDAYS)}
    return frozenset(plain), frozenset(nth), frozenset(last)


def _weekday(text: str) -> int:
    return _number("weekday", text, 0, 7, _WEEKDAYS) % 7


def _items(name: str, text: str) -> list[str]:
    items = text.split(",")
    if not all(items):
        raise CronError(f"{name}: {text} has an empty part")
    return items


def _numbers(
    name: str, text: str, least: int, most: int, names: dict[str, int] | None = None
) -> frozenset[int]:
    found: set[int] = set()
    for item in _items(name, text):
        found |= _range(name, item, least, most, names)
    return frozenset(found)


def _range(
    name: str, item: str, least: int, most: int, names: dict[str, int] | None = None
) -> set[int]:
    match = _RANGE.fullmatch(item)
    if match is None:
        raise CronError(f"{name}: {item[:40]} is not understood")
    if match["first"] is None:
        # Seven weekdays are all of them; the second name of Sunday would spoil the steps.
        return set(range(least, most + (name != "weekday"), _step(name, match["every"])))
    first = _number(name, match["first"], least, most, names)
    if match["last"] is not None:
        last = _number(name, match["last"], least, most, names)
    else:
        last = first if match["step"] is None else most - (name == "weekday")
    if name == "weekday":
        if first > last == SUNDAY:
            last = 7
        elif first == 7 > last:
            first = SUNDAY
    if last < first:
        raise CronError(f"{name}: {item} ends before it begins")
    return set(range(first, last + 1, _step(name, match["step"])))


def _step(name: str, text: str | None) -> int:
    if text is not None and int(text) == 0:
        raise CronError(f"{name}: a step of 0 never moves")
    return int(text or 1)


def _number(
    name: str, text: str, least: int, most: int, names: dict[str, int] | None = None
) -> int:
    if names and text in names:
        return names[text]
    if not (text.isascii() and text.isdigit() and len(text) <= 3):
        raise CronError(f"{name}: {text[:40]} is not understood")
    if not least <= int(text) <= most:
        raise CronError(f"{name}: {text} is not between {least} and {most}")
    return int(text)
