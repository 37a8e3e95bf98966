"""Runs of workflows as callers read them."""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import UNSET, Raw

from mainspring.api.tasks.views import raw_or_none
from mainspring.api.views import view
from mainspring.api.workflows.views import graph_out
from mainspring.domain.task import TaskState
from mainspring.domain.workflows.definition import Step, WorkflowDefinition
from mainspring.store.workflows.step_rows import ITSELF
from mainspring.store.workflows.workflow_runs import StoredRun, StoredStep
from mainspring.wire.runs import ItemOut, RunOut, RunStepOut, RunSummary

_SHOWN = {"released": "scheduled", "expanded": "running"}
# While its items run a step says so; its own task only waits to join them.


def run_summary(run: StoredRun) -> RunSummary:
    """A run without its steps."""
    return view(RunSummary, run, **_renamed(run))


def run_out(run: StoredRun, definition: WorkflowDefinition, found: Sequence[StoredStep]) -> RunOut:
    """A run with its steps, in the order in which they were written, and its graph."""
    own = {step.step: step for step in found if step.item == ITSELF}
    items: dict[str, list[StoredStep]] = {}
    for step in found:
        if step.item != ITSELF:
            items.setdefault(step.step, []).append(step)
    detailed = any(step.item != ITSELF for step in found)
    return view(
        RunOut, run,
        **_renamed(run),
        input=Raw(run.input),
        steps=[
            _step(own[step.id], step, items.get(step.id, []) if detailed else None)
            for step in definition.steps
        ],
        graph=graph_out(definition, states_of(own.values())),
    )  # fmt: skip


def _renamed(run: StoredRun) -> dict[str, object]:
    """The fields that callers read under other names."""
    return {
        "ending": run.stopping,
        "steps_total": run.total,
        "steps_unfinished": run.unfinished,
        "steps_failed": run.failed,
    }


def states_of(steps: Iterable[StoredStep]) -> Mapping[str, TaskState]:
    """Return the state of each step."""
    return {step.step: _state(step) for step in steps if step.item == ITSELF}


def _state(step: StoredStep) -> TaskState:
    if step.expanded and step.state == "blocked":
        return TaskState.RUNNING
    return TaskState(_SHOWN.get(step.state, step.state))


def _step(step: StoredStep, defined: Step, items: Sequence[StoredStep] | None) -> RunStepOut:
    begun = defined.foreach is not None and (
        step.expanded or step.state in ("completed", "failed", "cancelled")
    )
    return view(
        RunStepOut, step, defined,
        state=_state(step),
        needs=list(defined.needs),
        result=raw_or_none(step.result),
        skipped_by_hand=step.waived,
        items_total=step.needed if begun else None,
        items_finished=step.finished if begun else None,
        items=UNSET if not items else [_item(item) for item in items],
    )  # fmt: skip


def _item(item: StoredStep) -> ItemOut:
    result = raw_or_none(item.result)
    return view(ItemOut, item, index=item.item, state=_state(item), result=result)
