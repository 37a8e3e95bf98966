"""A task that waits in an owner's window."""

from enum import Enum, auto

from mainspring.domain.capability import line_of, takes_slot
from mainspring.domain.lateness import WORTH_TELLING, Cause, Waited, account_for
from mainspring.domain.rows import StreamKey, TaskRow
from mainspring.engine.demand import LeaseHolder, Poll
from mainspring.engine.lateness_ledger import Stamp


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
        "holder",
        "line",
        "phase",
        "poll",
        "ready_at",
        "row",
        "slot",
        "stream",
        "waited",
        "was_turned_away",
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
        """What it waited for since we know it; what came before is in its row."""
        self.was_turned_away = False
        """Whether there was no room for it in the window before."""
        self.poll: Poll | None = None
        self.holder: LeaseHolder | None = None
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

    def lateness(self, picked: float) -> Waited | None:
        """Return where the seconds between due and pick went; None if it is on time."""
        late = picked - self.row.due
        if late < WORTH_TELLING:
            return None
        waited = dict(self.row.waited or {})
        for cause, seconds in (self.waited or {}).items():
            waited[cause.value] = round(waited.get(cause.value, 0.0) + seconds, 6)
        # Before we heard of it, or between two looks.
        return account_for(waited, late, Cause.WAITING)

    def unaccounted(self, now: float) -> float:
        """Return how much of its lateness nobody has put down to a cause."""
        known = sum((self.row.waited or {}).values()) + sum((self.waited or {}).values())
        return now - self.row.due - known

    def add_wait(self, cause: Cause, seconds: float) -> None:
        if self.waited is None:
            self.waited = {}
        self.waited[cause] = self.waited.get(cause, 0.0) + seconds
