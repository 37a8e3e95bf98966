"""When a task is retried after a failed execution, and when it is given up."""

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential backoff: initial, initial × factor, … up to max_delay, spread by jitter."""

    max_attempts: int = 5
    initial: float = 10.0
    factor: float = 3.0
    max_delay: float = 3600.0
    jitter: float = 0.1
    on: list[int | str] | None = None
    """For http targets: the status codes, "timeout" and "connection", after which to retry;
    None for the usual ones."""


def backoff(policy: RetryPolicy, failures: int, rng: Random) -> float:
    """Return the seconds to wait after the given number of failed executions (1 or more)."""
    # Past a few dozen failures the power alone would overflow a float.
    exponent = min(failures - 1, 64)
    try:
        delay = min(policy.initial * policy.factor**exponent, policy.max_delay)
    except OverflowError:
        delay = policy.max_delay
    return float(max(0.0, delay * (1 + rng.uniform(-policy.jitter, policy.jitter))))


def retry_delay(
    policy: RetryPolicy, failures: int, *, retryable: bool, retry_after: float | None, rng: Random
) -> float | None:
    """Return the delay before the next execution, or None when the task is to be given up.

    A receiver's Retry-After lengthens the delay but never beyond the policy's max_delay.
    """
    if not retryable or failures >= policy.max_attempts:
        return None
    delay = backoff(policy, failures, rng)
    if retry_after is not None:
        delay = max(delay, min(retry_after, policy.max_delay))
    return delay
