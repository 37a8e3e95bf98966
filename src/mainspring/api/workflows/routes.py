"""The routes of workflows."""

from typing import Annotated

from msgspec import Meta

from mainspring.api.http.parameters import LARGEST_NUMBER
from mainspring.api.openapi import operation as docs
from mainspring.api.routes import Routes, Tag, created, links_by, ok
from mainspring.api.workflows.definitions import WorkflowResource
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
WORKFLOW_NAME = docs.Param("id", WorkflowName, "The workflow's name.", "path")
_VERSION = docs.Param(
    "version", Annotated[int, Meta(ge=1, le=LARGEST_NUMBER)], "This version, instead of the latest."
)
_AFTERWARDS = links_by(
    "name",
    read=("getWorkflow", "read it again"),
    versions=("listWorkflowVersions", "all of its versions"),
    graph=("drawWorkflow", "draw it"),
    replace=("putWorkflow", "make the next version"),
    archive=("archiveWorkflow", "take it out of use"),
)
GRAPH_FORMAT = docs.Param("format", wire.GraphFormat, "In which form (json).")
GRAPHS = (
    ok("The graph.", wire.GraphOut),
    docs.ResponseDoc(200, "The graph.", str, media_type=MERMAID),
    docs.ResponseDoc(200, "The graph.", str, media_type=DOT),
)
"""A graph in each form."""


def workflow_routes(workflows: WorkflowResource) -> Routes:
    return {
        "GET /v1/workflows": _WORKFLOWS.page(
            "read", workflows.page, "listWorkflows", "workflows",
            "By name, each with its latest version, without the steps.",
            wire.WorkflowPage, *docs.page_by(WorkflowName),
        ),
        "POST /v1/workflows": _WORKFLOWS.tenant(
            "write", workflows.create, "createWorkflow", "Create a workflow, or its next version",
            "A graph of steps, each of which takes the fields of a task. Where the name is known "
            "this is its next version: runs that have begun keep theirs. Everything that is wrong "
            "is reported together: cycles by name, steps that are unknown, twice there or out of "
            "reach, templates and conditions that speak of what is not upstream.",
            created("The new version.", wire.WorkflowOut, docs.ETAG, links=_AFTERWARDS),
            ok("With `dry_run`: the version as it would be.", wire.WorkflowOut),
            params=[docs.DRY_RUN], problems=[NoKey],
            body=docs.Body(wire.WorkflowIn, examples={"nightly": _NIGHTLY}),
        ),
        **_item_routes(workflows),
        "GET /v1/workflows/{id}/versions": _WORKFLOWS.tenant(
            "read", workflows.versions, "listWorkflowVersions", "List the versions of a workflow",
            "Newest first.",
            ok("A page of versions.", wire.VersionPage), params=[WORKFLOW_NAME, *docs.NUMBERED],
        ),
        "GET /v1/workflows/{id}/graph": _WORKFLOWS.tenant(
            "read", workflows.graph, "drawWorkflow", "Draw a workflow",
            "The graph as data, or as text for Mermaid or Graphviz.",
            *GRAPHS, params=[WORKFLOW_NAME, _VERSION, GRAPH_FORMAT],
        ),
    }  # fmt: skip


def _item_routes(workflows: WorkflowResource) -> Routes:
    return {
        "GET /v1/workflows/{id}": _WORKFLOWS.tenant(
            "read", workflows.one, "getWorkflow", "Read a workflow", "",
            ok("The latest version, or the one asked for.", wire.WorkflowOut, docs.ETAG),
            params=[WORKFLOW_NAME, _VERSION],
        ),
        "PUT /v1/workflows/{id}": _WORKFLOWS.tenant(
            "write", workflows.put, "putWorkflow", "Make the next version of a workflow",
            "With If-Match only if the latest version is still the one you have seen.",
            ok("The new version.", wire.WorkflowOut, docs.ETAG, links=_AFTERWARDS),
            params=[WORKFLOW_NAME, docs.DRY_RUN], if_match=True, problems=[NoKey],
            body=docs.Body(wire.WorkflowBody, examples={"nightly": _UNNAMED}),
        ),
        "DELETE /v1/workflows/{id}": _WORKFLOWS.tenant(
            "write", workflows.delete, "archiveWorkflow", "Take a workflow out of use",
            "No new runs begin; those that have begun go on. Schedules of it stay, and what they "
            "make fails with `no-workflow`. A workflow made again under the name goes on counting "
            "versions.",
            docs.ResponseDoc(204, "It is out of use."), params=[WORKFLOW_NAME], if_match=True,
        ),
    }  # fmt: skip
