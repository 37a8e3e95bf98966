"""RRULE (RFC 5545) over a wall clock: python-dateutil knows the calendar, this keeps it quick.

dateutil counts from the rule's beginning each time, and a rule that never matches it follows to
the year 9999. So the beginning is moved close to where we look, by whole periods, which changes
nothing; and since the Gregorian calendar repeats itself after 400 years, we look in its last
repetition, where the end is never far.
"""

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice

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
_END = datetime(9999, 12, 31)  # noqa: DTZ001 - walls are naive on purpose
_MOST_COUNT = 10_000
_MOST_STEPS = 100_000
_LONGEST = 1000
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
        if begin.year < 9600:
            years = (9999 - begin.year) // _ERA * _ERA
            self._era = begin.replace(year=begin.year + years) - begin
        text = ";".join(f"{name}={value}" for name, value in parts.items() if name != "UNTIL")
        self._rule = _read(text, begin + self._era)
        self.every_hour = self._freq in (HOURLY, MINUTELY, SECONDLY) and "BYHOUR" not in parts
        if "COUNT" in parts:
            self._until = self._last_counted(parts)

    @property
    def _freq(self) -> int:
        return int(self._rule._freq)  # type: ignore[attr-defined]

    def next(self, after: datetime) -> datetime | None:
        if self._is_over(after):
            return None
        near = max(after, self._begin - timedelta(seconds=1)) + self._era
        found = self._from(near).after(near)
        if found is None:
            return None
        wall = found - self._era
        return None if self._until is not None and wall > self._until else wall

    def count(self, after: datetime, until: datetime) -> int:
        return len(self._between(after, until))

    def recent(self, after: datetime, until: datetime, most: int) -> list[datetime]:
        return self._between(after, until)[-most:] if most else []

    def _between(self, after: datetime, until: datetime) -> list[datetime]:
        end = until if self._until is None else min(until, self._until)
        if self._is_over(after):
            return []
        near = max(after, self._begin - timedelta(seconds=1)) + self._era
        found: list[datetime] = []
        for late in islice(self._from(near).xafter(near), _MOST_STEPS):
            wall = late - self._era
            if wall > end:
                break
            found.append(wall)
        return found

    def _from(self, near: datetime) -> rrule:
        """The same rule, begun a little before that time of the last era."""
        if self._freq not in _PERIODS:
            return self._rule
        step = _PERIODS[self._freq] * int(self._rule._interval)  # type: ignore[attr-defined]
        begin = self._begin + self._era
        return _moved(self._rule, begin + max(0, (near - begin) // step - 1) * step)

    def _is_over(self, after: datetime) -> bool:
        if self._until is not None and after >= self._until:
            return True
        return after >= _END - self._era - timedelta(days=1)

    def _last_counted(self, parts: dict[str, str]) -> datetime:
        counted = int(parts.pop("COUNT"))
        if not 1 <= counted <= _MOST_COUNT:
            raise RuleError(f"COUNT is not between 1 and {_MOST_COUNT}")
        times = list(islice(self._rule, counted))
        text = ";".join(f"{name}={value}" for name, value in parts.items())
        self._rule = _read(text, self._begin + self._era)
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


def _read(text: str, begin: datetime) -> rrule:
    rule = rrulestr(text, dtstart=begin)
    assert isinstance(rule, rrule)
    if not 1 <= int(rule._interval) <= 10**6:  # type: ignore[attr-defined]
        raise RuleError("INTERVAL is not between 1 and 1000000")
    return _moved(rule, begin)


def _moved(rule: rrule, begin: datetime) -> rrule:
    """A rule begun at another time, which still means the times that its old beginning implied."""
    implied = rule._original_rule  # type: ignore[attr-defined]
    start = rule._dtstart  # type: ignore[attr-defined]
    kept = dict(implied)
    if rule._freq < HOURLY and not implied.get("byhour"):  # type: ignore[attr-defined]
        kept["byhour"] = start.hour
    if rule._freq < MINUTELY and not implied.get("byminute"):  # type: ignore[attr-defined]
        kept["byminute"] = start.minute
    if rule._freq < SECONDLY and not implied.get("bysecond"):  # type: ignore[attr-defined]
        kept["bysecond"] = start.second
    return rrule(
        rule._freq,  # type: ignore[attr-defined]
        dtstart=begin,
        interval=rule._interval,  # type: ignore[attr-defined]
        count=rule._count,  # type: ignore[attr-defined]
        wkst=rule._wkst,  # type: ignore[attr-defined]
        **kept,
    )


def _until(text: str, zone_name: str) -> datetime:
    match = _UNTIL.fullmatch(text)
    if match is None:
        raise RuleError(f"UNTIL={text[:40]} is not a date or time")
    try:
        wall = datetime.strptime(match[1] + (match[2] or "235959"), "%Y%m%d%H%M%S")  # noqa: DTZ007
    except ValueError:
        raise RuleError(f"UNTIL={text[:40]} is not a date or time") from None
    return zone(zone_name).wall(wall.replace(tzinfo=UTC).timestamp()) if match[3] else wall
