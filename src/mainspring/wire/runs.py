"""The shapes of runs of workflows, as callers send and read them."""

from typing import Annotated
from uuid import UUID

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from mainspring.domain.workflow.states import RunState
from mainspring.wire.tasks import ErrorOut, State, Time
from mainspring.wire.workflows import GraphOut

RunStateOut = Annotated[str, Meta(extra_json_schema={"enum": list(RunState)})]
Ending = Annotated[str, Meta(extra_json_schema={"enum": ["failure", "cancel", "deadline"]})]


class RunIn(Struct, kw_only=True, forbid_unknown_fields=True):
    """What a run is given: its input, and which version it is made by."""

    input: dict[str, Raw] = field(default_factory=dict)
    version: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None


class ItemOut(Struct, kw_only=True):
    """One task of a step that is done for a list."""

    index: int
    state: State
    task_id: UUID
    attempts: int
    started_at: Time | None
    finished_at: Time | None
    result: Raw | None
    error: ErrorOut | None


class RunStepOut(Struct, kw_only=True):
    """A step of a run."""

    id: str
    state: State
    task_id: UUID
    needs: list[str]
    attempts: int
    due_at: Time | None
    started_at: Time | None
    finished_at: Time | None
    result: Raw | None
    error: ErrorOut | None
    skipped_by_hand: bool
    items_total: int | None
    items_finished: int | None
    items: list[ItemOut] | UnsetType = UNSET


class RunSummary(Struct, kw_only=True):
    """A run without its steps."""

    id: UUID
    workflow: str
    version: int
    state: RunStateOut
    ending: Ending | None
    steps_total: int
    steps_unfinished: int
    steps_failed: int
    created_at: Time
    finished_at: Time | None
    deadline_at: Time | None
    schedule_id: UUID | None
    nominal_at: Time | None


class RunOut(RunSummary, kw_only=True):
    """A run as callers read it."""

    input: Raw
    steps: list[RunStepOut]
    graph: GraphOut


class RunPage(Struct):
    """Some runs, newest first, and where the list goes on."""

    items: list[RunSummary]
    next_cursor: str | None
