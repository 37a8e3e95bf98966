"""Workers in lists, and the addresses of nodes for workers."""

from dataclasses import dataclass

import msgspec
from starlette.responses import Response

from mainspring.api.http.bodies import json_response
from mainspring.api.http.operations import TenantCall
from mainspring.api.http.parameters import page_query
from mainspring.api.views import view
from mainspring.clock import Clock
from mainspring.config import Config
from mainspring.store.workers import WorkerRecord, WorkerStore
from mainspring.wire import workers as wire

_SILENT_AFTER = 30.0


@dataclass(frozen=True, slots=True)
class WorkerResource:
    """/v1/workers: those that were heard of within a day, and the nodes that they may ask.

    `config` says after which silence a node counts as dead.
    """

    config: Config
    workers: WorkerStore
    clock: Clock

    async def page(self, call: TenantCall) -> Response:
        query = page_query(call.query)
        found = await self.workers.list(call.tenant_id, before=query.before, limit=query.limit)
        cursor = query.cursor_after([item.seq for item in found])
        silent_since = self.clock.now() - _SILENT_AFTER
        return json_response(wire.WorkerPage([_worker_out(w, silent_since) for w in found], cursor))

    async def nodes(self, _call: TenantCall) -> Response:
        found = await self.workers.nodes(self.config.node_ttl)
        return json_response(wire.NodeAddressList([wire.NodeAddressOut(*node) for node in found]))


def _worker_out(worker: WorkerRecord, silent_since: float) -> wire.WorkerOut:
    offer = msgspec.convert(worker.offer, _OfferShown)
    return view(
        wire.WorkerOut, worker, offer,
        state="alive" if worker.seen_at.timestamp() > silent_since else "silent",
        resources=view(wire.ResourcesIn, offer),
        about=msgspec.convert(worker.about, wire.AboutIn),
        leases=worker.held,
        statistics=view(wire.StatisticsOut, worker),
    )  # fmt: skip


class _OfferShown(msgspec.Struct):
    queues: list[str]
    handlers: list[str]
    commands: bool
    tags: list[str]
    memory_mb: int | None
    cpu: float | None
