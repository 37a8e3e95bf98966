"""The http executor: webhooks from start to report, with senders behind it.

An execution waits here for its tenant's profile and for its turn in the queues, then goes to the
sender. Its deadline counts from the moment it is sent, so that waiting costs nobody a failure.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

import structlog

from mainspring.clock import Clock, StartTime, monotonic
from mainspring.domain.execution import Execution, Outcome, Report, TaskError, not_started
from mainspring.domain.urls import host_problem
from mainspring.domain.webhook import WebhookProfile
from mainspring.errors import MainspringError
from mainspring.execution import headers, responses
from mainspring.execution.egress_guard import CallOrigin, EgressRules, origin_of
from mainspring.execution.port import Executor, ReportSink
from mainspring.execution.send_queues import Caps, SendQueues
from mainspring.execution.sender import LoopSender, Sender, ThreadSender
from mainspring.execution.transfers import Key, SenderSettings, TransferReply, TransferRequest
from mainspring.observe.metrics import Metrics

log = structlog.get_logger()

_FRESH_FOR = 5.0
_USABLE_FOR = 60.0
_MOST_PROFILES = 10_000
_RETRY_PAUSE = 0.25
MASK = "***"


ReadProfiles = Callable[[Sequence[int]], Awaitable[Mapping[int, WebhookProfile]]]
"""Reads the profiles of tenants; those that have none may be left out."""


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """The settings of the executor."""

    caps: Caps
    sender: SenderSettings
    egress: EgressRules
    user_agent: str


class _CachedProfile(NamedTuple):
    """A tenant's profile, when it was read, and the rules that follow from it."""

    profile: WebhookProfile
    egress: EgressRules
    read_at: float


@dataclass(slots=True, eq=False)
class _HttpExecution:
    """An execution, and how far it is."""

    execution: Execution
    origin: CallOrigin
    known: _CachedProfile | None = None
    secret: Mapping[str, str] = field(default_factory=dict, repr=False)
    start: StartTime | None = None
    """Set when it is sent."""
    cancelled: bool = False
    later: asyncio.TimerHandle | None = None
    """Set when the receiver has accepted the task, to report its outcome later."""

    @property
    def key(self) -> Key:
        return self.execution.id, self.execution.fence

    @property
    def sent(self) -> bool:
        return self.start is not None

    def times(self, clock: Clock) -> tuple[float, float]:
        """Return when it was sent, and when it ended, if that is now."""
        start = self.start or StartTime.now(clock)
        return start.at, start.end(clock)


class HttpExecutor(Executor):
    """Sends webhooks. Everything but the sender's thread runs on the event loop."""

    def __init__(
        self,
        clock: Clock,
        report: ReportSink,
        settings: HttpSettings,
        read_profiles: ReadProfiles,
        unseal: Callable[[str], Mapping[str, str]],
        metrics: Metrics,
    ) -> None:
        """`unseal` turns the ciphertext in a target into headers."""
        self._clock = clock
        self._report = report
        self._settings = settings
        self._read_profiles = read_profiles
        self._unseal = unseal
        self._metrics = metrics
        self._queues: SendQueues[_HttpExecution] = SendQueues(settings.caps)
        self._secure = ThreadSender(settings.sender, self._deliver)
        self._plain: Sender = self._secure
        if LoopSender.possible:
            self._plain = LoopSender(settings.sender, self._replied)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._executions: dict[Key, _HttpExecution] = {}
        self._known: dict[int, _CachedProfile] = {}
        self._waiting: dict[int, list[_HttpExecution]] = {}
        """Executions whose tenant's profile is being read."""
        self._reading: dict[int, asyncio.Task[None]] = {}
        """Tasks that read profiles, by tenant."""
        self._releasing = False
        self._idle = asyncio.Event()
        metrics.webhooks_in_flight.set_function(lambda: self._queues.in_flight)
        metrics.webhooks_waiting.set_function(
            lambda: sum(not each.sent for each in self._executions.values())
        )

    def can_run(self, capability: str) -> bool:
        return capability == "http"

    def start(self, executions: Sequence[Execution]) -> None:
        self._loop = self._loop or asyncio.get_running_loop()
        failed = [wrong for a in executions if (wrong := self._admit_or_report(a)) is not None]
        if failed:
            self._metrics.webhooks.labels("refused").inc(
                sum(r.error is not None and r.error.code == "egress-blocked" for r in failed)
            )
            self._report(failed)
        self._send_ready()

    def has(self, task_id: UUID, fence: int) -> bool:
        return (task_id, fence) in self._executions

    def cancel(self, task_id: UUID, fence: int) -> None:
        waiting = self._executions.get((task_id, fence))
        if waiting is None or waiting.cancelled:
            return
        waiting.cancelled = True
        if waiting.sent and waiting.later is None:
            self._sender_of(waiting).cancel(waiting.key)
        else:
            self._withdraw([waiting])

    def holds_back(self, task_id: UUID, fence: int) -> str | None:
        waiting = self._executions.get((task_id, fence))
        if waiting is None or waiting.sent:
            return None
        found = self._queues.place(waiting.execution.tenant_id, waiting.origin, waiting)
        if found is None:
            return "it waits for the tenant's webhook settings to be read"
        ahead, in_flight = found
        host = f"{waiting.origin.host}:{waiting.origin.port}"
        return f"{in_flight} requests to {host} are in flight, {ahead} are queued before it"

    def forget(self, tenant_id: int) -> None:
        """Read a tenant's profile, which was changed here, again before the next request."""
        known = self._known.get(tenant_id)
        if known is not None:
            self._known[tenant_id] = known._replace(read_at=monotonic() - _USABLE_FOR)

    def forget_all(self) -> None:
        """Read every profile again: the database may have been set back."""
        self._known.clear()

    async def stop(self, grace: float) -> None:
        self._withdraw([t for t in self._executions.values() if not t.sent], Outcome.RELEASED)
        self._idle.clear()
        if self._executions:
            with suppress(TimeoutError):
                async with asyncio.timeout(grace):
                    await self._idle.wait()
        self._releasing = True
        for left in list(self._executions.values()):
            self.cancel(*left.key)
        if self._plain is not self._secure:
            self._plain.stop()
        await asyncio.to_thread(self._secure.stop)
        await asyncio.sleep(0)  # let the sender's last replies in
        for task in self._reading.values():
            task.cancel()

    # Start -----------------------------------------------------------------------------------

    def _admit_or_report(self, execution: Execution) -> Report | None:
        """Queue an execution; return a report if it can never be sent."""
        try:
            return self._admit(execution)
        except Exception:
            self._executions.pop((execution.id, execution.fence), None)
            return self._crashed(execution)

    def _crashed(self, execution: Execution) -> Report:
        """Log the unexpected exception being handled, and return the report."""
        log.exception("a webhook cannot be sent", action="webhooks.failed", task=str(execution.id))
        return not_started(execution, self._clock.now())

    def _admit(self, execution: Execution) -> Report | None:
        target = execution.spec.target
        try:
            origin = origin_of(target.url or "")
        except ValueError as problem:
            return self._failed(execution, TaskError("bad-url", f"this is no URL: {problem}"))
        wrong = host_problem(origin.host)
        if wrong is not None:
            return self._failed(execution, TaskError("egress-blocked", f"the URL {wrong}"))
        made = _HttpExecution(execution, origin)
        if target.secret is not None:
            try:
                made.secret = self._unseal(target.secret.sealed)
            except MainspringError as problem:
                error = TaskError("secret-unreadable", str(problem))
                return self._failed(execution, error, retryable=True)
        self._executions[made.key] = made
        tenant_id = execution.tenant_id
        known = self._known.get(tenant_id)
        age = _USABLE_FOR if known is None else monotonic() - known.read_at
        if age >= _FRESH_FOR and tenant_id not in self._reading:
            self._reading[tenant_id] = asyncio.create_task(self._read_profile(tenant_id))
        if age >= _USABLE_FOR:
            self._waiting.setdefault(tenant_id, []).append(made)
        else:
            made.known = known
            self._queues.push(tenant_id, origin, made)
        return None

    def _failed(self, execution: Execution, error: TaskError, *, retryable: bool = False) -> Report:
        now = self._clock.now()
        return Report(execution, Outcome.FAILED, now, now, error=error, retryable=retryable)

    async def _read_profile(self, tenant_id: int) -> None:
        """Read a tenant's profile, however often that takes: without it a webhook would be unsigned
        and ignore the tenant's own rules."""
        while True:
            asked_at = monotonic()
            try:
                found = await self._read_profiles([tenant_id])
                profile = found.get(tenant_id, WebhookProfile())
                egress = self._settings.egress.with_lists(profile.allow, profile.deny)
            except Exception as problem:
                # Whatever it is: nobody else reads it, and the tenant's webhooks wait for it.
                log.warning("a webhook profile cannot be read", action="webhooks.no_profile",
                            tenant=tenant_id, problem=type(problem).__name__)  # fmt: skip
                await asyncio.sleep(_RETRY_PAUSE)
                continue
            break
        if len(self._known) >= _MOST_PROFILES:
            self._known.clear()
        known = self._known[tenant_id] = _CachedProfile(profile, egress, asked_at)
        del self._reading[tenant_id]
        for waiting in self._waiting.pop(tenant_id, ()):
            waiting.known = known
            self._queues.push(tenant_id, waiting.origin, waiting)
        self._send_ready()

    # Send ------------------------------------------------------------------------------------

    def _send_ready(self) -> None:
        """Send all whose turn it is."""
        broken: list[Report] = []
        while turn := self._queues.take():
            by_sender: dict[Sender, list[_HttpExecution]] = {}
            for each in turn:
                by_sender.setdefault(self._sender_of(each), []).append(each)
            for sender, executions in by_sender.items():
                broken += self._send(sender, executions)
        if broken:
            self._report_all(broken)

    def _send(self, sender: Sender, executions: Sequence[_HttpExecution]) -> list[Report]:
        """Send requests; return the reports of those that an error of ours stopped."""
        now, requests, broken = self._clock.now(), list[TransferRequest](), list[Report]()
        for each in executions:
            try:
                requests.append(self._request(each, now))
            except Exception:
                broken.append(self._give_up(each))
        try:
            sender.send(requests)
        except Exception:
            broken += [self._give_up(each) for each in executions if each.key in self._executions]
        return broken

    def _give_up(self, each: _HttpExecution) -> Report:
        del self._executions[each.key]
        self._queues.ended(each.execution.tenant_id, each.origin)
        return self._crashed(each.execution)

    def _sender_of(self, each: _HttpExecution) -> Sender:
        url = each.execution.spec.target.url or ""
        return self._secure if url[:6].lower() == "https:" else self._plain

    def _request(self, each: _HttpExecution, now: float) -> TransferRequest:
        execution = each.execution
        # The newest, or else what was known when it came in: never nothing.
        known = self._known.get(execution.tenant_id, each.known)
        assert known is not None
        target = execution.spec.target
        lines = headers.build(execution, known.profile, each.secret, now, self._settings.user_agent)
        each.start = StartTime.now(self._clock, now)
        return TransferRequest(
            each.key,
            target.url or "",
            target.method or "POST",
            lines,
            headers.body_of(execution),
            execution.spec.timeout,
            known.egress,
            known.profile.tls,
        )

    # Replies ---------------------------------------------------------------------------------

    def _deliver(self, replies: Sequence[TransferReply]) -> None:
        """Pass replies on, from the sender's thread."""
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._replied, replies)

    def _replied(self, replies: Sequence[TransferReply]) -> None:
        now = self._clock.now()
        reports = []
        results: Counter[str] = Counter()
        for reply in replies:
            each = self._executions[reply.key]
            started, finished = each.times(self._clock)
            self._metrics.webhook_seconds.observe(finished - started)
            self._queues.ended(each.execution.tenant_id, each.origin)
            kept = responses.headers_of_interest(reply.headers)
            if not each.cancelled and responses.completes_later(reply, kept):
                results["later"] += 1
                self._expect_later(each)
            else:
                results[_result_class(reply)] += 1
                del self._executions[reply.key]
                reports.append(self._conclude(each, reply, kept, now))
        for result, count in results.items():
            self._metrics.webhooks.labels(result).inc(count)
        self._send_ready()
        self._report_all(reports)

    def _conclude(
        self, each: _HttpExecution, reply: TransferReply, kept: dict[str, str], now: float
    ) -> Report:
        if reply.trouble == "cancelled":
            if each.cancelled:
                return self._ended(each)
            reply = reply._replace(trouble="connection", message="the sender was restarted")
        if each.secret:
            reply, kept = _masked(reply, kept, each.secret)
        verdict = responses.judge(reply, kept, each.execution.spec.retry.on, now)
        return Report(
            each.execution,
            verdict.outcome,
            *each.times(self._clock),
            result=responses.result_of(reply, kept),
            error=verdict.error,
            retryable=verdict.retryable,
            retry_after=verdict.retry_after,
            status_code=reply.status or None,
            response=reply.body or None,
        )

    def _expect_later(self, each: _HttpExecution) -> None:
        """Wait for a receiver that took the work to report: until the timeout."""
        started, now = each.times(self._clock)
        rest = started + each.execution.spec.timeout - now
        assert self._loop is not None
        each.later = self._loop.call_later(max(0.0, rest), self._not_completed, each)

    def _not_completed(self, each: _HttpExecution) -> None:
        if self._executions.pop(each.key, None) is None:
            return
        timeout = each.execution.spec.timeout
        text = f"the receiver accepted the task but did not complete it within {timeout:g} s"
        reply = TransferReply(each.key, 202, trouble="timeout", message=text)
        self._report_all([self._conclude(each, reply, {}, self._clock.now())])

    def _withdraw(self, waiting: Sequence[_HttpExecution], outcome: Outcome | None = None) -> None:
        """End executions that are not being sent."""
        for each in waiting:
            del self._executions[each.key]
            tenant_id = each.execution.tenant_id
            if each.later is not None:
                each.later.cancel()
            elif not self._queues.remove(tenant_id, each.origin, each):
                self._waiting[tenant_id].remove(each)
        self._report_all([self._ended(each, outcome) for each in waiting])

    def _ended(self, each: _HttpExecution, outcome: Outcome | None = None) -> Report:
        chosen = outcome or (Outcome.RELEASED if self._releasing else Outcome.CANCELLED)
        return Report(each.execution, chosen, *each.times(self._clock))

    def _report_all(self, reports: Sequence[Report]) -> None:
        if reports:
            self._report(reports)
        if not self._executions:
            self._idle.set()


def _result_class(reply: TransferReply) -> str:
    if reply.trouble is not None:
        return "refused" if reply.trouble == "blocked" else reply.trouble
    return f"{reply.status // 100}xx" if 200 <= reply.status < 600 else "bad-answer"


def _masked(
    reply: TransferReply, kept: dict[str, str], secret: Mapping[str, str]
) -> tuple[TransferReply, dict[str, str]]:
    """Return a reply without the secrets that the receiver repeated: we record none."""
    forms = {form for value in secret.values() for form in (value, value.removeprefix("Bearer "))}
    body = reply.body
    for form in sorted(filter(None, forms), key=len, reverse=True):
        body = body.replace(form.encode("latin-1"), MASK.encode())
        kept = {name: text.replace(form, MASK) for name, text in kept.items()}
    return reply._replace(body=body), kept
