"""Pools of workers, and the groups of tasks that wait for them.

Workers of a tenant that offer the same form a pool. A pool knows which groups of due tasks it can
run and which of them have tasks, so matching looks at no task, group or worker in vain: a task that
becomes due touches the pools of its group, a worker that polls touches the groups of its pool.

Pools of other nodes' workers are known here too. They hold no polls; when tasks wait that only they
can run, their nodes are told (`RemoteDemand`), and answer with a poll on their worker's behalf.
"""

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator
from heapq import heapify, heappop, heappush
from math import inf
from uuid import UUID

from mainspring.domain.capability import MOST_OFFERS, Offer, need_of
from mainspring.domain.lateness import Cause
from mainspring.engine.demand import LeaseHolder, Poll, RemoteDemand, WorkerSession
from mainspring.engine.entry import Entry
from mainspring.engine.gates import RunningGate, Turns
from mainspring.engine.lateness_ledger import Bucket

_TELL_AGAIN = 0.5
_NEVER = (inf, 0)
_FEW = 64


class Group(Turns):
    """The due tasks of one line behind the same running gate: a ledger bucket."""

    __slots__ = ("alone", "bucket", "capability", "gate", "pools", "queue")

    def __init__(self, queue: str, capability: str, gate: RunningGate | None, now: float) -> None:
        super().__init__()
        self.queue = queue
        self.capability = capability
        self.gate = gate
        self.bucket = Bucket(Cause.FAIR_SHARE, now)
        self.pools: list[WorkerPool] = []
        """For tasks of workers: the kinds of workers that can run them."""
        self.alone = need_of(capability).alone

    def closed(self) -> Cause | None:
        """Return why none of it may start; None when the gate is open."""
        return self.gate.closed() if self.gate else None

    def review(self, now: float) -> None:
        """Update what tasks for workers wait for."""
        self.bucket.switch(
            self.closed() or (Cause.FAIR_SHARE if self.pools else Cause.NO_WORKER), now
        )

    def push(self, entry: Entry, now: float) -> None:
        entry.entered = self.bucket.enter(now)
        self.wait(entry)


class WorkerPool:
    """The workers of a tenant that offer the same, and the groups of tasks that they can run."""

    def __init__(self, tenant_id: int, offer: Offer) -> None:
        self.tenant_id = tenant_id
        self.offer = offer
        self.polls: deque[Poll] = deque()
        self.ready: dict[Group, tuple[float, int]] = {}
        """The groups with tasks, each with its turn: by deadline, then in order of arrival."""
        self._turns: list[tuple[float, int, Group]] = []
        self._sequence = 0
        self.remote_nodes: dict[UUID, float] = {}
        """Nodes at which such workers wait, and until when we believe it."""
        self.told: dict[UUID, float] = {}
        """When each of these nodes may be told again that tasks wait."""
        self.seen = 0.0

    @property
    def free(self) -> int:
        return sum(poll.free for poll in self.polls)

    def enqueue(self, group: Group) -> None:
        """Give a group that has a task its turn, by the deadline of its first."""
        first = group.first()
        if first is None or first.deadline >= self.ready.get(group, _NEVER)[0]:
            return
        self._sequence += 1
        turn = self.ready[group] = (first.deadline, self._sequence)
        heappush(self._turns, (*turn, group))
        if len(self._turns) > 2 * len(self.ready) + _FEW:
            self._turns = [(*turn, group) for group, turn in self.ready.items()]
            heapify(self._turns)

    def next_group(self) -> Group | None:
        """Return the group with the earliest deadline. Outdated turns are skipped."""
        while self._turns:
            deadline, sequence, group = self._turns[0]
            valid = self.ready.get(group) == (deadline, sequence)
            first = group.first() if valid else None
            if first is not None and first.deadline == deadline:
                return group
            heappop(self._turns)
            if valid:
                del self.ready[group]
                self.enqueue(group)
        return None

    def leave_out(self, group: Group) -> None:
        """Skip a group until it is enqueued again."""
        del self.ready[group]

    def forget_groups(self) -> None:
        self.ready.clear()
        self._turns.clear()

    def was_seen(self, since: float, now: float) -> bool:
        """Whether one of its workers waits, or was heard of since then."""
        elsewhere = any(until > now for until in self.remote_nodes.values())
        return bool(self.polls) or elsewhere or self.seen > since


class WorkerDemand:
    """All pools, and how much each worker holds. `groups_of` returns the groups of a tenant."""

    def __init__(self, there_for: float, groups_of: Callable[[int], Collection[Group]]) -> None:
        self._there_for = there_for
        """How long a pool is kept of which nobody is heard: see `capability.there_for`."""
        self._groups_of = groups_of
        self._pools: dict[int, dict[Offer, WorkerPool]] = {}
        self._dirty: dict[WorkerPool, None] = {}
        self._holding: Counter[WorkerSession] = Counter()
        self._alone: set[WorkerSession] = set()
        self._polled: dict[WorkerSession, dict[WorkerPool, None]] = {}
        """The pools in which each worker polled, the last one last; kept while it has a task."""
        self._remote_demand: list[RemoteDemand] = []
        self._swept = 0.0

    # For the drivers -------------------------------------------------------------------------

    def open(self, poll: Poll, now: float) -> None:
        """Add a worker that waits for tasks."""
        pool = self.touch(poll.session.tenant_id, poll.offer, now)
        pool.polls.append(poll)
        self._dirty[pool] = None
        polled = self._polled.setdefault(poll.session, {})
        polled.pop(pool, None)
        polled[pool] = None
        if len(polled) > MOST_OFFERS:
            del polled[next(iter(polled))]

    def close(self, poll: Poll) -> None:
        """Give a poll nothing more; claims in flight for it still count."""
        poll.free = 0
        pool = self._pools.get(poll.session.tenant_id, {}).get(poll.offer)
        if pool is not None and poll in pool.polls:
            pool.polls.remove(poll)

    def disconnect(self, poll: Poll) -> None:
        """Note that the worker of a poll went away, perhaps the last one of its pool."""
        pool = self._pools.get(poll.session.tenant_id, {}).get(poll.offer)
        if pool is not None and all(other is poll for other in pool.polls):
            pool.seen = -inf

    def touch(self, tenant_id: int, offer: Offer, now: float) -> WorkerPool:
        """Note that there is a worker with this offer, idle or busy."""
        pool = self._pools.setdefault(tenant_id, {}).get(offer)
        if pool is None:
            pool = self._pools[tenant_id][offer] = WorkerPool(tenant_id, offer)
            for group in self._groups_of(tenant_id):
                if offer.suits(group.queue, group.capability):
                    group.pools.append(pool)
                    group.review(now)
                    pool.enqueue(group)
        pool.seen = now
        return pool

    def add_remote_node(
        self, node: UUID, tenant_id: int, offer: Offer, now: float, ttl: float
    ) -> None:
        """Note that such a worker waits at another node."""
        pool = self.touch(tenant_id, offer, now)
        pool.remote_nodes[node] = now + ttl
        pool.told.pop(node, None)
        self._dirty[pool] = None

    def has_tasks_for(self, tenant_id: int, offer: Offer, now: float) -> bool:
        """Whether tasks wait here that such a worker could run, limits aside."""
        return self.touch(tenant_id, offer, now).next_group() is not None

    def take_remote_demand(self) -> list[RemoteDemand]:
        """Return which nodes to tell that tasks wait here for their workers, each once."""
        demand, self._remote_demand = self._remote_demand, []
        return demand

    # Pools and groups, for the fair queue ----------------------------------------------------

    def pools_for(self, tenant_id: int, queue: str, capability: str) -> list[WorkerPool]:
        """Return the pools that can run such tasks."""
        pools = self._pools.get(tenant_id, {}).values()
        return [pool for pool in pools if pool.offer.suits(queue, capability)]

    def sweep(self, now: float) -> None:
        """Forget the pools of which no worker is there any more."""
        if now - self._swept < 1.0:
            return
        self._swept = now
        every = [pool for pools in self._pools.values() for pool in pools.values()]
        polling = {poll.session for pool in every for poll in pool.polls}
        for session in self._polled.keys() - self._holding.keys() - polling:
            del self._polled[session]
        busy = {pool for s, polled in self._polled.items() if s in self._holding for pool in polled}
        since = now - self._there_for
        for pool in every:
            if pool not in busy and not pool.was_seen(since, now):
                self._drop(pool, now)

    def _drop(self, pool: WorkerPool, now: float) -> None:
        of_tenant = self._pools[pool.tenant_id]
        del of_tenant[pool.offer]
        if not of_tenant:
            del self._pools[pool.tenant_id]
        self._dirty.pop(pool, None)
        for group in self._groups_of(pool.tenant_id):
            if pool in group.pools:
                group.pools.remove(pool)
                group.review(now)

    def task_added(self, group: Group) -> None:
        """Look at a group again that has another task."""
        for pool in group.pools:
            pool.enqueue(group)
            if pool.polls or pool.remote_nodes:
                self._dirty[pool] = None

    def limit_lifted(self, tenant_id: int) -> None:
        """Look at a tenant's groups again, because something that held them back has ended."""
        for pool in self._pools.get(tenant_id, {}).values():
            if pool.ready and (pool.polls or pool.remote_nodes):
                self._dirty[pool] = None

    def forget_groups(self, tenant_id: int) -> None:
        for pool in self._pools.get(tenant_id, {}).values():
            pool.forget_groups()

    # Matching --------------------------------------------------------------------------------

    def dirty(self) -> Iterator[WorkerPool]:
        """Iterate over the pools where something may match, and take them off the list."""
        while self._dirty:
            pool = next(iter(self._dirty))
            del self._dirty[pool]
            yield pool

    def mark_dirty(self, pool: WorkerPool) -> None:
        self._dirty[pool] = None

    def next_poll(self, pool: WorkerPool, *, alone: bool) -> Poll | None:
        """Return the poll whose turn it is, one task at a time; None when no slot is free."""
        for _ in range(len(pool.polls)):
            poll = pool.polls[0]
            if poll.free <= 0:
                pool.polls.popleft()
                continue
            pool.polls.rotate(-1)
            if self._may_take(poll, alone):
                return poll
        return None

    def presumes_started(self, poll: Poll) -> bool:
        """Whether what was claimed for a poll counts as started although its worker does not say
        so: it holds nothing else, as far as we know, and never announces what it starts."""
        alone = poll.idle and not poll.shared and self._holding[poll.session] == 1
        return alone and not poll.announces

    def add_lease(self, holder: LeaseHolder) -> None:
        self._holding[holder.session] += 1
        if holder.alone:
            self._alone.add(holder.session)

    def remove_lease(self, holder: LeaseHolder) -> None:
        self._holding[holder.session] -= 1
        if not self._holding[holder.session]:
            del self._holding[holder.session]
        if holder.alone:
            self._alone.discard(holder.session)
            self.limit_lifted(holder.session.tenant_id)

    def demand_remotely(self, pool: WorkerPool, waiting: int, now: float) -> None:
        """Tell the pool's remote nodes about tasks that wait, if there are any."""
        for node, until in list(pool.remote_nodes.items()):
            if until <= now:
                del pool.remote_nodes[node]
                pool.told.pop(node, None)
            elif waiting and pool.told.get(node, 0.0) <= now:
                pool.told[node] = now + _TELL_AGAIN
                self._remote_demand.append(RemoteDemand(node, pool.tenant_id, pool.offer, waiting))

    def _may_take(self, poll: Poll, alone: bool) -> bool:
        if poll.session in self._alone:
            return False
        return not alone or (poll.idle and not self._holding[poll.session])
