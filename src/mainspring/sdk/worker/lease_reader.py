"""A thread with an event loop of its own, on which lease requests are sent and their answers read.

No handler runs here, so none can hold up an answer: what it brings is known, and its leases are
kept, while a handler blocks the worker's own event loop.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_STOP_WITHIN = 5.0


class LeaseReader(threading.Thread):
    """Runs coroutines for the worker's event loop. `start` it before anything is asked."""

    def __init__(self, new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        super().__init__(name="mainspring-leases", daemon=True)
        self._new_loop = new_loop
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        self._loop = self._new_loop()
        super().start()

    def run(self) -> None:
        assert self._loop is not None
        self._loop.run_forever()

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it on this thread's loop and wait for it; cancelling here cancels it there."""
        assert self._loop is not None, "it has not been started"
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def barrier(self) -> None:
        """Wait until all that was cancelled before is over, and what it handed over is on its
        way."""
        for _ in range(2):
            await self.call(asyncio.sleep(0))

    def stop(self) -> None:
        if self._loop is None:
            return
        if self.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self.join(_STOP_WITHIN)
        if not self.is_alive():
            self._loop.close()
