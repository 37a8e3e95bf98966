"""The worker protocol: leases, heartbeats, reports, log lines."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from mainspring.api.http.bodies import json_response
from mainspring.api.http.decoding import decode_as
from mainspring.api.http.operations import TenantCall
from mainspring.api.http.payloads import result_problems
from mainspring.api.http.problems import raise_if
from mainspring.api.node_ports import LeasePort
from mainspring.api.tasks.views import target_out
from mainspring.api.workers.key_watch import KeyWatch
from mainspring.clock import Clock
from mainspring.config import Config
from mainspring.domain.capability import ALONE, Offer
from mainspring.domain.execution import Outcome, TaskError
from mainspring.engine.demand import WorkerSession
from mainspring.errors import Unauthenticated
from mainspring.node.workers.heartbeats_and_reports import HeartbeatAnswer, WorkerReport
from mainspring.node.workers.lease_service import LeaseRequest
from mainspring.store.leases import HeldHeartbeat, LeasedTask
from mainspring.store.workers import NewLogLine, WorkerStore
from mainspring.wire import workers as wire

T = TypeVar("T")

_OUTCOMES = {"succeeded": Outcome.SUCCEEDED, "failed": Outcome.FAILED, "released": Outcome.RELEASED}
_NO_RESOURCES = wire.ResourcesIn()
_LARGEST_PROGRESS = 10_000
_MOST_LINES = 1000
"""Maximum log lines of a task; beyond that `_MORE_ERRORS` errors are kept."""
_MORE_ERRORS = 100
_LONGEST_LINE = 4000
"""Characters after which a line is cut."""


@dataclass(frozen=True, slots=True)
class LeaseResource:
    """/v1/leases: leases, heartbeats, reports and log lines of workers.

    `watch` ends the poll of a worker whose key has ended meanwhile.
    """

    config: Config
    lease_service: LeasePort
    watch: KeyWatch
    workers: WorkerStore
    clock: Clock

    async def lease(self, call: TenantCall) -> Response:
        asked = decode_as(wire.LeaseIn, await call.body())
        resources = asked.resources or _NO_RESOURCES
        offer = Offer(
            frozenset(asked.queues),
            frozenset(asked.handlers),
            asked.commands,
            frozenset(asked.tags),
            resources.memory_mb,
            resources.cpu,
        )
        running = None
        if asked.running is not None:
            running = frozenset((held.id, held.fence) for held in asked.running)
        holder = WorkerSession(call.tenant_id, asked.worker, asked.incarnation)
        wait = min(asked.wait, self.config.longest_poll)
        wanted = LeaseRequest(
            holder, offer, asked.max, wait, _about(asked.about), running, asked.announces_starts
        )
        with self.watch.over(call.request.headers.get("authorization")) as ended:
            leased = await _while_connected(
                call.request, ended, lambda: self.lease_service.lease(wanted)
            )
        cut = wait if wait < asked.wait else None
        return json_response(wire.LeasesOut([_lease_out(task) for task in leased], cut))

    async def heartbeat(self, call: TenantCall) -> Response:
        heard = decode_as(wire.HeartbeatIn, await call.body(), _progresses)
        holder = WorkerSession(call.tenant_id, heard.worker, heard.incarnation)
        beats = [_beat(index, beat) for index, beat in enumerate(heard.running)]
        pulses = await self.lease_service.beat(holder, beats, _about(heard.about))
        return json_response(wire.PulsesOut([_pulse_out(pulse) for pulse in pulses]))

    async def report(self, call: TenantCall) -> Response:
        sent = decode_as(wire.ReportIn, await call.body(), _results)
        problems = [
            problem.at(f"/outcomes/{index}/result")
            for index, outcome in enumerate(sent.outcomes)
            if len(result := _json(outcome.result)) > len(b"null")
            for problem in result_problems(result, self.config.max_payload)
        ]
        raise_if(problems[:100], "some results cannot be kept")
        reports = [_report(outcome) for outcome in sent.outcomes]
        verdicts = await self.lease_service.report(call.tenant_id, reports)
        pairs = zip(sent.outcomes, verdicts, strict=True)
        return json_response(
            wire.JudgedListOut([wire.JudgedOut(o.id, verdict) for o, verdict in pairs])
        )

    async def add_logs(self, call: TenantCall) -> Response:
        sent = decode_as(wire.LogsIn, await call.body())
        kept, now = 0, self.clock.now()
        if sent.lines:
            lines = [_log_line(line, now) for line in sent.lines]
            kept = await self.workers.add_logs(
                call.tenant_id, lines, most=_MOST_LINES, more_errors=_MORE_ERRORS
            )
        return json_response(wire.LogsTakenOut(kept, len(sent.lines) - kept))


async def _while_connected(
    request: Request, ended: "asyncio.Future[None]", work: Callable[[], Awaitable[T]]
) -> T:
    """Run long work; cancel it when the caller disconnects or its key ends."""
    doing = asyncio.ensure_future(work())
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        either: list[asyncio.Future[Any]] = [doing, gone, ended]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            return doing.result()
        if ended.done():
            raise Unauthenticated("the API key has ended")
        raise ClientDisconnect
    finally:
        gone.cancel()
        doing.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _beat(index: int, beat: wire.BeatIn) -> HeldHeartbeat:
    progress = _json(beat.progress)
    problems = result_problems(progress, _LARGEST_PROGRESS) if progress else ()
    at = f"/running/{index}/progress"
    raise_if([problem.at(at) for problem in problems], "some progress cannot be kept")
    return HeldHeartbeat(beat.id, beat.fence, progress or None, beat.started, beat.alone)


def _report(outcome: wire.OutcomeIn) -> WorkerReport:
    kind, error = _OUTCOMES[outcome.status], None
    if isinstance(outcome.error, wire.ErrorIn):
        error = TaskError(outcome.error.code, outcome.error.message)
    elif outcome.error is not None or kind is Outcome.FAILED:
        error = TaskError("failed", outcome.error or "the worker reported a failure")
    if kind is Outcome.FAILED and error is not None and error.code == "timeout":
        kind = Outcome.TIMED_OUT
    return WorkerReport(
        outcome.id,
        outcome.fence,
        kind,
        outcome.started_at.timestamp() if outcome.started_at else None,
        outcome.finished_at.timestamp() if outcome.finished_at else None,
        _json(outcome.result) or None,
        None if kind is Outcome.SUCCEEDED else error,
        outcome.retryable,
        outcome.retry_after,
    )


def _log_line(line: wire.LogLineIn, now: float) -> NewLogLine:
    # The database cannot store a NUL in a text, but programs may print one.
    message = line.message[:_LONGEST_LINE].replace("\x00", "\ufffd")
    at = line.at.timestamp() if line.at is not None else now
    return NewLogLine(line.id, line.fence, at, line.level, message)


def _pulse_out(pulse: HeartbeatAnswer) -> wire.PulseOut:
    end = None if pulse.lease_end is None else _instant(pulse.lease_end)
    return wire.PulseOut(id=pulse.id, lease_until=end, action=pulse.action)


def _lease_out(leased: LeasedTask) -> wire.LeaseOut:
    task = leased.execution
    spec = task.spec
    context = wire.LeaseContext(
        name=leased.name,
        queue=leased.queue,
        labels=leased.labels or {},
        run_at=_instant(task.run),
        due_at=_instant(task.due),
        deadline=_instant(task.picked + spec.timeout),
        max_attempts=spec.retry.max_attempts,
        failures=task.failures,
        suspect=leased.suspect,
        alone=leased.capability.endswith(ALONE),
        schedule_id=leased.schedule_id,
        nominal_at=leased.nominal_at,
        workflow_run_id=task.workflow_run_id,
        step=task.step,
    )
    return wire.LeaseOut(
        task.id,
        task.fence,
        task.attempt,
        _instant(task.lease_end),
        target_out(spec.target),
        Raw(task.payload),
        spec.timeout,
        context,
    )


@lru_cache(maxsize=1024)
def _instant(seconds: float) -> datetime:
    # Tasks that are claimed together share most of their times.
    return datetime.fromtimestamp(seconds, UTC)


def _json(value: Raw | UnsetType) -> bytes:
    """Return the JSON of a field; empty if it was left out."""
    return b"" if value is UNSET else bytes(value)


def _about(about: wire.AboutIn | None) -> dict[str, Any] | None:
    if about is None:
        return None
    told = msgspec.to_builtins(about)
    return {name: value for name, value in told.items() if value is not None}


def _progresses(heard: wire.HeartbeatIn) -> list[Raw]:
    return [beat.progress for beat in heard.running if beat.progress is not UNSET]


def _results(sent: wire.ReportIn) -> list[Raw]:
    return [outcome.result for outcome in sent.outcomes if outcome.result is not UNSET]
