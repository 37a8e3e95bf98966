"""Rate limits: requests per second of each tenant, counted by this node alone.

The count lives in memory: asking the database before every request would cost more than the
requests that are kept out. A tenant that spreads its requests over n nodes gets n times as much.
"""

from collections.abc import Callable

from mainspring.clock import monotonic
from mainspring.domain.token_bucket import Allowance, TokenBucket
from mainspring.errors import TooManyRequests

_MOST_REMEMBERED = 10_000


class RateLimits:
    """A token bucket for each tenant. A rate of 0 means no limit, and no headers."""

    def __init__(self, rate: float, now: Callable[[], float] = monotonic) -> None:
        self._rate = rate
        self._now = now
        self._buckets: dict[int, TokenBucket] = {}

    def admit(self, tenant_id: int) -> list[tuple[bytes, bytes]]:
        """Count a request; return the headers of its answer. TooManyRequests has them too."""
        if not self._rate:
            return []
        now = self._now()
        bucket = self._buckets.get(tenant_id)
        if bucket is None:
            self._make_room(now)
            bucket = self._buckets[tenant_id] = TokenBucket(self._rate, now)
        return _headers(bucket.take(now))

    def give_back(self, tenant_id: int) -> None:
        """Undo `admit` for a request that is not served after all."""
        if self._rate:
            self._buckets[tenant_id].give_back()

    def _make_room(self, now: float) -> None:
        """Forget tenants that have not called for a while: to them it makes no difference."""
        if len(self._buckets) >= _MOST_REMEMBERED:
            self._buckets = {k: b for k, b in self._buckets.items() if not b.full(now)}


def _headers(allowance: Allowance) -> list[tuple[bytes, bytes]]:
    headers = [
        (b"ratelimit-limit", b"%d" % allowance.limit),
        (b"ratelimit-remaining", b"%d" % allowance.remaining),
        (b"ratelimit-reset", b"%d" % allowance.reset),
    ]
    if not allowance.granted:
        raise TooManyRequests(allowance.reset, headers)
    return headers
