"""Things that become due: a heap whose members can be forgotten in O(1)."""

from heapq import heappop, heappush
from typing import Generic, TypeVar

T = TypeVar("T")


class Timer(Generic[T]):
    """Holds values until their time. A value that is void by then is the caller's to skip."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, T]] = []
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, at: float, value: T) -> None:
        self._sequence += 1
        heappush(self._heap, (at, self._sequence, value))

    def pop_due(self, now: float) -> list[T]:
        """Take everything whose time has come, earliest first."""
        due = []
        while self._heap and self._heap[0][0] <= now:
            due.append(heappop(self._heap)[2])
        return due

    def pop_one(self, now: float) -> T | None:
        """Take the earliest whose time has come, if there is one."""
        return heappop(self._heap)[2] if self._heap and self._heap[0][0] <= now else None

    def next_at(self) -> float | None:
        """Return the earliest time."""
        return self._heap[0][0] if self._heap else None
