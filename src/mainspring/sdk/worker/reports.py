"""Reports of a worker: outcomes until they are acknowledged, and log lines while there is room.

Nothing waits in order to form a batch: up to two requests are on their way, and what gathers
meanwhile is the next one.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import get_args
from uuid import UUID

from msgspec import UNSET, Raw

from mainspring.clock import monotonic, utc
from mainspring.errors import (
    CallFailed,
    InvalidRequest,
    MainspringError,
    MalformedRequest,
    RequestError,
    TooLarge,
)
from mainspring.sdk.context import HandlerLogLine
from mainspring.sdk.encoding import sendable
from mainspring.sdk.worker.execution import WorkerExecution
from mainspring.sdk.worker.nodes import Nodes
from mainspring.sdk.worker.outcomes import failed
from mainspring.sdk.worker.protocol import LOGS, REPORTS, Leased
from mainspring.wire.workers import (
    ErrorIn,
    JudgedListOut,
    LogLevel,
    LogLineIn,
    LogsIn,
    OutcomeIn,
    ReportIn,
)

log = logging.getLogger("mainspring.worker")

_MOST_OUTCOMES = 1000
_MOST_BYTES = 4 * 2**20
_MOST_LINES = 500
_MOST_WAITING_LINES = 20_000
_LONGEST_LINE = 8192
_LEVELS: dict[str, LogLevel] = {level: level for level in get_args(LogLevel)}
_LONGEST_PAUSE = 30 * 86400.0
_IN_FLIGHT = 2
_TIMEOUT = 10.0
_PAUSE = 0.2
_FLUSH_WITHIN = 1.0


@dataclass(eq=False)
class Reporter:
    """Sends outcomes until the server acknowledges them, or the lease is over."""

    nodes: Nodes
    logs: "LogSender"
    done: Callable[[WorkerExecution], None]
    _waiting: deque[WorkerExecution] = field(default_factory=deque, init=False)
    _news: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _idle: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _in_flight: set[asyncio.Task[None]] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self._idle.set()

    def put(self, execution: WorkerExecution) -> None:
        self._waiting.append(execution)
        self._idle.clear()
        self._news.set()

    async def run(self) -> None:
        while True:
            await self._news.wait()
            while self._waiting and len(self._in_flight) < _IN_FLIGHT:
                task = asyncio.create_task(self._send(self._next_batch()))
                self._in_flight.add(task)
                task.add_done_callback(self._sent)
            self._news.clear()

    async def flush(self, within: float) -> bool:
        """Wait until all is reported. Return whether that was so in time."""
        try:
            async with asyncio.timeout(within):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def _sent(self, task: "asyncio.Task[None]") -> None:
        self._in_flight.discard(task)
        self._news.set()
        if not self._waiting and not self._in_flight:
            self._idle.set()

    def _next_batch(self) -> list[WorkerExecution]:
        batch: list[WorkerExecution] = []
        size = 0
        while self._waiting and len(batch) < _MOST_OUTCOMES and size < _MOST_BYTES:
            execution = self._waiting.popleft()
            batch.append(execution)
            size += len(execution.verdict.result or b"") if execution.verdict else 0
        return batch

    async def _send(self, batch: list[WorkerExecution]) -> None:
        # The log of a task is complete when its end can be seen.
        await self.logs.sent(batch, _FLUSH_WITHIN)
        while batch:
            try:
                body = ReportIn(tuple(outcome_of(execution) for execution in batch))
                await self.nodes.ask_any(
                    REPORTS, body, JudgedListOut, within=_TIMEOUT, blocking=False
                )
            except (MalformedRequest, InvalidRequest, TooLarge) as refused:
                batch = await self._refused(batch, refused)
                continue
            except Exception as problem:
                # Nobody serves it, or not us: a replaced key says nothing about executions.
                if not isinstance(problem, CallFailed):
                    log.warning("a report was not taken: %r", problem)
                batch = self._still_ours(batch)
                await asyncio.sleep(_PAUSE)
                continue
            for execution in batch:
                self.done(execution)
            return

    async def _refused(
        self, batch: list[WorkerExecution], refused: RequestError
    ) -> list[WorkerExecution]:
        """Send a refused batch in halves; report the outcome that cannot be read as a failure."""
        if len(batch) > 1:
            half = len(batch) // 2
            await self._send(batch[:half])
            return batch[half:]
        execution = batch[0]
        if execution.verdict is not None and execution.verdict.code != "bad-report":
            message = f"the server refused the report: {refused}"
            log.warning("task %s has failed: %s", execution.leased.id, message)
            execution.verdict = failed("bad-report", message[:1000], retryable=False)
            return batch
        await asyncio.sleep(_PAUSE)
        return self._still_ours(batch)

    def _still_ours(self, batch: list[WorkerExecution]) -> list[WorkerExecution]:
        """Return those whose lease has not ended; to report the others would change nothing."""
        now = monotonic()
        for execution in batch:
            if execution.lease_end <= now:
                self.done(execution)
        return [execution for execution in batch if execution.lease_end > now]


class LogSender:
    """Log lines of all executions. Threads may write; lines without room are counted."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._lines: deque[LogLineIn] = deque()
        self._sending: asyncio.Task[bool] | None = None
        self._under_way = 0
        self._written = 0
        self._handled = 0
        self.dropped = 0
        self._last: dict[tuple[UUID, int], int] = {}
        """By execution with lines that are not handled: the number of the last one."""
        self._writing = threading.Lock()

    def line_of(self, leased: Leased, line: HandlerLogLine) -> None:
        if len(self._lines) >= _MOST_WAITING_LINES:
            self.dropped += 1
            return
        message = sendable(line.message[:_LONGEST_LINE])
        level = _LEVELS.get(line.level, "info")
        made = LogLineIn(leased.id, leased.fence, message, utc(line.at), level)
        with self._writing:
            self._lines.append(made)
            self._written += 1
            self._last[leased.id, leased.fence] = self._written

    async def run(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            await self.flush()

    async def sent(self, executions: Sequence[WorkerExecution], within: float) -> None:
        """Wait a while until the lines of these are sent, unless no node takes them."""
        if self._last:
            await self._sent_to(max(self._last.get(each.key, 0) for each in executions), within)

    async def all_sent(self, within: float) -> None:
        """Wait until all lines written so far are sent."""
        await self._sent_to(self._written, within)

    async def _sent_to(self, goal: int, within: float) -> None:
        deadline = monotonic() + within
        while self._handled < goal and (left := deadline - monotonic()) > 0:
            sending = self._send()
            await asyncio.wait([sending], timeout=left)
            if sending.done() and not sending.result():
                return

    async def flush(self) -> None:
        while self._lines or self._under_way:
            sending = self._send()
            await asyncio.wait([sending])  # a cancel here does not cancel the sending
            if not sending.result():
                return

    def close(self) -> None:
        if self._sending is not None:
            self._sending.cancel()

    def _send(self) -> "asyncio.Task[bool]":
        """Send the next batch unless one is on its way. Its result says whether it was handled."""
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send_batch())
        return self._sending

    async def _send_batch(self) -> bool:
        count = min(len(self._lines), _MOST_LINES)
        batch = [self._lines.popleft() for _ in range(count)]
        self._under_way = count
        try:
            await self._nodes.ask_any(
                LOGS, LogsIn(tuple(batch)), object, within=_TIMEOUT, blocking=False
            )
        except RequestError:
            self.dropped += count
        except MainspringError:
            self._lines.extendleft(reversed(batch))
            return False
        except Exception:  # whatever it is, no outcome is to be lost for it
            log.exception("lines of logs cannot be sent")
            self.dropped += count
        finally:
            self._under_way = 0
        self._handled += count
        with self._writing:
            for key in {(line.id, line.fence) for line in batch}:
                if self._last[key] <= self._handled:
                    del self._last[key]
        return True


def outcome_of(execution: WorkerExecution) -> OutcomeIn:
    """Return how an execution ended, as it is reported."""
    verdict = execution.verdict
    assert verdict is not None
    error = None if verdict.code is None else ErrorIn(verdict.message, verdict.code)
    return OutcomeIn(
        *execution.key,
        verdict.status,
        UNSET if verdict.result is None else Raw(verdict.result),
        error,
        verdict.retryable,
        None if verdict.retry_after is None else max(0.0, min(verdict.retry_after, _LONGEST_PAUSE)),
        utc(execution.started_at),
        utc(execution.finished_at),
    )
