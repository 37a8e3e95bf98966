"""The lateness ledger: where the seconds between due and start went.

Tasks that wait for the same thing share a bucket. A bucket adds up how long each cause held; a
task remembers the totals when it enters and takes the difference when it leaves: exact, and O(1)
however many tasks wait.
"""

from collections.abc import Mapping
from typing import NamedTuple

from mainspring.domain.lateness import Cause


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

    @property
    def cause(self) -> Cause:
        """What its tasks wait for now."""
        return self._cause

    def switch(self, cause: Cause, now: float) -> None:
        """Change what the tasks here wait for."""
        if cause is not self._cause:
            self._totals = self._up_to(now)
            self._cause, self._since = cause, now

    def enter(self, now: float) -> Stamp:
        return Stamp(self._totals, self._cause, now - self._since, now)

    def leave(self, stamp: Stamp, now: float) -> dict[Cause, float]:
        """Return what a task that entered with this stamp has waited for."""
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
