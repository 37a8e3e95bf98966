"""A task: one unit of work with a due time, a target, a payload and a lifecycle.

docs/state-machine.md draws the states and says who moves a task from each of them.
"""

from dataclasses import MISSING, dataclass, field, fields
from enum import StrEnum
from typing import Any, Literal

from mainspring.domain.retry import RetryPolicy

BUILT_IN_HANDLERS = "mainspring."
"""Handlers whose name starts so run inside the node; all others wait for a worker."""
LONGEST_URL = 2048
RUN_WORKFLOW = f"{BUILT_IN_HANDLERS}workflow"
"""The handler that runs a workflow, and lasts as long as the run does."""

Resolution = Literal["replayed", "archived"]
"""What was done about a dead letter."""


class TaskState(StrEnum):
    """Where a task is in its life. The last five are final."""

    SCHEDULED = "scheduled"
    BLOCKED = "blocked"
    PAUSED = "paused"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    SKIPPED = "skipped"

    @property
    def final(self) -> bool:
        return self not in UNFINISHED


UNFINISHED = frozenset(
    {TaskState.SCHEDULED, TaskState.BLOCKED, TaskState.PAUSED, TaskState.RUNNING}
)


@dataclass(frozen=True, slots=True)
class SealedHeaders:
    """Headers that only the sender may read: their names, and their values as ciphertext."""

    names: list[str]
    sealed: str
    bearer: bool = False
    """Whether a bearer token is among them, under the name Authorization."""


@dataclass(frozen=True, slots=True)
class Target:
    """What is called. Which fields are set depends on the type."""

    type: Literal["http", "handler", "command"]
    url: str | None = None
    method: str | None = None
    headers: dict[str, str] | None = None
    name: str | None = None
    argv: list[str] | None = None
    secret: SealedHeaders | None = None

    @property
    def capability(self) -> str:
        """What an executor must be able to do to run it: the word it subscribes with."""
        return f"handler:{self.name}" if self.type == "handler" else self.type


@dataclass(frozen=True, slots=True)
class Requirements:
    """What a worker must offer beside the handler."""

    tags: list[str] = field(default_factory=list)
    memory_mb: int | None = None
    cpu: float | None = None


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """The part of a task that only its executor and its recorder read: stored as one value."""

    target: Target
    timeout: float = 30.0
    sla: float = 30.0
    jitter: float = 0.0
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    requires: Requirements | None = None

    def stored(self) -> dict[str, Any]:
        """Return the spec without members at their defaults: they would be a third of most rows,
        each of which is written three times. A default that changes needs a migration that writes
        the old one out. The timeout is always there: the database reads it to extend a lease."""
        return {**_changed(self), "timeout": self.timeout}


_DEFAULTS: dict[type, dict[str, Any]] = {
    kind: {
        known.name: known.default if known.default_factory is MISSING else known.default_factory()
        for known in fields(kind)
    }
    for kind in (TaskSpec, Target, SealedHeaders, RetryPolicy, Requirements)
}


def _changed(part: object) -> dict[str, Any]:
    """Return the fields of a part of a spec that are not at their defaults, recursively."""
    return {
        name: _changed(given) if type(given) in _DEFAULTS else given
        for name, default in _DEFAULTS[type(part)].items()
        if (given := getattr(part, name)) != default
    }
