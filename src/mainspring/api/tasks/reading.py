"""Reading tasks: one, a page of them, the executions and the log lines of one."""

from dataclasses import dataclass

from starlette.responses import Response

from mainspring.api.http.bodies import json_response
from mainspring.api.http.operations import TenantCall, no_such_task
from mainspring.api.http.parameters import next_cursor, page_query
from mainspring.api.tasks.filters import outcome_query, task_query
from mainspring.api.tasks.views import execution_out, task_out
from mainspring.api.views import existing, item_response, names_revision, view
from mainspring.store.tasks import StoredTask, TaskStore
from mainspring.store.workers import WorkerStore
from mainspring.wire.tasks import ExecutionList, TaskPage
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


async def existing_task(tasks: TaskStore, call: TenantCall) -> StoredTask:
    """Return the task in the path; raise when there is none, or it is another tenant's."""
    return existing(await tasks.get(call.tenant_id, call.task_id), no_such_task, call.task_id)


def task_response(task: StoredTask) -> Response:
    return item_response(task_out(task), task.rev)
