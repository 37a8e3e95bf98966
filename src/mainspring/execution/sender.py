"""The driver of libcurl: a thread for HTTPS, the event loop itself for plain HTTP.

The work of TLS needs no interpreter, so it goes on beside the engine in a thread of its own:
requests come in through a deque, replies go out to the event loop together, one wake-up each way.
Of plain HTTP little is left that needs no interpreter. There each of libcurl's callbacks has to
wait for it, and a thread spends a third of its time on waiting: it is quicker without one.
"""

import asyncio
import os
import select
import threading
from collections import deque
from collections.abc import Callable, Sequence

import structlog

from mainspring.execution.transfers import (
    Key,
    SenderSettings,
    TransferReply,
    TransferRequest,
    Transfers,
)

log = structlog.get_logger()

_AT_ONCE = 64
"""Number of sockets, or new requests, until others have their turn: a few milliseconds."""

Deliver = Callable[[Sequence[TransferReply]], None]
"""Called where the sender runs, with what has ended since the last time."""


class ThreadSender:
    """Starts with the first request and ends with `stop`. All methods are safe on any thread."""

    def __init__(self, settings: SenderSettings, deliver: Deliver) -> None:
        self._settings = settings
        self._deliver = deliver
        self._inbox: deque[Sequence[TransferRequest] | Key] = deque()
        self._woken = False
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._wake_in, self._wake_out = os.pipe()
        os.set_blocking(self._wake_in, False)

    def send(self, requests: Sequence[TransferRequest]) -> None:
        """Start these; each is answered by exactly one reply."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="sender", daemon=True)
            thread.start()
            self._thread = thread
        self._inbox.append(requests)
        self._wake()

    def cancel(self, key: Key) -> None:
        """Cancel this request, if it is still under way; its reply says so."""
        self._inbox.append(key)
        self._wake()

    def stop(self) -> None:
        """Cancel all requests."""
        self._stopping = True
        if self._thread is not None:
            self._wake()
            self._thread.join()
        os.close(self._wake_in)
        os.close(self._wake_out)

    def _wake(self) -> None:
        if not self._woken:
            self._woken = True
            os.write(self._wake_out, b"\0")

    # On the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping:
            transfers = Transfers(self._settings, self._wake_in)
            try:
                self._drive(transfers)
            except Exception as problem:
                _log_failure(problem)
            if replies := transfers.close():
                self._deliver(replies)

    def _drive(self, transfers: Transfers) -> None:
        while not self._stopping:
            if transfers.wait():
                self._take_in(transfers)
            if replies := transfers.collect():
                self._deliver(replies)

    def _take_in(self, transfers: Transfers) -> None:
        os.read(self._wake_in, 64)
        # Before the inbox is emptied: what arrives from here on wakes us again.
        self._woken = False
        while self._inbox:
            item = self._inbox.popleft()
            if isinstance(item, tuple):
                transfers.cancel(item)
            else:
                for request in item:
                    transfers.add(request)


class LoopSender:
    """The same on the event loop, in small portions. All methods are for the loop's thread."""

    possible = hasattr(select, "epoll")
    """Not every system lets us wait for many descriptors by waiting for one."""

    def __init__(self, settings: SenderSettings, deliver: Deliver) -> None:
        self._settings = settings
        self._deliver = deliver
        self._inbox: deque[TransferRequest | Key] = deque()
        self._transfers: Transfers | None = None
        self._next_drive: asyncio.Handle | None = None
        """The next call of `_drive`, should nothing arrive before."""

    def send(self, requests: Sequence[TransferRequest]) -> None:
        self._inbox.extend(requests)
        self._schedule(0)

    def cancel(self, key: Key) -> None:
        self._inbox.append(key)
        self._schedule(0)

    def stop(self) -> None:
        self._schedule(None)
        if self._inbox or self._transfers is not None:
            transfers = self._opened()
            self._take_in(transfers, len(self._inbox))
            self._end(transfers)

    def _opened(self) -> Transfers:
        if self._transfers is None:
            self._transfers = Transfers(self._settings)
            asyncio.get_running_loop().add_reader(self._transfers.fileno(), self._drive)
        return self._transfers

    def _drive(self) -> None:
        transfers = self._opened()
        try:
            self._take_in(transfers, _AT_ONCE)
            transfers.work(_AT_ONCE)
            replies, rest = transfers.collect(), transfers.rest()
        except Exception as problem:
            _log_failure(problem)
            self._end(transfers)
            replies, rest = [], None
        self._schedule(0 if self._inbox else rest)
        if replies:
            self._deliver(replies)

    def _take_in(self, transfers: Transfers, most: int) -> None:
        for _ in range(min(most, len(self._inbox))):
            item = self._inbox.popleft()
            if isinstance(item, TransferRequest):
                transfers.add(item)
            else:
                transfers.cancel(item)

    def _schedule(self, seconds: float | None) -> None:
        if self._next_drive is not None:
            self._next_drive.cancel()
            self._next_drive = None
        if seconds == 0:
            self._next_drive = asyncio.get_running_loop().call_soon(self._drive)
        elif seconds is not None:
            self._next_drive = asyncio.get_running_loop().call_later(seconds, self._drive)

    def _end(self, transfers: Transfers) -> None:
        self._transfers = None
        asyncio.get_running_loop().remove_reader(transfers.fileno())
        if replies := transfers.close():
            self._deliver(replies)


Sender = ThreadSender | LoopSender


def _log_failure(problem: Exception) -> None:
    """Log a bug of ours. The caller then fails the requests under way and starts again."""
    log.error("the sender failed", action="sender.failed", exc_info=problem)
