"""RRULE (RFC 5545) over a wall clock: python-dateutil knows the calendar, this keeps it quick.

dateutil counts from the rule's beginning each time, and a rule that never matches it follows to
the year 9999. So the beginning is moved close to where we look, by whole periods, which changes
nothing; and since the Gregorian calendar repeats itself after 400 years, we look in its last
repetition, where the end is never far. What no day of any year can match is refused before that, by
looking at one year of each of the fourteen kinds.
"""

import re
from calendar import isleap, monthrange
from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from itertools import islice
from typing import Any, Literal, NamedTuple

from dateutil.rrule import DAILY, HOURLY, MINUTELY, SECONDLY, WEEKLY, rrule, rrulestr

from mainspring.domain.zones import zone

_KNOWN = {
    *("FREQ", "INTERVAL", "COUNT", "UNTIL", "WKST", "BYSECOND", "BYMINUTE", "BYHOUR", "BYDAY"),
    *("BYMONTHDAY", "BYYEARDAY", "BYWEEKNO", "BYMONTH", "BYSETPOS"),
}
_PERIODS = {
    WEEKLY: timedelta(weeks=1),
    DAILY: timedelta(days=1),
    HOURLY: timedelta(hours=1),
    MINUTELY: timedelta(minutes=1),
    SECONDLY: timedelta(seconds=1),
}
_ERA = 400
_END = datetime(9999, 12, 31)
_MOST_COUNT = 10_000
_MOST_STEPS = 100_000
_AT_ONCE = 20_000
_LONGEST = 1000
_MOST_LEAPS = 2000
_BOUNDS = frozenset({"COUNT", "UNTIL"})
_WITHIN_THE_DAY = (HOURLY, MINUTELY, SECONDLY)
_DAY_PARTS = frozenset({"bymonth", "bymonthday", "byyearday", "byweekno", "byweekday"})
_DAY = timedelta(days=1)
_INSTANT = timedelta(seconds=1)
_UNTIL = re.compile(r"(\d{8})(?:T(\d{6})(Z?))?")


class RuleError(ValueError):
    """The rule makes no sense, or never matches; the message says why."""


class NeverFires(RuleError):
    """It can be read, but nothing matches."""


class Rule:
    """A rule with its beginning: the same questions as a cron expression answers."""

    def __init__(self, parts: dict[str, str], begin: datetime, until: datetime | None) -> None:
        self._begin = begin
        self._until = until
        self._era = timedelta(0)
        self._asked: tuple[datetime, datetime] | None = None
        """The last question and its answer: between the two every question has the same answer."""
        if begin.year < 9600:
            years = (9999 - begin.year) // _ERA * _ERA
            self._era = begin.replace(year=begin.year + years) - begin
        text = ";".join(f"{name}={value}" for name, value in parts.items() if name not in _BOUNDS)
        self._rule = _read(text, begin + self._era)
        said = _said(self._rule)
        self._freq, self._interval = said.freq, said.interval
        if _matches_no_day(self._rule):
            raise NeverFires("never fires: no day of any year matches")
        if self._freq in _WITHIN_THE_DAY and _beyond_the_set(self._rule):
            raise NeverFires("never fires: no period has so many times as BYSETPOS asks for")
        self._days: rrule | None = None
        """Which days a rule within the day is for: to be leapt to, not walked to."""
        self.every_hour = self._freq in _WITHIN_THE_DAY and "BYHOUR" not in parts
        if self._freq in _WITHIN_THE_DAY:
            self._rule, self._days = _split(self._rule, begin + self._era)
        self.at_once: float | None = _AT_ONCE * 86400.0 / _most_a_day(self._rule)
        plain = self._freq in _PERIODS and self._days is None and not _says_more(self._rule)
        self._step = self._period if plain else None
        """What recurs evenly is counted, not walked through."""
        if "COUNT" in parts:
            self._until = self._last_counted(int(parts["COUNT"]))

    @property
    def _period(self) -> timedelta:
        return _PERIODS[self._freq] * self._interval

    def next(self, after: datetime) -> datetime | None:
        if self._is_over(after):
            return None
        if self._asked is not None and self._asked[0] <= after < self._asked[1]:
            return self._within(self._asked[1])
        near = max(after, self._begin - timedelta(seconds=1)) + self._era
        found = next(self._after(near), None)
        if found is None:
            return None
        self._asked = (after, found - self._era)
        return self._within(found - self._era)

    def _within(self, wall: datetime) -> datetime | None:
        return None if self._until is not None and wall > self._until else wall

    def count(self, after: datetime, until: datetime) -> int:
        return len(self._between(after, until))

    def recent(self, after: datetime, until: datetime, most: int) -> list[datetime]:
        return self._between(after, until)[-most:] if most else []

    def _between(self, after: datetime, until: datetime) -> list[datetime]:
        end = until if self._until is None else min(until, self._until)
        if self._is_over(after):
            return []
        if self._step is not None:
            first = max(0, (after - self._begin) // self._step + 1)
            last = (end - self._begin) // self._step
            return [self._begin + number * self._step for number in range(first, last + 1)]
        near = max(after, self._begin - timedelta(seconds=1)) + self._era
        found: list[datetime] = []
        for late in islice(self._after(near), _MOST_STEPS):
            wall = late - self._era
            if wall > end:
                break
            found.append(wall)
        return found

    def _after(self, near: datetime) -> Iterator[datetime]:
        """What matches after a time of the last era."""
        if self._days is None:
            yield from self._from(near).xafter(near)
            return
        today = None
        for _ in range(_MOST_LEAPS):
            for found in self._from(near).xafter(near):
                if found.date() != today:
                    midnight = datetime.combine(found.date(), time())
                    day = _moved(self._days, midnight - _DAY).after(midnight - _INSTANT)
                    if day != midnight:
                        break
                    today = found.date()
                yield found
            else:
                return
            if day is None:
                return
            near = day - _INSTANT

    def _from(self, near: datetime) -> rrule:
        """The same rule, begun a little before that time of the last era."""
        if self._freq not in _PERIODS:
            return self._rule
        step = self._period
        begin = self._begin + self._era
        return _moved(self._rule, begin + max(0, (near - begin) // step - 1) * step)

    def _is_over(self, after: datetime) -> bool:
        if self._until is not None and after >= self._until:
            return True
        return after >= _END - self._era - timedelta(days=1)

    def _last_counted(self, counted: int) -> datetime:
        if not 1 <= counted <= _MOST_COUNT:
            raise RuleError(f"COUNT is not between 1 and {_MOST_COUNT}")
        times = list(islice(self._after(self._begin + self._era - _INSTANT), counted))
        return times[-1] - self._era if times else self._begin - timedelta(seconds=1)


@lru_cache(1024)
def parse(text: str, begin: datetime, zone_name: str) -> Rule:
    """Read a rule that begins at a wall time; RuleError when it makes no sense or never matches."""
    if len(text) > _LONGEST or "\n" in text:
        raise RuleError("is not one line of a rule")
    parts: dict[str, str] = {}
    for part in text.strip().upper().removeprefix("RRULE:").split(";"):
        name, equals, value = part.partition("=")
        if not equals or name not in _KNOWN:
            raise RuleError(f"{part[:40]} is not a part of a rule")
        if parts.setdefault(name, value) != value:
            raise RuleError(f"{name} is given twice")
    if "FREQ" not in parts:
        raise RuleError("FREQ is missing")
    if "COUNT" in parts and "UNTIL" in parts:
        raise RuleError("COUNT and UNTIL cannot be given together")
    until = _until(parts["UNTIL"], zone_name) if "UNTIL" in parts else None
    try:
        rule = Rule(parts, begin.replace(microsecond=0), until)
        never = rule.next(begin - timedelta(seconds=1)) is None
    except RuleError:
        raise
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, AttributeError) as error:
        raise RuleError(f"is not understood: {error}") from None
    if never:
        raise NeverFires("never fires")
    return rule


@dataclass(frozen=True, slots=True)
class _Said:
    """What a rule says, by dateutil's own names for it."""

    freq: Literal[0, 1, 2, 3, 4, 5, 6]
    interval: int
    count: int | None
    wkst: int
    dtstart: datetime
    original_rule: dict[str, Any]
    bysetpos: tuple[int, ...] | None
    bymonth: tuple[int, ...] | None
    bymonthday: tuple[int, ...]
    bynmonthday: tuple[int, ...]
    byyearday: tuple[int, ...] | None
    byweekno: tuple[int, ...] | None
    byweekday: tuple[int, ...] | None
    byhour: Collection[int] | None
    byminute: Collection[int] | None
    bysecond: Collection[int] | None


def _said(rule: rrule) -> _Said:
    """dateutil does not show it: this is the one place that knows where it is kept."""
    kept = vars(rule)
    return _Said(**{field.name: kept[f"_{field.name}"] for field in fields(_Said)})


def _says_more(rule: rrule) -> bool:
    """Whether a rule chooses among its periods, beyond what its beginning implies."""
    return any(_said(rule).original_rule.values())


def _most_a_day(rule: rrule) -> int:
    """No day has more times than this."""
    said = _said(rule)
    hours, minutes, seconds = (
        len(times or (0,)) for times in (said.byhour, said.byminute, said.bysecond)
    )
    periods = {HOURLY: 24, MINUTELY: 1440, SECONDLY: 86400}.get(said.freq)
    if periods is None:
        return hours * minutes * seconds
    in_a_period = {HOURLY: minutes * seconds, MINUTELY: seconds}.get(said.freq, 1)
    return (periods // said.interval + 1) * in_a_period


def _beyond_the_set(rule: rrule) -> bool:
    """Whether an hour, minute or second never has as many times as BYSETPOS counts up to."""
    said = _said(rule)
    size = 1
    if said.freq == HOURLY:
        size *= len(said.byminute or (0,))
    if said.freq in (HOURLY, MINUTELY):
        size *= len(said.bysecond or (0,))
    return all(abs(place) > size for place in said.bysetpos or (1,))


def _split(rule: rrule, begin: datetime) -> tuple[rrule, rrule | None]:
    """A rule by the hour, minute or second without its choice of days, and that choice."""
    said = _said(rule)
    given = said.original_rule
    chosen = {name: given[name] for name in _DAY_PARTS if given.get(name)}
    if not chosen:
        return rule, None
    rest = {name: value for name, value in given.items() if name not in _DAY_PARTS}
    days = rrule(DAILY, begin, wkst=said.wkst, byhour=0, byminute=0, bysecond=0, **chosen)
    within = rrule(said.freq, begin, said.interval, wkst=said.wkst, **rest)
    return within, days


def _matches_no_day(rule: rrule) -> bool:
    """Whether no day can match, whatever the year. Positions in a set and intervals are not looked
    at here: they only make matches rarer."""
    said = _said(rule)
    months, weekdays, weeks = said.bymonth, said.byweekday, said.byweekno
    forward, backward = said.bymonthday, said.bynmonthday
    year_days = said.byyearday
    if not any((forward, backward, year_days, weeks)):
        return False  # some day of any month has any weekday
    for day in _every_kind_of_day():
        if months and day.month not in months:
            continue
        if weekdays and day.weekday not in weekdays:
            continue
        if (forward or backward) and not (day.day in forward or day.from_end in backward):
            continue
        if year_days and not (day.of_year in year_days or day.of_year_from_end in year_days):
            continue
        if not weeks or not day.weeks.isdisjoint(weeks):
            return False
    return True


class _Day(NamedTuple):
    """What rules say about a day; the numbers from the end are negative."""

    month: int
    day: int
    from_end: int
    of_year: int
    of_year_from_end: int
    weekday: int
    weeks: frozenset[int]


@lru_cache(1)
def _every_kind_of_day() -> tuple[_Day, ...]:
    """All days of fourteen years: leap years or not, begun on each weekday."""
    kinds: dict[tuple[bool, int], int] = {}
    for year in range(2000, 2028):
        kinds.setdefault((isleap(year), date(year, 1, 1).weekday()), year)
    return tuple(day for year in kinds.values() for day in _days_of(year))


def _days_of(year: int) -> Iterator[_Day]:
    length = 365 + isleap(year)
    for number in range(length):
        day = date(year, 1, 1) + timedelta(number)
        from_end = day.day - monthrange(year, day.month)[1] - 1
        # A week's number depends on the day that weeks begin with: give a week on both sides.
        week = number // 7 + 1
        weeks = {w for near in (week - 1, week, week + 1) for w in (near, near - 54, near - 53)}
        if number < 7 or number >= length - 7:
            weeks |= {1, 52, 53, -1, -52, -53}
        yield _Day(
            day.month, day.day, from_end, number + 1, number - length, day.weekday(),
            frozenset(weeks),
        )  # fmt: skip


def _read(text: str, begin: datetime) -> rrule:
    rule = rrulestr(text, dtstart=begin)
    assert isinstance(rule, rrule)
    if not 1 <= _said(rule).interval <= 10**6:
        raise RuleError("INTERVAL is not between 1 and 1000000")
    return _moved(rule, begin)


def _moved(rule: rrule, begin: datetime) -> rrule:
    """A rule begun at another time, which still means the times that its old beginning implied."""
    said = _said(rule)
    kept = dict(said.original_rule)
    if said.freq < HOURLY and not said.original_rule.get("byhour"):
        kept["byhour"] = said.dtstart.hour
    if said.freq < MINUTELY and not said.original_rule.get("byminute"):
        kept["byminute"] = said.dtstart.minute
    if said.freq < SECONDLY and not said.original_rule.get("bysecond"):
        kept["bysecond"] = said.dtstart.second
    return rrule(said.freq, begin, said.interval, count=said.count, wkst=said.wkst, **kept)


def _until(text: str, zone_name: str) -> datetime:
    match = _UNTIL.fullmatch(text)
    if match is None:
        raise RuleError(f"UNTIL={text[:40]} is not a date or time")
    try:
        wall = datetime.strptime(match[1] + (match[2] or "235959"), "%Y%m%d%H%M%S")
    except ValueError:
        raise RuleError(f"UNTIL={text[:40]} is not a date or time") from None
    return zone(zone_name).wall(wall.replace(tzinfo=UTC).timestamp()) if match[3] else wall
