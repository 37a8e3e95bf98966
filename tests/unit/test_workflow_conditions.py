"""Conditions: what they can say, and what hostile ones cannot do."""

import resource
from contextlib import suppress
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.domain.task import TaskState
from mainspring.domain.workflows.condition import BadCondition, ConditionFailed, compiled
from mainspring.domain.workflows.rules import Scope, StepResult, condition_met

SCOPE = Scope(
    {"n": 5, "f": 1.5, "s": "abc", "list": [1, 2, 3], "none": None, "odd key": True},
    {
        "extract": StepResult(
            TaskState.COMPLETED, {"rows": 7, "ok": True, "parts": [{"ok": True}, {"ok": False}]}
        ),
        "to-db": StepResult(TaskState.FAILED, None, {"code": "http-500", "message": "no"}),
    },
)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("true", True),
        ("input.n > 4", True),
        ("input.n > 4.5 && input.f < 2", True),
        ("input.n == 5.0", True),
        ('input.s == "abc" || input.nope', True),
        ("input.s.startsWith('a') && input.s.size() == 3", True),
        ("size(input.list) > 3", False),
        ("2 in input.list", True),
        ("input.list[0] == 1", True),
        ('input["odd key"]', True),
        ("has(input.n) && !has(input.nope)", True),
        ("'n' in input", True),
        ("input.none == null", True),
        ("input.s.matches('^[a-c]+$')", True),
        ("input.n - 2 * 2 == 1 && input.n % 2 == 1", True),
        ("input.n > 3 ? input.s == 'abc' : false", True),
        ("steps.extract.result.rows >= 7", True),
        ("steps.extract.state == 'completed'", True),
        ('steps["to-db"].state == "failed"', True),
        ('steps["to-db"].error.code == "http-500"', True),
        ('steps["to-db"].result == null', True),
        ("steps.extract.result.parts.all(p, p.ok)", False),
        ("steps.extract.result.parts.exists(p, p.ok)", True),
        ("'input + steps.x' == input.s", False),
        ("type(input.n) == int", True),
        ("timestamp('2027-01-01T00:00:00Z') < timestamp('2027-01-02T00:00:00Z')", True),
    ],
)
def test_what_a_condition_can_say(condition: str, expected: bool) -> None:
    assert condition_met(condition, SCOPE) is expected


def test_no_condition_always_holds() -> None:
    assert condition_met(None, Scope({})) is True


@pytest.mark.parametrize(
    "condition",
    [
        "input.nope == 1",
        "input.n",
        "input.n / 0 == 1",
        "input.s > 3",
        "input.list[7] == 1",
        "steps.extract.result.nope.x",
        'steps["to-db"].result.rows == 1',
        "input.n * 9223372036854775807 > 0",
        "input.s.matches('(')",
    ],
)
def test_a_condition_without_an_answer_says_so(condition: str) -> None:
    with pytest.raises(ConditionFailed) as caught:
        condition_met(condition, SCOPE)
    assert 0 < len(str(caught.value)) <= 250


def test_what_nobody_asks_about_does_not_matter() -> None:
    odd = Scope({"x": 1, "huge": 2**99, "odd": "\ud800"})
    assert condition_met("input.x == 1", odd) is True
    for asked in ("input.huge > 1", "input.odd == 'x'", "input == 1"):
        with pytest.raises(ConditionFailed):
            condition_met(asked, odd)


def test_a_condition_knows_the_steps_it_speaks_of() -> None:
    text = "steps.b.result.x > 1 && steps['a-b'].state == 'failed' || steps.b.error == 'steps.no'"
    assert compiled(text).steps == ("b", "a-b")


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("input.x + 1 > 2", r"there is no \+ here"),
        ("input.l.map(x, x) == []", r"there is no map\(…\) here"),
        ("input.l.filter(x, x).size() > 1", r"there is no filter\(…\) here"),
        ("input.l.exists_one(x, x)", r"there is no exists_one\(…\) here"),
        ("input.l.all(x, input.l.all(y, x == y))", "only the list's own variable"),
        ("input.l.all(x, x.all(y, y > 1))", "inside each other"),
        ("input.l.all(x, x in input.l)", "only the list's own variable"),
        ("input.l.all(x, ((steps.a.result) == x))", "only the list's own variable"),
        ("[1].all(input, input.x)", "only the list's own variable"),
        ("steps == 1", "followed by a step"),
        ("steps[input.x].result", "followed by a step"),
        ("steps.a", "of a step there are result, state, error"),
        ("steps.to-db.result", r'steps\["to-…"\]'),
        ("input.s.matches(input.s)", "a pattern in quotes"),
        ("matches(input.s, 'a')", "a pattern in quotes"),
        ("input.s.matches(('a'))", "a pattern in quotes"),
        ("bytes(input.s).size() > 1", "undeclared reference to 'bytes'"),
        ("input.x = 1", "at character"),
        ("now() > 1", "undeclared reference to 'now'"),
        ("r'\\'", "cannot be read from"),
        ("r'a' == b'a'", "no prefix"),
        ('"""a"""', "one pair of quotes"),
        ("'a", "cannot be read from"),
        (" .input.x", "a dot follows"),
        ("x" * 1001, "the most is 1000"),
    ],
)
def test_what_a_condition_cannot_say(condition: str, message: str) -> None:
    with pytest.raises(BadCondition, match=message):
        compiled(condition)


HOSTILE = [
    "input.l.all(x, x.n >= 0)",
    "input.s.matches('^(a|aa|aaa)*(a|aa|aaa)*(a|aa|aaa)*b$')",
    "input.s.matches('((a{100}){100}){10}')",
    "input.s.matches(input.s)",
    "||".join(["input == steps.a.result"] * 40),
    "||".join(["input.s.contains('aaaaaaaaab')"] * 30),
    "||".join(["input.l in input.l"] * 50),
    "!" * 999 + "x",
    "-" * 990 + "1 == 1",
    "[" * 30 + "input.s" + "]" * 30 + " == [1]",
    "[" + "input.s," * 120 + "1].all(x, x == x)",
    "[" + "input.l," * 120 + "1].exists(x, x == 1)",
    "1" * 1000,
    "'" + "\\" * 998 + "'",
    "input.l.all(x, " * 40 + "true" + ")" * 40,
    "(" * 499 + "1" + ")" * 499,
    "true?" * 100 + "true" + ":true" * 100,
]


@pytest.mark.parametrize("condition", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_conditions_cost_little(condition: str) -> None:
    """A megabyte of input, and whatever a thousand characters can ask of it."""
    big = {"s": "a" * 500_000, "l": [{"n": n} for n in range(20_000)]}
    scope = Scope(big, {"a": StepResult(TaskState.COMPLETED, dict(big))})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun = process_time()
    with suppress(BadCondition, ConditionFailed):
        condition_met(condition, scope)
    took = process_time() - begun
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    assert took < 5, took
    assert grown < 300, f"{grown} MB"


WORDS = [
    *("input", "steps", ".", "a", "result", "all", "exists", "map", "matches", "(", ")", "[", "]"),
    *("x", ",", "+", "==", "&&", "'", '"', "\\", "1", " ", "r", "b", "{", "}", "!", "/", "`", "?"),
]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=40).map("".join))
def test_anything_at_all_is_taken_or_refused(text: str) -> None:
    with suppress(BadCondition, ConditionFailed):
        asked = compiled(text)
        scope = {"input": {"a": [1]}, "steps": {name: {"result": [1]} for name in asked.steps}}
        assert asked.evaluate(scope) in (True, False)
