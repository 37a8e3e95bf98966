"""A process for CPU-bound handlers: reads an execution per line, runs it, writes lines back.

Started by `processes`. What handlers print goes to the error output; the pipes of the first two
descriptors are for the two processes alone.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterable
from queue import SimpleQueue
from typing import IO, Any
from uuid import UUID

import msgspec

from mainspring.sdk.app import App, load_app
from mainspring.sdk.context import Context, HandlerLogLine
from mainspring.sdk.encoding import sendable
from mainspring.sdk.worker.outcomes import ReportedOutcome, call_handler


class ChildRequest(msgspec.Struct):
    """An execution for the child."""

    id: UUID
    fence: int
    attempt: int
    name: str
    payload: bytes
    timeout: float
    details: dict[str, Any] = {}


class ChildMessage(msgspec.Struct, omit_defaults=True):
    """A message from the child: a log line, progress, or how it ended."""

    line: str | None = None
    level: str = "info"
    progress: Any = None
    verdict: ReportedOutcome | None = None


class MessageWriter:
    """Writes lines; handlers may write from several threads."""

    def __init__(self, out: IO[bytes]) -> None:
        self._out = out
        self._lock = threading.Lock()

    def write(self, message: ChildMessage) -> None:
        data = msgspec.json.encode(message) + b"\n"
        with self._lock:
            self._out.write(data)
            self._out.flush()


class _Reporting(Context):
    """A context that reports its progress at once."""

    writer: MessageWriter

    def progress(self, value: Any) -> None:
        super().progress(value)
        self.writer.write(ChildMessage(progress=value))


def serve(app: App, requests: Iterable[bytes], writer: MessageWriter) -> None:
    """Run executions, one after the other."""
    for line in requests:
        request = msgspec.json.decode(line, type=ChildRequest)
        writer.write(ChildMessage(verdict=_run(app, request, writer)))


def _run(app: App, request: ChildRequest, writer: MessageWriter) -> ReportedOutcome:
    def said(line: HandlerLogLine) -> None:
        writer.write(ChildMessage(line=sendable(line.message), level=line.level))

    context = _Reporting(
        request.id,
        name=request.name,
        attempt=request.attempt,
        fence=request.fence,
        timeout=request.timeout,
        clients=app,
        said=said,
        details=request.details,
    )
    context.writer = writer
    return call_handler(app.functions[request.name], request.payload, context)


def _listen(pipe: IO[bytes], requests: "SimpleQueue[bytes]") -> None:
    """Queue requests; kill this process, and what it started, when the worker closes the pipe: the
    worker is gone, and with it the right to run this execution."""
    for line in pipe:
        requests.put(line)
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    pipe, requests = os.fdopen(os.dup(0), "rb"), SimpleQueue[bytes]()
    writer = MessageWriter(os.fdopen(os.dup(1), "wb"))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    # The worker decides when this process ends; Ctrl-C in a terminal reaches both.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_listen, args=(pipe, requests), daemon=True).start()
    serve(load_app(sys.argv[1]), iter(requests.get, None), writer)


if __name__ == "__main__":
    main()
