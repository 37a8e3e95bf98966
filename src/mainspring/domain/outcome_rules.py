"""The rules for a task whose execution is over: one pure decision for every executor."""

from random import Random
from typing import Literal, NamedTuple

from mainspring.domain.execution import Outcome, Report
from mainspring.domain.lateness import (
    WORTH_TELLING,
    Earlier,
    Waited,
    after,
    judge_loss,
    judge_start,
)
from mainspring.domain.retry import retry_delay
from mainspring.domain.task import TaskState

DeathCause = Literal["exhausted", "not_retryable", "poison"]


class Finish(NamedTuple):
    """The task is over: it moves to history, and becomes a dead letter if it failed."""

    report: Report
    state: TaskState
    dead_because: DeathCause | None = None
    sla_met: bool | None = None
    blame: str | None = None
    lateness: Waited | None = None
    """Of the task, over all executions."""
    own_lateness: Waited | None = None
    """Of this execution alone."""


class RetryLater(NamedTuple):
    """The task is scheduled again, `delay` seconds from now; None keeps its due time."""

    report: Report
    delay: float | None
    own_lateness: Waited | None = None
    earlier: Earlier | None = None
    """What the next execution needs to know of this one and those before; None: it did not
    count."""


def decide_outcome(report: Report, rng: Random) -> Finish | RetryLater:
    """Decide on a report: finished, or once more."""
    execution = report.execution
    dead_because: DeathCause | None = None
    match report.outcome:
        case Outcome.SUCCEEDED:
            state = TaskState.COMPLETED
        case Outcome.CANCELLED:
            state = TaskState.CANCELLED
        case Outcome.RELEASED | Outcome.LOST:
            return RetryLater(report, None, execution.moments.until_picked(), execution.earlier)
        case Outcome.FAILED | Outcome.TIMED_OUT:
            delay = retry_delay(
                execution.spec.retry,
                execution.failures + 1,
                retryable=report.retryable,
                retry_after=report.retry_after,
                rng=rng,
            )
            if delay is not None:
                return _again(report, delay)
            state = TaskState.FAILED
            dead_because = "exhausted" if report.retryable else "not_retryable"
    return finish(report, state, dead_because)


def finish(report: Report, state: TaskState, dead_because: DeathCause | None = None) -> Finish:
    """Return the end of a task with this report, with its lateness."""
    execution = report.execution
    sla, late = execution.spec.sla, report.started - execution.due
    if (
        late < WORTH_TELLING
        and late <= sla
        and execution.earlier is None
        and report.outcome is Outcome.SUCCEEDED
    ):
        return Finish(report, state, dead_because, True)  # as nearly all are
    if report.outcome in (Outcome.LOST, Outcome.RELEASED):
        judged = judge_loss(execution.moments, execution.earlier, report.finished, sla)
    else:
        judged = judge_start(execution.moments, execution.earlier, report.started, sla)
    return Finish(report, state, dead_because, *judged)


def _again(report: Report, delay: float) -> RetryLater:
    execution = report.execution
    earlier = after(
        execution.moments, execution.earlier, report.started, report.finished, execution.spec.sla
    )
    own = execution.moments.until_started(report.started)
    return RetryLater(report, delay, own, earlier)
