"""A watchdog for the event loop: while it is blocked, no request and no signal is handled.

It is a thread that counts its own ticks. When the process is stopped, or the machine sleeps, the
watchdog is stopped as well, and such a time does not count. Code that holds the interpreter's lock
for good stops it, too: that shows only from outside, because nothing answers `/healthz`.
"""

import asyncio
import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

import structlog

from mainspring.clock import monotonic
from mainspring.observe.metrics import Metrics

log = structlog.get_logger()

EXIT_STALLED = 75
"""Exit status of a process whose event loop stood still; that of a blocked worker, too."""

_UNHEALTHY_FOR = 10.0
"""Seconds after a stall for which the node calls itself unhealthy: a probe sees one, but only one
stall after the other makes it fail again and again."""

_LONGEST_TICK = 0.5
_TICKS = 10
_LOG_TIMEOUT = 2.0
_MOST_FRAMES = 40


class LoopWatchdog:
    """Notices when the event loop that started it stands still for `limit` seconds (0: never)."""

    def __init__(self, limit: float, metrics: Metrics, *, exits: bool = False) -> None:
        self._limit = limit
        self._metrics = metrics
        self._exits = exits
        self._tick = min(limit / _TICKS, _LONGEST_TICK)
        self._over = threading.Event()
        self._beats = 0
        self._timer: asyncio.TimerHandle | None = None
        self._longest = 0.0
        self._last = 0.0
        """Length of the last stall."""
        self._until: float | None = None
        """When the last stall was over, by the steady clock; infinity while it lasts."""

    def start(self) -> None:
        """Begin to watch the running loop, from its own thread."""
        if not self._limit:
            return
        self._loop = asyncio.get_running_loop()
        self._watched = threading.get_ident()
        self._beat()
        threading.Thread(target=self._watch, name="loop-watchdog", daemon=True).start()

    def stop(self) -> None:
        self._over.set()
        if self._timer is not None:
            self._timer.cancel()

    def complaint(self) -> str | None:
        """Return what is wrong with the loop: it stands still, or did a moment ago."""
        if self._until is None or monotonic() > self._until + _UNHEALTHY_FOR:
            return None
        return f"the event loop stood still for {self._last:.1f} s"

    def _beat(self) -> None:
        self._beats += 1
        self._timer = self._loop.call_later(self._tick, self._beat)

    # In the thread ---------------------------------------------------------------------------

    def _watch(self) -> None:
        seen, still, tell_at = 0, 0.0, self._limit
        while not self._over.wait(self._tick) and not self._loop.is_closed():
            if self._beats == seen and self._loop.is_running():
                # Not by a clock: it goes on while the process is stopped.
                still += self._tick
                if still >= tell_at:
                    self._stalled(still)
                    tell_at = 2 * still
                continue
            if still >= self._limit:
                self._recovered(still)
            seen, still, tell_at = self._beats, 0.0, self._limit

    def _stalled(self, still: float) -> None:
        first = self._until != float("inf")
        self._until = float("inf")
        self._note(still)
        if first:
            self._metrics.loop_stalls.inc()
        frames = self._frames()
        message = "the event loop stands still" + (": this process ends" if self._exits else "")
        seconds = round(still, 1)
        _log_aside(log.error, message, action="loop.stalled", seconds=seconds, frames=frames)
        if self._exits:
            os._exit(EXIT_STALLED)

    def _recovered(self, still: float) -> None:
        self._note(still)
        self._until = monotonic()
        seconds = round(still, 1)
        _log_aside(log.warning, "the event loop goes on", action="loop.recovered", seconds=seconds)

    def _note(self, still: float) -> None:
        self._last = still
        self._longest = max(self._longest, still)
        self._metrics.longest_stall.set(self._longest)

    def _frames(self) -> str:
        """Return the stack of the loop's thread, innermost first, without values (secrets)."""
        frame = sys._current_frames().get(self._watched)
        calls = [] if frame is None else traceback.extract_stack(frame)[-_MOST_FRAMES:]
        return " < ".join(f"{c.name} ({c.filename}:{c.lineno})" for c in reversed(calls))


def _log_aside(say: Callable[..., Any], message: str, **fields: object) -> None:
    """Log, and wait for it only briefly: a log that nobody reads may be what blocks the loop."""
    telling = threading.Thread(target=say, args=(message,), kwargs=fields, daemon=True)
    telling.start()
    telling.join(_LOG_TIMEOUT)
