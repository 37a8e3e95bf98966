"""The heart: a thread that keeps the leases of long tries, and hears of cancels.

It shares nothing with the event loop but a few plain values, so that it goes on beating while a
handler blocks the loop. It also watches the loop: a handler that blocks it past its end is struck.
"""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from time import sleep
from typing import TYPE_CHECKING, Any

import msgspec

from mainspring.clock import monotonic, wall_clock
from mainspring.errors import MainspringError
from mainspring.sdk.encoding import encode, sendable
from mainspring.sdk.faces import run
from mainspring.sdk.worker.loop_runner import LoopRunner, Struck
from mainspring.sdk.worker.outcomes import ended
from mainspring.sdk.worker.protocol import (
    Beat,
    HeartbeatIn,
    HeartbeatOut,
    Kept,
    Nodes,
    ReportIn,
    ReportOut,
    ServerClock,
)
from mainspring.sdk.worker.reports import REPORTS, outcome_of
from mainspring.sdk.worker.tries import Try

if TYPE_CHECKING:
    from uuid import UUID

    from mainspring.sdk.worker.options import WorkerOptions

HEARTBEAT = "/v1/leases/heartbeat"
STRIKE = signal.SIGUSR2

_MOST_BEATS = 5000
_LARGEST_PROGRESS = 10_000
"""Bytes, as the server has it."""
_SHOWN = 1000
EXIT_BLOCKED = 75
"""The exit status of a worker that cannot go on and has nobody to begin anew for it."""

_HOPELESS = 5.0
_BLOCKED = 1.0
"""Seconds without a sign of the event loop after which it counts as blocked."""


class Heart(threading.Thread):
    """Beats for the tries that `held` lists; `tell` is called on the event loop."""

    def __init__(
        self,
        options: "WorkerOptions",
        nodes: Nodes,
        clock: ServerClock,
        loop: asyncio.AbstractEventLoop,
        held: Callable[[], Iterable[Try]],
        runner: LoopRunner,
    ) -> None:
        super().__init__(name="mainspring-heart", daemon=True)
        self._options = options
        self._nodes = nodes
        self._clock = clock
        self._loop = loop
        self._held = held
        self._runner = runner
        self._bell = threading.Event()
        self._over = False
        self._nudged = False
        self._warned: Try | None = None
        self._complaint = ""
        self._loop_thread = threading.get_ident()
        self._may_strike = threading.current_thread() is threading.main_thread()
        self.pulse = monotonic()
        """When the event loop last gave a sign."""
        self.replace_process: Callable[[], None] = lambda: os._exit(EXIT_BLOCKED)
        self.warn: Callable[[str], None] = lambda _text: None
        if self._may_strike:
            self._before: Any = signal.signal(STRIKE, self._strike_here)

    def nudge(self) -> None:
        """Something is wanted of tries that are held here: ask about all of them at once."""
        self._nudged = True
        self._bell.set()

    def stop(self) -> None:
        self._over = True
        self._bell.set()
        if self.is_alive():
            self.join(5)
        if self._may_strike:
            signal.signal(STRIKE, self._before)

    def run(self) -> None:
        began = 0.0
        while True:
            pause = max(0.05, min(1.0, self._clock.lease / 12))
            self._bell.wait(pause)
            # Nudges that come in quick succession are one.
            sleep(max(0.0, began + pause / 2 - monotonic()))
            self._bell.clear()
            if self._over:
                return
            began = monotonic()
            for duty in (self._keep, self._watch_loop):
                try:
                    duty(monotonic())
                except Exception as problem:  # without a heart every lease is lost
                    self.warn(f"the heart stumbled: {problem!r}")

    # Leases ----------------------------------------------------------------------------------

    def _keep(self, now: float) -> None:
        nudged, self._nudged = self._nudged, False
        old = self._clock.lease * 2 / 3
        self._beat([t for t in self._held() if nudged or t.lease_end - now < old])

    def _beat(self, old: list[Try]) -> None:
        for first in range(0, len(old), _MOST_BEATS):
            batch = old[first : first + _MOST_BEATS]
            body = HeartbeatIn(
                self._options.name,
                self._options.incarnation,
                [Beat(*t.key, _progress(t)) for t in batch],
            )
            try:
                answer = run(
                    self._nodes.ask_any(
                        HEARTBEAT, body, HeartbeatOut, within=self._clock.lease / 3, blocking=True
                    )
                )
            except MainspringError as problem:
                if str(problem) != self._complaint:  # once, and not with every beat
                    self._complaint = str(problem)
                    self.warn(f"a heartbeat failed: {problem}")
                continue
            self._complaint = ""
            self._take(batch, {kept.id: kept for kept in answer.tasks})

    def _take(self, batch: list[Try], kept: "dict[UUID, Kept]") -> None:
        for attempt in batch:
            found = kept.get(attempt.leased.id)
            if found is None or found.action == "lost":
                self._end(attempt, "lost")
                continue
            attempt.lease_end = self._clock.local(found.lease_until)
            if found.action == "cancel":
                self._end(attempt, "cancelled")

    def _end(self, attempt: Try, why: Any) -> None:
        self._loop.call_soon_threadsafe(attempt.end, why)

    # The event loop --------------------------------------------------------------------------

    def _watch_loop(self, now: float) -> None:
        if now - self.pulse < _BLOCKED:
            self._warned = None
            return
        culprit = self._culprit()
        if culprit is None:
            return
        if self._warned is not culprit:
            self._warned = culprit
            self.warn(
                f"the handler {culprit.leased.target.name!r} blocks the event loop: declare it "
                "without async, or cpu_bound, and it will not hold up others"
            )
        cut_off = culprit.lease_end - self._clock.margin <= now
        if now < culprit.deadline and not cut_off:
            return
        if culprit.ending is None:
            culprit.ending = "lost" if cut_off else "timeout"
        if self._may_strike:
            signal.pthread_kill(self._loop_thread, STRIKE)
        if now >= culprit.deadline + _HOPELESS:
            self._despair(culprit)

    def _despair(self, culprit: Try) -> None:
        """Nothing frees the loop. Say what can be said about all tries, and begin anew."""
        self.warn("the event loop cannot be freed: this process is replaced")
        for attempt in self._held():
            if not attempt.settled:
                attempt.settled = True
                attempt.finished_at = max(attempt.started_at, wall_clock())
                why = attempt.ending or "released"
                attempt.verdict = ended(
                    why if attempt is culprit else "released", attempt.leased.timeout
                )
        told = [outcome_of(attempt) for attempt in self._held() if attempt.verdict is not None]
        with suppress(Exception):  # whatever comes of it, the process is replaced
            run(self._nodes.ask_any(REPORTS, ReportIn(told), ReportOut, within=5.0, blocking=True))
        self.replace_process()

    def _culprit(self) -> Try | None:
        """The try whose code the event loop is running just now."""
        task = asyncio.current_task(self._loop)
        return None if task is None else self._runner.tries.get(task)

    def _strike_here(self, _number: int, _frame: Any) -> None:
        """In the main thread, in the middle of whatever it does: only a culprit is struck."""
        culprit = self._culprit()
        if culprit is not None and culprit.ending is not None:
            raise Struck(culprit.ending)


def _progress(attempt: Try) -> Any:
    """What it said last. One that cannot be sent must not cost the others their heartbeat."""
    value = attempt.context.last_progress
    if value is None:
        return None
    try:
        data = encode(value)
        if len(data) <= _LARGEST_PROGRESS:
            return msgspec.Raw(data)
        return sendable(data[:_SHOWN].decode("utf-8", "replace")) + "…"
    except MainspringError:
        return f"a {type(value).__name__} that cannot be written as JSON"
