"""A proxy in front of PostgreSQL that loses answers: what a network does at the worst moment."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Self
from urllib.parse import parse_qs, quote, urlsplit

from mainspring.cli.serving import wait_for_first

_SOCKET = ".s.PGSQL.5432"
_UNTYPED = 4  # the first message of a connection has a length, but no type
_READY_FOR_QUERY = b"Z"


class LossyProxy:
    """Listens on a unix socket and forwards to the server's.

    Armed with a text, it lets the next statement that contains the text reach the server, waits
    until the server has answered (so the statement is committed), and drops the connection
    instead of passing the answer on.
    """

    def __init__(self, database_url: str, directory: Path) -> None:
        parts = urlsplit(database_url)
        self._server_socket = Path(parse_qs(parts.query)["host"][0], _SOCKET)
        self._socket = directory / _SOCKET
        self.url = parts._replace(query=f"host={quote(str(directory))}&port=5432").geturl()
        self._armed: str | None = None
        self._connections: dict[asyncio.Task[None], _Connection] = {}
        self.lost = 0

    def lose_answer_to(self, text: str) -> None:
        """Arm it, for one statement."""
        self._armed = text

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_unix_server(self._serve, self._socket)
        return self

    async def __aexit__(self, *_problem: object) -> None:
        self._listener.close()
        for connection in self._connections.values():
            connection.close()
        if self._connections:
            await asyncio.wait(self._connections)

    def claims(self, statement: str) -> bool:
        """Whether this statement is the one to be lost; it is disarmed then."""
        if self._armed is None or self._armed not in statement:
            return False
        self._armed = None
        return True

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        server_reader, server_writer = await asyncio.open_unix_connection(self._server_socket)
        connection = _Connection(self, reader, writer, server_reader, server_writer)
        self._connections[task] = connection
        await connection.run()
        connection.close()
        for writer_of_one_side in (writer, server_writer):
            with suppress(OSError):
                await writer_of_one_side.wait_closed()
        del self._connections[task]


class _Connection:
    """One client's connection: it knows which prepared statement stands for which text."""

    def __init__(
        self,
        proxy: LossyProxy,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        server_reader: asyncio.StreamReader,
        server_writer: asyncio.StreamWriter,
    ) -> None:
        self._proxy = proxy
        self._reader, self._writer = reader, writer
        self._server_reader, self._server_writer = server_reader, server_writer
        self._statements: dict[bytes, str] = {}
        self._losing = False

    def close(self) -> None:
        self._writer.close()
        self._server_writer.close()

    async def run(self) -> None:
        """Pass messages both ways until one side ends or an answer is lost."""
        ways = [asyncio.create_task(self._forward()), asyncio.create_task(self._answer())]
        await wait_for_first(*ways)

    async def _forward(self) -> None:
        header = await self._reader.readexactly(_UNTYPED)
        while True:
            body = await self._reader.readexactly(int.from_bytes(header[-4:]) - 4)
            self._look_at(header[:-4], body)
            self._server_writer.write(header + body)
            await self._server_writer.drain()
            header = await self._reader.readexactly(5)

    def _look_at(self, kind: bytes, body: bytes) -> None:
        if kind == b"P":  # Parse: a name for a text
            name, text, _rest = body.split(b"\0", 2)
            self._statements[name] = text.decode(errors="replace")
        elif kind == b"B":  # Bind: the text of that name is about to run
            _portal, name, _rest = body.split(b"\0", 2)
            self._losing = self._losing or self._proxy.claims(self._statements.get(name, ""))

    async def _answer(self) -> None:
        while True:
            header = await self._server_reader.readexactly(5)
            body = await self._server_reader.readexactly(int.from_bytes(header[1:]) - 4)
            if not self._losing:
                self._writer.write(header + body)
                await self._writer.drain()
            elif header[:1] == _READY_FOR_QUERY:
                self._proxy.lost += 1
                return
