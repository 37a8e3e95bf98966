"""The lightest client that is still a client: keep-alive connections over prepared bytes.

A full HTTP client costs as much as the server that is being measured. This one finds the status and
the length of an answer, and nothing else.
"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import cast

from benchmarks.harness import API_KEY, percentile


@dataclass
class Totals:
    """What a run of requests came to."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    failures: int = 0
    last_failure: bytes = b""

    @property
    def rate(self) -> float:
        return len(self.latencies) / self.seconds

    def milliseconds(self, percent: float) -> float:
        return 1000 * percentile(self.latencies, percent)


def request(method: str, path: str, body: bytes = b"", kind: str = "application/json") -> bytes:
    """The bytes of one request."""
    lines = [f"{method} {path} HTTP/1.1", "Host: bench", f"Authorization: Bearer {API_KEY}"]
    if body:
        lines += [f"Content-Type: {kind}", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def hammer(
    ports: Sequence[int], requests: Sequence[bytes], *, connections: int, seconds: float
) -> Totals:
    """Keep every connection busy with one request at a time, each in turn; the ports share them."""
    tally = Totals()
    turn = cycle(requests)
    deadline = time.perf_counter() + seconds
    loop = asyncio.get_running_loop()
    clients = []
    for number in range(connections):
        _, client = await loop.create_connection(
            lambda: _Client(turn, deadline, tally), "127.0.0.1", ports[number % len(ports)]
        )
        clients.append(client)
    started = time.perf_counter()
    for client in clients:
        client.send()
    await asyncio.gather(*(client.done for client in clients))
    tally.seconds = time.perf_counter() - started
    return tally


class _Client(asyncio.Protocol):
    """One connection: sends, waits for the whole answer, notes how long it took, sends again."""

    def __init__(self, requests: Iterator[bytes], deadline: float, tally: Totals) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._requests = requests
        self._deadline = deadline
        self._tally = tally
        self._received = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def send(self) -> None:
        self._sent = time.perf_counter()
        if self._sent >= self._deadline:
            self._transport.close()
            return
        self._transport.write(next(self._requests))

    def data_received(self, data: bytes) -> None:
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            return
        at = self._received.find(b"content-length: ")
        length = int(self._received[at + 16 : self._received.find(b"\r", at)])
        if len(self._received) < end + 4 + length:
            return
        self._tally.latencies.append(time.perf_counter() - self._sent)
        if self._received[9:10] != b"2":
            self._tally.failures += 1
            self._tally.last_failure = bytes(self._received)
        self._received.clear()
        self.send()

    def connection_lost(self, _exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)
