"""Task ids: UUIDv7, so that ids sort by time and a look-up in history can skip older days."""

from collections.abc import Callable
from random import Random
from uuid import UUID

_COUNTER_BITS = 26


class TaskIds:
    """A source of ids that strictly rise within a process, also within a millisecond (RFC 9562
    §6.2). `of_bytes` may make another kind of UUID, one that is quicker to make and to hash."""

    def __init__(
        self, rng: Random, of_bytes: Callable[[bytes], UUID] = lambda octets: UUID(bytes=octets)
    ) -> None:
        self._rng = rng
        self._of_bytes = of_bytes
        self._last_ms = 0
        self._counter = 0

    def make(self, now: float) -> UUID:
        ms = int(now * 1000)
        if ms > self._last_ms:
            self._last_ms, self._counter = ms, self._rng.getrandbits(_COUNTER_BITS - 4)
        else:
            self._counter += 1
            if self._counter >> _COUNTER_BITS:
                self._last_ms, self._counter = self._last_ms + 1, 0
        high, low = self._counter >> 14, self._counter & 0x3FFF
        number = (
            self._last_ms << 80
            | 0x7 << 76
            | high << 64
            | 0b10 << 62
            | low << 48
            | self._rng.getrandbits(48)
        )
        return self._of_bytes(number.to_bytes(16, "big"))
