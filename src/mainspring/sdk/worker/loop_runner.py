"""Async handlers, as tasks on the worker's event loop."""

import asyncio
import contextvars
import traceback
from collections.abc import Coroutine
from functools import partial
from typing import Any, NamedTuple

from mainspring.errors import MainspringError
from mainspring.sdk.context import Context, entered
from mainspring.sdk.worker.execution import WorkerExecution
from mainspring.sdk.worker.outcomes import LONGEST_MESSAGE, RELEASED, failure, success


class HandlerInterrupt(BaseException):
    """Raised inside a handler that blocks, to end it. No `except Exception` stops it."""


class Left(NamedTuple):
    """What a handler raised to end its whole process, as `sys.exit` does."""

    problem: BaseException


class NotBegun:
    """Returned in place of a handler's result where it may not begin any more."""


async def _staying(attempt: WorkerExecution, coroutine: Coroutine[Any, Any, Any]) -> Any:
    """A task that raises these two would take the event loop, and all other tries, with it."""
    if not attempt.begin():
        coroutine.close()
        return NotBegun
    try:
        return await coroutine
    except (SystemExit, KeyboardInterrupt) as problem:
        return Left(problem)


class LoopRunner:
    """Runs each execution as a coroutine."""

    apart = False

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.tries: dict[asyncio.Task[Any], WorkerExecution] = {}

    def start(self, attempt: WorkerExecution) -> None:
        function = attempt.function
        assert function is not None
        try:
            call = function.signature.unpack(attempt.leased.payload, attempt.context)
            coroutine: Any = function.function(*call.args, **call.kwargs)
        except Exception as problem:
            tell(attempt.context, problem)
            attempt.finish(failure(problem))
            return
        around = contextvars.copy_context()
        around.run(entered, attempt.context)
        attempt.handle = task = self._loop.create_task(_staying(attempt, coroutine), context=around)
        self.tries[task] = attempt
        task.add_done_callback(partial(self._done, attempt))

    def stop(self, attempt: WorkerExecution) -> None:
        if attempt.handle is not None:
            attempt.handle.cancel()

    def _done(self, attempt: WorkerExecution, task: "asyncio.Task[Any]") -> None:
        del self.tries[task]
        if task.cancelled():
            # By us, and then `ending` says why; or by itself, which nobody asked for.
            own = attempt.ending is None
            attempt.finish(
                failure(asyncio.CancelledError("it cancelled itself")) if own else RELEASED
            )
            return
        problem = task.exception()
        value = None if problem is not None else task.result()
        if value is NotBegun:
            attempt.finish(RELEASED)
            return
        if isinstance(value, Left):
            problem = value.problem
        if problem is None:
            attempt.finish(success(value))
            return
        if attempt.ending is None:
            tell(attempt.context, problem)
        attempt.finish(failure(problem))


def tell(context: Context, problem: BaseException) -> None:
    """Write the traceback to the task's log; a handler's deliberate error needs none."""
    if not isinstance(problem, MainspringError):
        text = "".join(traceback.format_exception(problem)).rstrip()
        if len(text) > LONGEST_MESSAGE:  # where it began and what it was say the most
            text = f"{text[: LONGEST_MESSAGE // 4]}\n…\n{text[3 - LONGEST_MESSAGE * 3 // 4 :]}"
        context.log(text, "error")
