"""From a wall clock to instants: zones, their changes of offset, and what becomes of wall times
that a change skips or repeats.

Instants are seconds since the epoch; walls are naive datetimes. Only offsets count, whatever a zone
calls summer: half-hour changes (Lord Howe), a skipped day (Apia) and a clock that is set back for
Ramadan (Casablanca) are nothing special.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from itertools import chain
from typing import NamedTuple
from zoneinfo import ZoneInfo

from mainspring.domain.schedules.policies import GapPolicy, RepeatPolicy

EPOCH = datetime(1970, 1, 1)
SECOND = timedelta(seconds=1)
LAST_YEAR = 9990
_DAY = 86400


@dataclass(frozen=True, slots=True)
class DstPolicy:
    """What becomes of a wall time that does not exist (gap), or exists twice (repeat)."""

    gap: GapPolicy = "shift"
    repeat: RepeatPolicy = "first"


BY_ELAPSED_TIME = DstPolicy("skip", "both")
"""For what recurs through every hour: the clock's changes neither add nor remove anything."""


class OffsetChange(NamedTuple):
    """At this instant the offset changes; it is in force from the instant itself on."""

    at: int
    before: int
    after: int

    @property
    def skips(self) -> bool:
        return self.after > self.before


class Stretch(NamedTuple):
    """A stretch of wall-clock time without a break: after `start`, up to and with `end`."""

    start: datetime
    end: datetime
    offset: int

    def instant(self, wall: datetime) -> float:
        return (wall - EPOCH).total_seconds() - self.offset


class Gap(NamedTuple):
    """Wall times that do not exist: after `start`, up to and with `end`; the clock jumps `at`."""

    at: int
    start: datetime
    end: datetime


def wall_at(instant: float, offset: int) -> datetime:
    """Return what a clock with that offset shows."""
    return EPOCH + timedelta(seconds=instant + offset)


class UnknownZone(ValueError):
    """There is no such zone in the tz database."""


@lru_cache(1024)
def zone(name: str) -> "Zone":
    """The zone of that IANA name, with what is known of it; UnknownZone if there is none."""
    # A name is looked up as a path: keep what is none away from the file system.
    if not name or len(name) > 64 or not all(c.isalnum() or c in "_-+/" for c in name):
        raise UnknownZone(name)
    try:
        return Zone(name, ZoneInfo(name))
    except (KeyError, ValueError, OSError):
        raise UnknownZone(name) from None


class Zone:
    """The offsets of a zone. Changes are found by looking at each day's ends, once per year."""

    def __init__(self, name: str, info: ZoneInfo) -> None:
        self.name = name
        self._info = info
        self._years: dict[int, tuple[OffsetChange, ...]] = {}

    def offset(self, instant: float) -> int:
        """Seconds east of UTC at that instant."""
        found = datetime.fromtimestamp(instant, UTC).astimezone(self._info).utcoffset()
        assert found is not None
        return round(found.total_seconds())

    def wall(self, instant: float) -> datetime:
        return wall_at(instant, self.offset(instant))

    def day(self, instant: float) -> date:
        return self.wall(instant).date()

    def start_of(self, day: date) -> float:
        """The first instant of a day there; of a day that was skipped, the jump itself."""
        midnight = datetime(day.year, day.month, day.day)
        guess = (midnight - EPOCH).total_seconds()
        for change in self.changes(guess - 2 * _DAY, guess + 2 * _DAY):
            if wall_at(change.at, change.before) < midnight <= wall_at(change.at, change.after):
                return float(change.at)
        early = midnight.replace(tzinfo=self._info, fold=0)
        return early.timestamp()

    def changes(self, after: float, until: float) -> Iterator[OffsetChange]:
        """Changes in (after, until], in order."""
        first = datetime.fromtimestamp(after, UTC).year
        last = min(datetime.fromtimestamp(until, UTC).year, LAST_YEAR)
        for year in range(first, last + 1):
            for change in self._changes_in(year):
                if after < change.at <= until:
                    yield change

    def _changes_in(self, year: int) -> tuple[OffsetChange, ...]:
        found = self._years.get(year)
        if found is None:
            found = self._years[year] = tuple(self._look(year))
        return found

    def _look(self, year: int) -> Iterator[OffsetChange]:
        day = int(datetime(year, 1, 1, tzinfo=UTC).timestamp())
        end = int(datetime(year + 1, 1, 1, tzinfo=UTC).timestamp())
        before = self.offset(day)
        while day < end:
            after = self.offset(day + _DAY)
            if after != before:
                low, high = day, day + _DAY
                while high - low > 1:
                    middle = (low + high) // 2
                    low, high = (middle, high) if self.offset(middle) == before else (low, middle)
                yield OffsetChange(high, before, after)
            day, before = day + _DAY, after

    def stretches(self, after: float, until: float, policy: DstPolicy) -> Iterator[Stretch | Gap]:
        """Yield the wall clock over (after, until] as the policy reads it, earliest first: a
        repeated hour in the first stretch, the second or both; skipped times as a Gap if they are
        made up for."""
        previous: OffsetChange | None = None
        offset = self.offset(after)
        for change in self.changes(after - 2 * _DAY, after):
            previous = change
        following: OffsetChange | None
        # Looked for one by one: mostly the answer lies before the next change.
        for following in chain(self.changes(after, until), (None,)):
            end = wall_at(until, offset)
            closing = following
            if following is None:
                # What is about to be repeated matters even if the repetition lies beyond.
                closing = next(self.changes(until, until + 2 * _DAY), None)
            else:
                end = wall_at(following.at, offset) - SECOND
            start = wall_at(after, offset)
            if policy.repeat == "first" and previous is not None and not previous.skips:
                start = max(start, wall_at(previous.at, previous.before) - SECOND)
            if policy.repeat == "second" and closing is not None and not closing.skips:
                end = min(end, wall_at(closing.at, closing.after) - SECOND)
            if start < end:
                yield Stretch(start, end, offset)
            if following is None:
                return
            if following.skips and policy.gap == "shift":
                skipped = wall_at(following.at, following.before) - SECOND
                yield Gap(following.at, skipped, wall_at(following.at, following.after) - SECOND)
            # The instant of the change belongs to what comes after it: step back by a second.
            previous, after, offset = following, following.at - 1, following.after
