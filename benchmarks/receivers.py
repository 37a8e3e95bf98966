"""A fast receiver for benches: a process of its own that answers at once, late, or never.

    python -m benchmarks.receivers PORT [DELAY]

It reads just enough of HTTP to know where a request ends. A negative delay means never.
"""

import asyncio
import sys
from typing import cast

import uvloop

_ANSWER = (
    b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 11\r\n\r\n{"ok":true}'
)


class _Receiver(asyncio.Protocol):
    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        count = 0
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end].lower()
            at = head.find(b"content-length:")
            size = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self._buffer) < end + 4 + size:
                break
            self._buffer = self._buffer[end + 4 + size :]
            count += 1
        if count and self._delay == 0:
            self._transport.write(_ANSWER * count)
        elif count and self._delay > 0:
            asyncio.get_running_loop().call_later(self._delay, self._transport.write, _ANSWER)


async def _serve(port: int, delay: float) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Receiver(delay), "0.0.0.0", port, backlog=16384)
    await server.serve_forever()


if __name__ == "__main__":
    # A negative delay means: never.
    uvloop.run(_serve(int(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 0.0))
