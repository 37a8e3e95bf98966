"""What a worker and the server say to each other, and how a worker finds the server's nodes."""

import socket
from collections import deque
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit
from uuid import UUID

import msgspec
from msgspec import Raw, Struct

from mainspring.clock import monotonic
from mainspring.errors import (
    CallFailed,
    InvalidRequest,
    MainspringError,
    MalformedRequest,
    NotReady,
    Unavailable,
    Unreachable,
)
from mainspring.sdk.calling import read
from mainspring.sdk.environment import Address
from mainspring.sdk.http1 import Request
from mainspring.sdk.results import TaskTarget
from mainspring.sdk.transport import AsyncTransport, BlockingTransport, Transport

T = TypeVar("T")

NODES = "/v1/workers/nodes"
HEARTBEAT = "/v1/leases/heartbeat"

_SHUNNED = 30.0
"""Seconds for which a node is left out that did not answer, or said that it stops."""
_PATIENCE = 5.0
_OLDER_FOR = 60.0
"""Seconds for which a node counts as older that refused what older ones do not know."""
_NOWHERE = frozenset({"0.0.0.0", "::"})
_HERE = frozenset({"127.0.0.1", "::1", "localhost"})


class About(Struct, omit_defaults=True):
    """Who a worker is, for the people who look at the registry."""

    host: str
    pid: int
    slots: int
    versions: dict[str, str] = {}
    cpu_percent: float | None = None
    memory_bytes: float | None = None
    statistics: dict[str, float] = {}


class Held(Struct):
    """A try that the worker holds."""

    id: UUID
    fence: int


class Resources(Struct, omit_defaults=True):
    """What the worker has for tasks that ask for it."""

    memory_mb: int | None = None
    cpu: float | None = None


class LeaseIn(Struct, omit_defaults=True):
    """Ask for tasks."""

    worker: str
    incarnation: str
    queues: list[str]
    handlers: list[str]
    commands: bool
    tags: list[str]
    max: int
    wait: float
    running: list[Held] | None = None
    resources: Resources | None = None
    about: About | None = None
    announces_starts: bool = False

    @property
    def is_newer(self) -> bool:
        """Whether it says something that older nodes refuse."""
        return self.announces_starts

    def as_before(self) -> "LeaseIn":
        """The same for a node that does not know the latest fields."""
        return msgspec.structs.replace(self, announces_starts=False)


class Leased(Struct):
    """A task to run."""

    id: UUID
    fence: int
    attempt: int
    lease_until: datetime
    target: TaskTarget
    payload: Raw
    timeout: float
    context: dict[str, Any] = {}

    @property
    def alone(self) -> bool:
        """Whether it was lost together with its workers: nothing else may run beside it."""
        return self.context.get("alone") is True

    @property
    def suspect(self) -> bool:
        """Whether a lease of it ended unreported: that it begins is said before it does."""
        return self.context.get("suspect") is True

    @property
    def picked(self) -> float:
        """When the server leased it, by the server's clock."""
        deadline = self.context.get("deadline")
        if deadline is None:
            return self.lease_until.timestamp()
        return datetime.fromisoformat(deadline).timestamp() - self.timeout


class LeaseOut(Struct):
    """What there is to run."""

    tasks: list[Leased]
    wait: float | None = None
    """How long the node waits at the most, where it was asked to wait longer."""


class NodeAddress(Struct):
    """A node, and how much of the work is its own."""

    url: str | None = None
    partitions: int = 0


class NodeList(Struct):
    nodes: list[NodeAddress]


class ServerClock:
    """The server's clock as a worker knows it, on its own monotonic clock.

    Each lease tells when it began. The least delayed of the latest answers counts: then an answer
    that lay unread while the machine was stopped is known to be old, and its lease with it.
    """

    def __init__(self) -> None:
        self._offsets: deque[float] = deque(maxlen=64)
        self._offset: float | None = None
        self._converted: tuple[datetime | None, float] = (None, 0.0)
        self.lease = 15.0
        """How long leases are."""

    @property
    def margin(self) -> float:
        """So long before the end of its lease a try is ended that nobody could extend."""
        return min(2.0, self.lease / 5)

    def sample(self, leased: Leased) -> None:
        picked = leased.picked
        self._offsets.append(picked - monotonic())
        self._offset = max(self._offsets)
        length = leased.lease_until.timestamp() - picked
        if length > 0:
            self.lease = length

    def local(self, moment: datetime | None) -> float:
        """A moment of the server's on the monotonic clock; never more than a lease from now."""
        latest = monotonic() + self.lease
        if moment is None or self._offset is None:
            return latest
        if moment != self._converted[0]:  # what is leased together ends together
            self._converted = (moment, moment.timestamp())
        return min(self._converted[1] - self._offset, latest)


class Beat(Struct, omit_defaults=True):
    """A try that is held, and whether it has begun, with nothing else beside it."""

    id: UUID
    fence: int
    progress: Any = None
    started: bool = True
    alone: bool = False


class HeartbeatIn(Struct):
    """Keep these leases."""

    worker: str
    incarnation: str
    running: list[Beat]

    @property
    def is_newer(self) -> bool:
        """Whether it says something that older nodes refuse."""
        return any(beat.alone or not beat.started for beat in self.running)

    def as_before(self) -> "HeartbeatIn":
        """The same for a node that does not know the latest fields. To it whatever is named has
        begun, so what has not is left out."""
        begun = [Beat(beat.id, beat.fence, beat.progress) for beat in self.running if beat.started]
        return HeartbeatIn(self.worker, self.incarnation, begun)


class Kept(Struct):
    """What became of a lease."""

    id: UUID
    action: Literal["continue", "cancel", "lost"]
    lease_until: datetime | None = None


class HeartbeatOut(Struct):
    tasks: list[Kept]


class ErrorOut(Struct):
    code: str
    message: str


class OutcomeOut(Struct, omit_defaults=True):
    """How a try ended."""

    id: UUID
    fence: int
    status: Literal["succeeded", "failed", "released"]
    started_at: datetime
    finished_at: datetime
    result: Raw | None = None
    error: ErrorOut | None = None
    retryable: bool = True
    retry_after: float | None = None


class ReportIn(Struct):
    outcomes: list[OutcomeOut]


class Heard(Struct):
    id: UUID
    status: Literal["accepted", "fenced", "unknown"]


class ReportOut(Struct):
    outcomes: list[Heard]


class LineOut(Struct):
    """A line for a task's log."""

    id: UUID
    fence: int
    at: datetime
    level: str
    message: str


class LogsIn(Struct):
    lines: list[LineOut]


@dataclass(frozen=True, slots=True)
class Stream:
    """A connection to a node, and how requests are written to it."""

    connection: socket.socket
    way: BlockingTransport
    headers: dict[str, str]

    def encode(self, path: str, body: object) -> bytes:
        return self.way.encode(Request("POST", path, self.headers, msgspec.json.encode(body)))


class Nodes:
    """The nodes a worker knows: the address it was given, and those it was told of.

    Each face has connections of its own: one for the event loop, one for the heart's thread.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._learned: tuple[str, ...] = ()
        self._shunned: dict[str, float] = {}
        self._headers = {
            "Authorization": f"Bearer {address.api_key}",
            "Content-Type": "application/json",
            "User-Agent": "mainspring-worker",
        }
        self._ways: dict[tuple[str, bool], Transport] = {}
        self._older: dict[str, float] = {}
        """Nodes that refused what older versions do not know, and until when we believe it."""

    def apart(self) -> "Nodes":
        """The same nodes over connections of their own: for another event loop."""
        other = copy(self)
        other._ways = {}
        return other

    @property
    def urls(self) -> tuple[str, ...]:
        """Where to lease: at the nodes themselves where they are known and can be reached; else, or
        for the others, at the given address, whose node gets the tasks of all."""
        reached = tuple(url for url in self._learned if not self.shunned(url))
        if reached and len(reached) == len(self._learned):
            return reached
        return tuple(dict.fromkeys([*reached, self._address.url]))

    async def compile_fast_path(self) -> None:
        """Ask who is there. A node that cannot be named from here is served by the others."""
        request = Request("GET", NODES, self._headers)
        for url in self._in_order():
            try:
                response = await self._way(url, False).send(request, _PATIENCE)
                found = read(response, NodeList)
            except MainspringError:
                continue
            self._take(node for node in found.nodes if node.partitions)
            return

    def _take(self, nodes: Iterable[NodeAddress]) -> None:
        urls = [None if node.url is None else node.url.rstrip("/") for node in nodes]
        self._learned = tuple(sorted(url for url in urls if url and self._may_call(url)))
        if len(self._learned) < len(urls):
            self._learned = tuple(dict.fromkeys([*self._learned, self._address.url]))

    def _may_call(self, url: str) -> bool:
        """A key never goes over a weaker wire than it was given for; and a node that says it is at
        `localhost` means its own machine."""
        there, given = urlsplit(url), urlsplit(self._address.url)
        if there.scheme != given.scheme or there.hostname in _NOWHERE:
            return False
        return there.hostname not in _HERE or given.hostname in _HERE

    async def ask(
        self, url: str, path: str, body: object, answer: type[T], *, within: float, blocking: bool
    ) -> T:
        """One request to one node. One of an older version, which refuses what it does not know, is
        asked as its version has it."""
        if not (isinstance(body, LeaseIn | HeartbeatIn) and body.is_newer):
            return await self._ask(url, path, body, answer, within=within, blocking=blocking)
        if self._older.get(url, 0.0) <= monotonic():
            try:
                return await self._ask(url, path, body, answer, within=within, blocking=blocking)
            except (MalformedRequest, InvalidRequest):
                self._older[url] = monotonic() + _OLDER_FOR
        before = body.as_before()
        return await self._ask(url, path, before, answer, within=within, blocking=blocking)

    async def _ask(
        self, url: str, path: str, body: object, answer: type[T], *, within: float, blocking: bool
    ) -> T:
        request = Request("POST", path, self._headers, msgspec.json.encode(body))
        try:
            response = await self._way(url, blocking).send(request, within)
        except Unreachable:
            self._shunned[url] = monotonic() + _SHUNNED
            raise
        self._shunned.pop(url, None)
        try:
            return read(response, answer)
        except Unavailable as problem:
            if problem.reason == NotReady.code:
                self._shunned[url] = monotonic() + _SHUNNED
            raise

    async def ask_any(
        self, path: str, body: object, answer: type[T], *, within: float, blocking: bool
    ) -> T:
        """One request to whichever node answers, within a time for all of them together. Each is
        asked once at most, and a silent one leaves half of the time to the others."""
        deadline = monotonic() + within
        lost: CallFailed = Unreachable("no node was asked")
        for url in self._in_order():
            left = deadline - monotonic()
            if left <= 0.01:
                break
            try:
                return await self.ask(url, path, body, answer, within=left / 2, blocking=blocking)
            except CallFailed as problem:
                lost = problem
        raise lost

    def stream(self, within: float) -> Stream:
        """A connection to a node that answers, for who writes to it by itself. It blocks."""
        way = self._way(self._in_order()[0], True)
        assert isinstance(way, BlockingTransport)
        return Stream(way.connect(within), way, self._headers)

    def shunned(self, url: str) -> bool:
        return self._shunned.get(url, 0.0) > monotonic()

    async def close(self) -> None:
        for way in self._ways.values():
            await way.close()

    def _in_order(self) -> list[str]:
        known = dict.fromkeys([*self.urls, self._address.url])
        return sorted(known, key=lambda url: self._shunned.get(url, 0.0))

    def _way(self, url: str, blocking: bool) -> Transport:
        way = self._ways.get((url, blocking))
        if way is None:
            kind = BlockingTransport if blocking else AsyncTransport
            way = self._ways[url, blocking] = kind(replace(self._address, url=url))
        return way
