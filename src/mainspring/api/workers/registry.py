"""Workers in the eyes of their users, addresses of nodes for workers, and log lines."""

from dataclasses import dataclass

import msgspec
from starlette.responses import Response

from mainspring.api.http.bodies import json_response
from mainspring.api.http.decoding import decode_as
from mainspring.api.http.operations import TenantCall
from mainspring.api.http.parameters import page_query
from mainspring.api.tasks.reading import existing_task
from mainspring.clock import Clock
from mainspring.config import Config
from mainspring.store.tasks import TaskStore
from mainspring.store.workers import NewLogLine, WorkerRecord, WorkerStore
from mainspring.wire.workers import (
    AboutIn,
    LogLineIn,
    LogLineOut,
    LogPage,
    LogsIn,
    LogsTakenOut,
    NodeAddressList,
    NodeAddressOut,
    ResourcesIn,
    StatisticsOut,
    WorkerOut,
    WorkerPage,
)

_SILENT_AFTER = 30.0
_MOST_LINES = 1000
_MORE_ERRORS = 100
_LONGEST_LINE = 4000


@dataclass(frozen=True, slots=True)
class WorkerResource:
    """/v1/workers."""

    config: Config
    workers: WorkerStore
    clock: Clock

    async def page(self, call: TenantCall) -> Response:
        query = page_query(call.request.query_params)
        found = await self.workers.list(call.tenant_id, before=query.before, limit=query.limit)
        cursor = query.cursor_after([item.seq for item in found])
        silent_since = self.clock.now() - _SILENT_AFTER
        return json_response(WorkerPage([_worker_out(w, silent_since) for w in found], cursor))

    async def nodes(self, _call: TenantCall) -> Response:
        found = await self.workers.nodes(self.config.node_ttl)
        return json_response(NodeAddressList([NodeAddressOut(*node) for node in found]))


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
        query = page_query(call.request.query_params)
        found = await self.workers.logs(
            call.tenant_id, call.task_id, after=query.before or 0, limit=query.limit
        )
        if not found:
            await existing_task(self.tasks, call.tenant_id, call.task_id)
        cursor = query.cursor_after([item.seq for item in found])
        items = [LogLineOut(line.fence, line.at, line.level, line.message) for line in found]
        return json_response(LogPage(items, cursor))


def _line(line: LogLineIn, now: float) -> NewLogLine:
    # A text in the database cannot hold a NUL, and programs print what they like.
    message = line.message[:_LONGEST_LINE].replace("\x00", "\ufffd")
    at = line.at.timestamp() if line.at is not None else now
    return NewLogLine(line.id, line.fence, at, line.level, message)


def _worker_out(worker: WorkerRecord, silent_since: float) -> WorkerOut:
    offer = msgspec.convert(worker.offer, _OfferShown)
    return WorkerOut(
        name=worker.name,
        incarnation=worker.incarnation,
        state="alive" if worker.seen_at.timestamp() > silent_since else "silent",
        queues=offer.queues,
        handlers=offer.handlers,
        commands=offer.commands,
        tags=offer.tags,
        resources=ResourcesIn(offer.memory_mb, offer.cpu),
        about=msgspec.convert(worker.about, AboutIn),
        leases=worker.held,
        statistics=StatisticsOut(worker.leased, worker.succeeded, worker.failed, worker.released),
        started_at=worker.started_at,
        seen_at=worker.seen_at,
    )


class _OfferShown(msgspec.Struct):
    queues: list[str]
    handlers: list[str]
    commands: bool
    tags: list[str]
    memory_mb: int | None
    cpu: float | None
