"""Graphs of steps: what is wrong with them, against plain search; and how they are drawn."""

import re
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.api.workflows.views import graph_out
from mainspring.domain.workflows import graph as graphs
from mainspring.domain.workflows.checks import Use, graph_problems
from mainspring.domain.workflows.definition import Step, WorkflowDefinition
from support.workflow_model import COMPLETED, FAILED, NOOP, SKIPPED, definitions

NAMES = [f"s{n}" for n in range(7)]


@st.composite
def scribbles(draw: st.DrawFn) -> list[Step]:
    """Steps that need whatever comes to mind: themselves, each other, nobody."""
    needs = st.lists(st.sampled_from([*NAMES, "nobody"]), max_size=3)
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=7))
    return [Step(name, NOOP, tuple(draw(needs))) for name in names]


def upstream(steps: list[Step], name: str) -> set[str]:
    """All that come before a step, by walking."""
    needs = {step.id: step.needs for step in reversed(steps)}
    found: set[str] = set()
    ahead = list(needs[name])
    while ahead:
        one = ahead.pop()
        if one in needs and one not in found:
            found.add(one)
            ahead += needs[one]
    return found


@settings(max_examples=300, deadline=None)
@given(steps=scribbles())
def test_cycles_and_what_is_behind_them_are_found(steps: list[Step]) -> None:
    names = [step.id for step in steps]
    details = [problem.detail for problem in graph_problems(steps)]
    in_cycle = {name for name in names if name in upstream(steps, name)}
    cycles = [re.findall(r"s\d", text) for text in details if "cycle" in text]
    assert bool(cycles) == bool(in_cycle)
    needs = {step.id: step.needs for step in reversed(steps)}
    for cycle in cycles:
        assert cycle[0] == cycle[-1]
        for before, after in pairwise(cycle):
            assert before in needs[after], "the arrows are those of the graph"
    behind = {n for n in names if upstream(steps, n) & in_cycle} - in_cycle
    unreachable = {re.findall(r"s\d", text)[0] for text in details if "unreachable" in text}
    assert behind <= unreachable <= behind | in_cycle
    assert len([text for text in details if "already" in text]) == len(names) - len(set(names))
    unknown = [need for step in steps for need in step.needs if need not in names]
    assert len([text for text in details if "there is no step" in text]) == len(unknown)
    if not details:
        assert len(WorkflowDefinition("x", tuple(steps)).order) == len(steps)


@settings(max_examples=200, deadline=None)
@given(definition=definitions())
def test_upstream_is_what_leads_to_a_step(definition: WorkflowDefinition) -> None:
    steps = list(definition.steps)
    uses = [
        Use(index, f"{step.id} {other.id}", other.id)
        for index, step in enumerate(steps)
        for other in steps
    ]
    refused = {problem.pointer for problem in graph_problems(steps, uses)}
    assert refused == {
        f"{step.id} {other.id}"
        for step in steps
        for other in steps
        if other.id not in upstream(steps, step.id)
    }


@settings(max_examples=100, deadline=None)
@given(definition=definitions())
def test_the_order_and_the_children(definition: WorkflowDefinition) -> None:
    place = {name: at for at, name in enumerate(definition.order)}
    assert set(place) == set(definition.by_id)
    for step in definition.steps:
        assert all(place[need] < place[step.id] for need in step.needs)
        assert all(step.id in definition.children[need] for need in step.needs)
    assert sum(map(len, definition.children.values())) == len(graphs.edges(definition))


def test_a_run_is_drawn_with_its_states() -> None:
    steps = (Step("end", NOOP), Step("class", NOOP, ("end",)), Step("x", NOOP, ("class",)))
    states = {"end": COMPLETED, "class": FAILED, "x": SKIPPED}
    definition = WorkflowDefinition("nightly", steps)
    assert [node.state for node in graph_out(definition, states).nodes] == list(states.values())
    mermaid = graphs.mermaid(definition, states)
    assert '    s1["class<br/>failed"]\n' in mermaid, "words of Mermaid's own do no harm"
    assert "    class s1 failed\n" in mermaid
    assert "    classDef failed fill:" in mermaid
    dot = graphs.dot(definition, states)
    assert '"class" [label="class\\nfailed", fillcolor="#fecaca"];' in dot
    assert dot.startswith('digraph "nightly" {\n')
