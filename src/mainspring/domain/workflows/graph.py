"""A workflow's graph: its edges, and the whole as text for Mermaid and for Graphviz.

With `states` each step shows where it is in a run; without them the graph is the definition's.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from mainspring.domain.task import TaskState
from mainspring.domain.workflows.definition import Step, When, WorkflowDefinition

States = Mapping[str, TaskState]

_COLOURS = {
    TaskState.SCHEDULED: "#dbeafe",
    TaskState.BLOCKED: "#f3f4f6",
    TaskState.PAUSED: "#fef3c7",
    TaskState.RUNNING: "#93c5fd",
    TaskState.COMPLETED: "#bbf7d0",
    TaskState.FAILED: "#fecaca",
    TaskState.CANCELLED: "#e5e7eb",
    TaskState.EXPIRED: "#fed7aa",
    TaskState.SKIPPED: "#f9fafb",
}


class Edge(NamedTuple):
    """An edge: one step comes after another, under a condition."""

    source: str
    target: str
    when: When


def edges(definition: WorkflowDefinition) -> list[Edge]:
    """Return the edges, from each needed step to the one that needs it."""
    return [Edge(need, step.id, step.when) for step in definition.steps for need in step.needs]


def drawn_edges(definition: WorkflowDefinition) -> Iterator[Edge]:
    """Yield the edges to draw: to a cleanup step that comes after all others only those from the
    ends of the graph."""
    passed = {need for step in definition.steps if not step.cleanup for need in step.needs}
    for edge in edges(definition):
        if edge.source not in passed or not definition.by_id[edge.target].implied:
            yield edge


def mermaid(definition: WorkflowDefinition, states: States | None = None) -> str:
    """Return the graph as a Mermaid flowchart."""
    # Numbers instead of ids, some of which are words that mean something there.
    places = {step.id: f"s{place}" for place, step in enumerate(definition.steps)}
    lines = ["flowchart TD"]
    for step in definition.steps:
        left, right = _mermaid_shape(step)
        lines.append(f'    {places[step.id]}{left}"{_label(step, states, "<br/>")}"{right}')
    for edge in drawn_edges(definition):
        label = "" if edge.when == "all_succeeded" else f"|{edge.when}|"
        lines.append(f"    {places[edge.source]} -->{label} {places[edge.target]}")
    shown: dict[TaskState, list[str]] = {}
    for name, state in (states or {}).items():
        shown.setdefault(state, []).append(places[name])
    for state, members in shown.items():
        lines.append(f"    classDef {state} fill:{_COLOURS[state]},stroke:#6b7280,color:#111827")
        lines.append(f"    class {','.join(members)} {state}")
    return "\n".join(lines) + "\n"


def dot(definition: WorkflowDefinition, states: States | None = None) -> str:
    """Return the graph in Graphviz's DOT language."""
    lines = [
        f'digraph "{definition.name}" {{',
        "    rankdir=TB;",
        '    node [shape=box, style="rounded,filled", fillcolor=white, fontname="sans-serif"];',
        *(f"    {line}" for line in _dot_lines(definition, states)),
        "}",
    ]
    return "\n".join(lines) + "\n"


def _dot_lines(definition: WorkflowDefinition, states: States | None) -> Iterator[str]:
    for step in definition.steps:
        more = ", peripheries=2" if step.foreach is not None else ""
        if step.cleanup:
            more += ", shape=cds"
        if states is not None and step.id in states:
            more += f', fillcolor="{_COLOURS[states[step.id]]}"'
        yield f'"{step.id}" [label="{_label(step, states, chr(92) + "n")}"{more}];'
    for edge in drawn_edges(definition):
        label = "" if edge.when == "all_succeeded" else f' [label="{edge.when}"]'
        yield f'"{edge.source}" -> "{edge.target}"{label};'


def _label(step: Step, states: States | None, line_break: str) -> str:
    """Return the label of a box. Nothing needs escaping: ids hold letters, digits, hyphens and
    underscores, and of a condition only its presence is shown."""
    text = step.id
    if step.foreach is not None:
        text += f"{line_break}for each"
    if step.condition is not None:
        text += f"{line_break}if …"
    if states is not None and step.id in states:
        text += f"{line_break}{states[step.id]}"
    return text


def _mermaid_shape(step: Step) -> tuple[str, str]:
    if step.foreach is not None:
        return "[[", "]]"
    return ("([", "])") if step.cleanup else ("[", "]")
