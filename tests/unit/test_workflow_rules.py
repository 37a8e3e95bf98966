"""The rules of runs: which steps start, what they are given, and what the run is then."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.domain.task import TaskState
from mainspring.domain.workflows import rules as workflow_rules
from mainspring.domain.workflows.checks import graph_problems, with_implied_needs
from mainspring.domain.workflows.definition import (
    RunState,
    Step,
    TaskTemplate,
    When,
    WorkflowDefinition,
)
from mainspring.domain.workflows.rules import (
    RenderFailed,
    Scope,
    StepDecision,
    StepResult,
    decide,
    foreach_state,
    items,
    render,
    render_each,
    run_state,
)
from support.workflow_model import (
    CANCELLED,
    COMPLETED,
    ENDED,
    EXPIRED,
    FAILED,
    NOOP,
    RUNNING,
    SKIPPED,
    WAITING,
    Model,
    answers,
    definitions,
    outcomes,
)

WAIT, START, SKIP = StepDecision.WAIT, StepDecision.START, StepDecision.SKIP


# --- which steps start -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("when", "ended", "expected"),
    [
        ("all_succeeded", "", WAIT),
        ("all_succeeded", "ss", WAIT),
        ("all_succeeded", "sss", START),
        ("all_succeeded", "f", WAIT),
        ("all_succeeded", "ssf", SKIP),
        ("all_succeeded", "ssk", SKIP),
        ("all_finished", "sf", WAIT),
        ("all_finished", "sfk", START),
        ("all_finished", "kkk", START),
        ("any_failed", "ss", WAIT),
        ("any_failed", "f", START),
        ("any_failed", "sss", SKIP),
        ("any_failed", "kkk", SKIP),
        ("one_succeeded", "ff", WAIT),
        ("one_succeeded", "s", START),
        ("one_succeeded", "fkk", SKIP),
    ],
)
def test_when(when: When, ended: str, expected: StepDecision) -> None:
    step = Step("x", NOOP, ("a", "b", "c"), when)
    found = Counter(ended)
    assert decide(step, len(ended), found["s"], found["f"], found["k"], 3) is expected


def test_steps_without_needs_start_at_once_cleanups_in_any_case() -> None:
    assert decide(Step("x", NOOP), 0, 0, 0, 0, 0) is START
    cleanup = Step("x", NOOP, ("a", "b"), "all_finished", cleanup=True)
    assert decide(cleanup, 1, 0, 1, 0, 2) is WAIT
    assert decide(cleanup, 2, 0, 1, 1, 2) is START


@dataclass
class Counting:
    """A run as the store does it: by counters at the steps that wait, and nothing else."""

    definition: WorkflowDefinition
    conditions: Mapping[str, bool]
    states: dict[str, TaskState] = field(default_factory=dict)
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    started: list[str] = field(default_factory=list)
    unwanted: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.states = {step.id: WAITING for step in self.definition.steps}
        self.counts = {step.id: Counter() for step in self.definition.steps}
        for name in self.definition.roots:
            self._decide(name)

    def end(self, name: str, outcome: TaskState) -> None:
        self.states[name] = outcome
        self.unwanted.discard(name)
        kind = {COMPLETED: "succeeded", SKIPPED: "skipped"}.get(outcome, "failed")
        if kind == "failed" and self.definition.on_failure == "fail_fast":
            self._give_up()
        for child in self.definition.children[name]:
            self.counts[child][kind] += 1
            self._decide(child)

    def _decide(self, name: str) -> None:
        step, found = self.definition.by_id[name], self.counts[name]
        if self.states[name] is not WAITING:
            return
        decision = decide(
            step,
            found.total(),
            found["succeeded"],
            found["failed"],
            found["skipped"],
            len(step.needs),
        )
        if decision is START and self.conditions.get(name, True):
            self.states[name] = RUNNING
            self.started.append(name)
        elif decision is not WAIT:
            self.end(name, SKIPPED)

    def _give_up(self) -> None:
        for step in self.definition.steps:
            if step.id in self.definition.survivors:
                continue
            if self.states[step.id] is WAITING:
                self.end(step.id, SKIPPED)
            elif self.states[step.id] is RUNNING:
                self.unwanted.add(step.id)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_counters_and_rules_match_the_model(data: st.DataObject) -> None:
    definition = data.draw(definitions())
    assert graph_problems(definition.steps) == []
    ends = data.draw(outcomes(definition))
    holds = data.draw(answers(definition))
    model, counting = Model(definition, holds), Counting(definition, holds)
    while not model.over:
        assert counting.states == model.states
        assert counting.unwanted == model.unwanted
        assert model.running, "something can always go on"
        name = data.draw(st.sampled_from(sorted(model.running)))
        outcome = CANCELLED if name in model.unwanted else ends[name]
        allowed = [n for n, s in model.states.items() if s is WAITING]
        before = len(counting.started)
        model.end(name, outcome)
        counting.end(name, outcome)
        for begun in counting.started[before:]:
            assert begun in allowed
            assert model.may_start(begun), "no step starts before its parents allow it"
    assert counting.states == model.states
    assert len(set(counting.started)) == len(counting.started), "each step starts once"
    assert set(counting.states.values()) <= ENDED, "every step ends"
    assert run_state(Counter(counting.states.values())) == model.run_state


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_where_a_run_goes_on_the_order_of_ends_does_not_matter(data: st.DataObject) -> None:
    definition = data.draw(definitions(policies=("continue",)))
    ends, holds = data.draw(outcomes(definition)), data.draw(answers(definition))
    finals = []
    for _ in range(2):
        run = Counting(definition, holds)
        while running := sorted(n for n, s in run.states.items() if s is RUNNING):
            name = data.draw(st.sampled_from(running))
            run.end(name, ends[name])
        finals.append(run.states)
    assert finals[0] == finals[1]


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_cleanup_step_without_needs_comes_last(data: st.DataObject) -> None:
    drawn = data.draw(definitions())
    work = [step for step in drawn.steps if not step.cleanup]
    sweep = Step("sweep", NOOP, when="all_finished", cleanup=True)
    definition = replace(drawn, steps=tuple(with_implied_needs([sweep, *work])))
    assert graph_problems(definition.steps) == []
    ends, holds = data.draw(outcomes(definition)), data.draw(answers(definition))
    model = Model(definition, holds)
    stopped = data.draw(st.booleans())
    while not model.over:
        if "sweep" in model.started:
            others = {s for n, s in model.states.items() if n != "sweep"}
            assert others <= ENDED, "all else has ended"
        name = data.draw(st.sampled_from(sorted(model.running)))
        model.end(name, CANCELLED if name in model.unwanted else ends[name])
        if stopped and not model.over:
            model.cancel()
    assert model.states["sweep"] in (COMPLETED, FAILED, EXPIRED, CANCELLED), "it always runs"


def test_what_survives_a_run_that_fails_fast() -> None:
    steps = (
        Step("work", NOOP),
        Step("more", NOOP, ("work",)),
        Step("alert", NOOP, ("work", "more"), "any_failed"),
        Step("escalate", NOOP, ("alert",)),
        Step("mixed", NOOP, ("alert", "more")),
        Step("report", NOOP, ("more",), "all_finished"),
        Step("sweep", NOOP, ("more",), "all_finished", cleanup=True),
    )
    definition = WorkflowDefinition("x", steps)
    assert definition.survivors == {"alert", "escalate", "report", "sweep"}


# --- the run and its steps ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "how", "expected"),
    [
        ([RUNNING, FAILED], {}, RunState.RUNNING),
        ([COMPLETED, SKIPPED], {}, RunState.COMPLETED),
        ([SKIPPED], {}, RunState.COMPLETED),
        ([], {}, RunState.COMPLETED),
        ([FAILED, COMPLETED, SKIPPED], {}, RunState.FAILED),
        ([EXPIRED], {}, RunState.FAILED),
        ([FAILED, CANCELLED], {}, RunState.FAILED),
        ([CANCELLED], {}, RunState.CANCELLED),
        ([FAILED, CANCELLED], {"ended": "cancelled"}, RunState.CANCELLED),
        ([COMPLETED, CANCELLED], {"ended": "deadline"}, RunState.FAILED),
        ([COMPLETED], {"ended": "cancelled"}, RunState.COMPLETED),
        ([CANCELLED, RUNNING], {"ended": "cancelled"}, RunState.RUNNING),
    ],
)
def test_the_state_of_a_run(steps: list[TaskState], how: Any, expected: RunState) -> None:
    assert run_state(Counter(steps), **how) is expected


def test_the_state_of_a_fan_out() -> None:
    assert foreach_state({}) is COMPLETED
    assert foreach_state({COMPLETED: 3}) is COMPLETED
    assert foreach_state({COMPLETED: 3, RUNNING: 1, FAILED: 1}) is RUNNING
    assert foreach_state({COMPLETED: 3, FAILED: 1}) is FAILED
    assert foreach_state({CANCELLED: 1, COMPLETED: 1}) is CANCELLED
    assert foreach_state({CANCELLED: 1, FAILED: 1}) is FAILED


# --- what a step is given ----------------------------------------------------------------------

SCOPE = Scope(
    {"n": 5, "name": "a b/é", "list": [1, {"x": "y"}], "null": None, "odd key": 1, "a-b": 2},
    {
        "extract": StepResult(COMPLETED, {"rows": 7, "files": ["f1", "f2"]}),
        "lost": StepResult(FAILED, None, {"code": "http-500", "message": "no"}),
        "left-out": StepResult(SKIPPED),
    },
    item={"id": 3},
    index=2,
)


def templated(payload: object = None, **fields: Any) -> TaskTemplate:
    return replace(NOOP, payload=json.dumps(payload), dynamic=True, **fields)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{{input.n}}", 5),
        ("{{ input.n }}", 5),
        ("n={{input.n}}", "n=5"),
        ("{{input.n}}{{input.n}}", "55"),
        ("{{input.list}}", [1, {"x": "y"}]),
        ("{{input.list[1].x}}", "y"),
        ("{{input.list.1.x}}", "y"),
        ("{{input.list}}!", '[1,{"x":"y"}]!'),
        ("{{input.null}}", None),
        ("is {{input.null}}", "is null"),
        ('{{input["odd key"]}}', 1),
        ("{{input.a-b}}", 2),
        ("{{steps.extract.result}}", {"rows": 7, "files": ["f1", "f2"]}),
        ("{{steps.extract.result.files[0]}}", "f1"),
        ("{{steps.extract.state}}", "completed"),
        ("{{steps.extract.error}}", None),
        ("{{steps.extract.error.code}}", None),
        ("{{steps.lost.error.code}}", "http-500"),
        ("{{steps.lost.result.rows}}", None),
        ("{{steps.left-out.result}}", None),
        ("{{steps.left-out.state}}", "skipped"),
        ("{{item.id}}", 3),
        ("{{index}}", 2),
        ("\\{{input.n}}", "{{input.n}}"),
        ("a } b { c", "a } b { c"),
    ],
)
def test_templates_are_filled_in(text: str, expected: object) -> None:
    made = render(templated({"x": [text], "{{input.n}}": 1.50}), SCOPE)
    assert json.loads(made.payload) == {"x": [expected], "{{input.n}}": 1.5}
    assert not made.dynamic


def test_all_other_bytes_of_a_payload_stay() -> None:
    text = '{ "a" : 1.00, "b":"{{input.n}}",\n "c":"\\u00e9\\/", "d": 12345678901234567890123 }'
    made = render(replace(NOOP, payload=text, dynamic=True), SCOPE)
    assert made.payload == text.replace('"{{input.n}}"', "5")
    assert render(replace(NOOP, payload=text), SCOPE).payload == text, "unless it is dynamic"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{input.nope}}", "an object has no 'nope'"),
        ("{{input.n.x}}", "a number has no 'x'"),
        ("{{input.name.x}}", "a text has no 'x'"),
        ("{{input.null.x}}", "null has no 'x'"),
        ("{{input.list[7]}}", "the list has 2 items only"),
        ("{{input.list.x}}", "a list has no 'x'"),
        ("{{steps.extract.result.nope}}", "{{steps.extract.result.nope}}: an object has no 'nope'"),
    ],
)
def test_what_is_not_there_cannot_be_filled_in(text: str, message: str) -> None:
    with pytest.raises(RenderFailed, match=message.replace("{", r"\{").replace("}", r"\}")):
        render(templated(f"it is {text}"), SCOPE)


def test_other_texts_are_filled_in_too() -> None:
    spec = {
        "target": {
            "type": "http",
            "url": "https://x.example/{{input.name}}?n={{input.n}}",
            "headers": {"X-A": "{{input.name}}\r\n{{input.n}}"},
        },
        "timeout": 3.0,
    }
    made = render(
        templated(
            spec=json.dumps(spec),
            name="{{steps.extract.result.rows}} rows",
            labels={"{{x}}": "{{input.n}}"},
            concurrency_key="k-{{input.name}}",
            concurrency_limit=1,
        ),
        SCOPE,
    )
    filled = json.loads(made.spec)
    assert filled["target"]["url"] == "https://x.example/a%20b%2F%C3%A9?n=5"
    assert filled["target"]["headers"] == {"X-A": "a b/é  5"}
    assert filled["timeout"] == 3.0
    assert (made.name, made.labels, made.concurrency_key) == ("7 rows", {"{{x}}": "5"}, "k-a b/é")
    argv = {"target": {"type": "command", "argv": ["load", "{{input.list}}", "{{input.name}}"]}}
    made = render(templated(spec=json.dumps(argv)), SCOPE)
    assert json.loads(made.spec)["target"]["argv"] == ["load", '[1,{"x":"y"}]', "a b/é"]


@pytest.mark.parametrize(
    "base",
    [
        *("file:///etc/passwd", "https://x.example/a b", "gopher://x", "", "https://x\\@y", 7),
        *("http://a:99999", "http://a:b", "http://[::1", "http://u:p@a", "http://2130706433"),
        f"http://a/{'x' * 2048}",
    ],
)
def test_what_is_no_url_is_not_called(base: object) -> None:
    spec = json.dumps({"target": {"type": "http", "url": "{{input.base}}/x"}})
    with pytest.raises(RenderFailed, match="filled in, the URL"):
        render(templated(spec=spec), Scope({"base": base}))


def test_templates_cannot_blow_up() -> None:
    long = Scope({"s": "x" * 100_000})
    with pytest.raises(RenderFailed, match="more than 1048576 bytes"):
        render(templated(["{{input.s}}"] * 10_000), long)
    with pytest.raises(RenderFailed, match="more than 1048576 bytes"):
        render(templated(["{{input.s}}" * 10_000]), long)
    many = Step("x", templated("{{input.s}}"), foreach="[]")
    with pytest.raises(RenderFailed, match="the payloads of the items"):
        list(render_each(many, long, range(10_000)))


def nested(levels: int) -> object:
    made: object = 0
    for _ in range(levels):
        made = [made]
    return made


def test_how_deep_a_value_may_be_is_our_own_limit() -> None:
    most = workflow_rules.MOST_NESTING
    rendered = render(templated("{{input.deep}}"), Scope({"deep": nested(most)}))
    assert json.loads(rendered.payload) == nested(most)
    with pytest.raises(RenderFailed, match="nested too deeply"):
        render(templated("{{input.deep}}"), Scope({"deep": {"a": nested(most)}}))


def test_odd_values_fail_the_step_and_nothing_else() -> None:
    deep = nested(50_000)
    half = Scope({"half": "\ud800", "deep": deep})
    url = json.dumps({"target": {"type": "http", "url": "https://x.example/{{input.half}}"}})
    argv = json.dumps({"target": {"type": "command", "argv": ["{{input.half}}"]}})
    for template in (templated(spec=url), templated(spec=argv), templated("a {{input.half}}")):
        with pytest.raises(RenderFailed, match="holds what is no text"):
            render(template, half)
    for payload in ("{{input.deep}}", "it is {{input.deep}}"):
        with pytest.raises(RenderFailed, match="nested too deeply"):
            render(templated(payload), half)
    with pytest.raises(RenderFailed, match="nested too deeply"):
        items(Step("x", NOOP, foreach='"{{input.deep}}"'), half)


def test_what_a_foreach_is_done_for() -> None:
    def found(foreach: object, scope: Scope = SCOPE) -> list[object] | None:
        return items(Step("x", NOOP, foreach=json.dumps(foreach)), scope)

    assert items(Step("x", NOOP), SCOPE) is None
    assert found([]) == []
    assert found([1, "a", None]) == [1, "a", None]
    assert found(["{{input.n}}", "n{{input.n}}"]) == [5, "n5"]
    assert found("{{steps.extract.result.files}}") == ["f1", "f2"]
    for wrong, kind in (("n", "a number"), ("name", "a text"), ("null", "null")):
        with pytest.raises(RenderFailed, match=f"needs a list, and {kind} is none"):
            found(f"{{{{input.{wrong}}}}}")
    with pytest.raises(RenderFailed, match="10001 items; the most is 10000"):
        found("{{input.many}}", Scope({"many": [0] * 10_001}))


def test_the_tasks_of_a_foreach() -> None:
    step = Step("x", templated({"file": "{{item}}", "n": "{{index}}"}), foreach='["a","b"]')
    made = list(render_each(step, SCOPE, ["a", {"b": 1}]))
    assert [json.loads(one.payload) for one in made] == [
        {"file": "a", "n": 0},
        {"file": {"b": 1}, "n": 1},
    ]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(value=JSON)
def test_a_value_that_is_one_template_whole_keeps_its_type(value: object) -> None:
    made = render(templated({"x": "{{input.v}}"}), Scope({"v": value}))
    assert json.loads(made.payload) == {"x": json.loads(json.dumps(value))}


@settings(max_examples=100, deadline=None)
@given(value=JSON)
def test_a_payload_without_templates_stays_whatever_it_holds(value: object) -> None:
    text = json.dumps(value).replace("{{", "{ {")
    assert render(replace(NOOP, payload=text, dynamic=True), SCOPE).payload == text
