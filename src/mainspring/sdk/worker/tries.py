"""One try of a task in a worker, whoever runs it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from mainspring.clock import monotonic, wall_clock
from mainspring.sdk.worker.outcomes import Ending, Verdict, ended

if TYPE_CHECKING:
    from mainspring.sdk.context import Context
    from mainspring.sdk.functions import TaskFunction
    from mainspring.sdk.worker.protocol import Leased


class Runner(Protocol):
    """Runs tries of one kind. Called on the event loop."""

    def start(self, attempt: "Try") -> None: ...

    def stop(self, attempt: "Try") -> None:
        """End it as `attempt.ending` says; it settles when it has ended."""
        ...


class Try:
    """A leased task from its arrival to its report. Settles once."""

    __slots__ = (
        "_on_settled",
        "began",
        "context",
        "deadline",
        "ending",
        "finished_at",
        "function",
        "handle",
        "lease_end",
        "leased",
        "runner",
        "settled",
        "started_at",
        "verdict",
    )

    def __init__(
        self,
        leased: "Leased",
        lease_end: float,
        context: "Context",
        function: "TaskFunction[..., Any] | None",
        runner: Runner,
        on_settled: "Callable[[Try], None]",
    ) -> None:
        self.leased = leased
        self.lease_end = lease_end
        """On this machine's monotonic clock."""
        self.context = context
        self.function = function
        self.runner = runner
        self.began = monotonic()
        self.started_at = wall_clock()
        self.finished_at = 0.0
        self.deadline = self.began + leased.timeout
        self.ending: Ending | None = None
        self.settled = False
        self.verdict: Verdict | None = None
        self.handle: Any = None
        """What its runner knows it by."""
        self._on_settled = on_settled

    @property
    def key(self) -> tuple[UUID, int]:
        return self.leased.id, self.leased.fence

    def end(self, why: Ending) -> None:
        """End it from outside. A lost lease outweighs all other reasons: nothing is reported."""
        if self.settled or (self.ending is not None and why != "lost"):
            return
        self.ending = why
        self.context.cancel()
        self.runner.stop(self)

    def settle(self, verdict: Verdict) -> None:
        """It has ended. What was decided from outside meanwhile counts more than what it says,
        but not more than its success."""
        if self.settled:
            return
        self.settled = True
        self.finished_at = max(wall_clock(), self.started_at)
        told: Verdict | None = verdict
        if self.ending == "lost":
            told = None
        elif self.ending is not None and verdict.status != "succeeded":
            told = ended(self.ending, self.leased.timeout)
        self.verdict = told
        self._on_settled(self)

    def give_up(self) -> None:
        """It does not end. Report it all the same; whatever it still does is on its own."""
        assert self.ending is not None
        self.settle(Verdict("failed", None, "stuck", "it did not stop when it was told to"))
