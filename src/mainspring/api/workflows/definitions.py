"""/v1/workflows: definitions of workflows. Each change makes a new version; none is ever edited."""

from dataclasses import dataclass
from typing import get_args

import msgspec
from starlette.datastructures import QueryParams
from starlette.responses import Response

from mainspring.api.http.bodies import json_response
from mainspring.api.http.decoding import decode_as
from mainspring.api.http.operations import TenantCall
from mainspring.api.http.parameters import (
    LARGEST_NUMBER,
    Parameters,
    bad_parameter,
    page_query,
    read_one,
)
from mainspring.api.views import (
    NAME,
    existing,
    instant,
    item_response,
    name_in,
    no_such_workflow,
    view,
)
from mainspring.api.workflows.validation import WorkflowValidator
from mainspring.api.workflows.views import graph_response, workflow_out
from mainspring.clock import Clock
from mainspring.domain.workflows.definition import WorkflowDefinition
from mainspring.store.workflows.workflows import StoredWorkflow, WorkflowStore
from mainspring.wire import workflows as wire


@dataclass(frozen=True, slots=True)
class WorkflowResource:
    """Make, read, list, draw, replace and archive workflows."""

    workflows: WorkflowStore
    validator: WorkflowValidator
    clock: Clock

    async def create(self, call: TenantCall) -> Response:
        wanted = decode_as(wire.WorkflowIn, await call.body(), _payloads)
        definition = await self.validator.definition(wanted.name, wanted)
        if call.dry_run:
            latest = await self.workflows.get(call.tenant_id, definition.name)
            return self._unsaved(definition, latest)
        made = await self.workflows.put(
            call.tenant_id, definition, call.actor, conclude=call.remember(_created)
        )
        return _created(existing(made, no_such_workflow, definition.name))

    async def put(self, call: TenantCall) -> Response:
        latest = await existing_workflow(self.workflows, call)
        call.check_rev(latest.version)
        wanted = decode_as(wire.WorkflowBody, await call.body(), _payloads)
        definition = await self.validator.definition(latest.name, wanted)
        if call.dry_run:
            return self._unsaved(definition, latest)
        made = await self.workflows.put(call.tenant_id, definition, call.actor, call.check_rev)
        return _shown(existing(made, no_such_workflow, definition.name))

    async def page(self, call: TenantCall) -> Response:
        limit = read_one(call.query, Parameters.limit)
        after = _cursor(call.query)
        found = await self.workflows.page(call.tenant_id, after=after, limit=limit)
        items = [view(wire.WorkflowSummary, line) for line in found]
        cursor = found[-1].name if len(found) == limit else None
        return json_response(wire.WorkflowPage(items, cursor))

    async def one(self, call: TenantCall) -> Response:
        version = version_in(call.query)
        return _shown(await existing_workflow(self.workflows, call, version))

    async def versions(self, call: TenantCall) -> Response:
        query = page_query(call.query)
        before = LARGEST_NUMBER if query.before is None else min(query.before, LARGEST_NUMBER)
        name = name_in(call, no_such_workflow)
        found = await self.workflows.versions(
            call.tenant_id, name, before=before, limit=query.limit
        )
        if not found:
            await existing_workflow(self.workflows, call)
        items = [view(wire.VersionOut, line) for line in found]
        cursor = query.cursor_after([line.version for line in found])
        return json_response(wire.VersionPage(items, cursor))

    async def graph(self, call: TenantCall) -> Response:
        params = call.query
        form, version = graph_format(params), version_in(params)
        found = await existing_workflow(self.workflows, call, version)
        return graph_response(found.definition, form)

    async def delete(self, call: TenantCall) -> Response:
        name = name_in(call, no_such_workflow)
        if not await self.workflows.archive(call.tenant_id, name, call.actor, call.check_rev):
            raise no_such_workflow(name)
        return Response(status_code=204)

    def _unsaved(self, definition: WorkflowDefinition, latest: StoredWorkflow | None) -> Response:
        version = 1 if latest is None else latest.version + 1
        made = StoredWorkflow(definition.name, version, definition, instant(self.clock.now()))
        return json_response(workflow_out(made))


async def existing_workflow(
    workflows: WorkflowStore, call: TenantCall, version: int | None = None
) -> StoredWorkflow:
    """Return the workflow in the path; raise when there is none."""
    name = name_in(call, no_such_workflow)
    found = await workflows.get(call.tenant_id, name, version)
    return existing(found, no_such_workflow, name)


def version_in(params: QueryParams) -> int | None:
    """Return the version that a query asks for; None means the latest."""
    return read_one(params, lambda given: given.number("version", LARGEST_NUMBER))


def graph_format(params: QueryParams) -> wire.GraphFormat:
    """Return the form in which a query asks for a graph."""
    try:
        form: wire.GraphFormat = msgspec.convert(params.get("format", "json"), wire.GraphFormat)
    except msgspec.ValidationError:
        forms = ", ".join(get_args(wire.GraphFormat))
        raise bad_parameter("format", f"is none of {forms}") from None
    return form


def _created(workflow: StoredWorkflow) -> Response:
    place = f"/v1/workflows/{workflow.name}"
    return item_response(workflow_out(workflow), workflow.version, 201, place)


def _shown(workflow: StoredWorkflow) -> Response:
    return item_response(workflow_out(workflow), workflow.version)


def _cursor(params: QueryParams) -> str:
    """Return the name after which a list by name goes on."""
    name = params.get("cursor")
    if name is not None and not NAME.fullmatch(name):
        raise bad_parameter("cursor", "is not a cursor of this list")
    return name or ""


def _payloads(wanted: wire.WorkflowBody) -> list[msgspec.Raw]:
    return [step.payload for step in wanted.steps]
