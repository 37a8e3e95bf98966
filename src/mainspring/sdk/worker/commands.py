"""Commands: allow-listed programs, each in a process group of its own.

Their output becomes the task's log. At a timeout or a cancel the whole group gets SIGTERM, and a
little later SIGKILL. Should the worker die, so do they, where the system can see to it.
"""

import asyncio
import os
import shutil
import signal
import subprocess
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping
from contextlib import suppress
from functools import cache

import msgspec

from mainspring.errors import NonRetryable
from mainspring.sdk.worker.allowing import Allowed, Command
from mainspring.sdk.worker.outcomes import LONGEST_MESSAGE, Verdict, failure
from mainspring.sdk.worker.tries import Try

_CHUNK = 2**16
_LONGEST_LINE = 8192
_KEPT_ALWAYS = ("PATH", "HOME", "LANG", "TZ")


class CommandRunner:
    """Runs commands."""

    def __init__(self, allowed: Allowed, environment: Mapping[str, str]) -> None:
        self._allowed = allowed
        self._environment = environment
        self._running: dict[Try, tuple[Process, Command]] = {}
        self._work: set[asyncio.Task[None]] = set()

    def start(self, attempt: Try) -> None:
        self._keep(self._run(attempt))

    def stop(self, attempt: Try) -> None:
        running = self._running.get(attempt)
        if running is not None:
            self._keep(_end(*running))

    async def close(self) -> None:
        for process, _ in self._running.values():
            _signal(process, signal.SIGKILL)
        await asyncio.gather(*self._work, return_exceptions=True)

    def _keep(self, work: "asyncio._CoroutineLike[None]") -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    async def _run(self, attempt: Try) -> None:
        try:
            command, argv = self._allowed.find(attempt.leased.target.argv or [""])
            process = await self._spawn(attempt, command, argv)
        except NonRetryable as refused:
            attempt.settle(failure(refused))
            return
        except OSError as problem:
            message = f"it cannot be started: {problem}"
            attempt.settle(Verdict("failed", None, "not-started", message))
            return
        self._running[attempt] = process, command
        try:
            if attempt.ending is not None:  # it was ended before it began
                _signal(process, signal.SIGKILL)
            attempt.settle(await _watch(process, command, attempt))
        except Exception as problem:  # of ours, not of the program's: it must be heard all the same
            attempt.settle(failure(problem))
        finally:
            del self._running[attempt]
            _signal(process, signal.SIGKILL)  # what it left running in its group

    async def _spawn(self, attempt: Try, command: Command, argv: list[str]) -> Process:
        leased = attempt.leased
        wanted = [*_KEPT_ALWAYS, *command.inherit]
        kept = {name: self._environment[name] for name in wanted if name in self._environment}
        own = {
            "TASK_ID": str(leased.id),
            "TASK_ATTEMPT": str(leased.attempt),
            "TASK_FENCE": str(leased.fence),
        }
        return await asyncio.create_subprocess_exec(
            *_guarded(),
            *argv,
            stdin=PIPE if command.stdin == "payload" else DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
            cwd=command.directory,
            env={**kept, **command.environment, **own},
            start_new_session=True,
        )


async def _watch(process: Process, command: Command, attempt: Try) -> Verdict:
    """Feed it, listen to it, and judge how it ended."""
    output = _Output(command.max_output, attempt)
    await asyncio.gather(
        _feed(process, bytes(attempt.leased.payload)),
        output.drain(process.stdout, "stdout"),
        output.drain(process.stderr, "stderr"),
    )
    status = await process.wait()
    if status == 0:
        return Verdict("succeeded", msgspec.json.encode({"exit_status": 0}))
    how = f"signal {-status}" if status < 0 else f"exit status {status}"
    message = f"{how}: {output.last}" if output.last else how
    retryable = status not in command.permanent
    return Verdict("failed", None, "exit-status", message[:LONGEST_MESSAGE], retryable)


class _Output:
    """Takes lines until there were enough; goes on reading, so that the program does not block."""

    def __init__(self, room: int, attempt: Try) -> None:
        self._room = room
        self._attempt = attempt
        self._cut = False
        self.last = ""

    async def drain(self, stream: asyncio.StreamReader | None, level: str) -> None:
        if stream is None:
            return
        rest = b""
        while chunk := await stream.read(_CHUNK):
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > _LONGEST_LINE:
                lines, rest = [*lines, rest], b""
            for line in lines:
                self._take(line, level)
        if rest:
            self._take(rest, level)

    def _take(self, line: bytes, level: str) -> None:
        self._room -= len(line) + 1
        text = line[:_LONGEST_LINE].decode("utf-8", "replace").rstrip("\r")
        if text.strip():
            self.last = text
        if self._room >= 0:
            self._attempt.context.log(text, level)
        elif not self._cut:
            self._cut = True
            self._attempt.context.log("… the rest of the output is left out", "warning")


async def _feed(process: Process, payload: bytes) -> None:
    if process.stdin is None:
        return
    # It need not read what it is given; uvloop says so with a RuntimeError.
    with suppress(ConnectionError, RuntimeError):
        process.stdin.write(payload)
        await process.stdin.drain()
    process.stdin.close()


async def _end(process: Process, command: Command) -> None:
    _signal(process, signal.SIGTERM)
    with suppress(TimeoutError):
        async with asyncio.timeout(command.kill_after):
            await process.wait()
    _signal(process, signal.SIGKILL)


def _signal(process: Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


@cache
def _guarded() -> tuple[str, ...]:
    """What to put before a command so that the system kills it with this process; nothing where the
    system cannot."""
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        return ()
    prefix = (setpriv, "--pdeathsig", "KILL", "--")
    # Some systems have one of this name that knows less.
    known = subprocess.run([*prefix, setpriv, "--version"], capture_output=True, check=False)
    return prefix if known.returncode == 0 else ()
