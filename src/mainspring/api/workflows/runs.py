"""Runs of workflows: begin, read, list, draw; cancel, pause, resume, retry; a step by hand."""

from collections.abc import Awaitable, Callable
from uuid import UUID

import msgspec
from msgspec import Raw
from starlette.responses import Response

from mainspring import crash
from mainspring.api.http.auth import tenant_gone
from mainspring.api.http.decoding import decode_as
from mainspring.api.http.endpoint import TenantCall, json_response
from mainspring.api.http.parameters import encode_cursor, flag, run_query
from mainspring.api.http.payloads import payload_problems
from mainspring.api.ports import NodePort
from mainspring.api.workflows.definitions import existing_workflow, graph_format, workflow_name_in
from mainspring.api.workflows.run_views import ended_leases, run_summary, states_of
from mainspring.api.workflows.views import graph_response
from mainspring.clock import Clock
from mainspring.config import Config
from mainspring.domain.ids import TaskIds
from mainspring.errors import NotFound, Problem, StoreUnavailable, refusal
from mainspring.observe.metrics import Metrics
from mainspring.store.answers import BeforeCommit
from mainspring.store.workflow.step_rows import Moved, NewRun, unreadable
from mainspring.store.workflow.workflow_runs import RunFilter, StoredRun, started_run
from mainspring.store.workflow.workflows import WorkflowStore
from mainspring.wire.runs import RunIn, RunPage
from mainspring.workflows.runs import WorkflowRunService

_RUN = msgspec.json.Decoder(RunIn)
_INPUT = msgspec.json.Decoder(dict[str, Raw])
_encode = msgspec.json.Encoder().encode


class RunResource:
    """/v1/workflow-runs, and the runs under a workflow."""

    def __init__(
        self,
        config: Config,
        clock: Clock,
        ids: TaskIds,
        workflows: WorkflowStore,
        runs: WorkflowRunService,
        node: NodePort,
        metrics: Metrics,
    ) -> None:
        self._config = config
        self._clock = clock
        self._ids = ids
        self._workflows = workflows
        self._runs = runs
        self._node = node
        self._metrics = metrics

    async def create(self, call: TenantCall) -> Response:
        body = await call.body()
        wanted = decode_as(_RUN, body or b"{}", lambda run: run.input.values())
        workflow = await existing_workflow(self._workflows, call, wanted.version)
        given = _encode({**_INPUT.decode(workflow.definition.input), **wanted.input})
        problems = [
            problem.at("/input") for problem in payload_problems(given, self._config.max_payload)
        ]
        if not problems and (text := unreadable(given)):
            problems = [Problem("/input", text)]
        if problems:
            raise refusal("some values do not make sense", problems)
        now = round(self._clock.now(), 6)
        run = NewRun(
            call.tenant_id, self._ids.make(now), workflow.name, workflow.version,
            workflow.definition, given, now,
        )  # fmt: skip

        def answer(moved: Moved) -> Response:
            headers = {"Location": f"/v1/workflow-runs/{run.id}", "ETag": '"1"'}
            return json_response(run_summary(started_run(run, moved)), 201, headers)

        keeping = call.remember(answer) if call.keeper else None
        return answer(await self._begin(run, keeping))

    async def page(self, call: TenantCall) -> Response:
        query = run_query(call.request.query_params)
        return await self._page(call, query.where, query.before, query.limit)

    async def page_of_workflow(self, call: TenantCall) -> Response:
        query = run_query(call.request.query_params)
        workflow = await existing_workflow(self._workflows, call)
        where = RunFilter(workflow.name, query.where.state, query.where.schedule_id)
        return await self._page(call, where, query.before, query.limit)

    async def one(self, call: TenantCall) -> Response:
        return await self._shown(call, call.id_or(no_such_run))

    async def status(self, call: TenantCall) -> Response:
        """The same, found by way of its workflow."""
        run_id = _run_in_path(call)
        run = await self._existing(call.tenant_id, run_id)
        if run.workflow != workflow_name_in(call):
            raise no_such_run(str(run_id))
        return await self._shown(call, run_id)

    async def graph(self, call: TenantCall) -> Response:
        form = graph_format(call.request.query_params)
        run = await self._existing(call.tenant_id, call.id_or(no_such_run))
        definition = await self._runs.definition(call.tenant_id, run)
        steps = await self._runs.steps(call.tenant_id, run.id)
        return graph_response(definition, form, states_of(steps))

    async def cancel(self, call: TenantCall) -> Response:
        return await self._change(
            call,
            lambda run: self._runs.cancel(
                self._node.ownership(), call.tenant_id, run, call.actor, self._clock.now()
            ),
        )

    async def pause(self, call: TenantCall) -> Response:
        return await self._change(
            call, lambda run: self._runs.pause(call.tenant_id, run, call.actor)
        )

    async def resume(self, call: TenantCall) -> Response:
        return await self._change(
            call,
            lambda run: self._runs.resume(
                self._node.ownership(), call.tenant_id, run, call.actor, self._clock.now()
            ),
        )

    async def retry(self, call: TenantCall) -> Response:
        return await self._retry(call, None)

    async def retry_step(self, call: TenantCall) -> Response:
        return await self._retry(call, call.request.path_params["step"])

    async def skip_step(self, call: TenantCall) -> Response:
        step: str = call.request.path_params["step"]
        return await self._change(
            call,
            lambda run: self._runs.skip(
                self._node.ownership(), call.tenant_id, run, call.actor, self._clock.now(), step
            ),
        )

    # Details ----------------------------------------------------------------------------------

    async def _begin(self, run: NewRun, keeping: BeforeCommit[Moved] | None) -> Moved:
        try:
            moved = await self._runs.create(self._node.ownership(), run, keeping)
        except StoreUnavailable:
            # It may have been written all the same: look, rather than guess.
            if await self._runs.get(run.tenant_id, run.id) is None:
                raise
            self._node.mark_stale()
            return Moved()
        crash.reach("run.committed")
        if moved is None:
            raise tenant_gone()
        self._metrics.workflow_runs_started.inc()
        self._node.moved(moved)
        return moved

    async def _retry(self, call: TenantCall, step: str | None) -> Response:
        return await self._change(
            call,
            lambda run: self._runs.retry(
                self._node.ownership(), call.tenant_id, run, call.actor, self._clock.now(), step
            ),
        )

    async def _change(
        self, call: TenantCall, change: Callable[[UUID], Awaitable[Moved | None]]
    ) -> Response:
        run_id = call.id_or(no_such_run)
        try:
            moved = await change(run_id)
        except StoreUnavailable:
            self._node.mark_stale()
            raise
        if moved is None:
            raise no_such_run(str(run_id))
        self._node.moved(moved)
        return await self._shown(call, run_id)

    async def _shown(self, call: TenantCall, run_id: UUID) -> Response:
        items = flag(call.request.query_params, "items")
        run = await self._existing(call.tenant_id, run_id)
        definition = await self._runs.definition(call.tenant_id, run)
        steps = await self._runs.steps(call.tenant_id, run_id, items=items)
        return json_response(ended_leases(run, definition, steps), headers={"ETag": f'"{run.rev}"'})

    async def _page(
        self, call: TenantCall, where: RunFilter, before: UUID | None, limit: int
    ) -> Response:
        page = await self._runs.page(call.tenant_id, where, before=before, limit=limit)
        cursor = None if page.next_before is None else encode_cursor(page.next_before)
        return json_response(RunPage([run_summary(run) for run in page.runs], cursor))

    async def _existing(self, tenant_id: int, run_id: UUID) -> StoredRun:
        run = await self._runs.get(tenant_id, run_id)
        if run is None:
            raise no_such_run(str(run_id))
        return run


def no_such_run(run_id: str) -> NotFound:
    return NotFound(f"there is no run {run_id[:64]!r}")


def _run_in_path(call: TenantCall) -> UUID:
    text: str = call.request.path_params["run_id"]
    try:
        found = UUID(text)
    except ValueError:
        raise no_such_run(text) from None
    if str(found) != text.lower():
        raise no_such_run(text)
    return found
