"""A process for CPU-bound handlers: reads one try a line, runs it, writes lines back.

Started by `processes`. What handlers print goes to the error output; the pipes of the first two
descriptors are for the two processes alone.
"""

import asyncio
import contextvars
import os
import signal
import sys
import threading
from collections.abc import Iterable
from queue import SimpleQueue
from typing import IO, Any
from uuid import UUID

import msgspec

from mainspring.sdk.app import App
from mainspring.sdk.context import Context, HandlerLogLine, entered
from mainspring.sdk.encoding import sendable
from mainspring.sdk.worker.loading import load_app
from mainspring.sdk.worker.loop_runner import tell
from mainspring.sdk.worker.outcomes import ReportedOutcome, failure, success


class Order(msgspec.Struct):
    """An execution for the child."""

    id: UUID
    fence: int
    attempt: int
    name: str
    payload: bytes
    timeout: float
    details: dict[str, Any] = {}


class Word(msgspec.Struct, omit_defaults=True):
    """A message from the child: a log line, progress, or how it ended."""

    line: str | None = None
    level: str = "info"
    progress: Any = None
    verdict: ReportedOutcome | None = None


class _Voice:
    """Writes lines; handlers may write from several threads."""

    def __init__(self, out: IO[bytes]) -> None:
        self._out = out
        self._lock = threading.Lock()

    def say(self, word: Word) -> None:
        data = msgspec.json.encode(word) + b"\n"
        with self._lock:
            self._out.write(data)
            self._out.flush()


class _Reporting(Context):
    """A context that reports its progress at once."""

    voice: _Voice

    def progress(self, value: Any) -> None:
        super().progress(value)
        self.voice.say(Word(progress=value))

    def heartbeat(self, progress: Any = None) -> bool:
        if progress is not None:
            self.progress(progress)
        return not self.cancelled


def serve(app: App, orders: Iterable[bytes], voice: _Voice) -> None:
    """Run executions, one after the other."""
    for line in orders:
        order = msgspec.json.decode(line, type=Order)
        voice.say(Word(verdict=_run(app, order, voice)))


def _run(app: App, order: Order, voice: _Voice) -> ReportedOutcome:
    def said(line: HandlerLogLine) -> None:
        voice.say(Word(line=sendable(line.message), level=line.level))

    context = _Reporting(
        order.id,
        name=order.name,
        attempt=order.attempt,
        fence=order.fence,
        timeout=order.timeout,
        clients=app,
        said=said,
        details=order.details,
    )
    context.voice = voice
    function = app.functions[order.name]
    around = contextvars.copy_context()
    around.run(entered, context)
    try:
        call = function.signature.unpack(order.payload, context)
        value = around.run(function.function, *call.args, **call.kwargs)
        if function.is_async:
            value = around.run(asyncio.run, value)
        return success(value)
    except BaseException as problem:
        tell(context, problem)
        return failure(problem)


def _listen(pipe: IO[bytes], orders: "SimpleQueue[bytes]") -> None:
    """When the pipe is closed the worker is gone, and with it the right to run this try: all ends
    in the middle of whatever it does, with what it started."""
    for line in pipe:
        orders.put(line)
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    pipe, orders = os.fdopen(os.dup(0), "rb"), SimpleQueue[bytes]()
    voice = _Voice(os.fdopen(os.dup(1), "wb"))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    # The worker decides when this process ends; Ctrl-C in a terminal reaches both.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_listen, args=(pipe, orders), daemon=True).start()
    serve(load_app(sys.argv[1]), iter(orders.get, None), voice)


if __name__ == "__main__":
    main()
