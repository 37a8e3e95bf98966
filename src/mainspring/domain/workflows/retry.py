"""Retries of runs: which steps and items are repeated. Pure functions."""

from collections.abc import Collection, Mapping, Set
from typing import NamedTuple

from mainspring.domain.workflows.definition import Step, WorkflowDefinition

LOST = ("failed", "expired", "cancelled")
FAIL_FAST = "fail-fast"
"""The error of a step that was skipped because the run failed fast."""


class StepProgress(NamedTuple):
    """How far a step has come."""

    state: str
    waived: bool = False
    left_out: bool = False
    """Whether it was skipped because the run failed fast."""

    @property
    def over(self) -> bool:
        return self.state not in ("blocked", "released", "expanded")


class EndedBefore(NamedTuple):
    """How the needs of a step ended."""

    finished: int
    succeeded: int
    failed: int


def downstream(definition: WorkflowDefinition, names: Collection[str]) -> set[str]:
    """Return these steps and all that come after them."""
    found, queue = set(names), list(names)
    while queue:
        for child in definition.children[queue.pop()]:
            if child not in found:
                found.add(child)
                queue.append(child)
    return found


def with_left_out(
    definition: WorkflowDefinition, states: Mapping[str, StepProgress], again: Set[str]
) -> set[str]:
    """Return the steps that are repeated. If no other failed step remains, they include those that
    were skipped because the run failed fast."""
    if any(s.state in LOST for name, s in states.items() if name not in again):
        return {*again}
    after = downstream(definition, [name for name, s in states.items() if s.left_out])
    return {*again, *(name for name in after if not states[name].waived)}


def count_needs(
    definition: WorkflowDefinition,
    step: str,
    states: Mapping[str, StepProgress],
    again: Collection[str],
) -> EndedBefore:
    """Count how the needs of a step have ended, without those that are repeated."""
    before = [states[need] for need in definition.by_id[step].needs if need not in again]
    over = [s for s in before if s.over]
    good = sum(s.state == "completed" or s.waived for s in over)
    return EndedBefore(len(over), good, sum(s.state in LOST for s in over))


def same_lists(
    definition: WorkflowDefinition,
    states: Mapping[str, StepProgress],
    again: Collection[str],
    changed: Collection[str] = (),
) -> list[str]:
    """Return those of the repeated steps that will make the same items again, so that completed
    items can stay.

    None of the steps before such a step is repeated or `changed`, and all that it refers to had
    ended when it began: otherwise it would now see more than then. A step that completed is
    repeated as a whole: there is no other reason to ask for it.
    """
    others = {*again, *changed}
    lists = [
        step
        for step in map(definition.by_id.__getitem__, again)
        if step.foreach is not None
        and states[step.id].state != "completed"
        and others.isdisjoint(step.needs)
    ]
    if not any(step.uses for step in lists):
        return [step.id for step in lists]
    places, before = _ended_before(definition, states)
    return [step.id for step in lists if all(before[step.id] & places[used] for used in step.uses)]


def _ended_before(
    definition: WorkflowDefinition, states: Mapping[str, StepProgress]
) -> tuple[dict[str, int], dict[str, int]]:
    """Return each step's bit, and for each step the bits of those that must have ended before it
    began. A skipped step says nothing of those before it: a run that fails fast does not wait for
    them."""
    places = {name: 1 << place for place, name in enumerate(definition.order)}
    before: dict[str, int] = {}
    for name in definition.order:
        step, seen = definition.by_id[name], 0
        for need in step.needs if _patient(step) else ():
            seen |= places[need]
            if states[need].state in ("completed", "failed"):
                seen |= before[need]
        before[name] = seen
    return places, before


def _patient(step: Step) -> bool:
    """Whether it starts only when all that it needs has ended."""
    hasty = step.when in ("any_failed", "one_succeeded") and not step.cleanup
    return not hasty or len(step.needs) == 1
