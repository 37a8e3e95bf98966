"""Lateness: where the seconds between due and start went, over all executions of a task.

Of an execution these moments are known: due, picked, started, finished. What it waited for until it
was picked is in `waited`, by cause. A task that is retried keeps an `Earlier` of the executions
before; one that was lost or released is as due as before, and its `waited` goes on.

The database does the same sums (`account_for`, `judge_end` in the migrations); the contract suite
compares the two.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple, Self
from uuid import UUID


class Cause(StrEnum):
    """Why a due task has not started."""

    NOT_DUE = "not_due"
    PAUSED = "paused"
    DEPENDENCY = "dependency"
    OVERLAP = "overlap"
    TENANT_LIMIT = "tenant_limit"
    RATE_LIMIT = "rate_limit"
    CONCURRENCY_KEY = "concurrency_key"
    BREAKER_OPEN = "breaker_open"
    NO_WORKER = "no_worker"
    FAIR_SHARE = "fair_share"
    WAITING = "waiting"
    """The scheduler itself: its owner had not heard of it yet, or the claim was under way."""
    RETRY_BACKOFF = "retry_backoff"
    FAILED_TRIES = "failed_tries"
    WORKER_QUEUE = "worker_queue"
    UNATTRIBUTED = "unattributed"
    """Before a takeover: the node that knew is gone."""


Waited = Mapping[str, float]
"""Seconds per cause."""

LIMITS = frozenset(
    {Cause.TENANT_LIMIT, Cause.RATE_LIMIT, Cause.CONCURRENCY_KEY, Cause.OVERLAP, Cause.PAUSED}
)
"""What the tenant, or its operator, set."""
CAPACITY = frozenset(
    {Cause.NO_WORKER, Cause.FAIR_SHARE, Cause.WORKER_QUEUE, Cause.BREAKER_OPEN, Cause.FAILED_TRIES}
)

WORTH_TELLING = 0.01
"""A start less late than this is on time: nobody asks where the milliseconds went."""
_ROUNDING = 0.001
_CLOCK_ERROR = 0.1


def blame(waited: Waited) -> str:
    """Return the phase that took the largest part: scheduler, limits or capacity."""
    if not waited:
        return "scheduler"
    largest = max(waited, key=lambda cause: waited[cause])
    if largest in LIMITS:
        return "limits"
    return "capacity" if largest in CAPACITY else "scheduler"


def add(waited: Waited | None, cause: str, seconds: float) -> Waited | None:
    """Return the account with more seconds of a cause."""
    if seconds <= 0:
        return waited
    known = waited or {}
    return {**known, cause: round(known.get(cause, 0.0) + seconds, 6)}


def account_for(waited: Waited | None, seconds: float, cause: str) -> Waited | None:
    """Return an account that sums to these seconds: what is missing goes to the cause."""
    if seconds < WORTH_TELLING:
        return waited
    if not waited:
        return {cause: round(seconds, 6)}
    rest = seconds - sum(waited.values())
    if rest < _ROUNDING:
        return waited
    return {**waited, cause: round(waited.get(cause, 0.0) + rest, 6)}


class Moments(NamedTuple):
    """An execution, as far as its lateness is concerned."""

    due: float
    picked: float
    waited: Waited | None = None
    """What it waited for between the two."""

    def until_picked(self) -> Waited | None:
        late, waited = self.picked - self.due, self.waited
        if waited and sum(waited.values()) > late + _CLOCK_ERROR:
            waited = None  # of another due time, and left there by a node that does not know it
        return account_for(waited, late, Cause.WAITING)

    def until_started(self, started: float) -> Waited | None:
        """Return the lateness of the execution: it sums to its started − due."""
        if started - self.due < WORTH_TELLING:
            return self.waited
        return account_for(self.until_picked(), started - self.due, Cause.WORKER_QUEUE)

    def until_lost(self, ended: float) -> Waited | None:
        """Return the account of an execution that came to nothing; the task is as due as before."""
        return account_for(self.until_picked(), ended - self.due, Cause.FAILED_TRIES)


class Earlier(NamedTuple):
    """The executions before: what the next one needs to know of them."""

    due: float
    """When the task was due first."""
    start: float
    """When the last of these started."""
    end: float
    met: bool
    """Whether the first start was within the bound."""
    blame: str | None
    lateness: Waited
    """It sums to `start` − `due`."""

    @classmethod
    def read(cls, stored: Mapping[str, Any] | None) -> Self | None:
        return None if stored is None else cls(**stored)

    def stored(self) -> dict[str, Any]:
        return self._asdict()

    def until(self, due: float) -> Waited | None:
        """Return the account up to the due time of the next execution."""
        spent = add(self.lateness, Cause.FAILED_TRIES, self.end - self.start)
        return add(spent, Cause.RETRY_BACKOFF, due - self.end)


class EndedWaiting(NamedTuple):
    """A task that ended while it waited, and what it waited for as far as its owner saw."""

    tenant_id: int
    id: UUID
    waited: Waited


class SlaVerdict(NamedTuple):
    """What a task says about its lateness."""

    met: bool | None
    blame: str | None
    lateness: Waited | None
    """Of the task, over all executions."""
    own: Waited | None
    """Of its last execution alone."""


def judge_start(
    moments: Moments, earlier: Earlier | None, started: float, sla: float
) -> SlaVerdict:
    """Judge a task whose last execution started then. The first start decides whether the SLA was
    met: no retry forgives it."""
    own = moments.until_started(started)
    if earlier is None:
        met = started - moments.due <= sla
        return SlaVerdict(met, None if met else blame(own or {}), own, own)
    lateness = earlier.until(moments.due)
    for cause, seconds in (own or {}).items():
        lateness = add(lateness, cause, seconds)
    return SlaVerdict(earlier.met, earlier.blame, lateness, own)


def judge_loss(moments: Moments, earlier: Earlier | None, ended: float, sla: float) -> SlaVerdict:
    """Judge a task that ends with an execution that may or may not have started."""
    own = moments.until_picked()
    if earlier is not None:
        return SlaVerdict(earlier.met, earlier.blame, earlier.lateness or None, own)
    lateness = moments.until_lost(ended)
    missed = ended - moments.due > sla
    return SlaVerdict(
        False if missed else None, blame(lateness or {}) if missed else None, lateness, own
    )


def after(
    moments: Moments, earlier: Earlier | None, started: float, finished: float, sla: float
) -> Earlier:
    """Return what is kept of an execution that failed, and of those before it, for the next."""
    verdict = judge_start(moments, earlier, started, sla)
    return Earlier(
        due=moments.due if earlier is None else earlier.due,
        start=started,
        end=max(started, finished),
        met=bool(verdict.met),
        blame=verdict.blame,
        lateness=dict(verdict.lateness or {}),
    )
