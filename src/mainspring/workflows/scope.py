"""What templates and conditions of a step speak of, as it is stored, made ready for them."""

import asyncpg
import msgspec

from mainspring.domain.task import TaskState
from mainspring.domain.workflows.definition import Step
from mainspring.domain.workflows.rules import RenderFailed, Scope, StepResult
from mainspring.workflows.results import TOO_LARGE, UNREADABLE

_NOTHING = object()
"""In place of an input that cannot be read."""

_decode = msgspec.json.Decoder().decode


def speaks(step: Step) -> bool:
    """Whether it has templates or conditions."""
    return bool(step.condition or step.foreach or step.template.dynamic)


def seen(row: asyncpg.Record) -> StepResult:
    """How a step ended, or that it has not."""
    state = row["state"]
    if state in ("blocked", "released", "expanded"):
        return StepResult(TaskState.RUNNING)
    try:
        result = _decode(row["result"]) if row["result"] is not None else None
    except (msgspec.DecodeError, RecursionError):
        return StepResult(TaskState(state), None, {"code": UNREADABLE})
    return StepResult(TaskState(state), result, row["error"])


def read_input(given: bytes) -> object:
    """The input of a run; what cannot be read fails only those who speak of it."""
    try:
        return _decode(given)
    except (msgspec.DecodeError, RecursionError):
        return _NOTHING


def check_kept(step: Step, scope: Scope) -> None:
    """RenderFailed: something that the step speaks of was not kept, or cannot be read."""
    if scope.input is _NOTHING and speaks(step):
        raise RenderFailed("the input of the run cannot be read")
    for name in step.uses:
        error = scope.steps[name].error
        if isinstance(error, dict) and error.get("code") in (TOO_LARGE, UNREADABLE):
            raise RenderFailed(f"the result of {name!r} cannot be used by other steps")
