"""Log lines of executions: added by workers, read with the task."""

from dataclasses import dataclass

from starlette.responses import Response

from mainspring.api.http.bodies import json_response
from mainspring.api.http.decoding import decode_as
from mainspring.api.http.operations import TenantCall
from mainspring.api.http.parameters import page_query
from mainspring.api.tasks.reading import existing_task
from mainspring.api.views import view
from mainspring.clock import Clock
from mainspring.store.tasks import TaskStore
from mainspring.store.workers import NewLogLine, WorkerStore
from mainspring.wire.workers import LogLineIn, LogLineOut, LogPage, LogsIn, LogsTakenOut

_MOST_LINES = 1000
"""Maximum lines of a task."""
_MORE_ERRORS = 100
"""Errors that are kept beyond that."""
_LONGEST_LINE = 4000
"""Characters after which a line is cut."""


@dataclass(frozen=True, slots=True)
class LogResource:
    """POST /v1/leases/logs and GET /v1/tasks/{id}/logs."""

    workers: WorkerStore
    tasks: TaskStore
    clock: Clock

    async def add(self, call: TenantCall) -> Response:
        sent = decode_as(LogsIn, await call.body())
        now = self.clock.now()
        lines = [_line(line, now) for line in sent.lines]
        kept = 0
        if lines:
            kept = await self.workers.add_logs(
                call.tenant_id, lines, most=_MOST_LINES, more_errors=_MORE_ERRORS
            )
        return json_response(LogsTakenOut(kept, len(lines) - kept))

    async def page(self, call: TenantCall) -> Response:
        query = page_query(call.query)
        found = await self.workers.logs(
            call.tenant_id, call.task_id, after=query.before or 0, limit=query.limit
        )
        if not found:
            await existing_task(self.tasks, call)
        cursor = query.cursor_after([item.seq for item in found])
        items = [view(LogLineOut, line) for line in found]
        return json_response(LogPage(items, cursor))


def _line(line: LogLineIn, now: float) -> NewLogLine:
    # The database cannot store a NUL in a text, but programs may print one.
    message = line.message[:_LONGEST_LINE].replace("\x00", "\ufffd")
    at = line.at.timestamp() if line.at is not None else now
    return NewLogLine(line.id, line.fence, at, line.level, message)
