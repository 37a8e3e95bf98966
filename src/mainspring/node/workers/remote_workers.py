"""Workers that ask at one node, tasks that wait at another: the nodes bring them together.

The node where a worker waits says so to the others. One that has tasks for it calls back, is
granted slots of that very worker, claims, and tells what it claimed; the worker's node reads the
tasks and answers. Slots are counted in one place only, at the worker's node: no worker gets more
than it asked for, and no task waits because its worker asks elsewhere.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple, Protocol
from uuid import UUID

import structlog

from mainspring import crash_points
from mainspring.engine.demand import Poll, RemoteDemand, WorkerSession
from mainspring.lifecycle import BackgroundTasks
from mainspring.node.state import NodeState
from mainspring.node.workers.mailbox import (
    ExecutionKey,
    GrantClaimed,
    GrantConfirmed,
    InterruptPolls,
    Kind,
    Mailbox,
    NodeMessage,
    SlotGrant,
    TasksWait,
    WorkerRestarted,
    WorkersKnown,
    WorkersWait,
)

log = structlog.get_logger()

_ANNOUNCE_EVERY = 1.0
_REMOTE_TTL = 3.0
_KNOWN_EVERY = 10
_OURS_FIRST = 0.005
_GRANT_TTL = 1.0
"""Seconds for which slots are kept for a node that was granted them."""


class LocalWorkers(Protocol):
    """What this asks of the lease service."""

    def polls(self) -> Iterable[Poll]: ...

    def kinds(self) -> Iterable[Kind]: ...

    async def claim_for(self, grant: SlotGrant) -> list[ExecutionKey]: ...

    async def claimed_elsewhere(
        self, poll: Poll, slots: int, tasks: Sequence[ExecutionKey]
    ) -> None: ...

    def replaced(self, current: WorkerSession) -> None: ...

    def interrupt_local_polls(self, holders: Collection[WorkerSession]) -> None: ...


class _Reserved(NamedTuple):
    poll: Poll
    slots: int
    node: UUID


@dataclass(eq=False)
class RemoteWorkers:
    """Claims for workers of other nodes, and lets other nodes claim for workers that wait here."""

    _state: NodeState
    _mailbox: Mailbox
    _lease_service: LocalWorkers
    _announced: dict[Kind, float] = field(default_factory=dict, init=False)
    _remote_demand: dict[Kind, dict[UUID, int]] = field(default_factory=dict, init=False)
    _reserved: dict[int, _Reserved] = field(default_factory=dict, init=False)
    _numbers: Iterator[int] = field(default_factory=lambda: count(1), init=False)
    _turn: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._background_tasks = BackgroundTasks(of="forward")
        self._mailbox.deliver_to(self._receive)

    # Where the worker waits ------------------------------------------------------------------

    def waits(self, poll: Poll) -> None:
        """Let nodes that have tasks claim for a worker that waits here."""
        if not self._mailbox.others:
            return
        kind = poll.kind
        if demand := self._remote_demand.get(kind):
            self._share(poll, demand)
        now = self._state.clock.now()
        if self._announced.get(kind, 0.0) + _ANNOUNCE_EVERY <= now:
            self._announced[kind] = now
            self._mailbox.tell_all(WorkersWait(self._state.node_id, [kind]))

    def call(self, calls: Iterable[RemoteDemand]) -> None:
        """Tell other nodes that tasks wait here for their workers."""
        for call in calls:
            kind = (call.tenant_id, call.offer)
            self._mailbox.send(call.node, TasksWait(self._state.node_id, kind, call.tasks))

    def began(self, holder: WorkerSession) -> None:
        self._mailbox.tell_all(WorkerRestarted(holder))

    def interrupt_polls(self, holders: Collection[WorkerSession]) -> None:
        if self._mailbox.others:
            self._mailbox.tell_all(InterruptPolls(list(holders)))

    def loops(self) -> dict[str, Callable[[], Coroutine[Any, Any, None]]]:
        return {"forwarding": self._keep_announcing, **self._mailbox.loops()}

    def _share(self, poll: Poll, demand: dict[UUID, int]) -> None:
        """Grant each node with tasks, and our own partitions, a part of the slots; where there are
        fewer slots than nodes, they take turns."""
        part = poll.free // (len(demand) + 1)
        if part:
            for node, tasks in demand.items():
                self._grant(poll, node, min(part, tasks))
            return
        self._turn = (self._turn + 1) % (len(demand) + 1)
        if self._turn:
            node = list(demand)[self._turn - 1]
            self._grant(poll, node, min(poll.free, demand[node]))
        else:
            # Ours go first, if there are any.
            asyncio.get_running_loop().call_later(_OURS_FIRST, self._offer_rest, poll)

    def _offer_rest(self, poll: Poll) -> None:
        for node, tasks in list(self._remote_demand.get(poll.kind, {}).items()):
            if poll.free > 0:
                self._grant(poll, node, min(poll.free, tasks))

    def _grant(self, poll: Poll, node: UUID, slots: int) -> None:
        number = next(self._numbers)
        shared = poll.shared or poll.in_flight > 0 or slots < poll.free
        poll.shared = True
        poll.free -= slots
        poll.in_flight += slots
        self._reserved[number] = _Reserved(poll, slots, node)
        self._mailbox.send(
            node,
            SlotGrant(
                self._state.node_id,
                number,
                poll.session,
                poll.offer,
                slots,
                poll.idle,
                poll.announces,
                shared,
            ),
        )
        asyncio.get_running_loop().call_later(_GRANT_TTL, self._close_grant, number, ())

    def _close_grant(self, number: int, tasks: Sequence[ExecutionKey]) -> bool:
        """Close a grant, once: the other node says what it claimed, or its time is over."""
        reserved = self._reserved.pop(number, None)
        if reserved is None:
            return False
        if len(tasks) < reserved.slots:
            demand = self._remote_demand.get(reserved.poll.kind, {})
            demand.pop(reserved.node, None)
            if not demand:
                self._remote_demand.pop(reserved.poll.kind, None)
        self._background_tasks.start(
            self._lease_service.claimed_elsewhere(reserved.poll, reserved.slots, tasks)
        )
        return True

    async def _keep_announcing(self) -> None:
        for turn in count():
            await asyncio.sleep(_ANNOUNCE_EVERY)
            self._forget_demand()
            if not self._mailbox.others:
                continue
            kinds = {poll.kind for poll in self._lease_service.polls() if poll.free > 0}
            now = self._state.clock.now()
            self._announced = dict.fromkeys(kinds, now)
            if kinds:
                self._mailbox.tell_all(WorkersWait(self._state.node_id, list(kinds)))
            if turn % _KNOWN_EVERY == 0 and (known := list(self._lease_service.kinds())):
                self._mailbox.tell_all(WorkersKnown(known))

    def _forget_demand(self) -> None:
        """Forget the demand of nodes that are gone, and for workers that are gone."""
        others = self._mailbox.others
        kinds = set(self._lease_service.kinds() if self._remote_demand else ())
        for kind, demand in list(self._remote_demand.items()):
            for node in demand.keys() - others:
                del demand[node]
            if not demand or kind not in kinds:
                del self._remote_demand[kind]

    # Messages ---------------------------------------------------------------------------------

    def _receive(self, message: NodeMessage) -> None:
        engine, now = self._state.engine, self._state.clock.now()
        match message:
            case WorkersWait(node=node, kinds=kinds):
                for tenant_id, offer in kinds:
                    engine.workers.add_remote_node(node, tenant_id, offer, now, _REMOTE_TTL)
                self._state.request_dispatch()
            case WorkersKnown(kinds=kinds):
                for tenant_id, offer in kinds:
                    engine.workers.touch(tenant_id, offer, now)
            case TasksWait(node=node, kind=kind, tasks=tasks):
                self._offer_slots(node, kind, tasks)
            case SlotGrant():
                self._background_tasks.start(self._claim(message))
            case GrantClaimed(node=node, number=number, tasks=tasks):
                if self._close_grant(number, tasks):
                    self._mailbox.send(node, GrantConfirmed(tasks))
                # Else it comes too late: nobody waits, and the leases run out unblamed.
            case GrantConfirmed(tasks=tasks):
                for task_id, fence in tasks:
                    engine.running.confirm(task_id, fence)
            case WorkerRestarted(holder=holder):
                self._lease_service.replaced(holder)
            case InterruptPolls(holders=holders):
                self._lease_service.interrupt_local_polls(holders)

    def _offer_slots(self, node: UUID, kind: Kind, tasks: int) -> None:
        self._remote_demand.setdefault(kind, {})[node] = tasks
        for poll in self._lease_service.polls():
            if tasks <= 0:
                break
            if poll.kind == kind and poll.free > 0:
                slots = min(tasks, poll.free)
                self._grant(poll, node, slots)
                tasks -= slots

    async def _claim(self, grant: SlotGrant) -> None:
        """Claim tasks that wait here for a worker of another node."""
        tasks = await self._lease_service.claim_for(grant)
        crash_points.reach("forward.claimed")
        engine, now = self._state.engine, self._state.clock.now()
        kind = (grant.holder.tenant_id, grant.offer)
        if len(tasks) < grant.slots and not engine.workers.has_tasks_for(*kind, now):
            # Its worker waits on: the next task is a reason to call, however soon it comes.
            engine.workers.add_remote_node(grant.node, *kind, now, _REMOTE_TTL)
        self._mailbox.send(grant.node, GrantClaimed(self._state.node_id, grant.number, tasks))
