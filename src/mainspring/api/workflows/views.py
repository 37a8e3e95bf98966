"""Workflows, their graphs and their runs as callers read them."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec import UNSET, Raw
from starlette.responses import Response

from mainspring.api.http.bodies import json_response
from mainspring.api.tasks.views import decode_spec, raw_or_none, target_out, task_view
from mainspring.api.views import view
from mainspring.domain.task import TaskState
from mainspring.domain.workflows import graph as graphs
from mainspring.domain.workflows.definition import Step, WorkflowDefinition
from mainspring.store.workflows.step_rows import ITSELF
from mainspring.store.workflows.workflow_runs import StoredRun, StoredStep
from mainspring.store.workflows.workflows import StoredWorkflow
from mainspring.wire import workflows as wire

MERMAID = "text/vnd.mermaid"
DOT = "text/vnd.graphviz"

# While its items run a step says so; its own task only waits to join them.
_SHOWN = {"released": "scheduled", "expanded": "running"}

decode_input = msgspec.json.Decoder(dict[str, Raw]).decode


def workflow_out(workflow: StoredWorkflow) -> wire.WorkflowOut:
    """Return the view of a version."""
    definition = workflow.definition
    steps = [step_out(step) for step in definition.steps]
    given = decode_input(definition.input)
    return view(wire.WorkflowOut, workflow, definition, steps=steps, input=given)


def step_out(step: Step) -> wire.StepOut:
    """Return the view of a step, with the fields of its task."""
    template = step.template
    spec = decode_spec(template.spec)
    return task_view(
        wire.StepOut, template, spec, step,
        needs=[] if step.implied else list(step.needs),
        if_=step.condition,
        foreach=None if step.foreach is None else Raw(step.foreach.encode()),
        target=target_out(spec.target),
        payload=Raw(template.payload.encode()),
    )  # fmt: skip


def graph_out(definition: WorkflowDefinition, states: graphs.States | None = None) -> wire.GraphOut:
    """Return the graph as data; with states it is that of a run."""
    return wire.GraphOut(
        [
            wire.GraphNodeOut(
                step.id,
                step.foreach is not None,
                step.cleanup,
                step.condition,
                None if states is None else states.get(step.id),
            )
            for step in definition.steps
        ],
        [wire.EdgeOut(edge.source, edge.target, edge.when) for edge in graphs.edges(definition)],
    )


def graph_response(
    definition: WorkflowDefinition, form: wire.GraphFormat, states: graphs.States | None = None
) -> Response:
    """Return the graph in the form that was asked for."""
    match form:
        case "json":
            return json_response(graph_out(definition, states))
        case "mermaid":
            return _text(graphs.mermaid(definition, states), MERMAID)
        case "dot":
            return _text(graphs.dot(definition, states), DOT)


def _text(text: str, media_type: str) -> Response:
    return Response(text.encode(), headers={"Content-Type": f"{media_type}; charset=utf-8"})


def run_summary(run: StoredRun) -> wire.RunSummary:
    """Return the view of a run without its steps."""
    return view(wire.RunSummary, run, **_renamed(run))


def run_out(
    run: StoredRun, definition: WorkflowDefinition, found: Sequence[StoredStep]
) -> wire.RunOut:
    """Return the view of a run with its steps, in the order of its definition, and its graph."""
    own = {step.step: step for step in found if step.item == ITSELF}
    items: dict[str, list[StoredStep]] = {}
    for step in found:
        if step.item != ITSELF:
            items.setdefault(step.step, []).append(step)
    detailed = any(step.item != ITSELF for step in found)
    return view(
        wire.RunOut, run,
        **_renamed(run),
        input=Raw(run.input),
        steps=[
            _step(own[step.id], step, items.get(step.id, []) if detailed else None)
            for step in definition.steps
        ],
        graph=graph_out(definition, states_of(own.values())),
    )  # fmt: skip


def _renamed(run: StoredRun) -> dict[str, object]:
    """Return the fields that callers read under other names."""
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


def _step(step: StoredStep, defined: Step, items: Sequence[StoredStep] | None) -> wire.RunStepOut:
    begun = defined.foreach is not None and (
        step.expanded or step.state in ("completed", "failed", "cancelled")
    )
    return view(
        wire.RunStepOut, step, defined,
        state=_state(step),
        needs=list(defined.needs),
        result=raw_or_none(step.result),
        skipped_by_hand=step.waived,
        items_total=step.needed if begun else None,
        items_finished=step.finished if begun else None,
        items=UNSET if not items else [_item(item) for item in items],
    )  # fmt: skip


def _item(item: StoredStep) -> wire.ItemOut:
    result = raw_or_none(item.result)
    return view(wire.ItemOut, item, index=item.item, state=_state(item), result=result)
