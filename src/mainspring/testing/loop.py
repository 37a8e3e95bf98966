"""An event loop in virtual time: whoever sleeps on it wakes at once, and the clock has moved on."""

import asyncio
import selectors
from typing import Any


class VirtualLoop(asyncio.SelectorEventLoop):
    """Nothing waits. Real input and output is looked at, but time does not wait for it."""

    def __init__(self, start: float) -> None:
        self._start = start
        self._now = 0.0  # counted from the start: the seconds since 1970 are too coarse to add up
        super().__init__(_Impatient(self))

    def time(self) -> float:
        return self._now

    def clock(self) -> float:
        """Return the seconds since the epoch, in whole microseconds."""
        return round(self._start + self._now, 6)

    def pass_time(self, seconds: float) -> None:
        self._now += seconds


class _Impatient(selectors.DefaultSelector):
    """A selector that moves the clock instead of waiting."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._virtual = loop

    def select(self, timeout: float | None = None) -> list[tuple[Any, int]]:
        found: list[tuple[Any, int]] = super().select(0 if timeout is not None else 1.0)
        if not found and timeout is not None and timeout > 0:
            self._virtual.pass_time(timeout)
        return found
