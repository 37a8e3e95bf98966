"""The operations on workflows, in words and types."""

from typing import Annotated

from msgspec import Meta

from mainspring.api.openapi.operation import (
    DRY_RUN,
    ETAG,
    IF_MATCH,
    LIMIT,
    LOCATION,
    NUMBER_CURSOR,
    REPLAYED,
    Body,
    Doc,
    Link,
    Param,
    ResponseDoc,
)
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

TAG = "Workflows"

_NIGHTLY = {
    "name": "nightly",
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
_UNNAMED = {name: value for name, value in _NIGHTLY.items() if name != "name"}
_NAME = Param("id", WorkflowName, "The workflow's name.", "path", required=True)
_VERSION = Param(
    "version", Annotated[int, Meta(ge=1, le=2**31 - 1)], "This version, instead of the latest."
)
_THE_NAME = {"id": "$response.body#/name"}
_AFTERWARDS = {
    "read": Link("getWorkflow", _THE_NAME, "read it again"),
    "versions": Link("listWorkflowVersions", _THE_NAME, "all of its versions"),
    "graph": Link("drawWorkflow", _THE_NAME, "draw it"),
    "replace": Link("putWorkflow", _THE_NAME, "make the next version"),
    "archive": Link("archiveWorkflow", _THE_NAME, "take it out of use"),
}
_BODY = Body(WorkflowIn, examples={"nightly": _NIGHTLY})

LIST = Doc(
    id="listWorkflows",
    tag=TAG,
    summary="List workflows",
    description="By name, each with its latest version, without the steps.",
    params=[
        LIMIT,
        Param("cursor", WorkflowName, "Where to go on: `next_cursor` of the page before."),
    ],
    replies=[ResponseDoc(200, "A page of workflows.", WorkflowPage)],
)

CREATE = Doc(
    id="createWorkflow",
    tag=TAG,
    summary="Create a workflow, or its next version",
    description="A graph of steps, each of which takes the fields of a task. Where the name is "
    "known this is its next version: runs that have begun keep theirs. Everything that is wrong is "
    "reported together: cycles by name, steps that are unknown, twice there or out of reach, "
    "templates and conditions that speak of what is not upstream.",
    params=[DRY_RUN],
    bodies=[_BODY],
    replies=[
        ResponseDoc(
            201, "The new version.", WorkflowOut, [LOCATION, ETAG, REPLAYED], links=_AFTERWARDS
        ),
        ResponseDoc(200, "With `dry_run`: the version as it would be.", WorkflowOut),
    ],
    problems=[NoKey],
)

READ = Doc(
    id="getWorkflow",
    tag=TAG,
    summary="Read a workflow",
    params=[_NAME, _VERSION],
    replies=[ResponseDoc(200, "The latest version, or the one asked for.", WorkflowOut, [ETAG])],
)

PUT = Doc(
    id="putWorkflow",
    tag=TAG,
    summary="Make the next version of a workflow",
    description="With If-Match only if the latest version is still the one you have seen.",
    params=[_NAME, DRY_RUN, IF_MATCH],
    bodies=[Body(WorkflowBody, examples={"nightly": _UNNAMED})],
    replies=[ResponseDoc(200, "The new version.", WorkflowOut, [ETAG], links=_AFTERWARDS)],
    problems=[NoKey, PreconditionFailed],
)

DELETE = Doc(
    id="archiveWorkflow",
    tag=TAG,
    summary="Take a workflow out of use",
    description="No new runs begin; those that have begun go on. Schedules of it stay, and what "
    "they make fails with `no-workflow`. A workflow made again under the name goes on counting "
    "versions.",
    params=[_NAME, IF_MATCH],
    replies=[ResponseDoc(204, "It is out of use.")],
    problems=[PreconditionFailed],
)

VERSIONS = Doc(
    id="listWorkflowVersions",
    tag=TAG,
    summary="List the versions of a workflow",
    description="Newest first.",
    params=[_NAME, LIMIT, NUMBER_CURSOR],
    replies=[ResponseDoc(200, "A page of versions.", VersionPage)],
)

GRAPH = Doc(
    id="drawWorkflow",
    tag=TAG,
    summary="Draw a workflow",
    description="The graph as data, or as text for Mermaid or Graphviz.",
    params=[_NAME, _VERSION, Param("format", GraphFormat, "In which form (json).")],
    replies=[
        ResponseDoc(200, "The graph.", GraphOut),
        ResponseDoc(200, "The graph.", str, media_type=MERMAID),
        ResponseDoc(200, "The graph.", str, media_type=DOT),
    ],
)
