"""The routes of workflows."""

from typing import Annotated

from msgspec import Meta

from mainspring.api.http.operations import TenantOperation
from mainspring.api.openapi.operation import (
    DRY_RUN,
    ETAG,
    IF_MATCH,
    LIMIT,
    NUMBERED,
    Body,
    Param,
    ResponseDoc,
)
from mainspring.api.routes import Routes, Tag, created, links_by, ok
from mainspring.api.workflows.definitions import WorkflowResource
from mainspring.api.workflows.views import DOT, MERMAID
from mainspring.errors import PreconditionFailed
from mainspring.store.vault import NoKey
from mainspring.wire.tasks import WorkflowName
from mainspring.wire.workflows import (
    GraphFormat,
    GraphOut,
    VersionPage,
    WorkflowBody,
    WorkflowIn,
    WorkflowOut,
    WorkflowPage,
)

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
WORKFLOW_NAME = Param("id", WorkflowName, "The workflow's name.", "path", required=True)
_CURSOR = Param("cursor", WorkflowName, "Where to go on: `next_cursor` of the page before.")
_VERSION = Param(
    "version", Annotated[int, Meta(ge=1, le=2**31 - 1)], "This version, instead of the latest."
)
_AFTERWARDS = links_by(
    "name",
    read=("getWorkflow", "read it again"),
    versions=("listWorkflowVersions", "all of its versions"),
    graph=("drawWorkflow", "draw it"),
    replace=("putWorkflow", "make the next version"),
    archive=("archiveWorkflow", "take it out of use"),
)
GRAPH_FORMAT = Param("format", GraphFormat, "In which form (json).")
GRAPHS = (
    ok("The graph.", GraphOut),
    ResponseDoc(200, "The graph.", str, media_type=MERMAID),
    ResponseDoc(200, "The graph.", str, media_type=DOT),
)
"""A graph in each form."""


def workflow_routes(workflows: WorkflowResource) -> Routes:
    return {
        "GET /v1/workflows": _WORKFLOWS.page(
            "read", workflows.page, "listWorkflows", "workflows",
            "By name, each with its latest version, without the steps.",
            WorkflowPage, LIMIT, _CURSOR,
        ),
        "POST /v1/workflows": _create(workflows),
        **_item_routes(workflows),
        "GET /v1/workflows/{id}/versions": _WORKFLOWS.tenant(
            "read", workflows.versions, "listWorkflowVersions", "List the versions of a workflow",
            "Newest first.",
            ok("A page of versions.", VersionPage), params=[WORKFLOW_NAME, *NUMBERED],
        ),
        "GET /v1/workflows/{id}/graph": _WORKFLOWS.tenant(
            "read", workflows.graph, "drawWorkflow", "Draw a workflow",
            "The graph as data, or as text for Mermaid or Graphviz.",
            *GRAPHS, params=[WORKFLOW_NAME, _VERSION, GRAPH_FORMAT],
        ),
    }  # fmt: skip


def _create(workflows: WorkflowResource) -> TenantOperation:
    return _WORKFLOWS.tenant(
        "write", workflows.create, "createWorkflow", "Create a workflow, or its next version",
        "A graph of steps, each of which takes the fields of a task. Where the name is known this "
        "is its next version: runs that have begun keep theirs. Everything that is wrong is "
        "reported together: cycles by name, steps that are unknown, twice there or out of reach, "
        "templates and conditions that speak of what is not upstream.",
        created("The new version.", WorkflowOut, ETAG, links=_AFTERWARDS),
        ok("With `dry_run`: the version as it would be.", WorkflowOut), params=[DRY_RUN],
        body=Body(WorkflowIn, examples={"nightly": _NIGHTLY}), problems=[NoKey],
    )  # fmt: skip


def _item_routes(workflows: WorkflowResource) -> Routes:
    return {
        "GET /v1/workflows/{id}": _WORKFLOWS.tenant(
            "read", workflows.one, "getWorkflow", "Read a workflow", "",
            ok("The latest version, or the one asked for.", WorkflowOut, ETAG),
            params=[WORKFLOW_NAME, _VERSION],
        ),
        "PUT /v1/workflows/{id}": _WORKFLOWS.tenant(
            "write", workflows.put, "putWorkflow", "Make the next version of a workflow",
            "With If-Match only if the latest version is still the one you have seen.",
            ok("The new version.", WorkflowOut, ETAG, links=_AFTERWARDS),
            params=[WORKFLOW_NAME, DRY_RUN, IF_MATCH],
            body=Body(WorkflowBody, examples={"nightly": _UNNAMED}),
            problems=[NoKey, PreconditionFailed],
        ),
        "DELETE /v1/workflows/{id}": _WORKFLOWS.tenant(
            "write", workflows.delete, "archiveWorkflow", "Take a workflow out of use",
            "No new runs begin; those that have begun go on. Schedules of it stay, and what they "
            "make fails with `no-workflow`. A workflow made again under the name goes on counting "
            "versions.",
            ResponseDoc(204, "It is out of use."), params=[WORKFLOW_NAME, IF_MATCH],
            problems=[PreconditionFailed],
        ),
    }  # fmt: skip
