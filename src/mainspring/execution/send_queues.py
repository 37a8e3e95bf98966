"""Queues of requests to send: a slow host holds up nobody but its own callers. Pure.

Every (tenant, host) has a queue with a cap on what is in flight, every tenant a cap over its
queues, and the whole a cap over all. Tenants take turns, and inside a tenant its hosts do; a queue
that is full gets no turn until something of it has ended.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from mainspring.execution.egress_guard import CallOrigin

T = TypeVar("T")


class Caps(NamedTuple):
    """Maximum numbers of requests in flight."""

    total: int
    tenant: int
    host: int


@dataclass(slots=True, eq=False)
class _TenantQueues(Generic[T]):
    """The queues of a tenant, and which of them have a turn."""

    id: int
    hosts: "dict[CallOrigin, _HostQueue[T]]" = field(default_factory=dict)
    turns: "deque[_HostQueue[T]]" = field(default_factory=deque)
    in_flight: int = 0
    has_turn: bool = False


@dataclass(slots=True, eq=False)
class _HostQueue(Generic[T]):
    """The requests of one tenant to one host."""

    tenant: _TenantQueues[T]
    origin: CallOrigin
    waiting: deque[T] = field(default_factory=deque)
    in_flight: int = 0
    has_turn: bool = False


class SendQueues(Generic[T]):
    """Requests that wait, and which of them may be sent now."""

    def __init__(self, caps: Caps) -> None:
        self._caps = caps
        self._tenants: dict[int, _TenantQueues[T]] = {}
        self._turns: deque[_TenantQueues[T]] = deque()
        self.in_flight = 0

    def place(self, tenant_id: int, origin: CallOrigin, item: T) -> tuple[int, int] | None:
        """Return how many of its queue go before something that waits, and how many are in flight
        there; None when it does not wait."""
        queue = self._find(tenant_id, origin)
        if queue is None or item not in queue.waiting:
            return None
        return queue.waiting.index(item), queue.in_flight

    def push(self, tenant_id: int, origin: CallOrigin, item: T) -> None:
        """Add a request."""
        queue = self._find(tenant_id, origin)
        if queue is None:
            tenant = self._tenants.setdefault(tenant_id, _TenantQueues(tenant_id))
            queue = tenant.hosts[origin] = _HostQueue(tenant, origin)
        queue.waiting.append(item)
        self._offer(queue)

    def take(self) -> list[T]:
        """Return all that may be sent now, in turn; it counts as in flight until `ended`."""
        taken: list[T] = []
        while self._turns and self.in_flight < self._caps.total:
            tenant = self._turns.popleft()
            tenant.has_turn = False
            queue = tenant.turns.popleft()
            queue.has_turn = False
            taken.append(queue.waiting.popleft())
            self._count(queue, 1)
            self._offer(queue)
        return taken

    def ended(self, tenant_id: int, origin: CallOrigin) -> None:
        """Count a request as ended."""
        queue = self._tenants[tenant_id].hosts[origin]
        self._count(queue, -1)
        self._offer(queue)
        self._remove_if_empty(queue)

    def remove(self, tenant_id: int, origin: CallOrigin, item: T) -> bool:
        """Remove a request that waits; return False when it does not wait."""
        queue = self._find(tenant_id, origin)
        if queue is None or item not in queue.waiting:
            return False
        queue.waiting.remove(item)
        tenant = queue.tenant
        if not queue.waiting and queue.has_turn:
            tenant.turns.remove(queue)
            queue.has_turn = False
            if not tenant.turns and tenant.has_turn:
                self._turns.remove(tenant)
                tenant.has_turn = False
        self._remove_if_empty(queue)
        return True

    def _find(self, tenant_id: int, origin: CallOrigin) -> _HostQueue[T] | None:
        tenant = self._tenants.get(tenant_id)
        return tenant.hosts.get(origin) if tenant else None

    def _count(self, queue: _HostQueue[T], change: int) -> None:
        queue.in_flight += change
        queue.tenant.in_flight += change
        self.in_flight += change

    def _offer(self, queue: _HostQueue[T]) -> None:
        """Give a queue, and then its tenant, a turn if it has one to send and room."""
        tenant = queue.tenant
        if queue.waiting and not queue.has_turn and queue.in_flight < self._caps.host:
            queue.has_turn = True
            tenant.turns.append(queue)
        if tenant.turns and not tenant.has_turn and tenant.in_flight < self._caps.tenant:
            tenant.has_turn = True
            self._turns.append(tenant)

    def _remove_if_empty(self, queue: _HostQueue[T]) -> None:
        if not queue.waiting and not queue.in_flight:
            del queue.tenant.hosts[queue.origin]
            if not queue.tenant.hosts:
                del self._tenants[queue.tenant.id]
