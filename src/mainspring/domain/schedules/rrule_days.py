"""Which days of a year an RRULE names, and which seconds of a day: what its BY* parts say.

Which days match depends only on the kind of the year: its length, its first weekday, and the length
of the year before, which decides to what week its first days belong. Those are 28 tables of at most
366 days. Seconds of a day are the bits of a number, so that a day is read in one operation.
"""

from calendar import isleap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from itertools import product
from typing import NamedTuple

DAY = 86400


class Kind(NamedTuple):
    """The properties of a year by which its days match. Monday is 0."""

    leap: bool
    first_weekday: int
    after_leap: bool


KINDS = tuple(
    Kind(leap, weekday, after_leap)
    for leap, weekday, after_leap in product((False, True), range(7), (False, True))
    if not (leap and after_leap)
)


@dataclass(frozen=True, slots=True)
class DayParts:
    """The parts that choose days: an empty one all days, a negative number from the end."""

    months: frozenset[int] = frozenset()
    month_days: frozenset[int] = frozenset()
    year_days: frozenset[int] = frozenset()
    weeks: frozenset[int] = frozenset()
    weekdays: frozenset[int] = frozenset()
    nth_weekdays: frozenset[tuple[int, int]] = frozenset()
    """(n, weekday): the nth of its month, or of the year."""
    nth_of_year: bool = False
    week_start: int = 0


def kind_of(year: int) -> Kind:
    return Kind(isleap(year), date(year, 1, 1).weekday(), isleap(year - 1))


@lru_cache(4096)
def matching_days(parts: DayParts, kind: Kind) -> tuple[int, ...]:
    """Return the matching days of such a year, in order; 0 is the first of January."""
    months = _months(kind)
    weeks = _weeks(kind, parts.week_start) if parts.weeks else ()
    length = 365 + kind.leap
    found = []
    for month, (first, end) in enumerate(months, 1):
        if parts.months and month not in parts.months:
            continue
        for day in range(first, end):
            if parts.month_days and parts.month_days.isdisjoint((day - first + 1, day - end)):
                continue
            if parts.year_days and parts.year_days.isdisjoint((day + 1, day - length)):
                continue
            if parts.weeks and parts.weeks.isdisjoint(weeks[day]):
                continue
            reach = (0, length) if parts.nth_of_year else (first, end)
            if _has_weekday(parts, (kind.first_weekday + day) % 7, day, reach):
                found.append(day)
    return tuple(found)


def _has_weekday(parts: DayParts, weekday: int, day: int, reach: tuple[int, int]) -> bool:
    if not (parts.weekdays or parts.nth_weekdays) or weekday in parts.weekdays:
        return True
    from_start, from_end = (day - reach[0]) // 7 + 1, -((reach[1] - 1 - day) // 7) - 1
    return not parts.nth_weekdays.isdisjoint(((from_start, weekday), (from_end, weekday)))


@lru_cache(32)
def _months(kind: Kind) -> tuple[tuple[int, int], ...]:
    """Return the first day of each month and the first after it."""
    year = 2000 if kind.leap else 2001
    begin = date(year, 1, 1).toordinal()
    firsts = [date(year, month, 1).toordinal() - begin for month in range(1, 13)]
    return tuple(zip(firsts, [*firsts[1:], 365 + kind.leap], strict=True))


@lru_cache(256)
def _weeks(kind: Kind, week_start: int) -> tuple[tuple[int, ...], ...]:
    """Return the numbers of each day's week, from the start and from the end, as in ISO 8601: the
    first week of a year is the one with most of its days in it."""
    length, before = 365 + kind.leap, 365 + kind.after_leap
    into = (kind.first_weekday - week_start) % 7
    first = _first_week(into)
    following = length + _first_week((into + length) % 7)
    count = (following - first) // 7
    last_of_before = (first + before - _first_week((into - before) % 7)) // 7
    numbers: list[tuple[int, ...]] = []
    for day in range(length):
        if day < first:
            numbers.append((last_of_before, -1))
        elif day >= following:
            numbers.append((1,))
        else:
            week = (day - first) // 7 + 1
            numbers.append((week, week - count - 1))
    return tuple(numbers)


def _first_week(into: int) -> int:
    """Return where the first week begins in a year that begins so many days into a week."""
    return -into if into <= 3 else 7 - into


# Seconds of a day -------------------------------------------------------------------------------


class TimesOfDay(NamedTuple):
    """The times that a clock shows at these hours, minutes and seconds, each in order."""

    hours: Sequence[int]
    minutes: Sequence[int]
    seconds: Sequence[int]

    @property
    def size(self) -> int:
        return len(self.hours) * len(self.minutes) * len(self.seconds)

    @property
    def day(self) -> int:
        """All of them, as bits."""
        minute = bits(self.seconds)
        hour = sum(minute << 60 * at for at in self.minutes)
        return sum(hour << 3600 * at for at in self.hours)

    def time(self, index: int) -> int:
        """The nth of them, as seconds of the day."""
        rest, second = divmod(index, len(self.seconds))
        hour, minute = divmod(rest, len(self.minutes))
        return 3600 * self.hours[hour] + 60 * self.minutes[minute] + self.seconds[second]


def bits(numbers: Iterable[int]) -> int:
    return sum(1 << number for number in set(numbers))


def recurring(length: int, every: int) -> int:
    """Return stretches of that many seconds, every so many, for a day and one stretch more."""
    count = DAY // every + 1
    return ((1 << every * count) - 1) // ((1 << every) - 1) * ((1 << length) - 1)


@lru_cache(1024)
def places(count: int, wanted: frozenset[int]) -> list[int]:
    """Return which of so many things BYSETPOS names: 1 is the first and -1 the last."""
    found = {place - 1 if place > 0 else count + place for place in wanted}
    return sorted(index for index in found if 0 <= index < count)


def lowest(seconds: int) -> int:
    return (seconds & -seconds).bit_length() - 1


def nth(seconds: int, index: int) -> int:
    """Return the second with so many earlier ones before it."""
    low, high = 0, seconds.bit_length()
    while high - low > 1:
        middle = (low + high) // 2
        if (seconds & ((1 << middle) - 1)).bit_count() <= index:
            low = middle
        else:
            high = middle
    return low
