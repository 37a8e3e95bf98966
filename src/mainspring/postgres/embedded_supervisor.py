"""Supervision of the private PostgreSQL from an event loop: start, restart, stop."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NoReturn, Protocol, TypeVar

import structlog

from mainspring.errors import ServerError

log = structlog.get_logger()
T = TypeVar("T")

_MOST_RESTARTS = 5
_WITHIN = 60.0
_LOOK_EVERY = 0.2


class PrivateServer(Protocol):
    """What is kept: its calls wait, and so are made in threads."""

    @property
    def pid(self) -> int | None: ...
    def start(self) -> str: ...
    def restart(self) -> None: ...
    def stop(self) -> None: ...
    def give_up(self) -> None: ...


class EmbeddedSupervisor:
    """Starts a private PostgreSQL, and starts it again should it end unasked."""

    def __init__(self, server: PrivateServer) -> None:
        self._server = server

    async def start(self) -> str:
        """Start it and return its URL; a cancel does not wait for a long recovery."""
        return await self._in_thread(self._server.start)

    async def keep(self, look_every: float = _LOOK_EVERY) -> NoReturn:
        """Start it again, under the same URL, whenever it ended: it may be killed when memory is
        short, or by an operator. Raises if it ends too often."""
        now = asyncio.get_running_loop().time
        restarts: deque[float] = deque(maxlen=_MOST_RESTARTS)
        while True:
            await asyncio.sleep(look_every)
            if self._server.pid is not None:
                continue
            if len(restarts) == _MOST_RESTARTS and now() - restarts[0] < _WITHIN:
                raise ServerError(
                    f"PostgreSQL ended {_MOST_RESTARTS + 1} times within {_WITHIN:g} s:"
                    " see server.log in the data directory"
                )
            restarts.append(now())
            log.warning("PostgreSQL ended: starting it again", action="database.restarting")
            await self._in_thread(self._server.restart)

    async def stop(self) -> None:
        await asyncio.to_thread(self._server.stop)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Run in a thread, which cannot be cancelled: it is told to give up, and waited for."""
        doing = asyncio.ensure_future(asyncio.to_thread(work))
        try:
            return await asyncio.shield(doing)
        except asyncio.CancelledError:
            self._server.give_up()
            await asyncio.gather(doing, return_exceptions=True)
            raise
