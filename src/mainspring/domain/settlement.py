"""What becomes of a task when a try of it is over: one pure decision for every executor."""

from collections.abc import Callable, Mapping
from random import Random
from typing import Literal, NamedTuple

from mainspring.domain.execution import Outcome, Report
from mainspring.domain.retry import next_try
from mainspring.domain.task import TaskState

DeathCause = Literal["exhausted", "not_retryable", "poison"]


class Finish(NamedTuple):
    """The task is over: it moves to history, and becomes a dead letter if it failed."""

    report: Report
    state: TaskState
    dead_because: DeathCause | None = None
    sla_met: bool | None = None
    blame: str | None = None
    lateness: Mapping[str, float] | None = None


class Retry(NamedTuple):
    """The task is scheduled again, `delay` seconds from now; None keeps its due time."""

    report: Report
    delay: float | None


def settle(
    report: Report,
    lateness: Mapping[str, float] | None,
    blame: Callable[[Mapping[str, float]], str],
    rng: Random,
) -> Finish | Retry:
    """Decide on a report: finished, or once more. `blame` says what made a task miss its SLA."""
    assignment = report.assignment
    spec = assignment.spec
    dead_because: DeathCause | None = None
    match report.outcome:
        case Outcome.SUCCEEDED:
            state = TaskState.COMPLETED
        case Outcome.CANCELLED:
            state = TaskState.CANCELLED
        case Outcome.RELEASED | Outcome.LOST:
            return Retry(report, None)
        case Outcome.FAILED | Outcome.TIMED_OUT:
            delay = next_try(
                spec.retry,
                assignment.failures + 1,
                retryable=report.retryable,
                retry_after=report.retry_after,
                rng=rng,
            )
            if delay is not None:
                return Retry(report, delay)
            state = TaskState.FAILED
            dead_because = "exhausted" if report.retryable else "not_retryable"
    sla_met = report.started - assignment.due <= spec.sla
    blamed = None if sla_met else blame(lateness or {})
    return Finish(report, state, dead_because, sla_met, blamed, lateness)
