"""The built-in handlers, run inside the node: noop, sleep and fail.

They serve tests, benches and first steps. The payload is their argument: `mainspring.sleep` takes
{"seconds": 1.5}; `mainspring.fail` takes {"message": "…", "retryable": true}.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

import msgspec

from mainspring.clock import Clock, StartTime
from mainspring.domain.execution import Execution, Outcome, Report, TaskError
from mainspring.domain.task import BUILT_IN_HANDLERS, RUN_WORKFLOW
from mainspring.execution.port import Executor, ReportSink


class HandlerFailed(Exception):
    """A built-in handler failed on purpose."""

    def __init__(self, message: str, *, retryable: bool) -> None:
        super().__init__(message)
        self.retryable = retryable


class _Sleep(msgspec.Struct, forbid_unknown_fields=True):
    seconds: float = 1.0


class _Fail(msgspec.Struct, forbid_unknown_fields=True):
    message: str = "failed on purpose"
    retryable: bool = True


async def sleep(payload: bytes) -> None:
    await asyncio.sleep(msgspec.json.decode(payload, type=_Sleep).seconds)


async def fail(payload: bytes) -> None:
    wanted = msgspec.json.decode(payload, type=_Fail)
    raise HandlerFailed(wanted.message, retryable=wanted.retryable)


HANDLERS: dict[str, Callable[[bytes], Awaitable[None]]] = {
    f"{BUILT_IN_HANDLERS}sleep": sleep,
    f"{BUILT_IN_HANDLERS}fail": fail,
}
NOOP = f"{BUILT_IN_HANDLERS}noop"


class BuiltInExecutor(Executor):
    """Runs built-in handlers on the event loop, each in a task of its own; noop needs none."""

    def __init__(self, clock: Clock, report: ReportSink) -> None:
        self._clock = clock
        self._report = report
        self._executions: dict[tuple[UUID, int], asyncio.Task[None]] = {}
        self._releasing = False

    def can_run(self, capability: str) -> bool:
        # Also names that do not exist: better a clear failure than a task that waits for ever.
        return capability.startswith(f"handler:{BUILT_IN_HANDLERS}")

    def start(self, executions: Sequence[Execution]) -> None:
        # The clock may lag a little; the claim's own times are the database's and already past.
        now = max(self._clock.now(), *(execution.picked for execution in executions))
        done = []
        for execution in executions:
            if execution.spec.target.name == NOOP:
                done.append(Report(execution, Outcome.SUCCEEDED, now, now))
            else:
                self._start_task(execution, StartTime.now(self._clock, now))
        if done:
            self._report(done)

    def has(self, task_id: UUID, fence: int) -> bool:
        return (task_id, fence) in self._executions

    def cancel(self, task_id: UUID, fence: int) -> None:
        running = self._executions.get((task_id, fence))
        if running is not None:
            running.cancel()

    async def stop(self, grace: float) -> None:
        if self._executions:
            await asyncio.wait(self._executions.values(), timeout=grace)
        self._releasing = True
        remaining = list(self._executions.values())
        for task in remaining:
            task.cancel()
        await asyncio.gather(*remaining, return_exceptions=True)

    def _start_task(self, execution: Execution, start: StartTime) -> None:
        task = asyncio.create_task(_run(execution))
        self._executions[execution.id, execution.fence] = task
        # A callback, not code at the end of the coroutine: a task that is cancelled before its
        # first step never enters the coroutine, and must be reported all the same.
        task.add_done_callback(lambda done: self._conclude(execution, start, done))

    def _conclude(self, execution: Execution, start: StartTime, task: asyncio.Task[None]) -> None:
        del self._executions[execution.id, execution.fence]
        started, finished = start.at, start.end(self._clock)
        if task.cancelled():
            outcome = Outcome.RELEASED if self._releasing else Outcome.CANCELLED
            report = Report(execution, outcome, started, finished)
        else:
            report = _verdict(execution, started, finished, task.exception())
        self._report([report])


async def _run(execution: Execution) -> None:
    name = execution.spec.target.name
    handler = HANDLERS.get(name or "")
    if handler is None:
        known = ", ".join(sorted({NOOP, RUN_WORKFLOW, *HANDLERS}))
        raise HandlerFailed(
            f"there is no built-in handler {name!r}; there are: {known}", retryable=False
        )
    async with asyncio.timeout(execution.spec.timeout):
        await handler(execution.payload)


def _verdict(
    execution: Execution, started: float, finished: float, problem: BaseException | None
) -> Report:
    outcome, retryable = Outcome.FAILED, True
    match problem:
        case None:
            return Report(execution, Outcome.SUCCEEDED, started, finished)
        case TimeoutError():
            outcome = Outcome.TIMED_OUT
            error = TaskError("timeout", f"not done within {execution.spec.timeout:g} s")
        case HandlerFailed():
            error, retryable = TaskError("failed", str(problem)), problem.retryable
        case msgspec.MsgspecError():
            error, retryable = TaskError("bad-payload", str(problem)), False
        case _:
            error = TaskError("crashed", repr(problem))
    return Report(execution, outcome, started, finished, error=error, retryable=retryable)
