"""Tasks in virtual time: what a row of the database would hold."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from mainspring.clock import utc
from mainspring.domain.duration import parse_duration
from mainspring.domain.execution import Execution
from mainspring.domain.outcome_rules import Finish, RetryLater
from mainspring.domain.partitions import partition_of
from mainspring.domain.retry import RetryPolicy
from mainspring.domain.rows import TaskRow
from mainspring.domain.task import UNFINISHED, Target, TaskSpec
from mainspring.domain.tenant import TenantLimits
from mainspring.sdk.worker.outcomes import ReportedOutcome

TENANT = 1
_DURATIONS = frozenset(
    {"timeout", "sla", "jitter", "spread", "interval", "initial", "max_delay", "window"}
)
_PARTS = frozenset({"retry", "misfire", "task"})
_SPREAD = TenantLimits().spread
# Not the handler's name: in this world there is one executor, and it can do everything.
_CAPABILITY = "virtual"


def in_seconds(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a body with its durations as the API shows them."""
    made = dict(body)
    for name, given in body.items():
        if name in _DURATIONS and isinstance(given, str):
            made[name] = parse_duration(given)
        elif name in _PARTS and isinstance(given, dict):
            made[name] = in_seconds(given)
    return made


@dataclass
class VirtualTask:
    """One task."""

    id: UUID
    body: dict[str, Any]
    created: float
    due: float
    schedule_id: UUID | None = None
    nominal: float | None = None
    state: str = "scheduled"
    rev: int = 1
    fence: int = 0
    attempts: int = 0
    failures: int = 0
    result: Any = None
    error: dict[str, str] | None = None

    @staticmethod
    def due_of(body: Mapping[str, Any], now: float) -> float:
        """Return when a task is due that was created just now."""
        delay = body.get("delay")
        if delay is not None:
            return now + (parse_duration(delay) if isinstance(delay, str) else float(delay))
        run_at = body.get("run_at")
        return now if run_at is None else datetime.fromisoformat(run_at).timestamp()

    @property
    def target(self) -> dict[str, Any]:
        found: dict[str, Any] = self.body["target"]
        return found

    @property
    def handler(self) -> str | None:
        return self.target.get("name")

    @property
    def payload(self) -> bytes:
        return msgspec.json.encode(self.body.get("payload", {}))

    @property
    def final(self) -> bool:
        return self.state not in UNFINISHED

    @property
    def spec(self) -> TaskSpec:
        retry = RetryPolicy(**self.body.get("retry", {}))
        target = Target("handler", name=self.handler)
        return TaskSpec(target, timeout=float(self.body.get("timeout", 30.0)), retry=retry)

    def expired_at(self, now: float) -> bool:
        expires = self.body.get("expires_at")
        if self.state != "scheduled" or expires is None:
            return False
        return datetime.fromisoformat(expires).timestamp() <= now

    def row(self) -> TaskRow:
        """Return it as the engine sees it."""
        concurrency = self.body.get("concurrency") or {}
        key = concurrency.get("key")
        return TaskRow(
            tenant_id=TENANT,
            id=self.id,
            rev=self.rev,
            partition=partition_of(TENANT, self.id, key, _SPREAD),
            state=self.state,
            queue=self.body.get("queue", "default"),
            capability=_CAPABILITY,
            concurrency_key=key,
            concurrency_limit=concurrency.get("limit", 1) if key else None,
            priority=self.body.get("priority", 5),
            due=self.due,
            expires=None,
            fence=self.fence,
            lease_end=None,
            cancel_requested=False,
        )

    def claim(self, now: float) -> Execution:
        """Claim it, as a node does."""
        self.state, self.rev = "running", self.rev + 1
        self.fence, self.attempts = self.fence + 1, self.attempts + 1
        return Execution(
            TENANT,
            self.id,
            self.fence,
            self.row().partition,
            self.attempts,
            self.failures,
            self.due,
            now,
            float("inf"),
            self.spec,
            self.payload,
            self.due,
        )

    def record(self, outcome: Finish | RetryLater, verdict: ReportedOutcome, now: float) -> None:
        """Record how an execution ended."""
        self.rev += 1
        self.failures += verdict.status == "failed"
        self.error = None
        if verdict.code is not None:
            self.error = {"code": verdict.code, "message": verdict.message}
        if isinstance(outcome, Finish):
            self.state = outcome.state.value
            self.result = None if verdict.result is None else msgspec.json.decode(verdict.result)
        else:
            self.state = "scheduled"
            self.due = self.due if outcome.delay is None else now + outcome.delay

    def details(self) -> dict[str, Any]:
        """Return what else a worker tells the handler."""
        if self.nominal is None:
            return {}
        return {"schedule_id": str(self.schedule_id), "nominal_at": utc(self.nominal)}

    def shown(self) -> dict[str, Any]:
        """Return it as the API shows it."""
        dropped = ("delay", "run_at", "expires_at")
        kept = {name: value for name, value in self.body.items() if name not in dropped}
        return {
            **kept,
            "id": self.id,
            "state": self.state,
            "run_at": utc(self.due),
            "due_at": utc(self.due),
            "created_at": utc(self.created),
            "attempts": self.attempts,
            "fence": self.fence,
            "result": self.result,
            "error": self.error,
            "schedule_id": self.schedule_id,
        }
