"""When something recurs: cron expressions and rules read in a zone, and intervals from an anchor.

A recurrence is a strictly rising series of instants (seconds since the epoch). `next` returns the
first one after an instant, `count` and `recent` how many lie in (after, until] and the last of
these, in order. None walks through every occurrence: a long outage costs no more than a short one.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from mainspring.domain.schedules.cron import LONGEST_GAP_YEARS, Cron
from mainspring.domain.schedules.rrule import Rule
from mainspring.domain.schedules.zones import (
    BY_ELAPSED_TIME,
    DstPolicy,
    Gap,
    Stretch,
    Zone,
    wall_at,
)

SEARCH_SECONDS = LONGEST_GAP_YEARS * 366 * 86400.0
"""Beyond this nothing is looked for: the rarest cron expression comes back sooner."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Every so many microseconds, counted from an anchor: late runs do not push later ones."""

    anchor: int
    step: int

    def next(self, after: float) -> float | None:
        return self._at(max(0, self._number(after) + 1))

    def count(self, after: float, until: float) -> int:
        return max(0, self._number(until) - max(-1, self._number(after)))

    def recent(self, after: float, until: float, most: int) -> list[float]:
        last = self._number(until)
        first = max(0, self._number(after) + 1, last - most + 1)
        return [self._at(number) for number in range(first, last + 1)]

    def reach(self, after: float) -> float:
        """Return up to where `count` and `recent` can be asked at once."""
        return float("inf")

    def _number(self, instant: float) -> int:
        """Return which of the series is the last one not after that instant."""
        return (round(instant * 1_000_000) - self.anchor) // self.step

    def _at(self, number: int) -> float:
        return (self.anchor + number * self.step) / 1_000_000


class ZonedRecurrence:
    """What recurs by a wall clock, in a zone, with a policy for the clock's changes."""

    def __init__(self, walls: Cron | Rule, zone: Zone, policy: DstPolicy) -> None:
        self.walls = walls
        self._zone = zone
        # Through every hour means elapsed time: nobody wants an hour of silence in autumn.
        self.policy = BY_ELAPSED_TIME if walls.every_hour else policy

    def next(self, after: float) -> float | None:
        for part in self._parts(after, after + SEARCH_SECONDS):
            if not isinstance(part, Stretch):
                return part
            wall = self.walls.next(part.start)
            if wall is None:
                return None
            if wall <= part.end:
                return part.instant(wall)
        return None

    def count(self, after: float, until: float) -> int:
        return sum(
            self.walls.count(part.start, part.end) if isinstance(part, Stretch) else 1
            for part in self._parts(after, until)
        )

    def recent(self, after: float, until: float, most: int) -> list[float]:
        found: list[float] = []
        for part in reversed(list(self._parts(after, until))):
            if len(found) >= most:
                break
            if not isinstance(part, Stretch):
                found.insert(0, part)
                continue
            walls = self.walls.recent(part.start, part.end, most - len(found))
            found[:0] = [part.instant(wall) for wall in walls]
        return found

    def reach(self, after: float) -> float:
        return after + self.walls.seconds_at_once

    def _parts(self, after: float, until: float) -> Iterator[Stretch | float]:
        """Stretches of wall time to read, and instants that make up for what a gap swallowed."""
        shifted: float | None = None
        for part in self._zone.stretches(after, until, self.policy):
            if isinstance(part, Gap):
                wall = self.walls.next(part.start)
                if wall is not None and wall <= part.end:
                    shifted = float(part.at)
                    yield shifted
            elif shifted is not None:
                # The clock's first moment after the gap has fired already.
                start = max(part.start, wall_at(shifted, part.offset))
                shifted = None
                if start < part.end:
                    yield part._replace(start=start)
            else:
                yield part


Recurrence = Interval | ZonedRecurrence
