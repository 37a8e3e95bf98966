"""What a run should do, said once more and differently: all steps in memory, looked at again and
again until nothing changes."""

from collections import Counter
from collections.abc import Iterable, Mapping

from mainspring.domain.task import TaskState
from mainspring.domain.workflows.definition import WorkflowDefinition
from mainspring.domain.workflows.rules import StepDecision, decide, run_state

OVER = {"completed", "failed", "cancelled", "expired", "skipped"}
LOST = {"failed", "cancelled", "expired"}


class RunModel:
    """One run. Tasks are named as their `step`: `a`, or `a[0]` for an item of a list."""

    def __init__(
        self, definition: WorkflowDefinition, sizes: Mapping[str, int], holds: Mapping[str, bool]
    ):
        self._definition = definition
        self._sizes = sizes
        self._holds = holds
        self.steps = {step.id: "blocked" for step in definition.steps}
        self.tasks: dict[str, str] = {}
        self.started: list[str] = []
        self._stopped = False
        self._advance()

    @property
    def released(self) -> set[str]:
        return {task for task, state in self.tasks.items() if state == "released"}

    @property
    def running(self) -> set[str]:
        return {task for task, state in self.tasks.items() if state == "running"}

    @property
    def state(self) -> str:
        counts = Counter(TaskState(state) for state in self.steps.values() if state in OVER)
        unfinished = sum(state not in OVER for state in self.steps.values())
        return run_state({**counts, TaskState.BLOCKED: unfinished}).value

    def start(self, tasks: Iterable[str]) -> None:
        for task in tasks:
            assert self.tasks[task] == "released", f"{task} may not start"
            self.tasks[task] = "running"
            self.started.append(task)

    def end(self, outcomes: Mapping[str, TaskState]) -> None:
        """Several tasks end in one transaction."""
        for task, state in outcomes.items():
            assert self.tasks[task] == "running", f"{task} does not run"
            self.tasks[task] = state.value
            if "[" not in task:
                self.steps[task] = state.value
        self._advance()

    def _advance(self) -> None:
        changed = True
        while changed:
            changed = self._join() or self._stop() or self._decide()

    def _join(self) -> bool:
        for name, state in self.steps.items():
            items = {t: s for t, s in self.tasks.items() if t.startswith(f"{name}[")}
            if state == "expanded" and all(s in OVER for s in items.values()):
                ends = set(items.values())
                order = ("failed", "cancelled", "expired")
                self.steps[name] = next((s for s in order if s in ends), "completed")
                return True
        return False

    def _stop(self) -> bool:
        if self._stopped or self._definition.on_failure != "fail_fast":
            return False
        if not LOST & set(self.steps.values()):
            return False
        self._stopped = True
        for name, state in self.steps.items():
            if name not in self._definition.survivors:
                if state == "blocked":
                    self.steps[name] = "skipped"
                elif state == "released" and self.tasks[name] == "released":
                    self.steps[name] = self.tasks[name] = "cancelled"
        for task, state in self.tasks.items():
            name, bracket, _ = task.partition("[")
            if bracket and state == "released" and name not in self._definition.survivors:
                self.tasks[task] = "cancelled"
        return True

    def _decide(self) -> bool:
        for step in self._definition.steps:
            if self.steps[step.id] != "blocked":
                continue
            ends = [self.steps[need] for need in step.needs if self.steps[need] in OVER]
            good, bad = ends.count("completed"), sum(end in LOST for end in ends)
            skipped = len(ends) - good - bad
            verdict = decide(step, len(ends), good, bad, skipped, len(step.needs))
            if verdict is StepDecision.WAIT:
                continue
            if verdict is StepDecision.SKIP or not self._holds.get(step.id, True):
                self.steps[step.id] = "skipped"
            elif step.foreach is None:
                self.steps[step.id] = self.tasks[step.id] = "released"
            else:
                self.steps[step.id] = "expanded"
                for index in range(self._sizes[step.id]):
                    self.tasks[f"{step.id}[{index}]"] = "released"
            return True
        return False
