"""Time: the database's, known to a node without asking. The only module that reads a clock.

A node runs on its monotonic clock plus a measured offset, so a jump of the machine's wall clock
changes nothing. The estimate is never ahead of the database: a sample says what the database's
clock showed at some moment before the answer arrived, so adding what passed since is a lower bound.
Leases and periodic jobs go on while the database's clock is away: the steady clock times them.
"""

import time
from collections import deque
from datetime import UTC, datetime
from typing import NamedTuple, Protocol

_SLEEPLESS: int | None = getattr(time, "CLOCK_BOOTTIME", None)


class Clock(Protocol):
    """The time, and how it passes."""

    def now(self) -> float:
        """Return the seconds since the epoch, by the database's clock. It never runs back."""

    def measured(self) -> float:
        """Return the same as last measured, which may run back: for times that the database set,
        such as those of leases."""

    def steady(self) -> float:
        """Return the seconds since some moment, by this machine's steady clock."""


def monotonic() -> float:
    """Return this machine's steady clock, for measuring durations. If the system can, it counts
    the time that the machine sleeps."""
    return time.monotonic() if _SLEEPLESS is None else time.clock_gettime(_SLEEPLESS)


def wall_clock() -> float:
    """Return this machine's own idea of the time: for talking to people, never for decisions."""
    return time.time()


def utc(seconds: float) -> datetime:
    """Return a time that is given in seconds since the epoch."""
    return datetime.fromtimestamp(seconds, UTC)


class StartTime(NamedTuple):
    """The start of something, by the database's clock and by the steady one."""

    at: float
    steady: float

    @classmethod
    def now(cls, clock: Clock, at: float | None = None) -> "StartTime":
        return cls(clock.now() if at is None else at, clock.steady())

    def end(self, clock: Clock) -> float:
        """Return the present time as the end. The duration is measured by the steady clock: the
        database's may jump or stand still meanwhile."""
        return self.at + max(0.0, clock.steady() - self.steady)


class DatabaseClock:
    """The monotonic clock, anchored to the database by samples.

    Of the recent samples the largest offset counts: it is the one with the least delay on the way
    back. Forward it is followed at once, however far: it is a lower bound of the database's clock,
    so nothing can be early by it. Back (the database failed over to a machine with another clock)
    it is slewed, so that the time the engine sees never runs back: it stands still if need be.
    """

    _WINDOW = 8
    _SLEW_RATE = 0.5
    _SLEW_WITHIN = 60.0
    _JUMP = 1.0
    _SLOW_ANSWER = 0.25

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=self._WINDOW)
        self._offset = self._target = float("-inf")
        self._moved_at = 0.0
        self._last = 0.0

    @property
    def anchored(self) -> bool:
        return bool(self._recent)

    def now(self) -> float:
        if not self._recent:
            raise RuntimeError("the clock has not been anchored to the database yet")
        moment = monotonic()
        if self._offset != self._target:
            self._slew_back(moment)
        # Slewing back may outrun the passing of time: stand still rather than run backwards.
        self._last = max(self._last, moment + self._offset)
        return self._last

    def measured(self) -> float:
        return min(self.now(), monotonic() + self._target)

    def steady(self) -> float:
        return monotonic()

    def sample(self, database_time: float, *, sent: float, received: float) -> float:
        """Take a measurement: what the database said to a question sent and answered at these
        monotonic times. Return by how much the database's clock jumped, 0.0 for not at all."""
        if self._recent and received - sent > self._SLOW_ANSWER:
            return 0.0  # a stalled machine or network tells nothing about the clock
        offset, jump = database_time - received, 0.0
        if self._offset == self._target:
            self._moved_at = received
        if self._recent and abs(offset - max(self._recent)) > self._JUMP:
            jump = offset - max(self._recent)
            self._recent.clear()
        self._recent.append(offset)
        self._target = max(self._recent)
        self._offset = max(self._offset, self._target)
        return jump

    def _slew_back(self, moment: float) -> None:
        ahead = self._offset - self._target
        rate = max(self._SLEW_RATE, ahead / self._SLEW_WITHIN)
        step = (moment - self._moved_at) * rate
        self._offset = self._target if step >= ahead else self._offset - step
        self._moved_at = moment
