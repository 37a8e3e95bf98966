"""Runs of workflows as callers read them."""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import UNSET, Raw, structs

from mainspring.api.tasks.views import raw_or_none
from mainspring.api.workflows.views import graph_out
from mainspring.domain.task import TaskState
from mainspring.domain.workflow.definition import Step, WorkflowDefinition
from mainspring.store.workflow.step_rows import ITSELF
from mainspring.store.workflow.workflow_runs import StoredRun, StoredStep
from mainspring.wire.runs import ItemOut, RunOut, RunStepOut, RunSummary

_SHOWN = {"released": "scheduled", "expanded": "running"}
# While its items run a step says so; its own task only waits to join them.


def run_summary(run: StoredRun) -> RunSummary:
    """A run without its steps."""
    return RunSummary(
        id=run.id,
        workflow=run.workflow,
        version=run.version,
        state=run.state,
        ending=run.stopping,
        steps_total=run.total,
        steps_unfinished=run.unfinished,
        steps_failed=run.failed,
        created_at=run.created_at,
        finished_at=run.finished_at,
        deadline_at=run.deadline_at,
        schedule_id=run.schedule_id,
        nominal_at=run.nominal_at,
    )


def run_out(run: StoredRun, definition: WorkflowDefinition, found: Sequence[StoredStep]) -> RunOut:
    """A run with its steps, in the order in which they were written, and its graph."""
    own = {step.step: step for step in found if step.item == ITSELF}
    items: dict[str, list[StoredStep]] = {}
    for step in found:
        if step.item != ITSELF:
            items.setdefault(step.step, []).append(step)
    detailed = any(step.item != ITSELF for step in found)
    return RunOut(
        **structs.asdict(run_summary(run)),
        input=Raw(run.input),
        steps=[
            _step(own[step.id], step, items.get(step.id, []) if detailed else None)
            for step in definition.steps
        ],
        graph=graph_out(definition, states_of(own.values())),
    )


def states_of(steps: Iterable[StoredStep]) -> Mapping[str, TaskState]:
    """Where each step is."""
    return {step.step: _state(step) for step in steps if step.item == ITSELF}


def _state(step: StoredStep) -> TaskState:
    if step.expanded and step.state == "blocked":
        return TaskState.RUNNING
    return TaskState(_SHOWN.get(step.state, step.state))


def _step(step: StoredStep, defined: Step, items: Sequence[StoredStep] | None) -> RunStepOut:
    begun = defined.foreach is not None and (
        step.expanded or step.state in ("completed", "failed", "cancelled")
    )
    return RunStepOut(
        id=step.step,
        state=_state(step),
        task_id=step.task_id,
        needs=list(defined.needs),
        attempts=step.attempts,
        due_at=step.due_at,
        started_at=step.started_at,
        finished_at=step.finished_at,
        result=raw_or_none(step.result),
        error=step.error,
        skipped_by_hand=step.waived,
        items_total=step.needed if begun else None,
        items_finished=step.finished if begun else None,
        items=UNSET if not items else [_item(item) for item in items],
    )


def _item(item: StoredStep) -> ItemOut:
    return ItemOut(
        index=item.item,
        state=_state(item),
        task_id=item.task_id,
        attempts=item.attempts,
        started_at=item.started_at,
        finished_at=item.finished_at,
        result=raw_or_none(item.result),
        error=item.error,
    )
