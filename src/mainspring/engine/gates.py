"""Gates: may this task start now? A gate counts what is running and says no with a typed cause."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush

from mainspring.domain.lateness import Cause
from mainspring.engine.entry import Entry, Phase

Compete = Callable[[Entry], None]
"""Lets a task compete in the fair queue."""


def expired(entry: Entry, now: float) -> bool:
    """A task that was not started by its expiry may not start any more."""
    return entry.row.expires is not None and entry.row.expires <= now


class Turns:
    """Tasks that wait, the earliest deadline first. Those that wait no longer are passed over."""

    __slots__ = ("_heap", "_sequence")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Entry]] = []
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Entry]:
        return (entry for _, _, entry in self._heap if entry.phase is Phase.READY)

    def wait(self, entry: Entry) -> None:
        self._sequence += 1
        heappush(self._heap, (entry.deadline, self._sequence, entry))

    def first(self) -> Entry | None:
        while self._heap and self._heap[0][2].phase is not Phase.READY:
            heappop(self._heap)
        return self._heap[0][2] if self._heap else None

    def take(self) -> Entry:
        return heappop(self._heap)[2]

    def place_of(self, entry: Entry) -> int | None:
        """Return the turn of a waiting task, counted from 1; None when it is not in there."""
        ready = [(deadline, turn, e) for deadline, turn, e in self._heap if e.phase is Phase.READY]
        mine = next(((deadline, turn) for deadline, turn, e in ready if e is entry), None)
        if mine is None:
            return None
        return 1 + sum((deadline, turn) < mine for deadline, turn, _ in ready)


@dataclass(slots=True, eq=False)
class RunningGate:
    """At most `limit` tasks of a tenant run at once out of one partition."""

    limit: int
    running: int = 0

    def closed(self) -> Cause | None:
        return Cause.TENANT_LIMIT if self.running >= self.limit else None


class KeyGate:
    """A concurrency key: a task passes if fewer tasks than its own limit run under the key.

    One waiting task per line (see `line_of`) competes in the fair queue at a time; the others wait
    here, so a blocked key costs nothing while it is blocked.
    """

    __slots__ = ("_lines", "running")

    def __init__(self) -> None:
        self.running = 0
        self._lines: dict[tuple[str, str], _KeyLine] = {}

    @property
    def idle(self) -> bool:
        return self.running == 0 and not self._lines

    def join(self, entry: Entry, compete: Compete) -> None:
        """Let a due task wait in its line, or compete if it is the first there."""
        line = self._lines.get(entry.line)
        if line is None:
            line = self._lines[entry.line] = _KeyLine()
        line.wait(entry)
        self._advance(entry.line, line, compete)

    def may_pass(self, entry: Entry) -> bool:
        limit = entry.row.concurrency_limit
        return limit is None or self.running < limit

    def turned_back(self, entry: Entry) -> None:
        """Take back the competing task of a line, because the key had filled up."""
        line = self._lines[entry.line]
        line.competing = None
        line.wait(entry)

    def forget(self, entry: Entry, compete: Compete) -> None:
        """Drop a waiting task: if it was competing, the next of its line may."""
        line = self._lines.get(entry.line)
        if line is not None:
            if line.competing is entry:
                line.competing = None
            self._advance(entry.line, line, compete)

    def place_of(self, entry: Entry) -> int | None:
        """Return the turn of a task in its line; None when it competes already, or is not here."""
        line = self._lines.get(entry.line)
        place = line.place_of(entry) if line is not None else None
        if line is None or place is None:
            return None
        return place + (line.competing is not None)

    def passed(self, entry: Entry, compete: Compete) -> None:
        """Count the competing task of a line as running."""
        self.running += 1
        line = self._lines[entry.line]
        line.competing = None
        self._advance(entry.line, line, compete)

    def __iter__(self) -> Iterator[Entry]:
        """Iterate over the tasks that wait for the key and do not compete."""
        return (entry for line in self._lines.values() for entry in line)

    def clear(self) -> None:
        """Forget the waiting tasks, which are about to join anew, and not the running ones."""
        self._lines.clear()

    def freed(self, compete: Compete) -> None:
        """Stop counting a running task under this key."""
        self.running -= 1
        for name, line in list(self._lines.items()):
            self._advance(name, line, compete)

    def _advance(self, name: tuple[str, str], line: "_KeyLine", compete: Compete) -> None:
        if line.competing is not None:
            return
        first = line.first()
        if first is None:
            del self._lines[name]
        elif self.may_pass(first):
            line.competing = line.take()
            compete(first)


class _KeyLine(Turns):
    """The tasks of one line that wait under one key."""

    __slots__ = ("competing",)

    def __init__(self) -> None:
        super().__init__()
        self.competing: Entry | None = None
