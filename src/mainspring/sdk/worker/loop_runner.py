"""Async handlers, as tasks on the worker's event loop."""

import asyncio
import contextvars
from collections.abc import Coroutine
from functools import partial
from typing import Any, NamedTuple

from mainspring.sdk.context import entered
from mainspring.sdk.worker.execution import WorkerExecution
from mainspring.sdk.worker.outcomes import RELEASED, failure, log_traceback, success


class HandlerExit(NamedTuple):
    """What a handler raised to end its whole process, as `sys.exit` does."""

    problem: BaseException


class NotBegun:
    """Returned in place of a handler's result where it may not begin any more."""


async def _run_handler(execution: WorkerExecution, coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a handler. A task that raises these two would end the event loop, and all executions."""
    if not execution.begin():
        coroutine.close()
        return NotBegun
    try:
        return await coroutine
    except (SystemExit, KeyboardInterrupt) as problem:
        return HandlerExit(problem)


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
        around = contextvars.copy_context()
        around.run(entered, execution.context)
        work = _run_handler(execution, coroutine)
        execution.handle = task = self._loop.create_task(work, context=around)
        self.executions[task] = execution
        task.add_done_callback(partial(self._done, execution))

    def stop(self, execution: WorkerExecution) -> None:
        if execution.handle is not None:
            execution.handle.cancel()

    def _done(self, execution: WorkerExecution, task: "asyncio.Task[Any]") -> None:
        del self.executions[task]
        if task.cancelled():
            # By us, and then `ending` says why; or by itself, which nobody asked for.
            own = execution.ending is None
            execution.finish(
                failure(asyncio.CancelledError("it cancelled itself")) if own else RELEASED
            )
            return
        problem = task.exception()
        value = None if problem is not None else task.result()
        if value is NotBegun:
            execution.finish(RELEASED)
            return
        if isinstance(value, HandlerExit):
            problem = value.problem
        if problem is None:
            execution.finish(success(value))
            return
        if execution.ending is None:
            log_traceback(execution.context, problem)
        execution.finish(failure(problem))
