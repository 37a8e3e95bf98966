"""The table of docs/workflows.md is a list of examples, and every one of them holds."""

import re
from pathlib import Path
from typing import cast

import pytest

from mainspring.domain.workflows.checks import graph_problems, with_implied_needs
from mainspring.domain.workflows.definition import OnFailure, Step, WorkflowDefinition
from support.workflow_model import CANCELLED, COMPLETED, FAILED, NOOP, Model

DOCUMENT = Path(__file__).parents[2] / "docs" / "workflows.md"
STEPS = with_implied_needs(
    [
        Step("extract", NOOP),
        Step("clean", NOOP, ("extract",)),
        Step("load", NOOP, ("clean",)),
        Step("other", NOOP),
        Step("alert", NOOP, ("extract", "clean", "load"), "any_failed"),
        Step("escalate", NOOP, ("alert",)),
        Step("report", NOOP, ("load",), "all_finished"),
        Step("sweep", NOOP, when="all_finished", cleanup=True),
    ]
)


def rows() -> list[list[str]]:
    found = re.search(r"<!-- checked: failure -->(.*?)<!-- end -->", DOCUMENT.read_text(), re.S)
    assert found is not None
    lines = [line for line in found[1].splitlines() if line.startswith("|")]
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in (lines[0], *lines[2:])
    ]


HEAD, *ROWS = rows()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: " ".join(row[:2]))
def test_what_becomes_of_the_steps(row: list[str]) -> None:
    policy, happens, *expected = row
    assert graph_problems(STEPS) == []
    model = Model(WorkflowDefinition("nightly", tuple(STEPS), cast("OnFailure", policy)))
    failing = happens.removesuffix(" fails")
    stopped = happens.endswith("during clean")
    while not model.over:
        if stopped and "clean" in model.running and model.ended_by is None:
            model.cancel("cancelled" if happens.startswith("cancelled") else "deadline")
        # `other` takes long: it ends when nothing else can, unless it is what fails.
        ready = sorted(model.running, key=lambda name: (name == "other") ^ (failing == "other"))
        chosen = "clean" if "clean" in model.running and stopped else ready[0]
        if failing == "other" and "extract" in model.running:
            chosen = "extract"
        unwanted = chosen in model.unwanted
        model.end(chosen, CANCELLED if unwanted else FAILED if chosen == failing else COMPLETED)
    found = [str(model.states[name]) for name in HEAD[2:-1]]
    assert [*found, model.run_state] == expected
