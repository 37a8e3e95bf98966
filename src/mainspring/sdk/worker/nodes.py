"""The server's nodes as a worker knows them: which there are, and requests to one or to any."""

import socket
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, replace
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

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
from mainspring.sdk.http1 import Origin, Request, encode_request
from mainspring.sdk.transport import AsyncTransport, BlockingTransport, Transport
from mainspring.sdk.worker.protocol import NODES, for_older_node
from mainspring.wire.workers import NodeAddressList, NodeAddressOut

T = TypeVar("T")

_AVOID_FOR = 30.0
"""Seconds for which a node is left out that did not answer, or that stops."""
_TIMEOUT = 5.0
_OLDER_FOR = 60.0
"""Seconds for which a node counts as older after it refused what older ones do not know."""
_NOWHERE = frozenset({"0.0.0.0", "::"})
_HERE = frozenset({"127.0.0.1", "::1", "localhost"})


@dataclass(frozen=True, slots=True)
class Stream:
    """A connection to a node, and how requests are written to it."""

    connection: socket.socket
    origin: Origin
    headers: dict[str, str]
    older: bool = False
    """Whether its node refuses new fields."""

    def encode(self, path: str, body: object) -> bytes:
        if self.older:
            body = for_older_node(body) or body
        request = Request("POST", path, self.headers, msgspec.json.encode(body))
        return encode_request(self.origin, request)


class Nodes:
    """The nodes a worker knows: its configured address, and those the server lists. The event loop
    and the heartbeat thread have connections of their own."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._learned: tuple[str, ...] = ()
        self._avoided: dict[str, float] = {}
        self._headers = {
            "Authorization": f"Bearer {address.api_key}",
            "Content-Type": "application/json",
            "User-Agent": "mainspring-worker",
        }
        self._transports: dict[tuple[str, bool], Transport] = {}
        self._older: dict[str, float] = {}
        """Nodes that refused what older versions do not know, and until when that holds."""

    def apart(self) -> "Nodes":
        """Return the same nodes with connections of their own: for another event loop."""
        other = copy(self)
        other._transports = {}
        return other

    @property
    def urls(self) -> tuple[str, ...]:
        """URLs to lease from: those of the known nodes that answer; unless these are all, also the
        configured address, whose node gets the tasks of all."""
        now = monotonic()
        reached = tuple(url for url in self._learned if self._avoided.get(url, 0.0) <= now)
        if reached and len(reached) == len(self._learned):
            return reached
        return tuple(dict.fromkeys([*reached, self._address.url]))

    async def refresh(self) -> None:
        """Ask for the list of nodes. One without a usable URL is served by the others."""
        request = Request("GET", NODES, self._headers)
        for url in self._in_order():
            try:
                response = await self._transport(url, False).send(request, _TIMEOUT)
                found = read(response, NodeAddressList)
            except MainspringError:
                continue
            self._take(node for node in found.nodes if node.partitions)
            return

    def _take(self, nodes: Iterable[NodeAddressOut]) -> None:
        urls = [None if node.url is None else node.url.rstrip("/") for node in nodes]
        self._learned = tuple(sorted(url for url in urls if url and self._may_call(url)))
        if len(self._learned) < len(urls):
            self._learned = tuple(dict.fromkeys([*self._learned, self._address.url]))

    def _may_call(self, url: str) -> bool:
        """Whether the key may be sent there: not to another scheme, nor to the node's localhost."""
        there, given = urlsplit(url), urlsplit(self._address.url)
        if there.scheme != given.scheme or there.hostname in _NOWHERE:
            return False
        return there.hostname not in _HERE or given.hostname in _HERE

    async def ask(
        self, url: str, path: str, body: object, answer: type[T], *, within: float, blocking: bool
    ) -> T:
        """Send a request to one node; if that refuses new fields, without them."""
        older = for_older_node(body)
        if older is not None and not self._is_older(url):
            try:
                return await self._ask(url, path, body, answer, within=within, blocking=blocking)
            except (MalformedRequest, InvalidRequest):
                self._older[url] = monotonic() + _OLDER_FOR
        sent = body if older is None else older
        return await self._ask(url, path, sent, answer, within=within, blocking=blocking)

    async def _ask(
        self, url: str, path: str, body: object, answer: type[T], *, within: float, blocking: bool
    ) -> T:
        request = Request("POST", path, self._headers, msgspec.json.encode(body))
        try:
            response = await self._transport(url, blocking).send(request, within)
        except Unreachable:
            self._avoided[url] = monotonic() + _AVOID_FOR
            raise
        self._avoided.pop(url, None)
        try:
            return read(response, answer)
        except Unavailable as problem:
            if problem.reason == NotReady.code:
                self._avoided[url] = monotonic() + _AVOID_FOR
            raise

    async def ask_any(
        self, path: str, body: object, answer: type[T], *, within: float, blocking: bool
    ) -> T:
        """Send a request to the nodes, one after the other, until one answers. `within` is for all
        of them: a silent one leaves half of what is left to the others."""
        deadline = monotonic() + within
        failure: CallFailed = Unreachable("no node was asked")
        for url in self._in_order():
            left = deadline - monotonic()
            if left <= 0.01:
                break
            try:
                return await self.ask(url, path, body, answer, within=left / 2, blocking=blocking)
            except CallFailed as problem:
                failure = problem
        raise failure

    def stream(self, within: float) -> Stream:
        """Open a connection to a node that answers, for writing to it directly. It blocks."""
        url = self._in_order()[0]
        transport, older = self._transport(url, True), self._is_older(url)
        assert isinstance(transport, BlockingTransport)
        return Stream(transport.connect(within), transport.origin, self._headers, older)

    def _is_older(self, url: str) -> bool:
        return self._older.get(url, 0.0) > monotonic()

    async def close(self) -> None:
        for transport in self._transports.values():
            await transport.close()

    def _in_order(self) -> list[str]:
        known = dict.fromkeys([*self.urls, self._address.url])
        return sorted(known, key=lambda url: self._avoided.get(url, 0.0))

    def _transport(self, url: str, blocking: bool) -> Transport:
        if (url, blocking) not in self._transports:
            kind = BlockingTransport if blocking else AsyncTransport
            self._transports[url, blocking] = kind(replace(self._address, url=url))
        return self._transports[url, blocking]
