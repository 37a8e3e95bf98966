"""A thread that keeps the leases of executions, reports which began, and receives cancels.

It shares nothing with the event loop but a few plain values, so that heartbeats go on while a
handler blocks the loop. It also watches the loop: a handler that blocks it past its end is
interrupted, and what waits behind one that blocks it for long is released.
"""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from math import inf
from time import sleep
from typing import Any
from uuid import UUID

from msgspec import UNSET, Raw, UnsetType

from mainspring.clock import monotonic, utc, wall_clock
from mainspring.errors import MainspringError
from mainspring.sdk.encoding import encode, sendable
from mainspring.sdk.sync_async import run
from mainspring.sdk.worker.execution import WorkerExecution
from mainspring.sdk.worker.nodes import Nodes
from mainspring.sdk.worker.options import WorkerOptions
from mainspring.sdk.worker.outcomes import HandlerInterrupt, ended
from mainspring.sdk.worker.protocol import HEARTBEAT, REPORTS, ServerClock
from mainspring.sdk.worker.reports import outcome_of
from mainspring.sdk.worker.runners import LoopRunner
from mainspring.sdk.worker.suspects import StartChannels
from mainspring.wire.workers import (
    BeatIn,
    HeartbeatIn,
    JudgedListOut,
    OutcomeIn,
    PulseOut,
    PulsesOut,
    ReportIn,
)

INTERRUPT = signal.SIGUSR2

_MOST_BEATS = 5000
_LARGEST_PROGRESS = 10_000
"""Bytes, as the server has it."""
_SHOWN = 1000
EXIT_BLOCKED = 75
"""The exit status of a worker that cannot go on and that nothing restarts."""

_ANNOUNCE_AFTER = 0.5
"""Seconds after which a start is reported to the server: most executions are over by then."""
_LONGEST_PAUSE = 0.25
_SOON = 0.005
_AFTER_ERROR = 0.2
_REPLACE_AFTER = 5.0
_BLOCKED = 1.0
"""Seconds without a sign of the event loop after which it counts as blocked."""


class HeartbeatThread(threading.Thread):
    """Sends heartbeats for the executions that `leased` lists."""

    def __init__(
        self,
        options: WorkerOptions,
        nodes: Nodes,
        clock: ServerClock,
        loop: asyncio.AbstractEventLoop,
        leased: Callable[[], Iterable[WorkerExecution]],
        runner: LoopRunner,
    ) -> None:
        super().__init__(name="mainspring-heartbeats", daemon=True)
        self._options = options
        self._nodes = nodes
        self._clock = clock
        self._loop = loop
        self._leased = leased
        self._runner = runner
        self._channels = StartChannels(options, nodes)
        self.errors = 0
        """Number of unexpected errors."""
        self._to_confirm: list[WorkerExecution] = []
        self._suspects: list[WorkerExecution] = []
        self._wake = threading.Event()
        self._over = threading.Event()
        self._polls_interrupted = False
        self._warned: WorkerExecution | None = None
        self._last_error = ""
        self._loop_thread = threading.get_ident()
        self._can_interrupt = threading.current_thread() is threading.main_thread()
        self.pulse = monotonic()
        """When the event loop last ran."""
        self.replace_process: Callable[[], None] = lambda: os._exit(EXIT_BLOCKED)
        self.warn: Callable[[str], None] = lambda _text: None
        if self._can_interrupt:
            self._before: Any = signal.signal(INTERRUPT, self._on_interrupt)

    def interrupt_polls(self) -> None:
        """Ask about all leased executions at once: the server wants something of them."""
        self._polls_interrupted = True
        self._wake.set()

    def start_alone(self, execution: WorkerExecution) -> None:
        """Start an execution when its lease is confirmed; it reports its own start."""
        self._to_confirm.append(execution)
        self._wake.set()

    def start_named(self, execution: WorkerExecution) -> None:
        """Start an execution that reports its own start."""
        self._suspects.append(execution)
        self._wake.set()

    def stop(self) -> None:
        self._over.set()
        self._wake.set()
        if self.is_alive():
            self.join(5)
        self._channels.close()
        if self._can_interrupt:
            signal.signal(INTERRUPT, self._before)

    def run(self) -> None:
        began = 0.0
        while not self._over.is_set():
            try:
                self._await_turn(began)
            except Exception as problem:
                self._note(problem)
            began = monotonic()
            for duty in (self._start_suspects, self._keep, self._confirm, self._watch_loop):
                if self._over.is_set():
                    return
                try:
                    duty(monotonic())
                except Exception as problem:  # without heartbeats every lease is lost
                    self._note(problem)

    def _await_turn(self, began: float) -> None:
        pause = max(0.05, min(_LONGEST_PAUSE, self._clock.lease / 12))
        self._wake.wait(_SOON if self._suspects else pause)
        if not self._to_confirm and not self._suspects:
            # Interruptions in quick succession count as one.
            sleep(max(0.0, began + pause / 2 - monotonic()))
        self._wake.clear()

    def _note(self, problem: Exception) -> None:
        """Count an error and go on, but not in a hot loop."""
        self.errors += 1
        with suppress(Exception):
            self.warn(f"the thread that sends heartbeats met an error: {problem!r}")
        with suppress(Exception):
            threading.Event().wait(_AFTER_ERROR)

    # Leases ----------------------------------------------------------------------------------

    def _keep(self, now: float) -> None:
        """Extend leases that are getting old, and report executions that began."""
        polls_interrupted, self._polls_interrupted = self._polls_interrupted, False
        age = self._clock.lease * 2 / 3
        old = [
            execution
            for execution in self._leased()
            if polls_interrupted or execution.lease_end - now < age or _is_news(execution, now)
        ]
        self._beat(old)

    def _beat(self, old: list[WorkerExecution]) -> None:
        for first in range(0, len(old), _MOST_BEATS):
            batch = old[first : first + _MOST_BEATS]
            beats = tuple(map(_beat_of, batch))
            kept = self._ask_for(beats)
            if kept is None:
                continue
            for execution, beat in zip(batch, beats, strict=True):
                found = kept.get(execution.leased.id)
                execution.named = execution.named or beat.started
                if found is not None or beat.started:  # an older node hears only of these
                    self._take(execution, found)

    def _ask_for(self, beats: tuple[BeatIn, ...]) -> dict[UUID, PulseOut] | None:
        """Return the decision about each lease; None where no node answered."""
        body = HeartbeatIn(self._options.name, self._options.incarnation, beats)
        within = self._clock.lease / 3
        try:
            answer = run(
                self._nodes.ask_any(HEARTBEAT, body, PulsesOut, within=within, blocking=True)
            )
        except MainspringError as problem:
            if str(problem) != self._last_error:  # once, and not with every beat
                self._last_error = str(problem)
                self.warn(f"a heartbeat failed: {problem}")
            return None
        self._last_error = ""
        return {kept.id: kept for kept in answer.tasks}

    def _take(self, execution: WorkerExecution, found: PulseOut | None) -> None:
        """Do what the server decided about a lease; None: it does not know it."""
        if found is None or found.action == "lost":
            if not execution.begun:
                # It does not begin, however late the loop hears of it.
                execution.lease_end = -inf
            self._loop.call_soon_threadsafe(execution.end, "lost")
            return
        execution.lease_end = self._clock.local(found.lease_until)
        if found.action == "cancel":
            self._loop.call_soon_threadsafe(execution.end, "cancelled")

    # Starts ----------------------------------------------------------------------------------

    def _start_suspects(self, _now: float) -> None:
        self._channels.recycle()
        while self._suspects and self._channels.reserve(self._suspects[0]):
            self._loop.call_soon_threadsafe(self._suspects.pop(0).start)

    def _confirm(self, _now: float) -> None:
        """Have leases confirmed, again and again until an answer or their end, and let what was
        leased alone begin. That it began is proven by its own report: a worker may die before."""
        for execution in list(self._to_confirm):
            if self._is_decided(execution):
                self._to_confirm.remove(execution)

    def _is_decided(self, execution: WorkerExecution) -> bool:
        """Whether the execution was told to begin, or is not to."""
        if execution.finished or execution.ending is not None:
            return True
        found = self._ask_about(execution)
        if found is None:
            return False
        self._take(execution, found)
        if found.action != "continue":
            return True
        if not self._channels.reserve(execution):
            return False
        self._loop.call_soon_threadsafe(execution.start)
        return True

    def _ask_about(self, execution: WorkerExecution) -> PulseOut | None:
        """Return the decision about a lease; an older node knows only of what has begun."""
        for beat in (BeatIn(*execution.key, started=False), BeatIn(*execution.key)):
            kept = self._ask_for((beat,))
            if kept is None:
                return None
            if execution.leased.id in kept:
                return kept[execution.leased.id]
        return None

    # The event loop --------------------------------------------------------------------------

    def _watch_loop(self, now: float) -> None:
        if now - self.pulse < _BLOCKED:
            self._warned = None
            return
        if now - self.pulse >= max(_BLOCKED, self._clock.lease / 3):
            self._release_waiting()
        blocking = self._blocking_execution()
        if blocking is None:
            return
        if self._warned is not blocking:
            self._warned = blocking
            self.warn(
                f"the handler {blocking.leased.target.name!r} blocks the event loop: declare it "
                "without async, or cpu_bound, and it will not hold up others"
            )
        cut_off = blocking.lease_end - self._clock.margin <= now
        if now < blocking.deadline and not cut_off:
            return
        if blocking.ending is None:
            blocking.ending = "lost" if cut_off else "timeout"
        if self._can_interrupt:
            signal.pthread_kill(self._loop_thread, INTERRUPT)
        if now >= blocking.deadline + _REPLACE_AFTER:
            self._replace_process(blocking)

    def _release_waiting(self) -> None:
        """Release what waits behind a handler that blocks the loop. Its leases are kept until the
        loop has reported the release as well."""
        waiting = [execution for execution in self._leased() if execution.withdraw()]
        if not waiting:
            return
        now = utc(wall_clock())
        outcomes = [
            OutcomeIn(*execution.key, "released", started_at=now, finished_at=now)
            for execution in waiting
        ]
        self._report(outcomes)

    def _replace_process(self, blocking: WorkerExecution) -> None:
        """Report what can be reported of all executions, and replace the process."""
        self.warn("the event loop cannot be freed: this process is replaced")
        for execution in self._leased():
            if not execution.finished:
                execution.finished = True
                execution.stop_the_time()
                why = execution.ending or "released"
                execution.verdict = ended(
                    why if execution is blocking else "released", execution.leased.timeout
                )
        outcomes = [outcome_of(each) for each in self._leased() if each.verdict is not None]
        with suppress(Exception):  # the process is replaced, reported or not
            self._report(outcomes)
        self.replace_process()

    def _report(self, outcomes: list[OutcomeIn]) -> None:
        body = ReportIn(tuple(outcomes))
        run(self._nodes.ask_any(REPORTS, body, JudgedListOut, within=5.0, blocking=True))

    def _blocking_execution(self) -> WorkerExecution | None:
        """Return the execution whose code the event loop is running now."""
        task = asyncio.current_task(self._loop)
        return None if task is None else self._runner.executions.get(task)

    def _on_interrupt(self, _number: int, _frame: Any) -> None:
        """Interrupt a handler that blocks; called in the main thread, wherever it is."""
        blocking = self._blocking_execution()
        if blocking is not None and blocking.ending is not None:
            raise HandlerInterrupt(blocking.ending)


def _is_news(execution: WorkerExecution, now: float) -> bool:
    """Whether its start is still to be reported to the server."""
    return (
        execution.begun
        and not execution.named
        and not execution.finished
        and now - execution.began >= _ANNOUNCE_AFTER
    )


def _beat_of(execution: WorkerExecution) -> BeatIn:
    began = execution.begun
    alone = began and execution.alone
    return BeatIn(*execution.key, _progress(execution), started=began, alone=alone)


def _progress(execution: WorkerExecution) -> Raw | UnsetType:
    """Return its last progress. One that cannot be sent must not cost the others a heartbeat."""
    value = execution.context.last_progress
    if value is None:
        return UNSET
    try:
        data = encode(value)
    except MainspringError:
        data = encode(f"a {type(value).__name__} that cannot be written as JSON")
    if len(data) > _LARGEST_PROGRESS:
        data = encode(sendable(data[:_SHOWN].decode("utf-8", "replace")) + "…")
    return Raw(data)
