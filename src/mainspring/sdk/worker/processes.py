"""CPU-bound handlers, each in a process of its own: killed at a timeout or a cancel, replaced when
it has run many executions or uses much memory. None outlives its worker."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress

import msgspec

from mainspring.sdk.worker.child import ChildMessage, ChildRequest
from mainspring.sdk.worker.execution import WorkerExecution
from mainspring.sdk.worker.options import WorkerOptions, memory_mb_of
from mainspring.sdk.worker.outcomes import RELEASED, ReportedOutcome, failed

_LONGEST_LINE = 256 * 2**20
_message = msgspec.json.Decoder(ChildMessage).decode


class Child:
    """A process and the number of executions it has run."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.runs = 0

    def kill(self) -> None:
        """Kill it, and whatever it started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)


class ProcessRunner:
    """Hands executions to idle processes; makes one when none is idle."""

    apart = True

    def __init__(self, path: str, environment: dict[str, str], options: WorkerOptions) -> None:
        self._path = path
        self._environment = environment
        self._options = options
        self._idle: list[Child] = []
        self._children: dict[WorkerExecution, Child] = {}
        self._work: set[asyncio.Task[None]] = set()

    def start(self, execution: WorkerExecution) -> None:
        task = asyncio.get_running_loop().create_task(self._run(execution))
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    def stop(self, execution: WorkerExecution) -> None:
        child = self._children.get(execution)
        if child is not None:
            child.kill()

    def watch_memory(self) -> None:
        """Kill each process that uses more than it may, while it runs."""
        limit = self._options.max_memory_mb
        if limit is None:
            return
        for execution, child in list(self._children.items()):
            if memory_mb_of(child.process.pid) > limit:
                execution.end("memory")

    async def close(self) -> None:
        for child in [*self._idle, *self._children.values()]:
            child.kill()
        await asyncio.gather(*self._work, return_exceptions=True)
        for child in self._idle:
            await child.process.wait()

    async def _run(self, execution: WorkerExecution) -> None:
        child = self._idle.pop() if self._idle else None
        try:
            child = child or await self._spawn()
            self._children[execution] = child
            # It may have been ended while the process was made.
            verdict = await _converse(child, execution) if execution.begin() else RELEASED
        except Exception as problem:  # the execution has ended and must be reported
            verdict = await _post_mortem(child, problem)
        finally:
            self._children.pop(execution, None)
        if child is not None:
            await self._put_back(child)
        execution.finish(verdict)

    async def _spawn(self) -> Child:
        command = [sys.executable, "-m", "mainspring.sdk.worker.child", self._path]
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=PIPE,
            stdout=PIPE,
            env=self._environment,
            start_new_session=True,
            limit=_LONGEST_LINE,
        )
        return Child(process)

    async def _put_back(self, child: Child) -> None:
        child.runs += 1
        most, limit = self._options.max_tasks, self._options.max_memory_mb
        worn_out = most is not None and child.runs >= most
        too_large = limit is not None and memory_mb_of(child.process.pid) > limit
        if child.process.returncode is None and not worn_out and not too_large:
            self._idle.append(child)
            return
        child.kill()
        await child.process.wait()


async def _converse(child: Child, execution: WorkerExecution) -> ReportedOutcome:
    leased, function = execution.leased, execution.function
    assert function is not None
    request = ChildRequest(
        *execution.key,
        leased.attempt,
        function.name,
        bytes(leased.payload),
        leased.timeout,
        leased.context,
    )
    requests, messages = child.process.stdin, child.process.stdout
    assert requests is not None
    assert messages is not None
    requests.write(msgspec.json.encode(request) + b"\n")
    await requests.drain()
    while line := await messages.readline():
        message = _message(line)
        if message.verdict is not None:
            return message.verdict
        if message.line is not None:
            execution.context.log(message.line, message.level)
        if message.progress is not None:
            execution.context.progress(message.progress)
    raise EOFError("its process ended")


async def _post_mortem(child: Child | None, problem: Exception) -> ReportedOutcome:
    """Return why a process ended."""
    if child is None:
        return failed("crashed", f"no process could be started: {problem}")
    child.kill()
    status = await child.process.wait()
    how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
    return failed("crashed", f"its process {how} during the execution")
