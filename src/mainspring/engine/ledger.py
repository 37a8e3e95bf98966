"""The lateness ledger: where the seconds between due and start went.

Tasks that wait for the same thing share a bucket. A bucket adds up how long each cause held; a
task remembers the totals when it enters and takes the difference when it leaves: exact, and O(1)
however many tasks wait.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple


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
    RETRY_BACKOFF = "retry_backoff"
    WORKER_QUEUE = "worker_queue"
    UNATTRIBUTED = "unattributed"


_LIMITS = frozenset({Cause.TENANT_LIMIT, Cause.RATE_LIMIT, Cause.CONCURRENCY_KEY, Cause.OVERLAP})
_CAPACITY = frozenset({Cause.NO_WORKER, Cause.FAIR_SHARE, Cause.WORKER_QUEUE, Cause.BREAKER_OPEN})


WORTH_TELLING = 0.01
"""A start less late than this is on time: nobody asks where the milliseconds went."""


class Stamp(NamedTuple):
    """What a bucket had added up when a task entered it."""

    totals: Mapping[Cause, float]
    cause: Cause
    spent: float
    at: float


class Bucket:
    """The seconds per cause that a group of waiting tasks has spent."""

    __slots__ = ("_cause", "_since", "_totals")

    def __init__(self, cause: Cause, now: float) -> None:
        self._cause = cause
        self._since = now
        # Replaced at a change of cause, never altered: a stamp holds it as a free snapshot.
        self._totals: Mapping[Cause, float] = {}

    def switch(self, cause: Cause, now: float) -> None:
        """From now on the tasks here wait for something else."""
        if cause is not self._cause:
            self._totals = self._up_to(now)
            self._cause, self._since = cause, now

    def enter(self, now: float) -> Stamp:
        return Stamp(self._totals, self._cause, now - self._since, now)

    def leave(self, stamp: Stamp, now: float) -> dict[Cause, float]:
        """What a task that entered with this stamp has waited for."""
        if self._totals is stamp.totals:
            return {self._cause: now - stamp.at} if now > stamp.at else {}
        waited = dict(self._up_to(now))
        for cause, total in stamp.totals.items():
            waited[cause] -= total
        waited[stamp.cause] -= stamp.spent
        return {cause: seconds for cause, seconds in waited.items() if seconds > 0}

    def _up_to(self, now: float) -> Mapping[Cause, float]:
        spent = self._totals.get(self._cause, 0.0) + now - self._since
        return {**self._totals, self._cause: spent}


def with_queue(waited: Mapping[str, float] | None, late: float) -> Mapping[str, float] | None:
    """The ledger of a task that started this late: what nobody has accounted for it spent in the
    queue of its executor, after it was handed out."""
    if late < WORTH_TELLING:
        return waited
    rest = late - sum(waited.values()) if waited else late
    if rest < WORTH_TELLING:
        return waited
    return {**(waited or {}), Cause.WORKER_QUEUE.value: round(rest, 6)}


def blame(waited: Mapping[str, float]) -> str:
    """The phase that took the largest part: scheduler, limits or capacity."""
    if not waited:
        return "scheduler"
    largest = max(waited, key=lambda cause: waited[cause])
    if largest in _LIMITS:
        return "limits"
    return "capacity" if largest in _CAPACITY else "scheduler"
