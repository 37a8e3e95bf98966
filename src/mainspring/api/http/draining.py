"""Draining: each client with a connection gets an answer before it is closed.

While a node drains, each answer says `Connection: close`. Connections that the kernel has accepted
for us are served, too; and one that is idle is closed only after a moment in which no request came,
because a client may have sent one before it could know.
"""

import asyncio
import ctypes
import socket
import struct
import sys
from contextlib import suppress
from dataclasses import dataclass
from fcntl import ioctl
from termios import FIONREAD

IDLE_FOR = 1.0
"""Seconds without a request after which a connection counts as idle."""

_SO_ATTACH_FILTER = 26
# Of packets for the listening socket, drop those with SYN and without ACK (byte 13 of the header).
_NO_NEW_CONNECTIONS = (
    (0x30, 0, 0, 13),  # load the flags
    (0x54, 0, 0, 0x12),  # keep SYN and ACK of them
    (0x15, 0, 1, 0x02),  # SYN alone?
    (0x06, 0, 0, 0),  # then drop the packet
    (0x06, 0, 0, 0xFFFF_FFFF),  # else keep all of it
)


@dataclass(slots=True)
class Draining:
    """Whether a server ends its connections, each with its next answer."""

    began: bool = False


def refuse_connections(listening: socket.socket) -> None:
    """Refuse new connections, but not those that wait to be accepted: closing the socket would
    reset them. Only on Linux; elsewhere connections can still be opened."""
    if sys.platform != "linux":
        return
    program = b"".join(struct.pack("HBBI", *step) for step in _NO_NEW_CONNECTIONS)
    kept = ctypes.create_string_buffer(program)
    address = struct.pack("HP", len(_NO_NEW_CONNECTIONS), ctypes.addressof(kept))
    with suppress(OSError):
        listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, address)


def has_unread(transport: asyncio.BaseTransport) -> bool:
    """Whether the kernel holds bytes of the client that nobody has read."""
    found = transport.get_extra_info("socket")
    if found is None or found.fileno() < 0:
        return False
    (count,) = struct.unpack("i", ioctl(found.fileno(), FIONREAD, bytes(4)))
    return bool(count > 0)
