"""Starting, stopping and supervising the long-running parts of a process."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

import structlog

log = structlog.get_logger()


class Supervisor:
    """Keeps background loops running: one that crashes is logged and started again.

    A loop is an async function that runs until it is cancelled. Restarts back off, so that a loop
    which cannot work does not spin.
    """

    _FIRST_DELAY = 0.1
    _LONGEST_DELAY = 5.0

    def __init__(self) -> None:
        self._loops: dict[str, asyncio.Task[None]] = {}

    def start(self, name: str, loop: Callable[[], Awaitable[None]]) -> None:
        self._loops[name] = asyncio.create_task(self._keep_running(name, loop), name=name)

    async def stop(self, *names: str) -> None:
        """Cancel these loops (all, if none are named) and wait until they are gone."""
        chosen = [
            self._loops.pop(name) for name in names or tuple(self._loops) if name in self._loops
        ]
        for task in chosen:
            task.cancel()
        await asyncio.gather(*chosen, return_exceptions=True)

    async def _keep_running(self, name: str, loop: Callable[[], Awaitable[None]]) -> None:
        delay = self._FIRST_DELAY
        while True:
            began = asyncio.get_running_loop().time()
            try:
                await loop()
                return
            except Exception:
                # Even if logging fails, the loop is started again.
                with suppress(Exception):
                    log.exception("a background loop crashed", action="loop.crashed", loop=name)
            if asyncio.get_running_loop().time() - began > self._LONGEST_DELAY:
                delay = self._FIRST_DELAY
            await asyncio.sleep(delay)
            delay = min(2 * delay, self._LONGEST_DELAY)


class BackgroundTasks:
    """Background tasks that nobody waits for; a failure is logged."""

    def __init__(self, of: str) -> None:
        self._of = of
        self._under_way: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._under_way.add(task)  # else it could be collected as garbage before its end
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            log.error("a background task failed", action=f"{self._of}.failed", exc_info=problem)
