"""The worker protocol beyond the structs in `wire`: paths, older nodes, the server's clock."""

from collections import deque
from datetime import datetime
from typing import Any

from msgspec import field, structs

from mainspring.clock import monotonic
from mainspring.wire.workers import BeatIn, HeartbeatIn, LeaseIn, LeaseOut, LeasesOut

LEASES = "/v1/leases"
HEARTBEAT = "/v1/leases/heartbeat"
REPORTS = "/v1/leases/report"
LOGS = "/v1/leases/logs"
NODES = "/v1/workers/nodes"


class Leased(LeaseOut):
    """A task to run. Its context is a dictionary: handlers read in it what newer servers add."""

    context: Any = field(default_factory=dict)

    @property
    def alone(self) -> bool:
        """Whether it was lost together with its workers: nothing else may run beside it."""
        return self.context.get("alone") is True

    @property
    def suspect(self) -> bool:
        """Whether a lease of it ended unreported: its start is announced before it begins."""
        return self.context.get("suspect") is True

    @property
    def picked(self) -> float:
        """Return when the server leased it, by the server's clock."""
        deadline = self.context.get("deadline")
        if deadline is None:
            return self.lease_until.timestamp()
        return datetime.fromisoformat(deadline).timestamp() - self.timeout


class Leases(LeasesOut):
    """The tasks that a worker got."""

    tasks: list[Leased]


def for_older_node(body: object) -> object | None:
    """Return the request without what older nodes refuse; None if it has nothing of the kind. Older
    nodes take every named execution for begun, so those that have not are left out."""
    if isinstance(body, LeaseIn) and body.announces_starts:
        return structs.replace(body, announces_starts=False)
    if isinstance(body, HeartbeatIn) and any(b.alone or not b.started for b in body.running):
        begun = tuple(BeatIn(b.id, b.fence, b.progress) for b in body.running if b.started)
        return structs.replace(body, running=begun)
    return None


class ServerClock:
    """The server's clock, from leases, which say when they began. The least delayed of the latest
    answers counts, so one that lay unread while the machine was stopped is known to be old."""

    def __init__(self) -> None:
        self._offsets: deque[float] = deque(maxlen=64)
        self._offset: float | None = None
        self._converted: tuple[datetime | None, float] = (None, 0.0)
        self.lease = 15.0
        """The length of leases, in seconds."""

    @property
    def margin(self) -> float:
        """Seconds before the end of a lease at which an execution ends if it cannot be extended."""
        return min(2.0, self.lease / 5)

    def sample(self, leased: Leased) -> None:
        picked = leased.picked
        self._offsets.append(picked - monotonic())
        self._offset = max(self._offsets)
        length = leased.lease_until.timestamp() - picked
        if length > 0:
            self.lease = length

    def local(self, moment: datetime | None) -> float:
        """Return a time of the server on the monotonic clock; at most a lease from now."""
        latest = monotonic() + self.lease
        if moment is None or self._offset is None:
            return latest
        if moment != self._converted[0]:  # what is leased together ends together
            self._converted = (moment, moment.timestamp())
        return min(self._converted[1] - self._offset, latest)
