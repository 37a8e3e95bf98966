"""One try of a task: what goes out to an executor and what comes back."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

from mainspring.domain.lateness import Earlier, Moments, Waited
from mainspring.domain.task import TaskSpec


class Outcome(StrEnum):
    """The outcome of an execution. `lost`: nobody reported before the lease ran out."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    LOST = "lost"
    CANCELLED = "cancelled"
    RELEASED = "released"


@dataclass(frozen=True, slots=True)
class TaskError:
    """Why a try failed: a stable code for programs, a sentence for people."""

    code: str
    message: str

    def __post_init__(self) -> None:
        # Programs say what they like, and no text in the database holds a NUL or half a character.
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
    """The tries before, unless this is the first that counts."""
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
    """When an execution began and ended, from what its worker says who held it so long.

    A worker's clock may be wrong. It is believed how long the execution took, as far as that fits
    in; where it does not lie between the claim and now, it is moved there.
    """
    end = picked + max(0.0, held)
    if started is None or finished is None:
        ended = finished if finished is not None and picked <= finished <= end else end
        return started if started is not None and picked <= started <= ended else picked, ended
    took = min(max(0.0, finished - started), end - picked)
    begun = max(picked, min(started, end - took))
    return begun, begun + took


def cannot_be_read(execution: Execution, now: float) -> Report:
    """A try of a task that does not say what to do: to read it again is of no use."""
    moment = max(now, execution.picked)
    error = TaskError("bad-spec", f"the task's spec cannot be read: {execution.unreadable}")
    return Report(execution, Outcome.FAILED, moment, moment, error=error, retryable=False)


def not_started(execution: Execution, now: float) -> Report:
    """A try that could not begin by a mistake of ours. It failed, and is tried again after a while
    and not for ever: a task that goes back is started again at once, and what is wrong with it
    would keep the node busy until somebody notices."""
    moment = max(now, execution.picked)
    error = TaskError("not-started", "the task could not be started; the node's log says why")
    return Report(execution, Outcome.FAILED, moment, moment, error=error)


def released(execution: Execution, now: float) -> Report:
    """A try that was leased and shall not begin: the task goes back."""
    moment = max(now, execution.picked)
    return Report(execution, Outcome.RELEASED, moment, moment)
