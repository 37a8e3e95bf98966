"""Messages between nodes about workers: who waits where, and who may claim for whom.

All of them may get lost; then a task waits for the next one, or a lease ends unused. They travel by
way of the database, which every node can reach, and are looked for now and then where no hint to
look arrives.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

import msgspec
import structlog
from msgspec import Struct

from mainspring.domain.capability import Offer
from mainspring.engine.demand import WorkerSession
from mainspring.node.retrying import repeat, wait_at_most
from mainspring.node.state import NodeState
from mainspring.store.cluster import MessageStore

log = structlog.get_logger()

Kind = tuple[int, Offer]
"""Workers of a tenant that offer the same."""
ExecutionKey = tuple[UUID, int]
"""A task and its fence."""


class WorkersWait(Struct, tag=True):
    """Workers of these kinds wait at a node for tasks."""

    node: UUID
    kinds: list[Kind]


class WorkersKnown(Struct, tag=True):
    """Workers of these kinds are there, waiting or not."""

    kinds: list[Kind]


class TasksWait(Struct, tag=True):
    """Tasks that wait at a node for workers of a kind."""

    node: UUID
    kind: Kind
    tasks: int


class SlotGrant(Struct, tag=True):
    """Slots of a worker for which a node may claim tasks."""

    node: UUID
    number: int
    holder: WorkerSession
    offer: Offer
    slots: int
    idle: bool
    announces: bool = False
    shared: bool = True


class GrantClaimed(Struct, tag=True):
    """What was claimed for a grant."""

    node: UUID
    number: int
    tasks: list[ExecutionKey]


class GrantConfirmed(Struct, tag=True):
    """Tasks that have reached the node of their worker."""

    tasks: list[ExecutionKey]


class WorkerRestarted(Struct, tag=True):
    """The start of a worker's process: the ones before it under its name are gone."""

    holder: WorkerSession


class InterruptPolls(Struct, tag=True):
    """Executions of these workers were cancelled, or lost by their silence: let them ask."""

    holders: list[WorkerSession]


NodeMessage = (
    WorkersWait
    | WorkersKnown
    | TasksWait
    | SlotGrant
    | GrantClaimed
    | GrantConfirmed
    | WorkerRestarted
    | InterruptPolls
)

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(NodeMessage).decode


class Mailbox:
    """Sends messages, several at a time, and delivers those that came."""

    def __init__(self, state: NodeState, messages: MessageStore, look_every: float) -> None:
        self._state = state
        self._messages = messages
        self._look_every = look_every
        self._out: list[tuple[UUID, bytes]] = []
        self._filled = asyncio.Event()
        self._arrived = asyncio.Event()
        self._deliver: Callable[[NodeMessage], None] = lambda _message: None

    def deliver_to(self, deliver: Callable[[NodeMessage], None]) -> None:
        self._deliver = deliver

    @property
    def others(self) -> set[UUID]:
        """The nodes, beside this one, that own partitions."""
        owners = {owner for owner in self._state.owners.values() if owner is not None}
        return owners - {self._state.node_id}

    def send(self, node: UUID, message: NodeMessage) -> None:
        self._out.append((node, _encode(message)))
        self._filled.set()

    def tell_all(self, message: NodeMessage) -> None:
        for node in self.others:
            self.send(node, message)

    def hint(self) -> None:
        """Look for messages now."""
        self._arrived.set()

    def loops(self) -> dict[str, Callable[[], Coroutine[Any, Any, None]]]:
        return {"mailbox.send": self._keep_sending, "mailbox.collect": self._keep_collecting}

    async def _keep_sending(self) -> None:
        message = "messages were not sent"
        await repeat(self._send_some, self._state.metrics, message, action="mailbox.unsent")

    async def _send_some(self) -> None:
        await self._filled.wait()
        self._filled.clear()
        messages, self._out = self._out, []
        await self._messages.post(messages)

    async def _keep_collecting(self) -> None:
        message = "messages were not collected"
        await repeat(self._collect, self._state.metrics, message, action="mailbox.uncollected")

    async def _collect(self) -> None:
        if not await wait_at_most(self._arrived, self._look_every) and not self.others:
            return  # alone: nobody writes
        self._arrived.clear()
        for body in await self._messages.collect(self._state.node_id):
            self._open(body)

    def _open(self, body: bytes) -> None:
        try:
            message = _decode(body)
        except msgspec.MsgspecError as problem:
            # A newer version writes what we cannot read; what lies beside it we can.
            log.warning(
                "a message cannot be read", action="mailbox.unreadable", problem=str(problem)
            )
            return
        self._deliver(message)
