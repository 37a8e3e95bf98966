"""A receiver that speaks HTTP/2 over TLS, and nothing else.

What it does depends on the path: /status/503 answers so and asks to wait, /endless sends more than
anybody reads, /never does not answer, and any other path is answered with 200.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    DataReceived,
    Event,
    RequestReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import ProtocolError

from support.receivers import Received, Receiver

_OK = b'{"ok":true}'
_PIECE = b"x" * 16_384


class _Conversation(asyncio.Protocol):
    """One connection, with as many streams as the other side likes."""

    def __init__(self, state: Receiver) -> None:
        self._state = state
        self._http = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        self._heads: dict[int, dict[str, str]] = {}
        self._bodies: dict[int, bytearray] = {}
        self._endless: set[int] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._state.connections += 1
        self._http.initiate_connection()
        self._flush()

    def data_received(self, data: bytes) -> None:
        try:
            for event in self._http.receive_data(data):
                self._handle(event)
        except ProtocolError:
            self._state.requests.append(Received("BROKEN", "", {}, b"", b""))
        self._flush()

    def _handle(self, event: Event) -> None:
        match event:
            case RequestReceived():
                assert event.stream_id is not None
                self._heads[event.stream_id] = dict(event.headers or ())  # type: ignore[arg-type]
                self._bodies[event.stream_id] = bytearray()
            case DataReceived():
                assert event.stream_id is not None
                self._bodies[event.stream_id] += event.data or b""
                self._http.acknowledge_received_data(
                    event.flow_controlled_length or 0, event.stream_id
                )
            case StreamEnded():
                assert event.stream_id is not None
                self._answer(event.stream_id)
            case WindowUpdated():
                for stream in list(self._endless):
                    self._pour(stream)
            case StreamReset():
                self._endless.discard(event.stream_id or 0)

    def _answer(self, stream: int) -> None:
        head, body = self._heads.pop(stream), bytes(self._bodies.pop(stream))
        path = head[":path"]
        plain = {name: value for name, value in head.items() if not name.startswith(":")}
        self._state.requests.append(Received(head[":method"], path, plain, body, b""))
        self._state.arrived.set()
        if path == "/never":
            return
        if path.startswith("/status/"):
            status = path.removeprefix("/status/")
            self._http.send_headers(stream, [(":status", status), ("retry-after", "7")], True)
        elif path == "/endless":
            self._http.send_headers(stream, [(":status", "200")])
            self._endless.add(stream)
            self._pour(stream)
        else:
            headers = [(":status", "200"), ("content-type", "application/json")]
            self._http.send_headers(stream, headers)
            self._http.send_data(stream, _OK, end_stream=True)

    def _pour(self, stream: int) -> None:
        while (room := self._http.local_flow_control_window(stream)) > 0:
            self._http.send_data(stream, _PIECE[: min(room, len(_PIECE))])

    def _flush(self) -> None:
        self._transport.write(self._http.data_to_send())


@asynccontextmanager
async def http2_receiver(tls: ssl.SSLContext) -> AsyncIterator[Receiver]:
    """A receiver that offers HTTP/2 alone."""
    tls.set_alpn_protocols(["h2"])
    state = Receiver()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Conversation(state), "127.0.0.1", 0, ssl=tls)
    state.port = server.sockets[0].getsockname()[1]
    async with server:
        yield state
