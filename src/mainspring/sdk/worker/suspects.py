"""The order in which a worker begins executions that were lost before, beside others that run.

Such an execution reports its start at that very moment (`start_channels`). Should the process die
just then of another one that also began just then, the server would hold that both had begun. So a
suspect begins when all others have run for a moment, and the next one of any kind when the suspect
has.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from mainspring.clock import monotonic

if TYPE_CHECKING:
    from mainspring.sdk.worker.execution import WorkerExecution

_MOMENT = 0.05
"""Seconds: whoever kills its process as it begins has done so by then."""
_LOOK_EVERY = 0.01
_LONGEST_WAIT = 5.0
_SHARE_OF_TIMEOUT = 6
_LONGEST_START = 1.0


class Suspects:
    """Used on the event loop. `start` starts an execution that reports its own start; `go_on` is
    called with those that came meanwhile."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        running: Callable[[], Iterable["WorkerExecution"]],
        start: Callable[["WorkerExecution"], None],
        go_on: Callable[["WorkerExecution"], None],
    ) -> None:
        self._loop = loop
        self._running = running
        self._start = start
        self._go_on = go_on
        self._waiting: deque[WorkerExecution] = deque()
        self._beginning: WorkerExecution | None = None
        self._since = 0.0
        self._held_back: deque[WorkerExecution] = deque()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def busy(self) -> bool:
        """Whether one begins just now, so that nothing else may."""
        return self._beginning is not None

    def hold_back(self, execution: "WorkerExecution") -> None:
        """Let another execution begin a moment later."""
        self._held_back.append(execution)

    def add(self, execution: "WorkerExecution") -> None:
        self._waiting.append(execution)
        self._look()

    def _look(self) -> None:
        """Whether one has begun, and the next one may."""
        self._timer = None
        now = monotonic()
        if self._beginning is not None and self._has_begun(self._beginning, now):
            self._beginning = None
        while self._beginning is None and self._held_back:
            self._go_on(self._held_back.popleft())
        while self._beginning is None and self._waiting:
            execution = self._waiting[0]
            if execution.finished:
                self._waiting.popleft()
            elif now - execution.began >= _longest_wait(execution):
                self._waiting.popleft().start()  # it goes without: a heartbeat will name it
            elif all(_is_safe(other, now) for other in self._running()):
                self._beginning, self._since = self._waiting.popleft(), now
                self._start(execution)
            else:
                break
        if self._timer is None and (self._beginning is not None or self._waiting):
            self._timer = self._loop.call_later(_LOOK_EVERY, self._look)

    def _has_begun(self, execution: "WorkerExecution", now: float) -> bool:
        if execution.finished or now - self._since >= _LONGEST_START:
            return True
        return execution.begun and now - execution.began >= _MOMENT


def _is_safe(execution: "WorkerExecution", now: float) -> bool:
    """Whether it does not kill its process as it begins, or cannot, or has not begun to."""
    if execution.finished or not execution.started or execution.runner.apart:
        return True
    return execution.begun and now - execution.began >= _MOMENT


def _longest_wait(execution: "WorkerExecution") -> float:
    return min(_LONGEST_WAIT, execution.leased.timeout / _SHARE_OF_TIMEOUT)
