"""An independent reading of cron expressions: every minute is looked at, none is computed.

Written for the tests and for nothing else, so it shares no code with the evaluator: it asks of each
minute in turn what the clock on the wall shows and whether the fields allow it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)


@dataclass(frozen=True)
class Fields:
    """The fields of an expression as the test drew them; None is a star."""

    minute: frozenset[int] | None
    hour: frozenset[int] | None
    day: frozenset[int] | None
    month: frozenset[int] | None
    weekday: frozenset[int] | None

    @property
    def text(self) -> str:
        fields = (self.minute, self.hour, self.day, self.month, self.weekday)
        return " ".join("*" if f is None else ",".join(map(str, sorted(f))) for f in fields)

    def allows(self, wall: datetime) -> bool:
        def has(values: frozenset[int] | None, value: int) -> bool:
            return values is None or value in values

        if not (has(self.minute, wall.minute) and has(self.hour, wall.hour)):
            return False
        if not has(self.month, wall.month):
            return False
        weekday = wall.isoweekday() % 7
        if self.day is None or self.weekday is None:
            return has(self.day, wall.day) and has(self.weekday, weekday)
        return wall.day in self.day or weekday in self.weekday


def scan(
    fields: Fields, zone: str, start: datetime, days: int, *, gap: str, repeat: str
) -> Iterator[datetime]:
    """The instants at which the expression fires after `start`, for so many days."""
    info = ZoneInfo(zone)
    by_the_clock = fields.hour is not None and len(fields.hour) < 24
    at = start.replace(second=0, microsecond=0) + MINUTE
    before = (at - MINUTE).astimezone(info).replace(tzinfo=None)
    for _ in range(days * 1440):
        local = at.astimezone(info)
        wall = local.replace(tzinfo=None)
        fires = fields.allows(wall)
        if by_the_clock:
            fires = fires and _this_time(local, repeat)
            if gap == "shift" and wall > before + MINUTE:
                fires = fires or _swallowed(fields, before + MINUTE, wall)
        if fires:
            yield at
        at, before = at + MINUTE, wall


def _this_time(local: datetime, repeat: str) -> bool:
    """Whether a wall time that comes twice counts the time we look at it."""
    first = local.replace(fold=0).astimezone(UTC)
    second = local.replace(fold=1).astimezone(UTC)
    if first >= second or repeat == "both":
        return True
    return local.astimezone(UTC) == (first if repeat == "first" else second)


def _swallowed(fields: Fields, wall: datetime, end: datetime) -> bool:
    while wall < end:
        if fields.allows(wall):
            return True
        wall += MINUTE
    return False
