"""/v1/workflows: definitions of workflows. Each change makes a new version; none is ever edited."""

import re
from datetime import UTC, datetime
from typing import get_args

import msgspec
from starlette.datastructures import QueryParams
from starlette.responses import Response

from mainspring.api.http.decoding import decode_as
from mainspring.api.http.endpoint import TenantCall, json_response
from mainspring.api.http.parameters import (
    flag,
    number_cursor,
    page_query,
    schedule_query,
)
from mainspring.api.tasks.changes import check_rev, if_match
from mainspring.api.workflows.validation import WorkflowValidator
from mainspring.api.workflows.views import graph_response, workflow_out
from mainspring.clock import Clock
from mainspring.domain.workflow.definition import WorkflowDefinition
from mainspring.errors import InvalidRequest, NotFound, Problem
from mainspring.store.workflow.workflows import StoredWorkflow, WorkflowStore
from mainspring.wire.workflows import (
    GraphFormat,
    VersionOut,
    VersionPage,
    WorkflowBody,
    WorkflowIn,
    WorkflowPage,
    WorkflowSummary,
)

_WORKFLOW = msgspec.json.Decoder(WorkflowIn)
_BODY = msgspec.json.Decoder(WorkflowBody)
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}", re.ASCII)
_LAST_VERSION = 2**31 - 1


class WorkflowResource:
    """Make, read, list, draw, replace and archive workflows."""

    def __init__(
        self, workflows: WorkflowStore, validator: WorkflowValidator, clock: Clock
    ) -> None:
        self._workflows = workflows
        self._validator = validator
        self._clock = clock

    async def create(self, call: TenantCall) -> Response:
        wanted = decode_as(_WORKFLOW, await call.body(), _payloads)
        definition = await self._validator.definition(wanted.name, wanted)
        if flag(call.request.query_params, "dry_run"):
            latest = await self._workflows.get(call.tenant_id, definition.name)
            return self._unsaved(definition, latest)
        made = await self._workflows.put(
            call.tenant_id, definition, call.actor, conclude=call.remember(_created)
        )
        if made is None:
            raise no_such_workflow(definition.name)
        return _created(made)

    async def put(self, call: TenantCall) -> Response:
        latest = await existing_workflow(self._workflows, call)
        revs = if_match(call.request)
        check_rev(revs, latest.version)
        wanted = decode_as(_BODY, await call.body(), _payloads)
        definition = await self._validator.definition(latest.name, wanted)
        if flag(call.request.query_params, "dry_run"):
            return self._unsaved(definition, latest)
        made = await self._workflows.put(
            call.tenant_id, definition, call.actor, lambda version: check_rev(revs, version)
        )
        if made is None:
            raise no_such_workflow(definition.name)
        return _shown(made)

    async def page(self, call: TenantCall) -> Response:
        query = schedule_query(call.request.query_params, {}, with_cursor=False)
        after = _cursor(call.request.query_params)
        found = await self._workflows.page(call.tenant_id, after=after, limit=query.limit)
        items = [
            WorkflowSummary(
                line.name,
                line.version,
                line.step_count,
                line.on_failure,
                line.created_at,
                line.updated_at,
            )
            for line in found
        ]
        cursor = found[-1].name if len(found) == query.limit else None
        return json_response(WorkflowPage(items, cursor))

    async def one(self, call: TenantCall) -> Response:
        version = version_in(call.request.query_params)
        return _shown(await existing_workflow(self._workflows, call, version))

    async def versions(self, call: TenantCall) -> Response:
        query = page_query(call.request.query_params)
        before = _LAST_VERSION if query.before is None else min(query.before, _LAST_VERSION)
        name = workflow_name_in(call)
        found = await self._workflows.versions(
            call.tenant_id, name, before=before, limit=query.limit
        )
        if not found:
            await existing_workflow(self._workflows, call)
        items = [VersionOut(line.version, line.step_count, line.created_at) for line in found]
        last = found[-1].version if found else None
        return json_response(VersionPage(items, number_cursor(items, query.limit, last)))

    async def graph(self, call: TenantCall) -> Response:
        params = call.request.query_params
        form, version = graph_format(params), version_in(params)
        found = await existing_workflow(self._workflows, call, version)
        return graph_response(found.definition, form)

    async def delete(self, call: TenantCall) -> Response:
        name, revs = workflow_name_in(call), if_match(call.request)
        if not await self._workflows.archive(
            call.tenant_id, name, call.actor, lambda version: check_rev(revs, version)
        ):
            raise no_such_workflow(name)
        return Response(status_code=204)

    def _unsaved(self, definition: WorkflowDefinition, latest: StoredWorkflow | None) -> Response:
        version = 1 if latest is None else latest.version + 1
        made = StoredWorkflow(
            definition.name, version, definition, datetime.fromtimestamp(self._clock.now(), UTC)
        )
        return json_response(workflow_out(made))


async def existing_workflow(
    workflows: WorkflowStore, call: TenantCall, version: int | None = None
) -> StoredWorkflow:
    """The workflow in the path; NotFound when it is not there, or not yours."""
    name = workflow_name_in(call)
    found = await workflows.get(call.tenant_id, name, version)
    if found is None:
        raise no_such_workflow(name)
    return found


def workflow_name_in(call: TenantCall) -> str:
    name: str = call.request.path_params["id"]
    if not _NAME.fullmatch(name):
        raise no_such_workflow(name)
    return name


def no_such_workflow(name: str) -> NotFound:
    return NotFound(f"there is no workflow {name[:64]!r}")


def version_in(params: QueryParams) -> int | None:
    """The version that a query asks for; None means the latest."""
    text = params.get("version")
    if text is None:
        return None
    if text.isascii() and text.isdigit() and len(text) <= 10 and 1 <= int(text) <= _LAST_VERSION:
        return int(text)
    raise _bad_query("version", f"is not a number between 1 and {_LAST_VERSION}")


def graph_format(params: QueryParams) -> GraphFormat:
    """The form in which a query asks for a graph."""
    asked, forms = params.get("format", "json"), get_args(GraphFormat)
    form: GraphFormat
    for form in forms:
        if form == asked:
            return form
    raise _bad_query("format", f"is none of {', '.join(forms)}")


def _created(workflow: StoredWorkflow) -> Response:
    return _shown(workflow, 201, {"Location": f"/v1/workflows/{workflow.name}"})


def _shown(
    workflow: StoredWorkflow, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    return json_response(
        workflow_out(workflow), status, {"ETag": f'"{workflow.version}"', **(headers or {})}
    )


def _bad_query(name: str, detail: str) -> InvalidRequest:
    problem = Problem(f"/query/{name}", detail)
    return InvalidRequest("some query parameters do not make sense", [problem])


def _cursor(params: QueryParams) -> str:
    """Where a list by name goes on: after this name."""
    name = params.get("cursor")
    if name is not None and not _NAME.fullmatch(name):
        raise _bad_query("cursor", "is not a cursor of this list")
    return name or ""


def _payloads(wanted: WorkflowBody) -> list[msgspec.Raw]:
    return [step.payload for step in wanted.steps]
