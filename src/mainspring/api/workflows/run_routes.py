"""The routes of runs of workflows."""

from uuid import UUID

from mainspring.api.openapi import operation as docs
from mainspring.api.routes import Routes, Tag, created, links_by, ok
from mainspring.api.workflows.routes import GRAPH_FORMAT, GRAPHS, WORKFLOW_NAME
from mainspring.api.workflows.runs import RunResource
from mainspring.wire.runs import RunIn, RunOut, RunPage, RunStateOut, RunSummary
from mainspring.wire.workflows import StepId

_RUNS = Tag("Workflow runs")
_AFTERWARDS = links_by(
    "id",
    read=("getWorkflowRun", "read it with its steps"),
    graph=("drawWorkflowRun", "draw it"),
    **{verb: (f"{verb}WorkflowRun", "") for verb in ("cancel", "pause", "resume", "retry")},
)
_STEP = docs.Param("step", StepId, "The step's id.", "path")
_ITEMS = docs.Param("items", bool, "Show each task of the steps that are done for a list (false).")
_FILTERS = (
    docs.Param("state", RunStateOut, "Only runs in this state."),
    docs.Param("schedule_id", UUID, "Only runs of this schedule."),
    *docs.PAGED,
)
_THE_RUN = ok("The run.", RunOut, docs.ETAG, links=_AFTERWARDS)
_NOW = ok("The run as it is now.", RunOut, docs.ETAG, links=_AFTERWARDS)


def run_routes(runs: RunResource) -> Routes:
    return {
        **_routes_under_workflows(runs),
        "GET /v1/workflow-runs": _RUNS.page(
            "read", runs.page, "listWorkflowRuns", "runs",
            "Newest first. A page may be short and still have a next one.",
            RunPage,
            docs.Param("workflow", docs.AnyText, "Only runs of this workflow."),
            *_FILTERS,
        ),
        "GET /v1/workflow-runs/{id}": _RUNS.tenant(
            "read", runs.one, "getWorkflowRun", "Read a run",
            "Its steps with their states, times and results, and its graph.",
            _THE_RUN, params=[_ITEMS],
        ),
        "GET /v1/workflow-runs/{id}/graph": _RUNS.tenant(
            "read", runs.graph, "drawWorkflowRun", "Draw a run",
            "The graph with the states of the steps, as data or as text for Mermaid or Graphviz.",
            *GRAPHS, params=[GRAPH_FORMAT],
        ),
        **_verb_routes(runs),
    }  # fmt: skip


def _routes_under_workflows(runs: RunResource) -> Routes:
    return {
        "GET /v1/workflows/{id}/runs": _RUNS.tenant(
            "read", runs.page_of_workflow, "listRunsOfWorkflow", "List the runs of a workflow",
            "Newest first.",
            ok("A page of runs.", RunPage), params=[WORKFLOW_NAME, *_FILTERS],
        ),
        "POST /v1/workflows/{id}/runs": _RUNS.tenant(
            "write", runs.create, "runWorkflow", "Run a workflow",
            "The run keeps the version it was made by. Its input is that of the workflow, with "
            "the values given here in place of those of the same names.",
            created("The new run.", RunSummary, docs.ETAG, links=_AFTERWARDS),
            params=[WORKFLOW_NAME],
            body=docs.Body(RunIn, examples={"input": {"input": {"day": "2027-01-01"}}}),
        ),
        "GET /v1/workflows/{id}/runs/{run_id}/status": _RUNS.tenant(
            "read", runs.status, "getWorkflowRunStatus", "Read a run, by way of its workflow", "",
            _THE_RUN, params=[WORKFLOW_NAME, _ITEMS],
        ),
    }  # fmt: skip


def _verb_routes(runs: RunResource) -> Routes:
    return {
        **_RUNS.verbs(
            "/v1/workflow-runs/{id}", "WorkflowRun", _NOW, [_ITEMS],
            cancel=(
                runs.cancel, "Cancel a run",
                "What waits is cancelled, what runs is asked to stop; cleanup steps are done. "
                "Calling twice is harmless.",
            ),
            pause=(
                runs.pause, "Pause a run",
                "Nothing more of it starts; what runs goes on to its end.",
            ),
            resume=(runs.resume, "Resume a run", "What became ready meanwhile starts now."),
            retry=(
                runs.retry, "Retry a run from its failed steps",
                "The steps that did not succeed and all that come after them are done once more, "
                "by new tasks; what succeeded before them stays as it is.",
            ),
        ),
        **_RUNS.verbs(
            "/v1/workflow-runs/{id}/steps/{step}", "WorkflowStep", _NOW, [_STEP, _ITEMS],
            retry=(
                runs.retry_step, "Retry one step",
                "The step and all that come after it are done once more. Audited.",
            ),
            skip=(
                runs.skip_step, "Skip one step by hand",
                "The run goes on without it: those after it see a success without a result. A step "
                "that has failed can be skipped, too; what came after it is then done once more. "
                "Audited.",
            ),
        ),
    }  # fmt: skip
