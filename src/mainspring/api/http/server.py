"""The HTTP server: uvicorn, which listens and stops in the order of the process."""

import asyncio
import socket
from contextlib import AbstractContextManager, nullcontext
from typing import NoReturn, cast

import uvicorn

from mainspring.api.http.connection import HttpConfig, LimitedHttpProtocol
from mainspring.api.http.draining import refuse_connections
from mainspring.errors import ConfigError, ServerError

_BACKLOG = 2048
"""Maximum connections that wait to be accepted."""

_ACCEPTED_WITHIN = 0.1
"""Seconds in which connections that wait to be accepted are, when the server stops."""

_LOOK_EVERY = 0.05
_DRAINED_WITHIN = 5.0
"""Seconds that requests may take to be answered after that."""


class HttpServer(uvicorn.Server):
    """uvicorn without its handling of signals: the process stops in our order."""

    def __init__(self, config: HttpConfig) -> None:
        super().__init__(config)
        self._settings = config
        self._opened = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None

    async def open(self, listening: socket.socket) -> None:
        """Begin to serve the connections of this socket."""
        self._serving = asyncio.create_task(self.serve(sockets=[listening]))
        opened = asyncio.create_task(self._opened.wait())
        await asyncio.wait({self._serving, opened}, return_when=asyncio.FIRST_COMPLETED)
        opened.cancel()
        if self._serving.done():
            await self.ended()

    async def ended(self) -> NoReturn:
        """Wait for an end that was not asked for, and raise."""
        assert self._serving is not None, "the server has not been opened"
        await asyncio.wait({self._serving})
        problem = self._serving.exception()
        reason = f": {problem!r}" if problem else ""
        raise ServerError(f"the API is served no more{reason}") from problem

    def drain(self) -> None:
        """Keep serving, but end each connection with its next answer."""
        self._settings.draining.began = True

    async def close(self) -> None:
        """Let requests finish, and serve no more of them."""
        self.drain()
        self.should_exit = True
        if self._serving is not None:
            await asyncio.wait({self._serving})

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._opened.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop without resetting connections that are just opened or used, as uvicorn would."""
        self.drain()
        for listening in sockets or ():
            refuse_connections(listening)
        await asyncio.sleep(_ACCEPTED_WITHIN)
        for server in self.servers:
            server.close()
        for listening in sockets or ():
            listening.close()
        await self._drained()

    async def _drained(self) -> None:
        """Wait until all connections are closed and all requests are served, and close those that
        are left in the end."""
        connections = cast("set[LimitedHttpProtocol]", self.server_state.connections)
        tasks, time = self.server_state.tasks, asyncio.get_running_loop().time
        deadline = time() + _DRAINED_WITHIN
        while (connections or tasks) and time() < deadline:
            for connection in list(connections):
                connection.close_if_idle()
            await asyncio.sleep(_LOOK_EVERY)
        for connection in list(connections):
            connection.cut_off()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; raise ConfigError when there can be none."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        # Several may bind to a port at which nobody listens: one of them can listen.
        listening.listen(_BACKLOG)
    except OSError as problem:
        listening.close()
        raise ConfigError([f"cannot listen on {host} port {port}: {problem.strerror}"]) from problem
    listening.set_inheritable(False)
    return listening
