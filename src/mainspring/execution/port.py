"""The interface between the dispatcher and what runs tasks inside the node."""

from collections.abc import Callable, Sequence
from typing import Protocol
from uuid import UUID

from mainspring.domain.execution import Execution, Report

ReportSink = Callable[[Sequence[Report]], None]
"""Where an executor leaves its reports: called on the event loop, many at a time."""


class Executor(Protocol):
    """Runs executions and reports every one of them exactly once to its sink.

    Called on the event loop only. `start` never blocks and never raises: what cannot be run is
    reported as failed, alone, and all others begin.
    """

    def can_run(self, capability: str) -> bool:
        """Whether tasks that need this capability may be given to it."""

    def room(self) -> int | None:
        """Return how many more tasks without a slot it wants; None: any number. It runs what is
        given beyond that, too."""
        return None

    def start(self, executions: Sequence[Execution]) -> None: ...

    def has(self, task_id: UUID, fence: int) -> bool:
        """Whether it took this execution in and is yet to report it."""

    def cancel(self, task_id: UUID, fence: int) -> None:
        """Stop this execution if it is still running; it is then reported as cancelled."""

    def holds_back(self, task_id: UUID, fence: int) -> str | None:
        """Return what an execution that was started still waits for; None: nothing."""
        return None

    async def stop(self, grace: float) -> None:
        """Let running executions finish for `grace` seconds, then release the rest."""
