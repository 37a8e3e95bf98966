"""How executions that were lost before begin, beside others that run.

Such a suspect reports its start at that very moment, on a connection of its own. What is written to
a connection arrives although the process dies right afterwards: the server learns that an execution
began even if it kills its worker at once, and never of one that did not begin. Should the process
die just then of another one that also began just then, the server would hold that both had begun.
So a suspect begins when all others have run for a moment, and the next one of any kind when the
suspect has.

Nobody waits for the answers to these reports: they are read and dropped. Each connection carries
one report at a time, for a node reads the next one only when it has answered the one before, and
not at all when the worker is gone by then.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress

from mainspring.clock import monotonic
from mainspring.errors import MainspringError
from mainspring.sdk.worker.execution import WorkerExecution
from mainspring.sdk.worker.nodes import Nodes, Stream
from mainspring.sdk.worker.options import WorkerOptions
from mainspring.sdk.worker.protocol import HEARTBEAT
from mainspring.wire.workers import BeatIn, HeartbeatIn

_MOMENT = 0.05
"""Seconds after which an execution that kills its process as it begins has done so."""
_LOOK_EVERY = 0.01
_LONGEST_WAIT = 5.0
_SHARE_OF_TIMEOUT = 6
"""A suspect waits for a sixth of its own timeout at most."""
_LONGEST_START = 1.0

_MOST_CHANNELS = 16
_CHUNK = 2**16
_LONGEST_WRITE = 0.2
"""Seconds: it fits into the buffers of an idle connection, so it takes no time at all."""
_ANSWERED_WITHIN = 10.0


class Suspects:
    """The order of starts, on the event loop. `start` starts a suspect, `place` any that waited."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        running: Callable[[], Iterable[WorkerExecution]],
        start: Callable[[WorkerExecution], None],
        place: Callable[[WorkerExecution], None],
    ) -> None:
        self._loop = loop
        self._running = running
        self._start = start
        self._place = place
        self._waiting: deque[WorkerExecution] = deque()
        self._beginning: WorkerExecution | None = None
        self._since = 0.0
        self._held_back: deque[WorkerExecution] = deque()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def busy(self) -> bool:
        """Whether a suspect is beginning, so that nothing else may."""
        return self._beginning is not None

    def hold_back(self, execution: WorkerExecution) -> None:
        """Let another execution begin a moment later."""
        self._held_back.append(execution)

    def add(self, execution: WorkerExecution) -> None:
        self._waiting.append(execution)
        self._look()

    def _look(self) -> None:
        """Start what may begin now, and look again soon."""
        self._timer = None
        now = monotonic()
        if self._beginning is not None and self._has_begun(self._beginning, now):
            self._beginning = None
        while self._beginning is None and self._held_back:
            self._place(self._held_back.popleft())
        while self._beginning is None and self._waiting:
            execution = self._waiting[0]
            longest = min(_LONGEST_WAIT, execution.leased.timeout / _SHARE_OF_TIMEOUT)
            if execution.finished:
                self._waiting.popleft()
            elif now - execution.began >= longest:
                self._waiting.popleft().start()  # without a report of its own: a heartbeat names it
            elif all(_is_safe(other, now) for other in self._running()):
                self._beginning, self._since = self._waiting.popleft(), now
                self._start(execution)
            else:
                break
        if self._timer is None and (self._beginning is not None or self._waiting):
            self._timer = self._loop.call_later(_LOOK_EVERY, self._look)

    def _has_begun(self, execution: WorkerExecution, now: float) -> bool:
        if execution.finished or now - self._since >= _LONGEST_START:
            return True
        return execution.begun and now - execution.began >= _MOMENT


def _is_safe(execution: WorkerExecution, now: float) -> bool:
    """Whether it cannot kill the process as it begins, or has not done so."""
    if execution.finished or not execution.started or execution.runner.apart:
        return True
    return execution.begun and now - execution.began >= _MOMENT


class _StartChannel:
    """A connection that is reserved for one execution."""

    def __init__(self, stream: Stream, execution: WorkerExecution, message: bytes) -> None:
        self.stream = stream
        self.execution = execution
        self._message = message
        self.sent_at: float | None = None

    def send(self, _execution: WorkerExecution) -> None:
        """Report the start, in the thread in which the execution begins."""
        with suppress(OSError):  # then the server does not learn that it began
            self.stream.connection.settimeout(_LONGEST_WRITE)
            self.stream.connection.sendall(self._message)
        self.sent_at = monotonic()


class StartChannels:
    """The connections, for the heartbeat thread, which may block."""

    def __init__(self, options: WorkerOptions, nodes: Nodes) -> None:
        self._options = options
        self._nodes = nodes
        self._idle: list[Stream] = []
        self._reserved: list[_StartChannel] = []

    def reserve(self, execution: WorkerExecution) -> bool:
        """Give an execution a connection on which to report its start; return False when all are
        taken. If none can be opened, it begins without such a report, unless it runs alone."""
        self.recycle()
        if len(self._reserved) >= _MOST_CHANNELS:
            return False
        stream = self._open_one()
        if stream is None and execution.alone:
            return False  # nothing but its own report can show that it kills its worker
        if stream is not None:
            options, beat = self._options, BeatIn(*execution.key, alone=execution.alone)
            body = HeartbeatIn(options.name, options.incarnation, (beat,))
            channel = _StartChannel(stream, execution, stream.encode(HEARTBEAT, body))
            self._reserved.append(channel)
            execution.on_begin = channel.send
        return True

    def close(self) -> None:
        for stream in [*self._idle, *(channel.stream for channel in self._reserved)]:
            stream.connection.close()
        self._idle, self._reserved = [], []

    def _open_one(self) -> Stream | None:
        while self._idle:
            stream = self._idle.pop()
            if _read(stream) is False:
                return stream
            stream.connection.close()
        with suppress(MainspringError):
            return self._nodes.stream(1.0)
        return None

    def recycle(self) -> None:
        """Free the connections that were answered, or will not be used."""
        now, kept = monotonic(), []
        for channel in self._reserved:
            if channel.sent_at is None:
                done = channel.execution.finished
            else:
                done = _read(channel.stream) is not False
                if not done and now - channel.sent_at > _ANSWERED_WITHIN:
                    channel.stream.connection.close()
                    continue
            if done:
                channel.execution.on_begin = None
                self._idle.append(channel.stream)
            else:
                kept.append(channel)
        self._reserved = kept


def _read(stream: Stream) -> bool | None:
    """Whether an answer has come, which is dropped; None when the other side closed it."""
    came = False
    try:
        stream.connection.settimeout(0)
        while stream.connection.recv(_CHUNK):
            came = True
    except (BlockingIOError, ssl.SSLWantReadError):
        return came
    except OSError:
        return None
    return None
