"""The bucket that keeps a tenant's requests within its rate."""

from hypothesis import given
from hypothesis import strategies as st

from mainspring.domain.token_bucket import TokenBucket


def test_a_second_at_once_and_then_one_by_one() -> None:
    bucket = TokenBucket(10, now=0)
    assert [bucket.take(0).granted for _ in range(11)] == [True] * 10 + [False]
    assert not bucket.take(0.05).granted
    assert bucket.take(0.1).granted
    assert not bucket.take(0.1).granted


def test_what_it_tells() -> None:
    bucket = TokenBucket(2, now=0)
    first, second, third = (bucket.take(0) for _ in range(3))
    assert (first.limit, first.remaining, first.reset) == (2, 1, 1)
    assert (second.remaining, second.reset) == (0, 1)
    assert (third.granted, third.remaining, third.reset) == (False, 0, 1)


def test_a_rate_below_one_still_grants_one() -> None:
    bucket = TokenBucket(0.1, now=0)
    assert bucket.take(0).granted
    refused = bucket.take(1)
    assert (refused.granted, refused.reset) == (False, 9)
    assert bucket.take(10).granted


def test_what_is_given_back_was_never_taken() -> None:
    bucket, other = TokenBucket(3, now=0), TokenBucket(3, now=0)
    for now in (0.0, 0.1, 0.2):
        bucket.take(now)
        bucket.give_back()
        assert bucket.take(now) == other.take(now)
    bucket, other = TokenBucket(3, now=0), TokenBucket(3, now=0)
    bucket.give_back()
    assert bucket.take(0) == other.take(0), "nor is it ever more than full"


def test_a_full_bucket_may_be_forgotten() -> None:
    bucket = TokenBucket(4, now=0)
    assert bucket.full(0)
    bucket.take(0)
    assert not bucket.full(0.2)
    assert bucket.full(0.3)


@given(
    st.floats(0.5, 100),
    st.lists(st.floats(-5, 5), max_size=200),
)
def test_never_more_than_the_rate(rate: float, steps: list[float]) -> None:
    """However the calls come, and even if time steps back: the size, plus the rate times time."""
    bucket, now, latest, granted = TokenBucket(rate, now=0), 0.0, 0.0, 0
    for step in steps:
        now += step
        latest = max(latest, now)
        granted += bucket.take(now).granted
        assert granted <= max(1.0, rate) + rate * latest + 1e-6
