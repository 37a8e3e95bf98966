"""A workflow run by the book: slowly, plainly, and without the code that it is compared with.

`Model` looks at all steps again after every event, until nothing changes any more. `definitions`
makes random graphs, `outcomes` says how each of their steps ends.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from hypothesis import strategies as st

from mainspring.domain.task import TaskState
from mainspring.domain.workflows.definition import (
    OnFailure,
    Step,
    TaskTemplate,
    When,
    WorkflowDefinition,
)

NOOP = TaskTemplate('{"target":{"type":"handler","name":"mainspring.noop"}}', "{}", "handler")
WAITING, RUNNING = TaskState.BLOCKED, TaskState.RUNNING
COMPLETED, FAILED = TaskState.COMPLETED, TaskState.FAILED
CANCELLED, EXPIRED, SKIPPED = TaskState.CANCELLED, TaskState.EXPIRED, TaskState.SKIPPED
UNSUCCESSFUL = {FAILED, CANCELLED, EXPIRED}
ENDED = UNSUCCESSFUL | {COMPLETED, SKIPPED}


@dataclass
class Model:
    """A run of a definition. `conditions` has the answer of each `if`; true where it is silent."""

    definition: WorkflowDefinition
    conditions: Mapping[str, bool] = field(default_factory=dict)
    states: dict[str, TaskState] = field(default_factory=dict)
    started: list[str] = field(default_factory=list)
    """Every step that was started, in order."""
    unwanted: set[str] = field(default_factory=set)
    """Running steps that were asked to stop."""
    ended_by: str | None = None

    def __post_init__(self) -> None:
        self.states = {step.id: WAITING for step in self.definition.steps}
        self._advance()

    @property
    def running(self) -> list[str]:
        return [name for name, state in self.states.items() if state is RUNNING]

    @property
    def over(self) -> bool:
        return all(state in ENDED for state in self.states.values())

    @property
    def run_state(self) -> str:
        """The state of the run, said in another way than in the rules."""
        found = set(self.states.values())
        if not self.over:
            return "running"
        if self.ended_by == "cancelled" and CANCELLED in found:
            return "cancelled"
        if self.ended_by == "deadline" and CANCELLED in found:
            return "failed"
        if found & {FAILED, EXPIRED}:
            return "failed"
        return "cancelled" if CANCELLED in found else "completed"

    def end(self, name: str, outcome: TaskState) -> None:
        """A running step ends."""
        assert self.states[name] is RUNNING, f"{name} is not running"
        self.states[name] = outcome
        self.unwanted.discard(name)
        self._advance()

    def cancel(self, by: str = "cancelled") -> None:
        """Somebody, or the deadline, ends the run: only what cleans up is left."""
        self.ended_by = self.ended_by or by
        for step in self.definition.steps:
            if not step.cleanup:
                self._stop(step.id, CANCELLED)
        self._advance()

    def may_start(self, name: str) -> bool:
        """Whether the steps before it allow a step to start."""
        step = self._step(name)
        before = [self.states[need] for need in step.needs]
        match "all_finished" if step.cleanup else step.when:
            case "all_succeeded":
                return all(state is COMPLETED for state in before)
            case "all_finished":
                return all(state in ENDED for state in before)
            case "any_failed":
                return any(state in UNSUCCESSFUL for state in before)
            case _:
                return any(state is COMPLETED for state in before)

    def _advance(self) -> None:
        while self._change():
            pass

    def _change(self) -> bool:
        """Do the first thing that is to be done; False when there is nothing."""
        if self._fails_fast() and any(self._give_up(s.id) for s in self.definition.steps):
            return True
        for step in self.definition.steps:
            if self.states[step.id] is not WAITING:
                continue
            if self.may_start(step.id):
                if self.conditions.get(step.id, True):
                    self.states[step.id] = RUNNING
                    self.started.append(step.id)
                else:
                    self.states[step.id] = SKIPPED
                return True
            if all(self.states[need] in ENDED for need in step.needs):
                self.states[step.id] = SKIPPED
                return True
        return False

    def _fails_fast(self) -> bool:
        failed = any(state in UNSUCCESSFUL for state in self.states.values())
        return failed and self.definition.on_failure == "fail_fast"

    def _give_up(self, name: str) -> bool:
        return not self._deals_with_failure(name) and self._stop(name, SKIPPED)

    def _stop(self, name: str, waiting_becomes: TaskState) -> bool:
        if self.states[name] is WAITING:
            self.states[name] = waiting_becomes
            return True
        if self.states[name] is RUNNING and name not in self.unwanted:
            self.unwanted.add(name)
            return True
        return False

    def _deals_with_failure(self, name: str) -> bool:
        step = self._step(name)
        if step.cleanup or step.when in ("all_finished", "any_failed"):
            return True
        return bool(step.needs) and all(self._deals_with_failure(need) for need in step.needs)

    def _step(self, name: str) -> Step:
        return next(step for step in self.definition.steps if step.id == name)


@st.composite
def definitions(
    draw: st.DrawFn, most: int = 9, policies: tuple[OnFailure, ...] = ("fail_fast", "continue")
) -> WorkflowDefinition:
    """Random graphs of steps; some have an `if`, and some clean up."""
    steps: list[Step] = []
    whens: list[When] = ["all_succeeded", "all_finished", "any_failed", "one_succeeded"]
    for place in range(draw(st.integers(1, most))):
        cleanup = draw(st.integers(0, 5)) == 0
        before = [s.id for s in steps if cleanup or not s.cleanup]
        needs = draw(st.lists(st.sampled_from(before), unique=True, max_size=4)) if before else []
        when: When = draw(st.sampled_from(whens)) if needs else "all_succeeded"
        asked = "true" if draw(st.integers(0, 3)) == 0 else None
        steps.append(
            Step(
                f"s{place}",
                NOOP,
                tuple(needs),
                "all_finished" if cleanup else when,
                condition=asked,
                cleanup=cleanup,
            )
        )
    # The order in which they are written says nothing.
    return WorkflowDefinition(
        "random", tuple(draw(st.permutations(steps))), draw(st.sampled_from(policies))
    )


@st.composite
def outcomes(draw: st.DrawFn, definition: WorkflowDefinition) -> dict[str, TaskState]:
    """How each step ends, if it is started."""
    likely = [COMPLETED, COMPLETED, COMPLETED, FAILED, EXPIRED, CANCELLED]
    return {step.id: draw(st.sampled_from(likely)) for step in definition.steps}


@st.composite
def answers(draw: st.DrawFn, definition: WorkflowDefinition) -> dict[str, bool]:
    """What the conditions say."""
    return {s.id: draw(st.booleans()) for s in definition.steps if s.condition is not None}
