"""The shapes of runs of workflows, as callers send and read them."""

from collections.abc import Sequence
from typing import Annotated
from uuid import UUID

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from mainspring.domain.workflows.definition import RunState
from mainspring.wire.tasks import ErrorOut, State, Time
from mainspring.wire.values import Json, JsonOrNull
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
