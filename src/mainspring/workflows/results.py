"""Inputs of runs and results of steps: what is kept of them for the steps that follow."""

import msgspec

from mainspring.domain.execution import TaskError
from mainspring.domain.outcome_rules import Finish
from mainspring.store.workflows.step_rows import Ended, place_of

TOO_LARGE = "result-too-large"
"""The error of a step whose result was not kept for those after it."""
UNREADABLE = "result-unreadable"
"""The same for a result that is no JSON that we can read."""
MOST_RESULT = 2**18
"""Maximum bytes of a result that is kept for the steps that follow."""


def unreadable(given: bytes) -> str | None:
    """Return why an input cannot be given to a run: templates and conditions look into it, so it
    must be readable to its depths."""
    try:
        msgspec.json.decode(given)
    except (msgspec.DecodeError, RecursionError) as error:
        return str(error)[:200]
    return None


def ended_of(finish: Finish) -> Ended:
    """Return the end of a step, as its executor reported it."""
    report = finish.report
    execution = report.execution
    assert execution.workflow_run_id is not None
    assert execution.step is not None
    step, item = place_of(execution.step)
    result, error = report.result, report.error
    if result is not None and len(result) > MOST_RESULT:
        text = f"the result has {len(result)} bytes; {MOST_RESULT} are kept for other steps"
        result, error = None, error or TaskError(TOO_LARGE, text)
    return Ended(
        execution.tenant_id, execution.workflow_run_id, step, finish.state, item,
        report.started, report.finished, execution.attempt, result, error,
    )  # fmt: skip
