"""Runners inside the worker's process: async handlers on its event loop, others in threads.

Threads are kept and reused. One whose handler does not end when it is told to is left behind and
another takes its place: a thread cannot be killed, only asked.
"""

import asyncio
import ctypes
import threading
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any

from mainspring.sdk.context import variables_with
from mainspring.sdk.worker.execution import WorkerExecution
from mainspring.sdk.worker.outcomes import (
    RELEASED,
    HandlerInterrupt,
    ReportedOutcome,
    call_handler,
    failure,
    log_traceback,
    success,
)


class _Worker(threading.Thread):
    """One thread. `interrupted`: an exception was sent to it, so it is not used again."""

    def __init__(self, pool: "ThreadRunner", number: int) -> None:
        super().__init__(name=f"mainspring-{number}", daemon=True)
        self._pool = pool
        self.guard = threading.Lock()
        self.current: WorkerExecution | None = None
        self.interrupted = False

    def run(self) -> None:
        try:
            while (execution := self._pool.queue.get()) is not None and self._serve(execution):
                pass
        except HandlerInterrupt:
            return  # it came when the execution was over already

    def _serve(self, execution: WorkerExecution) -> bool:
        with self.guard:
            self.current = execution
        execution.handle = self
        function = execution.function
        assert function is not None
        verdict = RELEASED
        if execution.begin():
            verdict = call_handler(function, execution.leased.payload, execution.context)
        with self.guard:
            self.current = None
            again = not self.interrupted
        self._pool.done(execution, verdict, again)
        return again


class ThreadRunner:
    """Hands executions to threads; makes a thread when none is idle."""

    apart = False

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.queue: SimpleQueue[WorkerExecution | None] = SimpleQueue()
        self._idle = 0
        self._made = 0
        self._lock = threading.Lock()
        self._finished: list[tuple[WorkerExecution, ReportedOutcome]] = []

    def start(self, execution: WorkerExecution) -> None:
        with self._lock:
            fresh = self._idle <= 0
            if fresh:
                self._made += 1
            else:
                self._idle -= 1
        self.queue.put(execution)
        if fresh:
            _Worker(self, self._made).start()

    def stop(self, execution: WorkerExecution) -> None:
        """Cancelling is a request; a timeout or a lost lease also interrupts Python code."""
        thread: _Worker | None = execution.handle
        if thread is None or execution.ending == "cancelled":
            return
        with thread.guard:
            if thread.current is execution and thread.ident is not None:
                thread.interrupted = True
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(thread.ident), ctypes.py_object(HandlerInterrupt)
                )

    def done(self, execution: WorkerExecution, verdict: ReportedOutcome, again: bool) -> None:
        """Record an outcome, in the thread; the event loop is woken once for many."""
        with self._lock:
            self._idle += again
            self._finished.append((execution, verdict))
            wake = len(self._finished) == 1
        if wake:
            with suppress(RuntimeError):  # the loop is closed: the worker has ended
                self._loop.call_soon_threadsafe(self._finish_all)

    def _finish_all(self) -> None:
        with self._lock:
            finished, self._finished = self._finished, []
        for execution, verdict in finished:
            execution.finish(verdict)


async def _run_handler(
    execution: WorkerExecution, coroutine: Coroutine[Any, Any, Any]
) -> ReportedOutcome:
    """Return a handler's outcome, also of `sys.exit`: a task that raised SystemExit would end the
    event loop, and all other executions with it."""
    if not execution.begin():
        coroutine.close()
        return RELEASED
    try:
        return success(await coroutine)
    except asyncio.CancelledError:
        raise
    except BaseException as problem:
        if execution.ending is None:
            log_traceback(execution.context, problem)
        return failure(problem)


class LoopRunner:
    """Runs each execution as a coroutine."""

    apart = False

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.executions: dict[asyncio.Task[Any], WorkerExecution] = {}

    def start(self, execution: WorkerExecution) -> None:
        function = execution.function
        assert function is not None
        try:
            call = function.signature.unpack(execution.leased.payload, execution.context)
            coroutine: Any = function.function(*call.args, **call.kwargs)
        except Exception as problem:
            log_traceback(execution.context, problem)
            execution.finish(failure(problem))
            return
        work, variables = _run_handler(execution, coroutine), variables_with(execution.context)
        execution.handle = task = self._loop.create_task(work, context=variables)
        self.executions[task] = execution
        task.add_done_callback(partial(self._done, execution))

    def stop(self, execution: WorkerExecution) -> None:
        if execution.handle is not None:
            execution.handle.cancel()

    def _done(self, execution: WorkerExecution, task: "asyncio.Task[ReportedOutcome]") -> None:
        del self.executions[task]
        if task.cancelled():
            # By the worker, and then `ending` says why; or by the handler itself.
            own = failure(asyncio.CancelledError("it cancelled itself"))
            execution.finish(own if execution.ending is None else RELEASED)
        elif (problem := task.exception()) is not None:  # interrupted while its end was handled
            execution.finish(failure(problem))
        else:
            execution.finish(task.result())
