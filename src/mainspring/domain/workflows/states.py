"""The states of a run: a module of their own, light to import."""

from enum import StrEnum


class RunState(StrEnum):
    """Where a run is. The last three are final."""

    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        return self not in (RunState.RUNNING, RunState.PAUSED)
