"""Connections on which a worker names executions at the moment they begin.

For tasks that were lost before. What is written to a connection arrives although the process dies
right afterwards, so the server learns that an execution began even if it kills its worker at once,
and never of one that did not begin. Nobody waits for the answers: they are read and dropped. Each
connection carries one such message at a time, for a node reads the next one only when it has
answered the one before, and not at all when the worker is gone by then.
"""

import ssl
from contextlib import suppress
from typing import TYPE_CHECKING

from mainspring.clock import monotonic
from mainspring.errors import MainspringError
from mainspring.sdk.worker.nodes import Nodes, Stream
from mainspring.sdk.worker.protocol import HEARTBEAT
from mainspring.wire.workers import BeatIn, HeartbeatIn

if TYPE_CHECKING:
    from mainspring.sdk.worker.execution import WorkerExecution
    from mainspring.sdk.worker.options import WorkerOptions

_MOST = 16
_CHUNK = 2**16
_CONNECT_WITHIN = 1.0
_LONGEST_WRITE = 0.2
"""Seconds: it fits into the buffers of an idle connection, so it takes no time at all."""
_ANSWERED_WITHIN = 10.0


class _StartChannel:
    """A connection that is reserved for one execution."""

    def __init__(self, stream: Stream, execution: "WorkerExecution", message: bytes) -> None:
        self.stream = stream
        self.execution = execution
        self._message = message
        self.sent_at: float | None = None

    def send(self, _execution: "WorkerExecution") -> None:
        """Say that the execution begins, in the thread in which it does."""
        with suppress(OSError):  # then nobody knows that it began
            self.stream.connection.settimeout(_LONGEST_WRITE)
            self.stream.connection.sendall(self._message)
        self.sent_at = monotonic()


class StartChannels:
    """The connections, for the heartbeat thread, which may block."""

    def __init__(self, options: "WorkerOptions", nodes: Nodes) -> None:
        self._options = options
        self._nodes = nodes
        self._idle: list[Stream] = []
        self._reserved: list[_StartChannel] = []

    def reserve(self, execution: "WorkerExecution") -> bool:
        """Have an execution say on a connection of its own that it begins. Return False when all
        are taken. Where none can be made it begins unnamed."""
        self.recycle()
        if len(self._reserved) >= _MOST:
            return False
        stream = self._open_one()
        if stream is not None:
            options = self._options
            body = HeartbeatIn(options.name, options.incarnation, (BeatIn(*execution.key),))
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
            return self._nodes.stream(_CONNECT_WITHIN)
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
