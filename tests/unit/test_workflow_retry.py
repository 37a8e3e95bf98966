"""Which lists are the same ones when they are made once more."""

import pytest

from mainspring.domain.workflows.retry import StepProgress, same_lists, with_left_out
from support.runs import step, workflow

FLOW = workflow(
    step("a"), step("b", "a"), step("each", "b", foreach='"{{steps.a.result}}"', uses=("a",))
)


@pytest.mark.parametrize(
    ("b", "same"),
    [
        ("completed", ["each"]),
        ("failed", ["each"]),
        # Left out by a run that failed fast, while `a` was still running.
        ("skipped", []),
        ("cancelled", []),
    ],
)
def test_a_step_between_proves_earlier_ends_only_if_it_ran(b: str, same: list[str]) -> None:
    states = {"a": StepProgress("completed"), "b": StepProgress(b), "each": StepProgress("failed")}
    assert same_lists(FLOW, states, ["each"]) == same
    assert same_lists(FLOW, states, ["each"], changed=["b"]) == []


def test_steps_skipped_by_failing_fast_run_once_nothing_failed() -> None:
    flow = workflow(step("a"), step("b"), step("c"), step("d", "c"), step("e", "d"))
    lost, left = StepProgress("failed"), StepProgress("skipped", left_out=True)
    states = {"a": lost, "b": lost, "c": left, "d": StepProgress("skipped", waived=True), "e": left}
    assert with_left_out(flow, states, {"a"}) == {"a"}
    assert with_left_out(flow, states, {"a", "b"}) == {"a", "b", "c", "e"}, "a person's word counts"


def test_long_chains_with_many_lists_take_no_time() -> None:
    chain = [step("s0"), *(step(f"s{n}", f"s{n - 1}") for n in range(1, 5000))]
    lists = [
        step(f"l{n}", "s4999", foreach='"{{steps.s0.result}}"', uses=("s0",)) for n in range(5000)
    ]
    flow = workflow(*chain, *lists)
    states = {s.id: StepProgress("completed") for s in chain} | {
        s.id: StepProgress("failed") for s in lists
    }
    names = [s.id for s in lists]
    assert same_lists(flow, states, names) == names
