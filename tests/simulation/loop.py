"""A process of the simulation: an asyncio event loop in virtual time.

Each node has one of its own, so it can be stopped for a while, or killed, like a real process,
while the rest of the world goes on.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from heapq import heappop, heappush
from typing import Any, TypeVarTuple

_Ts = TypeVarTuple("_Ts")


class Process(asyncio.AbstractEventLoop):
    """As much of an event loop as the drivers use. The world calls `turn` when its time comes."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._sequence = 0
        self.stopped_until = 0.0
        self.dead = False
        self.problem: BaseException | None = None

    # What the world asks ---------------------------------------------------------------------

    def next_turn(self) -> float:
        """When this process has something to do."""
        while self._timers and self._timers[0][2].cancelled():
            heappop(self._timers)
        if self.dead:
            return float("inf")
        if self._ready:
            return max(self.time(), self.stopped_until)
        if self._timers:
            return max(self._timers[0][0], self.stopped_until)
        return float("inf")

    def turn(self) -> None:
        """Run what is ready, once around."""
        while self._timers and self._timers[0][0] <= self.time():
            self._ready.append(heappop(self._timers)[2])
        asyncio._set_running_loop(self)
        try:
            for _ in range(len(self._ready)):
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()
        finally:
            asyncio._set_running_loop(None)
        if self.problem is not None:
            raise self.problem

    def spawn(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Let this process do something, as if a request had come in."""
        asyncio._set_running_loop(self)
        try:
            self.create_task(self._watch(work))
        finally:
            asyncio._set_running_loop(None)

    async def _watch(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await work()
        except Exception as problem:
            self.problem = problem

    def kill(self) -> None:
        """Its memory is gone. What it still sends is nobody's: its link must be cut before."""
        self.dead = True
        for _ in range(50):
            pending = asyncio.all_tasks(self)
            if not pending:
                break
            for task in pending:
                task.cancel()
            self.turn()
        self._ready.clear()
        self._timers.clear()

    # What asyncio asks -----------------------------------------------------------------------

    def time(self) -> float:
        return self._clock()

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Any, *, name: str | None = None, context: Context | None = None
    ) -> "asyncio.Task[Any]":
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def call_soon(
        self, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[[*_Ts], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*_Ts], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._sequence += 1
        heappush(self._timers, (when, self._sequence, handle))
        return handle

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        problem = context.get("exception")
        if isinstance(problem, BaseException):
            self.problem = problem

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """A cancelled timer is skipped when it surfaces."""
