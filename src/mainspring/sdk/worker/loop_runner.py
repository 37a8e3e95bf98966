"""Async handlers, as tasks on the worker's event loop."""

import asyncio
import contextvars
from collections.abc import Coroutine
from functools import partial
from typing import Any

from mainspring.sdk.context import entered
from mainspring.sdk.worker.execution import WorkerExecution
from mainspring.sdk.worker.outcomes import (
    RELEASED,
    ReportedOutcome,
    failure,
    log_traceback,
    success,
)


async def _run_handler(
    execution: WorkerExecution, coroutine: Coroutine[Any, Any, Any]
) -> ReportedOutcome:
    """Run a handler and return the outcome, also of `sys.exit`: a task that raised SystemExit or
    KeyboardInterrupt would end the event loop, and all other executions with it."""
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
        around = contextvars.copy_context()
        around.run(entered, execution.context)
        work = _run_handler(execution, coroutine)
        execution.handle = task = self._loop.create_task(work, context=around)
        self.executions[task] = execution
        task.add_done_callback(partial(self._done, execution))

    def stop(self, execution: WorkerExecution) -> None:
        if execution.handle is not None:
            execution.handle.cancel()

    def _done(self, execution: WorkerExecution, task: "asyncio.Task[ReportedOutcome]") -> None:
        del self.executions[task]
        if task.cancelled():
            # By us, and then `ending` says why; or by itself, which nobody asked for.
            own = failure(asyncio.CancelledError("it cancelled itself"))
            execution.finish(own if execution.ending is None else RELEASED)
        elif (problem := task.exception()) is not None:  # interrupted while its end was handled
            execution.finish(failure(problem))
        else:
            execution.finish(task.result())
