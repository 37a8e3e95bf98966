"""What clients return where that is more than a struct of `wire`: an answer with its ETag, with
shorter ways to ask, and with objects as plain dictionaries, which are `Any` here."""

from typing import Any

from msgspec import field

from mainspring.domain.task import UNFINISHED, TaskState
from mainspring.wire.admin import KeyOut, TenantOut
from mainspring.wire.dead_letters import DeadLetterOut
from mainspring.wire.runs import RunOut, RunStepOut
from mainspring.wire.schedules import CalendarOut, OccurrenceOut, ScheduleOut
from mainspring.wire.tasks import TaskOut
from mainspring.wire.webhooks import NewSecretOut, RotatedOut
from mainspring.wire.workers import WorkerOut
from mainspring.wire.workflows import WorkflowOut

_FINAL = frozenset(TaskState) - UNFINISHED


class Task(TaskOut, kw_only=True):
    """A task. Lists leave the payload out unless it is asked for."""

    payload: Any = None
    retry: Any = field(default_factory=dict)
    concurrency: Any = None
    requires: Any = None
    etag: str | None = None

    @property
    def finished(self) -> bool:
        return self.finished_at is not None or self.state in _FINAL


class DeadLetter(DeadLetterOut, kw_only=True):
    """A task that failed for good, and what was done about it."""

    task: Task


class Definition(WorkflowOut, kw_only=True):
    """One version of a workflow."""

    steps: Any
    input: Any = field(default_factory=dict)
    etag: str | None = None


class RunStep(RunStepOut, kw_only=True):
    """A step of a run; its items where it is done for a list."""

    items: Any = None


class WorkflowRun(RunOut, kw_only=True):
    """A run of a workflow. Lists leave out the input, the steps and the graph."""

    steps: list[RunStep] = field(default_factory=list)
    graph: Any = None
    etag: str | None = None

    @property
    def finished(self) -> bool:
        return self.finished_at is not None

    def step(self, step_id: str) -> RunStep:
        """Return the step of this id."""
        return next(step for step in self.steps if step.id == step_id)


class Schedule(ScheduleOut, kw_only=True):
    """A schedule: when, by which policies, and which task."""

    task: Any = None
    input: Any = None
    misfire: Any = field(default_factory=dict)
    dst: Any = field(default_factory=dict)
    etag: str | None = None


class Occurrence(OccurrenceOut, kw_only=True):
    """One decision about one nominal time, or about a range of them."""

    decision: Any


class Calendar(CalendarOut, kw_only=True):
    """A named list of dates on which schedules do not run."""

    etag: str | None = None


class Key(KeyOut, kw_only=True):
    """An API key; `api_key` is there once, when it was made."""

    api_key: str | None = None


class Tenant(TenantOut, kw_only=True):
    """A tenant and its limits; `api_key` is there once, when it was made."""

    api_key: str | None = None


class Secret(NewSecretOut, kw_only=True):
    """A signing secret; `secret` is there once, when it was made."""

    secret: Any = None


class RotatedSecret(RotatedOut):
    """The new secret, and the old one with its end."""

    current: Secret
    previous: Secret


class RegisteredWorker(WorkerOut, kw_only=True):
    """A worker as the registry knows it. `about` is what it tells about itself."""

    resources: Any = field(default_factory=dict)
    about: Any = field(default_factory=dict)
    statistics: Any = field(default_factory=dict)
