"""Inputs of runs and results of steps, as they are kept and read for the steps that follow."""

import asyncpg
import msgspec

from mainspring.domain.execution import TaskError
from mainspring.domain.outcome_rules import Finish
from mainspring.domain.task import TaskState
from mainspring.domain.workflows.definition import Step
from mainspring.domain.workflows.rules import RenderFailed, Scope, StepResult
from mainspring.store.workflows.step_rows import Ended, parse_label

TOO_LARGE = "result-too-large"
"""The error of a step whose result was not kept for those after it."""
UNREADABLE = "result-unreadable"
"""The same for a result that is no JSON that we can read."""
MOST_RESULT = 2**18
"""Maximum bytes of a result that is kept for the steps that follow."""
_UNREADABLE_INPUT = object()
_decode = msgspec.json.Decoder().decode


def unreadable(given: bytes) -> str | None:
    """Return why templates and conditions could not read an input; None when they can."""
    try:
        _decode(given)
    except (msgspec.DecodeError, RecursionError) as error:
        return str(error)[:200]
    return None


def reported_end(finish: Finish) -> Ended:
    """Return the end of a step, as its executor reported it."""
    report = finish.report
    execution = report.execution
    assert execution.workflow_run_id is not None
    assert execution.step is not None
    step, item = parse_label(execution.step)
    result, error = report.result, report.error
    if result is not None and len(result) > MOST_RESULT:
        text = f"the result has {len(result)} bytes; {MOST_RESULT} are kept for other steps"
        result, error = None, error or TaskError(TOO_LARGE, text)
    return Ended(
        execution.tenant_id, execution.workflow_run_id, step, finish.state, item,
        report.started, report.finished, execution.attempt, result, error,
    )  # fmt: skip


def step_result(row: asyncpg.Record) -> StepResult:
    """Return how a step ended, or that it is running."""
    state = row["state"]
    if state in ("blocked", "released", "expanded"):
        return StepResult(TaskState.RUNNING)
    try:
        result = _decode(row["result"]) if row["result"] is not None else None
    except (msgspec.DecodeError, RecursionError):
        return StepResult(TaskState(state), None, {"code": UNREADABLE})
    return StepResult(TaskState(state), result, row["error"])


def read_input(given: bytes) -> object:
    """Return the input of a run; one that cannot be read fails only the steps that use it."""
    try:
        return _decode(given)
    except (msgspec.DecodeError, RecursionError):
        return _UNREADABLE_INPUT


def check_readable(step: Step, scope: Scope) -> None:
    """Raise RenderFailed if something that the step uses was not kept, or cannot be read."""
    if scope.input is _UNREADABLE_INPUT and step.has_templates:
        raise RenderFailed("the input of the run cannot be read")
    for name in step.uses:
        error = scope.steps[name].error
        if isinstance(error, dict) and error.get("code") in (TOO_LARGE, UNREADABLE):
            raise RenderFailed(f"the result of {name!r} cannot be used by other steps")
