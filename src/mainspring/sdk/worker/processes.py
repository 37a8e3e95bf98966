"""CPU-bound handlers, each in a process of its own: killed at a timeout or a cancel, replaced when
it has run many tries or uses much memory. What one breaks, breaks for nobody else. None outlives
its worker: somebody else runs the try then."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress

import msgspec

from mainspring.sdk.worker.child import Order, Word
from mainspring.sdk.worker.execution import WorkerExecution
from mainspring.sdk.worker.options import WorkerOptions
from mainspring.sdk.worker.outcomes import RELEASED, ReportedOutcome
from mainspring.sdk.worker.worker_info import memory_mb_of

_LONGEST_LINE = 256 * 2**20
_word = msgspec.json.Decoder(Word).decode


class Child:
    """A process and the number of executions it has run."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.runs = 0

    def kill(self) -> None:
        """Kill it, and whatever it started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def memory_mb(self) -> float:
        return memory_mb_of(self.process.pid)


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

    def start(self, attempt: WorkerExecution) -> None:
        task = asyncio.get_running_loop().create_task(self._run(attempt))
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    def stop(self, attempt: WorkerExecution) -> None:
        child = self._children.get(attempt)
        if child is not None:
            child.kill()

    def watch_memory(self) -> None:
        """Kill each process that uses more than it may, while it runs."""
        limit = self._options.max_memory_mb
        if limit is None:
            return
        for attempt, child in list(self._children.items()):
            if child.memory_mb() > limit:
                attempt.end("memory")

    async def close(self) -> None:
        for child in [*self._idle, *self._children.values()]:
            child.kill()
        await asyncio.gather(*self._work, return_exceptions=True)
        for child in self._idle:
            await child.process.wait()

    async def _run(self, attempt: WorkerExecution) -> None:
        child = self._idle.pop() if self._idle else None
        try:
            child = child or await self._spawn()
            self._children[attempt] = child
            # It may have been ended while the process was made.
            verdict = await _converse(child, attempt) if attempt.begin() else RELEASED
        except Exception as problem:  # whatever it is, the try has ended and must be reported
            verdict = await _post_mortem(child, problem)
        finally:
            self._children.pop(attempt, None)
        if child is not None:
            await self._put_back(child)
        attempt.finish(verdict)

    async def _spawn(self) -> Child:
        command = [sys.executable, "-m", "mainspring.sdk.worker.child", self._path]
        return Child(
            await asyncio.create_subprocess_exec(
                *command,
                stdin=PIPE,
                stdout=PIPE,
                env=self._environment,
                start_new_session=True,
                limit=_LONGEST_LINE,
            )
        )

    async def _put_back(self, child: Child) -> None:
        child.runs += 1
        most, limit = self._options.max_tasks, self._options.max_memory_mb
        worn_out = most is not None and child.runs >= most
        too_large = limit is not None and child.memory_mb() > limit
        if child.process.returncode is None and not worn_out and not too_large:
            self._idle.append(child)
            return
        child.kill()
        await child.process.wait()


async def _converse(child: Child, attempt: WorkerExecution) -> ReportedOutcome:
    leased, function = attempt.leased, attempt.function
    assert function is not None
    order = Order(
        leased.id,
        leased.fence,
        leased.attempt,
        function.name,
        bytes(leased.payload),
        leased.timeout,
        leased.context,
    )
    orders, words = child.process.stdin, child.process.stdout
    assert orders is not None
    assert words is not None
    orders.write(msgspec.json.encode(order) + b"\n")
    await orders.drain()
    while line := await words.readline():
        word = _word(line)
        if word.verdict is not None:
            return word.verdict
        if word.line is not None:
            attempt.context.log(word.line, word.level)
        if word.progress is not None:
            attempt.context.progress(word.progress)
    raise EOFError("its process ended")


async def _post_mortem(child: Child | None, problem: Exception) -> ReportedOutcome:
    """Return why a process ended."""
    if child is None:
        return ReportedOutcome("failed", None, "crashed", f"no process could be started: {problem}")
    child.kill()
    status = await child.process.wait()
    how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
    return ReportedOutcome("failed", None, "crashed", f"its process {how} in mid-try")
