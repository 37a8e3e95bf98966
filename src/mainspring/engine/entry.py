"""A task that waits in an owner's window."""

from enum import Enum, auto

from mainspring.domain.capability import line_of, takes_slot
from mainspring.domain.rows import StreamKey, TaskRow
from mainspring.engine.demand import Poll, Taker
from mainspring.engine.ledger import WORTH_TELLING, Cause, Stamp

_UNEXPLAINED = 0.001


class Phase(Enum):
    """Where an entry is on its way through the engine."""

    TIMED = auto()  # in the timer: not due yet
    READY = auto()  # in the fair queue
    CLAIMING = auto()  # picked; the claim is on its way to the database
    FORGOTTEN = auto()  # no longer ours to start; skipped wherever it surfaces


class Entry:
    """Metadata of one waiting task. Mutable, and known by identity: there are many of these."""

    __slots__ = (
        "deadline",
        "entered",
        "line",
        "phase",
        "poll",
        "ready_at",
        "row",
        "slot",
        "stream",
        "taker",
        "waited",
    )

    def __init__(self, row: TaskRow, stream: StreamKey, deadline: float) -> None:
        self.row = row
        self.stream = stream
        self.line = line_of(row.queue, row.capability)
        self.slot = takes_slot(row.capability)
        self.deadline = deadline
        self.phase = Phase.TIMED
        self.ready_at = 0.0
        self.entered: Stamp | None = None
        self.waited: dict[Cause, float] | None = None
        self.poll: Poll | None = None
        self.taker: Taker | None = None
        """The worker it was picked for, if it was picked for one."""

    @property
    def tenant_id(self) -> int:
        return self.row.tenant_id

    @property
    def partition(self) -> int:
        return self.row.partition

    @property
    def concurrency_key(self) -> str | None:
        return self.row.concurrency_key

    def lateness(self, started: float) -> dict[str, float]:
        """Where the seconds between due and start went."""
        rest = started - self.row.due
        if rest < WORTH_TELLING:
            return {}
        waited: dict[str, float] = {}
        for cause, seconds in (self.waited or {}).items():
            waited[cause.value] = round(seconds, 6)
            rest -= seconds
        if rest > _UNEXPLAINED:
            # Before this node saw the task (another owner, an outage), or on the way to the start.
            waited[Cause.UNATTRIBUTED.value] = round(rest, 6)
        return waited

    def add_wait(self, cause: Cause, seconds: float) -> None:
        if self.waited is None:
            self.waited = {}
        self.waited[cause] = self.waited.get(cause, 0.0) + seconds
