"""The history of waits: what tasks had waited for when they left the window."""

from collections import OrderedDict, deque
from collections.abc import Collection
from uuid import UUID

from mainspring.domain.lateness import Cause, EndedWaiting
from mainspring.engine.entry import Entry

_MOST = 10_000


class WaitHistory:
    """What tasks had waited for that left the window: they were edited or paused, had to make room
    for others, or their claim was refused."""

    def __init__(self) -> None:
        self._left: OrderedDict[UUID, Entry] = OrderedDict()
        self._ended: deque[EndedWaiting] = deque(maxlen=_MOST)

    # For the drivers -------------------------------------------------------------------------

    @property
    def unrecorded(self) -> int:
        """How many tasks ended while they waited, without a record of what they waited for."""
        return len(self._ended)

    def peek_ended(self, most: int) -> list[EndedWaiting]:
        """Return some ended tasks; call `discard_ended` once they are written."""
        return [self._ended[n] for n in range(min(most, len(self._ended)))]

    def discard_ended(self, count: int) -> None:
        for _ in range(min(count, len(self._ended))):
            self._ended.popleft()

    # For the engine --------------------------------------------------------------------------

    def save(self, entry: Entry) -> None:
        """Keep what a task that left the window has waited for."""
        if not entry.waited:
            return
        self._left[entry.row.id] = entry
        if len(self._left) > _MOST:
            self._left.popitem(last=False)

    def restore(self, entry: Entry, owned_since: float) -> None:
        """Give a task back its account. What it waited for before its partition was ours is
        unknown."""
        row, known = entry.row, self._left.pop(entry.row.id, None)
        if known is not None and (known.row.due, known.row.fence) == (row.due, row.fence):
            entry.waited = known.waited
            return
        before_us = entry.unaccounted(owned_since)
        if before_us > 0:
            entry.add_wait(Cause.UNATTRIBUTED, before_us)

    def end(self, task_id: UUID) -> None:
        """Queue the account of a finished task, to be recorded: it may have ended without one."""
        known = self._left.pop(task_id, None)
        if known is not None and known.waited is not None:
            waited = {cause.value: round(seconds, 6) for cause, seconds in known.waited.items()}
            self._ended.append(EndedWaiting(known.tenant_id, task_id, waited))

    def forget(self, partitions: Collection[int]) -> None:
        """Drop the accounts of partitions that others own from now on."""
        for task_id in [i for i, entry in self._left.items() if entry.partition in partitions]:
            del self._left[task_id]
