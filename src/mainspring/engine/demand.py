"""What workers ask for: a task is claimed only when a worker waits that can run it.

Workers of a tenant that offer the same form a pool. A pool knows which groups of due tasks it can
run and which of them have tasks, so matching looks at no task, group or worker in vain: a task that
becomes due touches the pools of its group, a worker that polls touches the groups of its pool.

Pools of other nodes' workers are known here too. They hold no polls; when tasks wait that only they
can run, their nodes are told (`RemoteDemand`), and answer with a poll on their worker's behalf.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from math import inf
from typing import NamedTuple, Protocol
from uuid import UUID

from mainspring.domain.capability import MOST_OFFERS, Offer, need_of
from mainspring.domain.rows import TaskRow

_CALL_AGAIN = 0.5
_NEVER = (inf, 0)
_FEW = 64


class WorkerSession(NamedTuple):
    """A worker's incarnation."""

    tenant_id: int
    worker: str
    incarnation: str


class LeaseHolder(NamedTuple):
    """Who holds a running task, and whether the task must be its only one."""

    holder: WorkerSession
    alone: bool = False


class RemoteDemand(NamedTuple):
    """Tasks wait here for workers that wait at another node."""

    node: UUID
    tenant_id: int
    offer: Offer
    tasks: int


class Poll:
    """A worker's open slots, waiting to be filled. Known by identity."""

    __slots__ = ("announces", "free", "here", "holder", "idle", "in_flight", "offer", "shared")

    def __init__(
        self,
        holder: WorkerSession,
        offer: Offer,
        slots: int,
        *,
        idle: bool = True,
        here: bool = True,
        announces: bool = False,
        shared: bool = False,
    ) -> None:
        self.holder = holder
        self.offer = offer
        self.free = slots
        self.idle = idle
        """Whether the worker says that it holds nothing."""
        self.here = here
        """Whether the worker waits at this node: then we know when it is answered."""
        self.announces = announces
        """Whether the worker tells of what it begins."""
        self.shared = shared
        """Whether other nodes may claim for it, too: then none knows all that it gets."""
        self.in_flight = 0
        """Tasks that were picked for it and are being claimed."""


class QueuedTask(Protocol):
    """A task that waits in a line."""

    deadline: float


class TaskGroup(Protocol):
    """Due tasks that need the same: what the fair queue keeps as one group."""

    queue: str
    capability: str
    stands: "list[WorkerPool]"

    def first(self) -> QueuedTask | None: ...

    def review(self, now: float) -> None:
        """The stands of the line changed: what its tasks wait for may be another thing now."""
        ...


class WorkerPool:
    """The workers of a tenant that offer the same, and the lines of tasks that they can run."""

    def __init__(self, tenant_id: int, offer: Offer) -> None:
        self.tenant_id = tenant_id
        self.offer = offer
        self.polls: deque[Poll] = deque()
        self.ready: dict[TaskGroup, tuple[float, int]] = {}
        """The lines with tasks, and the turn that each has: by deadline, then as they came."""
        self._turns: list[tuple[float, int, TaskGroup]] = []
        self._sequence = 0
        self.remote_nodes: dict[UUID, float] = {}
        """Nodes at which such workers wait, and until when we believe it."""
        self.called: dict[UUID, float] = {}
        self.seen = 0.0

    @property
    def free(self) -> int:
        return sum(poll.free for poll in self.polls)

    def line_up(self, line: TaskGroup) -> None:
        """There is a task in the line: its turn is by the deadline of its first."""
        first = line.first()
        if first is None or first.deadline >= self.ready.get(line, _NEVER)[0]:
            return
        self._sequence += 1
        turn = self.ready[line] = (first.deadline, self._sequence)
        heappush(self._turns, (*turn, line))
        if len(self._turns) > 2 * len(self.ready) + _FEW:
            self._turns = [(*turn, line) for line, turn in self.ready.items()]
            heapify(self._turns)

    def next_line(self) -> TaskGroup | None:
        """The line with the earliest deadline. Turns that are out of date are passed over, so that
        it costs little however many lines there are."""
        while self._turns:
            deadline, sequence, line = self._turns[0]
            valid = self.ready.get(line) == (deadline, sequence)
            first = line.first() if valid else None
            if first is not None and first.deadline == deadline:
                return line
            heappop(self._turns)
            if valid:
                del self.ready[line]
                self.line_up(line)
        return None

    def leave_out(self, line: TaskGroup) -> None:
        """Not this one, until it lines up again."""
        del self.ready[line]

    def forget_lines(self) -> None:
        self.ready.clear()
        self._turns.clear()


class Demand:
    """All stands, and what each worker's incarnation holds."""

    def __init__(self, there_for: float) -> None:
        self._there_for = there_for
        """How long a kind is remembered of which nobody is heard: see `capability.there_for`."""
        self._stands: dict[int, dict[Offer, WorkerPool]] = {}
        self._dirty: dict[WorkerPool, None] = {}
        self._holding: Counter[WorkerSession] = Counter()
        self._alone: set[WorkerSession] = set()
        self._asked: dict[WorkerSession, dict[WorkerPool, None]] = {}
        """As what each worker asked, the last one last: if it holds a task it is there as those."""
        self._swept = 0.0

    # Workers ---------------------------------------------------------------------------------

    def open(self, poll: Poll, lines: Iterable[TaskGroup], now: float) -> None:
        """A worker waits for tasks."""
        stand = self.know(poll.holder.tenant_id, poll.offer, lines, now)
        stand.polls.append(poll)
        self._dirty[stand] = None
        asked = self._asked.setdefault(poll.holder, {})
        asked.pop(stand, None)
        asked[stand] = None
        if len(asked) > MOST_OFFERS:
            del asked[next(iter(asked))]

    def close(self, poll: Poll) -> None:
        """It waits no longer; what is in flight for it still comes."""
        poll.free = 0
        stand = self._stands.get(poll.holder.tenant_id, {}).get(poll.offer)
        if stand is not None and poll in stand.polls:
            stand.polls.remove(poll)

    def left(self, poll: Poll) -> None:
        """Its worker went away. If it was the last that waited, only what they hold shows that
        there are others."""
        stand = self._stands.get(poll.holder.tenant_id, {}).get(poll.offer)
        if stand is not None and all(other is poll for other in stand.polls):
            stand.seen = -inf

    def know(
        self, tenant_id: int, offer: Offer, lines: Iterable[TaskGroup], now: float
    ) -> WorkerPool:
        """There is a worker that offers this."""
        stand = self._stands.setdefault(tenant_id, {}).get(offer)
        if stand is None:
            stand = self._stands[tenant_id][offer] = WorkerPool(tenant_id, offer)
            for line in lines:
                if offer.suits(line.queue, line.capability):
                    line.stands.append(stand)
                    line.review(now)
                    stand.line_up(line)
        stand.seen = now
        return stand

    def add_remote_node(
        self,
        node: UUID,
        tenant_id: int,
        offer: Offer,
        lines: Iterable[TaskGroup],
        now: float,
        ttl: float,
    ) -> None:
        """Such a worker waits at another node."""
        stand = self.know(tenant_id, offer, lines, now)
        stand.remote_nodes[node] = now + ttl
        stand.called.pop(node, None)
        self._dirty[stand] = None

    def sweep(self, now: float) -> list[WorkerPool]:
        """Forget kinds of workers of which none is there any more; answers which."""
        if now - self._swept < 1.0:
            return []
        self._swept = now
        every = [stand for stands in self._stands.values() for stand in stands.values()]
        asking = {poll.holder for stand in every for poll in stand.polls}
        for holder in self._asked.keys() - self._holding.keys() - asking:
            del self._asked[holder]
        busy = {stand for h, asked in self._asked.items() if h in self._holding for stand in asked}
        since = now - self._there_for
        gone = [s for s in every if s not in busy and not _was_heard_of(s, since, now)]
        for stand in gone:
            del self._stands[stand.tenant_id][stand.offer]
            if not self._stands[stand.tenant_id]:
                del self._stands[stand.tenant_id]
            self._dirty.pop(stand, None)
        return gone

    # Lines -----------------------------------------------------------------------------------

    def suiting(self, tenant_id: int, queue: str, capability: str) -> list[WorkerPool]:
        """The stands that can run tasks of a line."""
        stands = self._stands.get(tenant_id, {}).values()
        return [stand for stand in stands if stand.offer.suits(queue, capability)]

    def filled(self, line: TaskGroup) -> None:
        """There is another task in the line."""
        for stand in line.stands:
            stand.line_up(line)
            if stand.polls or stand.remote_nodes:
                self._dirty[stand] = None

    def reopened(self, tenant_id: int) -> None:
        """A limit of the tenant has room again: its lines may move."""
        for stand in self._stands.get(tenant_id, {}).values():
            if stand.ready and (stand.polls or stand.remote_nodes):
                self._dirty[stand] = None

    def forget_lines(self, tenant_id: int) -> None:
        for stand in self._stands.get(tenant_id, {}).values():
            stand.forget_lines()

    # Matching --------------------------------------------------------------------------------

    def dirty(self) -> Iterator[WorkerPool]:
        """The stands where something may match; each is given once."""
        while self._dirty:
            stand = next(iter(self._dirty))
            del self._dirty[stand]
            yield stand

    def again(self, stand: WorkerPool) -> None:
        self._dirty[stand] = None

    def next_poll(self, stand: WorkerPool, *, alone: bool) -> Poll | None:
        """Whose turn it is, each worker one task at a time; None when no slot is free."""
        for _ in range(len(stand.polls)):
            poll = stand.polls[0]
            if poll.free <= 0:
                stand.polls.popleft()
                continue
            stand.polls.rotate(-1)
            if self._may_take(poll, alone):
                return poll
        return None

    def holds_one(self, poll: Poll) -> bool:
        """Whether its worker holds a single task, as far as we know."""
        return poll.idle and not poll.shared and self._holding[poll.holder] == 1

    def took(self, taker: LeaseHolder) -> None:
        self._holding[taker.holder] += 1
        if taker.alone:
            self._alone.add(taker.holder)

    def gave_back(self, taker: LeaseHolder) -> None:
        self._holding[taker.holder] -= 1
        if not self._holding[taker.holder]:
            del self._holding[taker.holder]
        if taker.alone:
            self._alone.discard(taker.holder)
            self.reopened(taker.holder.tenant_id)

    def calls(self, stand: WorkerPool, waiting: int, now: float) -> Iterator[RemoteDemand]:
        """Whom to tell that tasks wait, if there are any and nobody here takes them."""
        for node, until in list(stand.remote_nodes.items()):
            if until <= now:
                del stand.remote_nodes[node]
                stand.called.pop(node, None)
            elif waiting and stand.called.get(node, 0.0) <= now:
                stand.called[node] = now + _CALL_AGAIN
                yield RemoteDemand(node, stand.tenant_id, stand.offer, waiting)

    def _may_take(self, poll: Poll, alone: bool) -> bool:
        if poll.holder in self._alone:
            return False
        return not alone or (poll.idle and not self._holding[poll.holder])


def _was_heard_of(stand: WorkerPool, since: float, now: float) -> bool:
    elsewhere = any(until > now for until in stand.remote_nodes.values())
    return bool(stand.polls) or elsewhere or stand.seen > since


def lease_holder_of(row: TaskRow) -> LeaseHolder | None:
    """Which worker holds a running task; None when it runs inside a node."""
    if row.worker is None or row.incarnation is None:
        return None
    holder = WorkerSession(row.tenant_id, row.worker, row.incarnation)
    return LeaseHolder(holder, need_of(row.capability).alone)
