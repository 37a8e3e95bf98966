"""Reading tasks: one, a page of them; the executions and the log lines of one, and why it waits."""

from dataclasses import dataclass

from starlette.responses import Response

from mainspring.api.http.bodies import json_response
from mainspring.api.http.operations import TenantCall, no_such_task
from mainspring.api.http.parameters import next_cursor, page_query
from mainspring.api.node_ports import NodePort
from mainspring.api.tasks.filters import outcome_query, task_query
from mainspring.api.tasks.views import execution_out, task_out
from mainspring.api.views import existing, instant_or_none, item_response, names_revision, view
from mainspring.clock import Clock
from mainspring.domain.task import TaskState
from mainspring.engine.explain import Explanation, Situation, explain
from mainspring.store.explaining import Dependency, ExplainStore, WaitingTask
from mainspring.store.tasks import StoredTask, TaskStore
from mainspring.store.workers import WorkerStore
from mainspring.wire.tasks import ExecutionList, ExplanationOut, GateOut, TaskPage
from mainspring.wire.workers import LogLineOut, LogPage


@dataclass(frozen=True, slots=True)
class TaskReading:
    """GET under /v1/tasks."""

    tasks: TaskStore
    workers: WorkerStore

    async def page(self, call: TenantCall) -> Response:
        where, before, limit, payloads = task_query(call.query)
        page = await self.tasks.list(
            call.tenant_id, where, before=before, limit=limit, payloads=payloads
        )
        items = [task_out(task, with_payload=payloads) for task in page.items]
        return json_response(TaskPage(items, next_cursor(page.next_before)))

    async def one(self, call: TenantCall) -> Response:
        task = await existing_task(self.tasks, call)
        known = call.request.headers.get("if-none-match")
        if known is not None and names_revision(known, task.rev):
            return Response(status_code=304, headers={"ETag": f'"{task.rev}"'})
        return task_response(task)

    async def executions(self, call: TenantCall) -> Response:
        outcome = outcome_query(call.query)
        found = await self.tasks.executions(call.tenant_id, call.task_id, outcome=outcome)
        if not found:
            await existing_task(self.tasks, call)
        return json_response(ExecutionList([execution_out(execution) for execution in found]))

    async def logs(self, call: TenantCall) -> Response:
        query = page_query(call.query)
        found = await self.workers.logs(
            call.tenant_id, call.task_id, after=query.before or 0, limit=query.limit
        )
        if not found:
            await existing_task(self.tasks, call)
        cursor = query.cursor_after([item.seq for item in found])
        return json_response(LogPage([view(LogLineOut, line) for line in found], cursor))


@dataclass(frozen=True, slots=True)
class TaskExplanation:
    """GET /v1/tasks/{id}/explain."""

    tasks: TaskStore
    store: ExplainStore
    node: NodePort
    clock: Clock

    async def one(self, call: TenantCall) -> Response:
        waiting = await self.store.waiting(call.tenant_id, call.task_id)
        if waiting is None:
            return json_response(_finished(await existing_task(self.tasks, call)))
        around = await self._around(waiting)
        told = explain(waiting.row, waiting.attempts, around, self.clock.now())
        return json_response(_unfinished(waiting, told, around))

    async def _around(self, waiting: WaitingTask) -> Situation:
        around = self.node.explain(waiting.row)._replace(waits_for=_waits_for(waiting.dependency))
        if around.owned:
            return around
        beside = await self.store.running_beside(waiting.row)
        return around._replace(
            tenant_running=beside.running,
            tenant_limit=waiting.tenant_limit,
            key_running=beside.under_key,
        )


async def existing_task(tasks: TaskStore, call: TenantCall) -> StoredTask:
    """Return the task in the path; raise when there is none, or it is another tenant's."""
    return existing(await tasks.get(call.tenant_id, call.task_id), no_such_task, call.task_id)


def task_response(task: StoredTask) -> Response:
    return item_response(task_out(task), task.rev)


def _waits_for(dependency: Dependency | None) -> str | None:
    if dependency is None:
        return None
    paused = "; its run is paused" if dependency.run_paused else ""
    count = f"{dependency.open} of {dependency.needed}"
    if dependency.has_items:
        return f"it waits for {count} items of its list{paused}"
    names = ", ".join(dependency.open_steps or ())
    more = ", …" if dependency.open > len(dependency.open_steps or ()) else ""
    return f"it waits for {count} steps before it: {names}{more}{paused}"


def _unfinished(waiting: WaitingTask, told: Explanation, around: Situation) -> ExplanationOut:
    return ExplanationOut(
        task_id=waiting.row.id,
        state=TaskState.RUNNING if around.started else waiting.row.state,
        verdict=told.verdict,
        gates=[GateOut(str(gate.gate), gate.passed, gate.detail) for gate in told.gates],
        position=told.position,
        estimated_start=instant_or_none(told.estimated_start),
        unblock=told.unblock,
        source="owner" if around.owned else "database",
    )


def _finished(task: StoredTask) -> ExplanationOut:
    return ExplanationOut(
        task_id=task.id,
        state=task.state,
        verdict="finished",
        unblock=f"The task is over: it is {task.state}.",
        source="database",
        sla_met=task.sla_met,
        blame=task.blame,
        lateness=task.lateness or {},
    )
