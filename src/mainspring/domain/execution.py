"""One execution of a task: what goes out to an executor and what comes back."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

from mainspring.domain.lateness import Earlier, Moments, Waited
from mainspring.domain.task import TaskSpec


class Outcome(StrEnum):
    """The outcome of an execution. `lost`: nobody reported before the lease ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    LOST = "lost"
    CANCELLED = "cancelled"
    RELEASED = "released"


@dataclass(frozen=True, slots=True)
class TaskError:
    """Why an execution failed: a stable code for programs, a sentence for people."""

    code: str
    message: str

    def __post_init__(self) -> None:
        # A program may send any text, and no text in the database holds a NUL or half a character.
        told = self.message.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")
        object.__setattr__(self, "message", told)


class Execution(NamedTuple):
    """A claimed task on its way to an executor: exactly what the claim returned."""

    tenant_id: int
    id: UUID
    fence: int
    partition: int
    attempt: int
    failures: int
    due: float
    picked: float
    lease_end: float
    spec: TaskSpec
    payload: bytes
    run: float
    """When it was meant to run; `due` moves on with every retry."""
    workflow_run_id: UUID | None = None
    step: str | None = None
    waited: Waited | None = None
    """What it waited for between due and picked; None if it is on time."""
    earlier: Earlier | None = None
    """The executions before, unless this is the first that counts."""
    unreadable: str | None = None
    """Why its spec cannot be read: then `spec` is not the task's, and nobody can run it."""

    @property
    def moments(self) -> Moments:
        return Moments(self.due, self.picked, self.waited)


class Report(NamedTuple):
    """An executor's report about an execution. Times are in the database's clock."""

    execution: Execution
    outcome: Outcome
    started: float
    finished: float
    result: bytes | None = None
    error: TaskError | None = None
    retryable: bool = True
    retry_after: float | None = None
    status_code: int | None = None
    response: bytes | None = None


def believed(
    picked: float, held: float, started: float | None, finished: float | None
) -> tuple[float, float]:
    """Return when an execution began and ended, from what its worker says, which held it so long.

    A worker's clock may be wrong: the duration it tells is believed as far as it fits in, and is
    moved between the claim and now where it does not lie there.
    """
    end = picked + max(0.0, held)
    if started is None or finished is None:
        ended = finished if finished is not None and picked <= finished <= end else end
        return started if started is not None and picked <= started <= ended else picked, ended
    took = min(max(0.0, finished - started), end - picked)
    begun = max(picked, min(started, end - took))
    return begun, begun + took


def cannot_be_read(execution: Execution, now: float) -> Report:
    """Return the failure of an execution whose spec cannot be read: a retry is of no use."""
    error = TaskError("bad-spec", f"the task's spec cannot be read: {execution.unreadable}")
    return released(execution, now)._replace(outcome=Outcome.FAILED, error=error, retryable=False)


def not_started(execution: Execution, now: float) -> Report:
    """Return the failure of an execution that could not start by a mistake of ours. Were it
    released instead, it would be started again at once, and for ever."""
    error = TaskError("not-started", "the task could not be started; the node's log says why")
    return released(execution, now)._replace(outcome=Outcome.FAILED, error=error)


def released(execution: Execution, now: float) -> Report:
    """Return the report of an execution that was leased and shall not start: the task goes back."""
    moment = max(now, execution.picked)
    return Report(execution, Outcome.RELEASED, moment, moment)
