"""A token bucket: so many requests a second, with a second's worth at once."""

from dataclasses import dataclass
from math import ceil


@dataclass(frozen=True, slots=True)
class Allowance:
    """The answer of the bucket to one request, in the terms of the RateLimit headers."""

    granted: bool
    limit: int
    remaining: int
    reset: int
    """Whole seconds until the bucket is full again; when refused, until the next is granted."""


class TokenBucket:
    """Fills steadily up to its size; every granted request takes a token.

    The time comes from the caller and may stand still, but a step back adds nothing.
    """

    __slots__ = ("_filled_at", "_rate", "_size", "_tokens")

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._size = max(1.0, rate)
        self._tokens = self._size
        self._filled_at = now

    def take(self, now: float) -> Allowance:
        """Grant one request, or say when to come back."""
        self._fill(now)
        limit = int(self._size)
        if self._tokens < 1.0:
            return Allowance(False, limit, 0, max(1, ceil((1.0 - self._tokens) / self._rate)))
        self._tokens -= 1.0
        missing = self._size - self._tokens
        return Allowance(True, limit, int(self._tokens), ceil(missing / self._rate))

    def give_back(self) -> None:
        """Take back a request that was granted and not used."""
        self._tokens = min(self._size, self._tokens + 1.0)

    def full(self, now: float) -> bool:
        """Whether forgetting this bucket would change nothing."""
        self._fill(now)
        return self._tokens >= self._size

    def _fill(self, now: float) -> None:
        passed = max(0.0, now - self._filled_at)
        self._tokens = min(self._size, self._tokens + passed * self._rate)
        self._filled_at = max(self._filled_at, now)
