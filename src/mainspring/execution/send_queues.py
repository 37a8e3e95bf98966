"""Lanes: who may be sent to next, so that a slow host holds up nobody but its own callers. Pure.

Every (tenant, host) has a lane with a cap on what is in flight, every tenant a cap over its lanes,
and the whole a cap over all. Tenants take turns, and inside a tenant its hosts do; a lane that is
full simply drops out of the turn until something of it has ended.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from mainspring.execution.guard import CallOrigin

T = TypeVar("T")


class Caps(NamedTuple):
    """Maximum numbers of requests in flight."""

    total: int
    tenant: int
    host: int


@dataclass(slots=True, eq=False)
class _HostLane(Generic[T]):
    """The requests of one tenant to one host."""

    waiting: deque[T] = field(default_factory=deque)
    in_flight: int = 0
    queued: bool = False
    """Whether it has a place in its tenant's turn."""


@dataclass(slots=True, eq=False)
class _TenantSends(Generic[T]):
    """The lanes of a tenant, and which of them have a turn."""

    lanes: dict[CallOrigin, _HostLane[T]] = field(default_factory=dict)
    turn: deque[tuple[CallOrigin, _HostLane[T]]] = field(default_factory=deque)
    in_flight: int = 0
    queued: bool = False


class Lanes(Generic[T]):
    """Requests that wait, and which of them may be sent now."""

    def __init__(self, caps: Caps) -> None:
        self._caps = caps
        self._tenants: dict[int, _TenantSends[T]] = {}
        self._turn: deque[tuple[int, _TenantSends[T]]] = deque()
        self._in_flight = 0

    @property
    def in_flight(self) -> int:
        return self._in_flight

    def place(self, tenant_id: int, origin: CallOrigin, item: T) -> tuple[int, int] | None:
        """Return how many of its lane go before something that waits, and how many are in flight
        there; None when it does not wait."""
        tenant = self._tenants.get(tenant_id)
        lane = tenant.lanes.get(origin) if tenant else None
        if lane is None or item not in lane.waiting:
            return None
        return lane.waiting.index(item), lane.in_flight

    def push(self, tenant_id: int, origin: CallOrigin, item: T) -> None:
        """Add a request."""
        tenant = self._tenants.get(tenant_id)
        if tenant is None:
            tenant = self._tenants[tenant_id] = _TenantSends()
        lane = tenant.lanes.get(origin)
        if lane is None:
            lane = tenant.lanes[origin] = _HostLane()
        lane.waiting.append(item)
        self._offer(tenant_id, tenant, origin, lane)

    def take(self) -> list[T]:
        """Return all that may be sent now, in turn; it counts as in flight until `ended`."""
        taken: list[T] = []
        while self._turn and self._in_flight < self._caps.total:
            tenant_id, tenant = self._turn.popleft()
            tenant.queued = False
            origin, lane = tenant.turn.popleft()
            lane.queued = False
            taken.append(lane.waiting.popleft())
            lane.in_flight += 1
            tenant.in_flight += 1
            self._in_flight += 1
            self._offer(tenant_id, tenant, origin, lane)
        return taken

    def ended(self, tenant_id: int, origin: CallOrigin) -> None:
        """Count a request as ended."""
        tenant = self._tenants[tenant_id]
        lane = tenant.lanes[origin]
        lane.in_flight -= 1
        tenant.in_flight -= 1
        self._in_flight -= 1
        self._offer(tenant_id, tenant, origin, lane)
        self._tidy(tenant_id, tenant, origin, lane)

    def remove(self, tenant_id: int, origin: CallOrigin, item: T) -> bool:
        """Remove a request that waits; return False when it does not wait."""
        tenant = self._tenants.get(tenant_id)
        lane = tenant.lanes.get(origin) if tenant else None
        if tenant is None or lane is None or item not in lane.waiting:
            return False
        lane.waiting.remove(item)
        if not lane.waiting and lane.queued:
            tenant.turn.remove((origin, lane))
            lane.queued = False
            if not tenant.turn and tenant.queued:
                self._turn.remove((tenant_id, tenant))
                tenant.queued = False
        self._tidy(tenant_id, tenant, origin, lane)
        return True

    def _offer(
        self, tenant_id: int, tenant: _TenantSends[T], origin: CallOrigin, lane: _HostLane[T]
    ) -> None:
        """Give a lane, and then its tenant, a place in the turn if it has one to send and room."""
        if lane.waiting and not lane.queued and lane.in_flight < self._caps.host:
            lane.queued = True
            tenant.turn.append((origin, lane))
        if tenant.turn and not tenant.queued and tenant.in_flight < self._caps.tenant:
            tenant.queued = True
            self._turn.append((tenant_id, tenant))

    def _tidy(
        self, tenant_id: int, tenant: _TenantSends[T], origin: CallOrigin, lane: _HostLane[T]
    ) -> None:
        if not lane.waiting and not lane.in_flight:
            del tenant.lanes[origin]
            if not tenant.lanes:
                del self._tenants[tenant_id]
