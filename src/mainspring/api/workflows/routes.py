"""The routes of workflows and of their runs."""

from functools import partial
from typing import Annotated
from uuid import UUID

from msgspec import Meta

from mainspring.api.http.parameters import LARGEST_NUMBER
from mainspring.api.openapi import operation as docs
from mainspring.api.routes import Routes, Tag, created, links_by, ok
from mainspring.api.workflows.definitions import WorkflowResource
from mainspring.api.workflows.runs import RunResource
from mainspring.api.workflows.views import DOT, MERMAID
from mainspring.store.vault import NoKey
from mainspring.wire import workflows as wire
from mainspring.wire.tasks import WorkflowName

_WORKFLOWS = Tag("Workflows")
_UNNAMED = {
    "steps": [
        {"id": "extract", "target": {"type": "handler", "name": "extract"}},
        {
            "id": "clean",
            "needs": ["extract"],
            "foreach": "{{steps.extract.result.files}}",
            "target": {"type": "http", "url": "https://x.example/clean"},
            "payload": {"file": "{{item}}"},
        },
        {
            "id": "load",
            "needs": ["clean"],
            "if": "steps.extract.result.rows > 0",
            "target": {"type": "command", "argv": ["load", "{{input.day}}"]},
        },
        {
            "id": "alert",
            "needs": ["extract", "clean", "load"],
            "when": "any_failed",
            "target": {"type": "handler", "name": "alert"},
        },
        {"id": "sweep", "cleanup": True, "target": {"type": "handler", "name": "sweep"}},
    ],
    "on_failure": "fail_fast",
    "deadline": "PT2H",
}
_NIGHTLY = {"name": "nightly", **_UNNAMED}
_WORKFLOW_NAME = docs.Param("id", WorkflowName, "The workflow's name.", "path")
_VERSION = docs.Param(
    "version", Annotated[int, Meta(ge=1, le=LARGEST_NUMBER)], "This version, instead of the latest."
)
_WORKFLOW_LINKS = links_by(
    "name",
    read=("getWorkflow", "read it again"),
    versions=("listWorkflowVersions", "all of its versions"),
    graph=("drawWorkflow", "draw it"),
    replace=("putWorkflow", "make the next version"),
    archive=("archiveWorkflow", "take it out of use"),
)
_GRAPH_FORMAT = docs.Param("format", wire.GraphFormat, "In which form (json).")
_GRAPHS = (
    ok("The graph.", wire.GraphOut),
    docs.ResponseDoc(200, "The graph.", str, media_type=MERMAID),
    docs.ResponseDoc(200, "The graph.", str, media_type=DOT),
)
"""A graph in each form."""
_RUNS = Tag("Workflow runs")
_RUN_LINKS = links_by(
    "id",
    read=("getWorkflowRun", "read it with its steps"),
    graph=("drawWorkflowRun", "draw it"),
    **{verb: (f"{verb}WorkflowRun", "") for verb in ("cancel", "pause", "resume", "retry")},
)
_STEP = docs.Param("step", wire.StepId, "The step's id.", "path")
_ITEMS = docs.Param("items", bool, "Show each task of the steps that are done for a list (false).")
_FILTERS = (
    docs.Param("state", wire.RunStateOut, "Only runs in this state."),
    docs.Param("schedule_id", UUID, "Only runs of this schedule."),
    *docs.PAGED,
)
_THE_RUN = ok("The run.", wire.RunOut, docs.ETAG, links=_RUN_LINKS)
_NOW = ok("The run as it is now.", wire.RunOut, docs.ETAG, links=_RUN_LINKS)


def workflow_routes(workflows: WorkflowResource) -> Routes:
    return {
        "GET /v1/workflows": _WORKFLOWS.tenant(
            "read", workflows.page, "listWorkflows", "List workflows",
            "By name, each with its latest version, without the steps.",
            ok("A page of workflows.", wire.WorkflowPage), params=docs.page_by(WorkflowName),
        ),
        "POST /v1/workflows": _WORKFLOWS.tenant(
            "write", workflows.create, "createWorkflow", "Create a workflow, or its next version",
            "A graph of steps, each of which takes the fields of a task. Where the name is known "
            "this is its next version: runs that have begun keep theirs. Everything that is wrong "
            "is reported together: cycles by name, steps that are unknown, twice there or out of "
            "reach, templates and conditions that speak of what is not upstream.",
            created("The new version.", wire.WorkflowOut, docs.ETAG, links=_WORKFLOW_LINKS),
            ok("With `dry_run`: the version as it would be.", wire.WorkflowOut),
            params=[docs.DRY_RUN], problems=[NoKey],
            body=docs.Body(wire.WorkflowIn, examples={"nightly": _NIGHTLY}),
        ),
        **_item_routes(workflows),
        "GET /v1/workflows/{id}/versions": _WORKFLOWS.tenant(
            "read", workflows.versions, "listWorkflowVersions", "List the versions of a workflow",
            "Newest first.",
            ok("A page of versions.", wire.VersionPage), params=[_WORKFLOW_NAME, *docs.NUMBERED],
        ),
        "GET /v1/workflows/{id}/graph": _WORKFLOWS.tenant(
            "read", workflows.graph, "drawWorkflow", "Draw a workflow",
            "The graph as data, or as text for Mermaid or Graphviz.",
            *_GRAPHS, params=[_WORKFLOW_NAME, _VERSION, _GRAPH_FORMAT],
        ),
    }  # fmt: skip


def _item_routes(workflows: WorkflowResource) -> Routes:
    return {
        "GET /v1/workflows/{id}": _WORKFLOWS.tenant(
            "read", workflows.one, "getWorkflow", "Read a workflow", "",
            ok("The latest version, or the one asked for.", wire.WorkflowOut, docs.ETAG),
            params=[_WORKFLOW_NAME, _VERSION],
        ),
        "PUT /v1/workflows/{id}": _WORKFLOWS.tenant(
            "write", workflows.put, "putWorkflow", "Make the next version of a workflow",
            "With If-Match only if the latest version is still the one you have seen.",
            ok("The new version.", wire.WorkflowOut, docs.ETAG, links=_WORKFLOW_LINKS),
            params=[_WORKFLOW_NAME, docs.DRY_RUN], if_match=True, problems=[NoKey],
            body=docs.Body(wire.WorkflowBody, examples={"nightly": _UNNAMED}),
        ),
        "DELETE /v1/workflows/{id}": _WORKFLOWS.tenant(
            "write", workflows.delete, "archiveWorkflow", "Take a workflow out of use",
            "No new runs begin; those that have begun go on. Schedules of it stay, and what they "
            "make fails with `no-workflow`. A workflow made again under the name goes on counting "
            "versions.",
            docs.ResponseDoc(204, "It is out of use."), params=[_WORKFLOW_NAME], if_match=True,
        ),
    }  # fmt: skip


def run_routes(runs: RunResource) -> Routes:
    return {
        **_routes_under_workflows(runs),
        "GET /v1/workflow-runs": _RUNS.tenant(
            "read", runs.page, "listWorkflowRuns", "List runs",
            "Newest first. A page may be short and still have a next one.",
            ok("A page of runs.", wire.RunPage),
            params=[
                docs.Param("workflow", docs.AnyText, "Only runs of this workflow."), *_FILTERS,
            ],
        ),
        "GET /v1/workflow-runs/{id}": _RUNS.tenant(
            "read", runs.one, "getWorkflowRun", "Read a run",
            "Its steps with their states, times and results, and its graph.",
            _THE_RUN, params=[_ITEMS],
        ),
        "GET /v1/workflow-runs/{id}/graph": _RUNS.tenant(
            "read", runs.graph, "drawWorkflowRun", "Draw a run",
            "The graph with the states of the steps, as data or as text for Mermaid or Graphviz.",
            *_GRAPHS, params=[_GRAPH_FORMAT],
        ),
        **_verb_routes(runs),
    }  # fmt: skip


def _routes_under_workflows(runs: RunResource) -> Routes:
    return {
        "GET /v1/workflows/{id}/runs": _RUNS.tenant(
            "read", runs.page_of_workflow, "listRunsOfWorkflow", "List the runs of a workflow",
            "Newest first.",
            ok("A page of runs.", wire.RunPage), params=[_WORKFLOW_NAME, *_FILTERS],
        ),
        "POST /v1/workflows/{id}/runs": _RUNS.tenant(
            "write", runs.create, "runWorkflow", "Run a workflow",
            "The run keeps the version it was made by. Its input is that of the workflow, with "
            "the values given here in place of those of the same names.",
            created("The new run.", wire.RunSummary, docs.ETAG, links=_RUN_LINKS),
            params=[_WORKFLOW_NAME],
            body=docs.Body(wire.RunIn, examples={"input": {"input": {"day": "2027-01-01"}}}),
        ),
        "GET /v1/workflows/{id}/runs/{run_id}/status": _RUNS.tenant(
            "read", runs.status, "getWorkflowRunStatus", "Read a run, by way of its workflow", "",
            _THE_RUN, params=[_WORKFLOW_NAME, _ITEMS],
        ),
    }  # fmt: skip


def _verb_routes(runs: RunResource) -> Routes:
    service = runs.runs
    return {
        **_RUNS.verbs(
            "/v1/workflow-runs/{id}", "WorkflowRun", _NOW, [_ITEMS],
            cancel=(
                partial(runs.act, service.cancel), "Cancel a run",
                "What waits is cancelled, what runs is asked to stop; cleanup steps are done. "
                "Calling twice is harmless.",
            ),
            pause=(
                partial(runs.act, service.pause), "Pause a run",
                "Nothing more of it starts; what runs goes on to its end.",
            ),
            resume=(
                partial(runs.act, service.resume), "Resume a run",
                "What became ready meanwhile starts now.",
            ),
            retry=(
                partial(runs.act, service.retry), "Retry a run from its failed steps",
                "The steps that did not succeed and all that come after them are done once more, "
                "by new tasks; what succeeded before them stays as it is.",
            ),
        ),
        **_RUNS.verbs(
            "/v1/workflow-runs/{id}/steps/{step}", "WorkflowStep", _NOW, [_STEP, _ITEMS],
            retry=(
                partial(runs.act, service.retry), "Retry one step",
                "The step and all that come after it are done once more. Audited.",
            ),
            skip=(
                partial(runs.act, service.skip), "Skip one step by hand",
                "The run goes on without it: those after it see a success without a result. A step "
                "that has failed can be skipped, too; what came after it is then done once more. "
                "Audited.",
            ),
        ),
    }  # fmt: skip
