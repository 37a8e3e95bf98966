"""Time: the database's, known to a node without asking. The only module that reads a clock.

A node runs on its monotonic clock plus a measured offset, so a jump of the machine's wall clock
changes nothing. The estimate is never ahead of the database: a sample says what the database's
clock showed at some moment before the answer arrived, so adding what passed since is a lower bound.
"""

import time
from collections import deque
from typing import Protocol


class Clock(Protocol):
    """Seconds since the epoch, by the database's clock."""

    def now(self) -> float: ...


def monotonic() -> float:
    """This machine's steady clock, for measuring how long things take."""
    return time.monotonic()


def wall_clock() -> float:
    """This machine's own idea of the time: for talking to people, never for decisions."""
    return time.time()


class ManualClock:
    """A clock that stands still until it is moved: for tests and simulations."""

    def __init__(self, start: float = 1_800_000_000.0) -> None:
        self._now = start

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds


class DatabaseClock:
    """The monotonic clock, anchored to the database by samples.

    Of the recent samples the largest offset counts: it is the one with the least delay on the way
    back. A jump (the database failed over to a machine with another clock) is not followed at once
    but slewed within minutes, so that the time the engine sees neither leaps nor runs back.
    """

    _WINDOW = 8
    _SLEW_RATE = 0.5
    _SLEW_WITHIN = 60.0
    _JUMP = 1.0
    _SLOW_ANSWER = 0.25

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=self._WINDOW)
        self._offset = 0.0
        self._target = 0.0
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
            self._slew(moment)
        # Slewing back may outrun the passing of time: stand still rather than run backwards.
        self._last = max(self._last, moment + self._offset)
        return self._last

    def sample(self, database_time: float, *, sent: float, received: float) -> float:
        """Take a measurement: what the database said to a question sent and answered at these
        monotonic times. Answers by how much the database's clock jumped, 0.0 for not at all."""
        if self._recent and received - sent > self._SLOW_ANSWER:
            return 0.0  # a stalled machine or network tells nothing about the clock
        offset, jump = database_time - received, 0.0
        if self._offset == self._target:
            self._moved_at = received
        if not self._recent:
            self._offset = offset
        elif abs(offset - max(self._recent)) > self._JUMP:
            jump = offset - max(self._recent)
            self._recent.clear()
        self._recent.append(offset)
        self._target = max(self._recent)
        return jump

    def _slew(self, moment: float) -> None:
        gap = self._target - self._offset
        rate = max(self._SLEW_RATE, abs(gap) / self._SLEW_WITHIN)
        step = min(abs(gap), (moment - self._moved_at) * rate)
        if step == abs(gap):
            self._offset = self._target
        else:
            self._offset += step if gap > 0 else -step
        self._moved_at = moment
