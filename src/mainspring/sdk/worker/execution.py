"""One execution of a task in a worker, and the protocol of what runs it."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import UUID

from mainspring.clock import monotonic, wall_clock
from mainspring.sdk.context import Context
from mainspring.sdk.functions import TaskFunction
from mainspring.sdk.worker.outcomes import RELEASED, Ending, ReportedOutcome, ended, failed
from mainspring.sdk.worker.protocol import Leased

_deciding = threading.Lock()
"""Held while it is decided whether one begins: another thread may be about to withdraw it."""


class Runner(Protocol):
    """Runs executions of one kind. Called on the event loop."""

    apart: bool
    """Whether they run in processes of their own, and cannot easily kill this one."""

    def start(self, execution: "WorkerExecution", /) -> None:
        """Run it: right before its first step call `begin`, and release it if it may not."""

    def stop(self, execution: "WorkerExecution", /) -> None:
        """End it as `execution.ending` says; it finishes when it has ended."""


@dataclass(slots=True, eq=False)
class WorkerExecution:
    """A leased task from its arrival to its report. Finishes once."""

    leased: Leased
    lease_end: float
    """On this machine's monotonic clock."""
    context: Context
    function: TaskFunction[..., Any] | None
    runner: Runner
    _on_finished: "Callable[[WorkerExecution], None]"
    margin: float = 0.0
    """Seconds before the end of its lease from which on it does not begin."""
    arriving: bool = False
    """Whether its lease is kept, but the event loop does not know it yet."""
    started: bool = False
    """Whether its runner has it."""
    begun: bool = False
    """Whether the first step of its handler is done, or about to be."""
    began: float = field(default_factory=monotonic)
    """When that was; before that, when it arrived."""
    named: bool = False
    """Whether the server has confirmed that it knows that it began."""
    alone: bool = False
    """Whether nothing else runs beside it."""
    on_begin: "Callable[[WorkerExecution], None] | None" = None
    started_at: float = field(default_factory=wall_clock)
    finished_at: float = 0.0
    deadline: float = field(init=False)
    ending: Ending | None = None
    finished: bool = False
    verdict: ReportedOutcome | None = None
    handle: Any = None
    """The handle of its runner."""

    def __post_init__(self) -> None:
        self.deadline = self.began + self.leased.timeout

    @property
    def key(self) -> tuple[UUID, int]:
        return self.leased.id, self.leased.fence

    def start(self) -> None:
        """Hand it to its runner, unless it was ended meanwhile."""
        if not self.finished:
            self.started = True
            self.runner.start(self)

    def begin(self) -> bool:
        """Begin, in the handler's thread. Return False if it was ended, or its lease is over."""
        now = monotonic()
        with _deciding:
            if self.finished or self.ending is not None or self.lease_end - self.margin <= now:
                return False
            # In this order: another thread that sees that it has begun also sees when.
            self.began, self.started_at = now, wall_clock()
            self.begun = True
        if self.on_begin is not None:
            self.on_begin(self)
        return True

    def withdraw(self) -> bool:
        """Keep it from beginning, from another thread. Return False if it has begun."""
        with _deciding:
            if self.begun or self.finished or self.ending is not None:
                return False
            self.ending = "released"
            return True

    @property
    def is_withdrawn(self) -> bool:
        """Whether it was withdrawn before any runner had it, so that no runner finishes it."""
        return self.ending is not None and not (self.started or self.arriving or self.finished)

    def end(self, why: Ending) -> None:
        """End it from outside. After a lost lease nothing is reported, whatever else ended it. One
        that did not begin has not failed: at its timeout it is released."""
        if self.arriving or self.finished or (self.ending is not None and why != "lost"):
            return
        with _deciding:
            self.ending = "released" if why == "timeout" and not self.begun else why
        self.context.cancel()
        if self.started:
            self.runner.stop(self)
        else:
            self.finish(RELEASED)

    def finish(self, verdict: ReportedOutcome) -> None:
        """Record that it has ended: with a success, else for the reason from outside, if any."""
        if self.finished:
            return
        self.finished = True
        self.stop_the_time()
        reported: ReportedOutcome | None = verdict
        if self.ending == "lost":
            reported = None
        elif self.ending is not None and verdict.status != "succeeded":
            reported = ended(self.ending, self.leased.timeout)
        self.verdict = reported
        self._on_finished(self)

    def stop_the_time(self) -> None:
        """Note when it ended, by the monotonic clock: the wall clock may have been set."""
        self.finished_at = self.started_at + max(0.0, monotonic() - self.began)

    def give_up(self) -> None:
        """Report it although it does not end; whatever it still does has no effect."""
        assert self.ending is not None
        self.finish(failed("stuck", "it did not stop when it was told to"))
