"""Workflows and their graphs as callers read them."""

import msgspec
from msgspec import Raw
from starlette.responses import Response

from mainspring.api.http.bodies import json_response
from mainspring.api.tasks.views import decode_spec, target_out, task_view
from mainspring.api.views import view
from mainspring.domain.workflows import graph as graphs
from mainspring.domain.workflows.definition import Step, WorkflowDefinition
from mainspring.store.workflows.workflows import StoredWorkflow
from mainspring.wire import workflows as wire

MERMAID = "text/vnd.mermaid"
DOT = "text/vnd.graphviz"

decode_input = msgspec.json.Decoder(dict[str, Raw]).decode


def workflow_out(workflow: StoredWorkflow) -> wire.WorkflowOut:
    """A version as it was found."""
    definition = workflow.definition
    steps = [step_out(step) for step in definition.steps]
    given = decode_input(definition.input)
    return view(wire.WorkflowOut, workflow, definition, steps=steps, input=given)


def step_out(step: Step) -> wire.StepOut:
    """A step with the fields of its task."""
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
    """The graph as data; with states it is that of a run."""
    return wire.GraphOut(
        [
            wire.GraphNodeOut(node.id, node.foreach, node.cleanup, node.condition, node.state)
            for node in graphs.nodes(definition, states)
        ],
        [wire.EdgeOut(edge.source, edge.target, edge.when) for edge in graphs.edges(definition)],
    )


def graph_response(
    definition: WorkflowDefinition, form: wire.GraphFormat, states: graphs.States | None = None
) -> Response:
    """The graph in the form that was asked for."""
    match form:
        case "json":
            return json_response(graph_out(definition, states))
        case "mermaid":
            return _text(graphs.mermaid(definition, states), MERMAID)
        case "dot":
            return _text(graphs.dot(definition, states), DOT)


def _text(text: str, media_type: str) -> Response:
    return Response(text.encode(), headers={"Content-Type": f"{media_type}; charset=utf-8"})
