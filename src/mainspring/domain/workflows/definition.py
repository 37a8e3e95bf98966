"""A workflow: a named, versioned graph of steps, each of which becomes a task when its turn comes.

A definition that got here is checked: its graph has no cycle, every need is a step of it, and what
its templates and conditions speak of lies upstream. `checks` sees to that.
"""

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from graphlib import TopologicalSorter
from typing import Literal

When = Literal["all_succeeded", "all_finished", "any_failed", "one_succeeded"]
OnFailure = Literal["fail_fast", "continue"]

LONGEST_CONDITION = 1000
"""Maximum characters of a condition."""
MOST_STEPS = 10_000
MOST_NEEDS = 100_000
"""Maximum number of edges of the whole graph."""
MOST_ITEMS = 10_000
"""Maximum number of tasks of one `foreach`."""
FEW = 64
"""If more steps than these start at once, each has a partition of its own."""


class RunState(StrEnum):
    """Where a run is. The last three are final."""

    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        return self not in (RunState.RUNNING, RunState.PAUSED)


@dataclass(frozen=True, slots=True)
class TaskTemplate:
    """The task of a step, compiled once, as it is stored. With `dynamic` some of its texts hold
    templates: `rules.render` fills them in."""

    spec: str
    """The task's spec, as JSON."""
    payload: str
    """The payload, as JSON: byte for byte as it was sent."""
    capability: str
    queue: str = "default"
    priority: int = 5
    name: str | None = None
    labels: dict[str, str] | None = None
    concurrency_key: str | None = None
    concurrency_limit: int | None = None
    jitter: float = 0.0
    dynamic: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One node of the graph."""

    id: str
    template: TaskTemplate
    needs: tuple[str, ...] = ()
    when: When = "all_succeeded"
    condition: str | None = None
    """The step's `if`, evaluated once, when `when` allows the start; false means skipped."""
    foreach: str | None = None
    """A list as JSON, or a string with the template of one, as JSON too."""
    delay: float = 0.0
    """Seconds from the moment it may start to the moment it is due."""
    cleanup: bool = False
    """Whether it runs however the run ends, once all it needs has ended."""
    implied: bool = False
    """Whether it named no needs: then it needs all steps that do not clean up."""
    uses: tuple[str, ...] = ()
    """The steps that its templates, its list and its condition refer to."""

    @property
    def has_templates(self) -> bool:
        """Whether its task depends on the run's input or on other steps."""
        return bool(self.condition or self.foreach or self.template.dynamic)

    @property
    def needs_success(self) -> bool:
        """Whether it makes sense only after a success: a run that fails fast skips it."""
        return not self.cleanup and self.when in ("all_succeeded", "one_succeeded")

    @property
    def plain(self) -> bool:
        """Whether it starts, just as it is stored, as soon as all before it have succeeded."""
        asks = self.condition or self.foreach or self.template.dynamic
        waits = self.delay or self.template.jitter
        return self.when == "all_succeeded" and not (self.cleanup or asks or waits)


@dataclass(frozen=True)
class WorkflowDefinition:
    """What a user asked for, checked. `steps` are in the order in which they were written."""

    name: str
    steps: tuple[Step, ...]
    on_failure: OnFailure = "fail_fast"
    deadline: float | None = None
    """Seconds from the run's start after which it is ended as failed."""
    input: str = "{}"
    """Default values of a run's input: a JSON object."""

    @cached_property
    def by_id(self) -> dict[str, Step]:
        return {step.id: step for step in self.steps}

    @cached_property
    def order(self) -> tuple[str, ...]:
        """The ids in an order in which each comes after all that it needs."""
        return tuple(TopologicalSorter({s.id: s.needs for s in self.steps}).static_order())

    @cached_property
    def children(self) -> dict[str, tuple[str, ...]]:
        """The steps that need each step."""
        found: dict[str, list[str]] = {step.id: [] for step in self.steps}
        for step in self.steps:
            for need in step.needs:
                found[need].append(step.id)
        return {step: tuple(children) for step, children in found.items()}

    @cached_property
    def roots(self) -> tuple[str, ...]:
        """The steps that a run begins with."""
        return tuple(step.id for step in self.steps if not step.needs)

    @cached_property
    def plain(self) -> frozenset[str]:
        """The steps whose success needs no decision: the few steps after them are plain."""
        return frozenset(
            name
            for name, children in self.children.items()
            if len(children) <= FEW and all(self.by_id[child].plain for child in children)
        )

    @cached_property
    def survivors(self) -> frozenset[str]:
        """The steps that a run does not skip when it fails fast: those that handle failures, and
        those that need nothing else."""
        found: set[str] = set()
        for name in self.order:
            step = self.by_id[name]
            if not step.needs_success or (step.needs and found.issuperset(step.needs)):
                found.add(name)
        return frozenset(found)
