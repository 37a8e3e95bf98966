"""The shapes of workflows and of their runs, as callers send and read them."""

from collections.abc import Sequence
from typing import Annotated, Literal
from uuid import UUID

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from mainspring.domain.task import TaskState
from mainspring.domain.workflows.definition import (
    LONGEST_CONDITION,
    MOST_ITEMS,
    OnFailure,
    RunState,
    When,
)
from mainspring.wire import patterns
from mainspring.wire.schedules import TemplateOut
from mainspring.wire.tasks import (
    FARTHEST,
    Delay,
    Duration,
    ErrorOut,
    Jitter,
    State,
    Time,
    TimelessTask,
    WorkflowName,
)
from mainspring.wire.values import Json, JsonOrNull, OpenEnum

# No dots: they separate the parts of a reference.
StepId = Annotated[str, Meta(pattern=patterns.STEP)]
# Which steps there are is checked later, in words that help more than a pattern.
Need = Annotated[str, Meta(max_length=100)]
If = Annotated[
    str, Meta(min_length=1, max_length=LONGEST_CONDITION, extra_json_schema={"format": "cel"})
]
Items = (
    Annotated[list[Raw], Meta(max_length=MOST_ITEMS)]
    | Annotated[str, Meta(max_length=510, extra_json_schema={"format": "template"})]
)
# Longer than no time at all.
Deadline = Annotated[float, Meta(gt=0, extra_json_schema=FARTHEST)] | Duration
GraphFormat = Literal["json", "mermaid", "dot"]
RunStateOut = Annotated[str, Meta(extra_json_schema={"enum": list(RunState)})]
Ending = Annotated[str, Meta(extra_json_schema={"enum": ["failure", "cancel", "deadline"]})]


class StepIn(TimelessTask, kw_only=True, frozen=True):
    """A step: a task without times of its own, and its place in the graph."""

    id: StepId
    needs: list[Need] = field(default_factory=list)
    when: When | None = None
    if_: If | None = field(name="if", default=None)
    foreach: Items | None = None
    delay: Delay | None = None
    cleanup: bool = False
    jitter: Jitter = 0.0


class WorkflowBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """A workflow whose name is in the path."""

    # How many there may be is said by the check, which counts before anything else.
    steps: Annotated[list[StepIn], Meta(min_length=1, extra_json_schema={"maxItems": 10_000})]
    on_failure: OnFailure = "fail_fast"
    deadline: Deadline | None = None
    input: dict[str, Raw] = field(default_factory=dict)


class WorkflowIn(WorkflowBody, kw_only=True, forbid_unknown_fields=True):
    """A workflow as a caller asks for it."""

    name: WorkflowName


# As they are read -----------------------------------------------------------------------------


class StepOut(TemplateOut, kw_only=True):
    """A step as callers read it."""

    id: str
    needs: list[str]
    when: OpenEnum[When]
    if_: str | None = field(name="if")
    foreach: JsonOrNull
    delay: float
    cleanup: bool
    jitter: float


class WorkflowOut(Struct, kw_only=True):
    """One version of a workflow as callers read it."""

    name: str
    version: int
    steps: list[StepOut]
    on_failure: OpenEnum[OnFailure]
    deadline: float | None = None
    input: dict[str, Raw] = field(default_factory=dict)
    created_at: Time


class WorkflowSummary(Struct):
    """A workflow in a list: its latest version, without the steps."""

    name: str
    version: int
    step_count: int
    on_failure: OpenEnum[OnFailure]
    created_at: Time
    updated_at: Time


class WorkflowPage(Struct):
    """Some workflows, by name, and where the list goes on."""

    items: list[WorkflowSummary]
    next_cursor: str | None


class VersionOut(Struct):
    """One version in a list of them."""

    version: int
    step_count: int
    created_at: Time


class VersionPage(Struct):
    """Some versions, newest first, and where the list goes on."""

    items: list[VersionOut]
    next_cursor: str | None


class GraphNodeOut(Struct):
    """A step in the graph; its state in the graph of a run."""

    id: str
    foreach: bool
    cleanup: bool
    if_: str | None = field(name="if")
    state: TaskState | None


class EdgeOut(Struct):
    """An arrow: `to` needs `from`, on these terms."""

    from_: str = field(name="from")
    to: str
    when: OpenEnum[When]


class GraphOut(Struct):
    """A graph as data."""

    nodes: list[GraphNodeOut]
    edges: list[EdgeOut]


# Runs -----------------------------------------------------------------------------------------


class RunIn(Struct, kw_only=True, forbid_unknown_fields=True):
    """What a run is given: its input, and which version it is made by."""

    input: dict[str, Raw] = field(default_factory=dict)
    version: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None


class ItemOut(Struct, kw_only=True):
    """One task of a step that is done for a list."""

    index: int
    state: State
    task_id: UUID
    attempts: int = 0
    started_at: Time | None = None
    finished_at: Time | None = None
    result: JsonOrNull = None
    error: ErrorOut | None = None


class RunStepOut(Struct, kw_only=True):
    """A step of a run."""

    id: str
    state: State
    task_id: UUID
    needs: list[str] = field(default_factory=list)
    attempts: int = 0
    due_at: Time | None = None
    started_at: Time | None = None
    finished_at: Time | None = None
    result: JsonOrNull = None
    error: ErrorOut | None = None
    skipped_by_hand: bool = False
    items_total: int | None = None
    items_finished: int | None = None
    items: list[ItemOut] | UnsetType = UNSET


class RunSummary(Struct, kw_only=True):
    """A run without its steps."""

    id: UUID
    workflow: str
    version: int
    state: RunStateOut
    ending: Ending | None = None
    steps_total: int = 0
    steps_unfinished: int = 0
    steps_failed: int = 0
    created_at: Time
    finished_at: Time | None = None
    deadline_at: Time | None = None
    schedule_id: UUID | None = None
    nominal_at: Time | None = None


class RunOut(RunSummary, kw_only=True):
    """A run as callers read it."""

    input: Json = None
    steps: Sequence[RunStepOut] = field(default_factory=list)
    graph: GraphOut


class RunPage(Struct):
    """Some runs, newest first, and where the list goes on."""

    items: list[RunSummary]
    next_cursor: str | None = None
