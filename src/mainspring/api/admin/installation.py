"""The cluster, for operators, and the audit log, also for admins of a tenant."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from mainspring import timezones
from mainspring.api.http.bodies import json_response
from mainspring.api.http.operations import OperatorCall, TenantCall
from mainspring.api.http.parameters import next_cursor, page_query
from mainspring.api.views import view
from mainspring.domain.partitions import PARTITIONS
from mainspring.store.audit import INSTALLATION, AuditFilter, AuditStore, StoredAuditEntry
from mainspring.store.cluster import NodeRecord, Topology
from mainspring.wire import admin as wire


@dataclass(frozen=True, slots=True)
class ClusterResource:
    """/v1/cluster."""

    topology: Topology
    overdue_after: float

    async def show(self, _call: OperatorCall) -> Response:
        nodes, partitions = await self.topology.nodes(), await self.topology.partitions()
        standing = await self.topology.standing(self.overdue_after)
        return json_response(
            wire.ClusterOut(
                nodes=[_node_out(node) for node in nodes],
                partitions=[view(wire.PartitionOut, p) for p in partitions],
                unowned=sum(p.owner is None for p in partitions),
                skew=_skew(nodes),
                tzdata=timezones.version(),
                schedules=view(wire.SchedulesOut, standing, overdue_since=standing.since),
            )
        )


@dataclass(frozen=True, slots=True)
class AuditResource:
    """/v1/audit."""

    audit: AuditStore

    async def page(self, call: TenantCall) -> Response:
        return await self._page(call.request, call.tenant_id)

    async def page_of_all(self, call: OperatorCall) -> Response:
        """Return the audit log of all tenants, also deleted ones, and of the installation."""
        return await self._page(call.request, None)

    async def _page(self, request: Request, tenant_id: int | None) -> Response:
        query = page_query(request.query_params, ("action", "actor", "subject"))
        where = AuditFilter(tenant_id, **query.where)
        found = await self.audit.list(where, before=query.before, limit=query.limit)
        last = found.next_before
        cursor = next_cursor(None if last is None else UUID(int=last))
        return json_response(wire.AuditPage([_entry_out(entry) for entry in found.items], cursor))


def _entry_out(entry: StoredAuditEntry) -> wire.AuditEntryOut:
    tenant_id = None if entry.tenant_id == INSTALLATION else entry.tenant_id
    return view(wire.AuditEntryOut, entry, tenant_id=tenant_id)


def _node_out(node: NodeRecord) -> wire.NodeOut:
    silent = round(max(0.0, node.silent), 3)
    return view(wire.NodeOut, node, silent=silent, partitions=node.owned)


def _skew(nodes: Sequence[NodeRecord]) -> float:
    """Return the largest share of partitions over an equal share, among active nodes."""
    shares = [node.owned for node in nodes if node.state == "active"]
    return round(max(shares) * len(shares) / PARTITIONS, 3) if shares else 0.0
