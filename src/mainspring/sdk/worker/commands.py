"""Commands: allow-listed programs, each in a process group of its own.

Their output becomes the task's log. At a timeout or a cancel the whole group gets SIGTERM, and a
little later SIGKILL; what is left of it when the program itself has ended gets SIGKILL at once.
Should the worker die, so do they, where the system can see to it.
"""

import asyncio
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE, SubprocessStreamProtocol
from collections.abc import Mapping
from contextlib import suppress
from typing import cast

import msgspec

from mainspring.errors import NonRetryable
from mainspring.sdk.worker.allowlist import Allowlist, Command
from mainspring.sdk.worker.execution import WorkerExecution
from mainspring.sdk.worker.outcomes import (
    LONGEST_MESSAGE,
    RELEASED,
    ReportedOutcome,
    failed,
    failure,
)
from mainspring.subprocesses import killed_with_parent

_CHUNK = 2**16
_LONGEST_LINE = 8192
_FLUSH_WITHIN = 1.0
_KEPT_ALWAYS = ("PATH", "HOME", "LANG", "TZ")


class CommandRunner:
    """Runs commands."""

    apart = True

    def __init__(self, allowed: Allowlist, environment: Mapping[str, str]) -> None:
        self._allowed = allowed
        self._environment = environment
        self._running: dict[WorkerExecution, tuple[_Program, Command]] = {}
        self._work: set[asyncio.Task[None]] = set()

    def start(self, execution: WorkerExecution) -> None:
        self._keep(self._run(execution))

    def stop(self, execution: WorkerExecution) -> None:
        running = self._running.get(execution)
        if running is not None:
            self._keep(_end(*running))

    async def close(self) -> None:
        for program, _ in self._running.values():
            program.signal(signal.SIGKILL)
        await asyncio.gather(*self._work, return_exceptions=True)

    def _keep(self, work: "asyncio._CoroutineLike[None]") -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    async def _run(self, execution: WorkerExecution) -> None:
        try:
            command, argv = self._allowed.find(execution.leased.target.argv or [""])
            if not execution.begin():
                execution.finish(RELEASED)
                return
            program = await self._spawn(execution, command, argv)
        except NonRetryable as refused:
            execution.finish(failure(refused))
            return
        except OSError as problem:
            message = f"it cannot be started: {problem}"
            execution.finish(failed("not-started", message))
            return
        self._running[execution] = program, command
        try:
            if execution.ending is not None:  # it was ended while it was started
                program.signal(signal.SIGKILL)
            execution.finish(await _watch(program, command, execution))
        except Exception as problem:  # a fault of the worker is reported as well
            execution.finish(failure(problem))
        finally:
            del self._running[execution]
            program.close()

    async def _spawn(
        self, execution: WorkerExecution, command: Command, argv: list[str]
    ) -> "_Program":
        leased = execution.leased
        wanted = [*_KEPT_ALWAYS, *command.inherit]
        kept = {name: self._environment[name] for name in wanted if name in self._environment}
        own = {
            "TASK_ID": str(leased.id),
            "TASK_ATTEMPT": str(leased.attempt),
            "TASK_FENCE": str(leased.fence),
        }
        loop = asyncio.get_running_loop()
        _, program = await loop.subprocess_exec(
            lambda: _Program(loop),
            *killed_with_parent(),
            *argv,
            stdin=PIPE if command.stdin == "payload" else DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
            cwd=command.directory,
            env={**kept, **command.environment, **own},
            start_new_session=True,
        )
        return program


class _Program(SubprocessStreamProtocol):
    """A program that runs, with the process group that it leads. asyncio's Process is not used: its
    `wait` may wait for the pipes too, which whatever the program started may hold open."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(_CHUNK, loop)
        self._exited = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._subprocess = cast(asyncio.SubprocessTransport, transport)

    def process_exited(self) -> None:
        self.signal(signal.SIGKILL)  # what it left running in its group
        self._exited.set()
        super().process_exited()

    async def wait(self) -> int:
        """Wait for the program, not for its children; return its exit status."""
        await self._exited.wait()
        status = self._subprocess.get_returncode()
        assert status is not None
        return status

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the whole group, unless the program has ended and the group with it."""
        if not self._exited.is_set():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._subprocess.get_pid(), number)

    def close(self) -> None:
        self.signal(signal.SIGKILL)
        self._subprocess.close()


async def _watch(
    program: _Program, command: Command, execution: WorkerExecution
) -> ReportedOutcome:
    """Feed it, read its output, and decide how it ended."""
    output = _Output(command.max_output, execution)
    talk = asyncio.gather(
        _feed(program.stdin, bytes(execution.leased.payload)),
        output.drain(program.stdout, "stdout"),
        output.drain(program.stderr, "stderr"),
    )
    try:
        status = await program.wait()
        with suppress(TimeoutError):  # what left the group may hold the pipes open for ever
            async with asyncio.timeout(_FLUSH_WITHIN):
                await talk
    finally:
        talk.cancel()
    if status == 0:
        return ReportedOutcome("succeeded", msgspec.json.encode({"exit_status": 0}))
    how = f"signal {-status}" if status < 0 else f"exit status {status}"
    message = f"{how}: {output.last}" if output.last else how
    retryable = status not in command.permanent
    return failed("exit-status", message[:LONGEST_MESSAGE], retryable=retryable)


class _Output:
    """Takes lines until there were enough; goes on reading, so that the program does not block."""

    def __init__(self, room: int, execution: WorkerExecution) -> None:
        self._room = room
        self._execution = execution
        self._cut = False
        self.last = ""

    async def drain(self, stream: asyncio.StreamReader | None, level: str) -> None:
        if stream is None:
            return
        rest = b""
        try:
            while chunk := await stream.read(_CHUNK):
                *lines, rest = (rest + chunk).split(b"\n")
                if len(rest) > _LONGEST_LINE:
                    lines, rest = [*lines, rest], b""
                for line in lines:
                    self._take(line, level)
        finally:  # also when this is cancelled
            if rest:
                self._take(rest, level)

    def _take(self, line: bytes, level: str) -> None:
        self._room -= len(line) + 1
        text = line[:_LONGEST_LINE].decode("utf-8", "replace").rstrip("\r")
        if text.strip():
            self.last = text
        if self._room >= 0:
            self._execution.context.log(text, level)
        elif not self._cut:
            self._cut = True
            self._execution.context.log("… the rest of the output is left out", "warning")


async def _feed(stream: asyncio.StreamWriter | None, payload: bytes) -> None:
    if stream is None:
        return
    # It need not read what it is given; uvloop says so with a RuntimeError.
    with suppress(ConnectionError, RuntimeError):
        stream.write(payload)
        await stream.drain()
    stream.close()


async def _end(program: _Program, command: Command) -> None:
    program.signal(signal.SIGTERM)
    with suppress(TimeoutError):
        async with asyncio.timeout(command.kill_after):
            await program.wait()
    program.signal(signal.SIGKILL)
