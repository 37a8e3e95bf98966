"""Runs of workflows: begin, read, list, draw; cancel, pause, resume, retry; a step by hand."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from uuid import UUID

from starlette.datastructures import QueryParams
from starlette.responses import Response

from mainspring import crash_points
from mainspring.api.http.auth import tenant_gone
from mainspring.api.http.bodies import encode_json, json_response
from mainspring.api.http.decoding import decode_as
from mainspring.api.http.operations import TenantCall
from mainspring.api.http.parameters import ListQuery, Parameters, flag, next_cursor
from mainspring.api.http.payloads import payload_problems
from mainspring.api.http.problems import raise_if
from mainspring.api.node_ports import NodePort
from mainspring.api.views import existing, item_response, name_in, no_such_run, no_such_workflow
from mainspring.api.workflows.definitions import existing_workflow, graph_format
from mainspring.api.workflows.views import (
    decode_input,
    graph_response,
    run_out,
    run_summary,
    states_of,
)
from mainspring.clock import Clock
from mainspring.config import Config
from mainspring.domain.ids import TaskIds
from mainspring.domain.workflows.definition import RunState
from mainspring.errors import Problem, StoreUnavailable
from mainspring.observe.metrics import Metrics
from mainspring.store.answers import BeforeCommit
from mainspring.store.workflows.step_rows import Moved, NewRun
from mainspring.store.workflows.workflow_runs import RunFilter, StoredRun, started_run
from mainspring.store.workflows.workflows import WorkflowStore
from mainspring.wire.workflows import RunIn, RunPage
from mainspring.workflows.results import unreadable
from mainspring.workflows.runs import WorkflowRunService

RunAction = Callable[..., Awaitable[Moved | None]]
"""A change of a run, or of a step of it, that a caller asks for."""


@dataclass(frozen=True, slots=True)
class RunResource:
    """/v1/workflow-runs, and the runs under a workflow."""

    config: Config
    clock: Clock
    ids: TaskIds
    workflows: WorkflowStore
    runs: WorkflowRunService
    node: NodePort
    metrics: Metrics

    async def create(self, call: TenantCall) -> Response:
        body = await call.body()
        wanted = decode_as(RunIn, body or b"{}", lambda run: run.input.values())
        workflow = await existing_workflow(self.workflows, call, wanted.version)
        given = encode_json({**decode_input(workflow.definition.input), **wanted.input})
        problems = [
            problem.at("/input") for problem in payload_problems(given, self.config.max_payload)
        ]
        if not problems and (text := unreadable(given)):
            problems = [Problem("/input", text)]
        raise_if(problems)
        now = round(self.clock.now(), 6)
        run = NewRun(
            call.tenant_id, self.ids.make(now), workflow.name, workflow.version,
            workflow.definition, given, now,
        )  # fmt: skip

        def answer(moved: Moved) -> Response:
            shown = run_summary(started_run(run, moved))
            return item_response(shown, 1, 201, f"/v1/workflow-runs/{run.id}")

        keeping = call.remember(answer) if call.recorder else None
        return answer(await self._begin(run, keeping))

    async def page(self, call: TenantCall) -> Response:
        return await self._page(call, _run_query(call.query))

    async def page_of_workflow(self, call: TenantCall) -> Response:
        query = _run_query(call.query)
        workflow = await existing_workflow(self.workflows, call)
        where = replace(query.where, workflow=workflow.name)
        return await self._page(call, query._replace(where=where))

    async def one(self, call: TenantCall) -> Response:
        return await self._shown(call, call.id_or(no_such_run))

    async def status(self, call: TenantCall) -> Response:
        """Return the run in the path if it is one of the workflow in the path."""
        run_id = call.id_or(no_such_run, "run_id")
        run = await self._existing(call.tenant_id, run_id)
        if run.workflow != name_in(call, no_such_workflow):
            raise no_such_run(run_id)
        return await self._shown(call, run_id)

    async def graph(self, call: TenantCall) -> Response:
        form = graph_format(call.query)
        run = await self._existing(call.tenant_id, call.id_or(no_such_run))
        definition = await self.runs.definition(call.tenant_id, run)
        steps = await self.runs.steps(call.tenant_id, run.id)
        return graph_response(definition, form, states_of(steps))

    async def act(self, action: RunAction, call: TenantCall) -> Response:
        """Apply the action to the run in the path, or to its step where the path names one."""
        run_id, ownership = call.id_or(no_such_run), self.node.ownership()
        params, now = call.request.path_params, self.clock.now()
        step = [params["step"]] if "step" in params else []
        try:
            moved = await action(ownership, call.tenant_id, run_id, call.actor, now, *step)
        except StoreUnavailable:
            self.node.mark_stale()
            raise
        self.node.announce_runs(existing(moved, no_such_run, run_id))
        return await self._shown(call, run_id)

    # Details ----------------------------------------------------------------------------------

    async def _begin(self, run: NewRun, keeping: BeforeCommit[Moved] | None) -> Moved:
        try:
            moved = await self.runs.create(self.node.ownership(), run, keeping)
        except StoreUnavailable:
            # It may have been written all the same: look, rather than guess.
            if await self.runs.get(run.tenant_id, run.id) is None:
                raise
            self.node.mark_stale()
            return Moved()
        crash_points.reach("run.committed")
        if moved is None:
            raise tenant_gone()
        self.metrics.workflow_runs_started.inc()
        self.node.announce_runs(moved)
        return moved

    async def _shown(self, call: TenantCall, run_id: UUID) -> Response:
        items = flag(call.query, "items")
        run = await self._existing(call.tenant_id, run_id)
        definition = await self.runs.definition(call.tenant_id, run)
        steps = await self.runs.steps(call.tenant_id, run_id, items=items)
        return item_response(run_out(run, definition, steps), run.rev)

    async def _page(self, call: TenantCall, query: ListQuery[RunFilter]) -> Response:
        where, before, limit, _ = query
        page = await self.runs.page(call.tenant_id, where, before=before, limit=limit)
        items = [run_summary(run) for run in page.items]
        return json_response(RunPage(items, next_cursor(page.next_before)))

    async def _existing(self, tenant_id: int, run_id: UUID) -> StoredRun:
        return existing(await self.runs.get(tenant_id, run_id), no_such_run, run_id)


def _run_query(params: QueryParams) -> ListQuery[RunFilter]:
    """Return the query of a list of runs."""
    given = Parameters(params)
    state = given.choice("state", RunState)
    return given.list_query(RunFilter(given.text("workflow"), state, given.uuid("schedule_id")))
