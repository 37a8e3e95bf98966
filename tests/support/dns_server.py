"""A DNS server for tests, whose answers may change with every question."""

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from ipaddress import ip_address
from typing import cast

Answers = Callable[[str, int], list[str]]
"""From a name and how often it was asked before to the addresses to answer."""

_A, _AAAA = 1, 28


class _DnsServer(asyncio.DatagramProtocol):
    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._asked: dict[tuple[str, int], int] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, sender: tuple[str, int]) -> None:
        name, end = _name(data, 12)
        (kind,) = struct.unpack("!H", data[end : end + 2])
        nth = self._asked.get((name, kind), 0)
        self._asked[name, kind] = nth + 1
        version = {_A: 4, _AAAA: 6}.get(kind)
        found = [ip_address(text) for text in self._answers(name, nth)]
        packed = [address.packed for address in found if address.version == version]
        head = data[:2] + struct.pack("!HHHHH", 0x8180, 1, len(packed), 0, 0)
        records = b"".join(
            struct.pack("!HHHIH", 0xC00C, kind, 1, 0, len(each)) + each for each in packed
        )
        self._transport.sendto(head + data[12 : end + 4] + records, sender)


@asynccontextmanager
async def dns_server(host: str, answers: Answers) -> AsyncIterator[None]:
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(
        lambda: _DnsServer(answers), local_addr=(host, 53)
    )
    try:
        yield
    finally:
        transport.close()


def _name(data: bytes, at: int) -> tuple[str, int]:
    labels = []
    while data[at]:
        labels.append(data[at + 1 : at + 1 + data[at]].decode())
        at += 1 + data[at]
    return ".".join(labels).lower(), at + 1
