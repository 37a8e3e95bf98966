"""The operations on runs of workflows, in words and types."""

from typing import Annotated
from uuid import UUID

from msgspec import Meta

from mainspring.api.openapi.operation import (
    CURSOR,
    ETAG,
    LIMIT,
    LOCATION,
    REPLAYED,
    Body,
    Doc,
    Link,
    Param,
    ResponseDoc,
)
from mainspring.api.workflows.views import DOT, MERMAID
from mainspring.errors import Conflict
from mainspring.wire.runs import (
    RunIn,
    RunOut,
    RunPage,
    RunStateOut,
    RunSummary,
)
from mainspring.wire.tasks import WorkflowName
from mainspring.wire.workflows import GraphFormat, GraphOut, StepId

TAG = "Workflow runs"

_THE_RUN = {"id": "$response.body#/id"}
_VERBS = ("cancel", "pause", "resume", "retry")
_AFTERWARDS = {
    "read": Link("getWorkflowRun", _THE_RUN, "read it with its steps"),
    "graph": Link("drawWorkflowRun", _THE_RUN, "draw it"),
    **{verb: Link(f"{verb}WorkflowRun", _THE_RUN) for verb in _VERBS},
}
_NAME = Param("id", WorkflowName, "The workflow's name.", "path", required=True)
_STEP = Param("step", StepId, "The step's id.", "path", required=True)
_ITEMS = Param("items", bool, "Show each task of the steps that are done for a list (false).")
_Text = Annotated[str, Meta(pattern=r"^[^\x00]*$")]
_FILTERS = [
    Param("state", RunStateOut, "Only runs in this state."),
    Param("schedule_id", UUID, "Only runs of this schedule."),
    LIMIT,
    CURSOR,
]
_PAGE = ResponseDoc(200, "A page of runs.", RunPage)
_NOW = ResponseDoc(200, "The run as it is now.", RunOut, [ETAG], links=_AFTERWARDS)

CREATE = Doc(
    id="runWorkflow",
    tag=TAG,
    summary="Run a workflow",
    description="The run keeps the version it was made by. Its input is that of the workflow, with "
    "the values given here in place of those of the same names.",
    params=[_NAME],
    bodies=[Body(RunIn, examples={"input": {"input": {"day": "2027-01-01"}}})],
    replies=[
        ResponseDoc(201, "The new run.", RunSummary, [LOCATION, ETAG, REPLAYED], links=_AFTERWARDS)
    ],
)

LIST_OF_WORKFLOW = Doc(
    id="listRunsOfWorkflow",
    tag=TAG,
    summary="List the runs of a workflow",
    description="Newest first.",
    params=[_NAME, *_FILTERS],
    replies=[_PAGE],
)

LIST = Doc(
    id="listWorkflowRuns",
    tag=TAG,
    summary="List runs",
    description="Newest first. A page may be short and still have a next one.",
    params=[Param("workflow", _Text, "Only runs of this workflow."), *_FILTERS],
    replies=[_PAGE],
)

READ = Doc(
    id="getWorkflowRun",
    tag=TAG,
    summary="Read a run",
    description="Its steps with their states, times and results, and its graph.",
    params=[_ITEMS],
    replies=[ResponseDoc(200, "The run.", RunOut, [ETAG], links=_AFTERWARDS)],
)

STATUS = Doc(
    id="getWorkflowRunStatus",
    tag=TAG,
    summary="Read a run, by way of its workflow",
    params=[_NAME, _ITEMS],
    replies=[ResponseDoc(200, "The run.", RunOut, [ETAG], links=_AFTERWARDS)],
)

GRAPH = Doc(
    id="drawWorkflowRun",
    tag=TAG,
    summary="Draw a run",
    description="The graph with the states of the steps, as data or as text for Mermaid or "
    "Graphviz.",
    params=[Param("format", GraphFormat, "In which form (json).")],
    replies=[
        ResponseDoc(200, "The graph.", GraphOut),
        ResponseDoc(200, "The graph.", str, media_type=MERMAID),
        ResponseDoc(200, "The graph.", str, media_type=DOT),
    ],
)

CANCEL = Doc(
    id="cancelWorkflowRun",
    tag=TAG,
    summary="Cancel a run",
    description="What waits is cancelled, what runs is asked to stop; cleanup steps are done. "
    "Calling twice is harmless.",
    params=[_ITEMS],
    replies=[_NOW],
    problems=[Conflict],
)

PAUSE = Doc(
    id="pauseWorkflowRun",
    tag=TAG,
    summary="Pause a run",
    description="Nothing more of it starts; what runs goes on to its end.",
    params=[_ITEMS],
    replies=[_NOW],
    problems=[Conflict],
)

RESUME = Doc(
    id="resumeWorkflowRun",
    tag=TAG,
    summary="Resume a run",
    description="What became ready meanwhile starts now.",
    params=[_ITEMS],
    replies=[_NOW],
    problems=[Conflict],
)

RETRY = Doc(
    id="retryWorkflowRun",
    tag=TAG,
    summary="Retry a run from its failed steps",
    description="The steps that did not succeed and all that come after them are done once more, "
    "by new tasks; what succeeded before them stays as it is.",
    params=[_ITEMS],
    replies=[_NOW],
    problems=[Conflict],
)

RETRY_STEP = Doc(
    id="retryWorkflowStep",
    tag=TAG,
    summary="Retry one step",
    description="The step and all that come after it are done once more. Audited.",
    params=[_STEP, _ITEMS],
    replies=[_NOW],
    problems=[Conflict],
)

SKIP_STEP = Doc(
    id="skipWorkflowStep",
    tag=TAG,
    summary="Skip one step by hand",
    description="The run goes on without it: those after it see a success without a result. A step "
    "that has failed can be skipped, too; what came after it is then done once more. Audited.",
    params=[_STEP, _ITEMS],
    replies=[_NOW],
    problems=[Conflict],
)
