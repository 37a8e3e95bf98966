"""The engine's small parts: timer, ledger, leases."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.domain.lateness import Cause, blame
from mainspring.engine.lateness_ledger import Bucket
from mainspring.engine.leases import HeldLease, HeldLeases
from mainspring.engine.running import RunningTask, RunningTasks
from mainspring.engine.timer import Timer
from support.rows import task_id


@given(st.lists(st.integers(0, 20)), st.integers(0, 20))
def test_a_timer_gives_what_is_due_in_order(times: list[int], now: int) -> None:
    timer: Timer[int] = Timer()
    for at in times:
        timer.add(at, at)
    assert timer.pop_due(now) == sorted(at for at in times if at <= now)
    later = [at for at in times if at > now]
    assert timer.next_at() == (min(later) if later else None)
    assert len(timer) == len(later)


def test_a_timer_keeps_the_order_of_equals() -> None:
    timer: Timer[str] = Timer()
    for name in "abc":
        timer.add(1.0, name)
    assert timer.pop_due(1.0) == ["a", "b", "c"]


_switches = st.lists(
    st.tuples(st.integers(1, 50), st.sampled_from(list(Cause)[:5])), min_size=1, max_size=20
)


@given(_switches, st.integers(0, 400), st.integers(0, 400))
def test_causes_add_up_to_the_wait(switches: list[tuple[int, Cause]], one: int, other: int) -> None:
    """A model that follows a single task second by second comes to the same account."""
    entered, left = min(one, other), max(one, other)
    causes: list[Cause] = [Cause.FAIR_SHARE]
    for length, cause in switches:
        causes += [causes[-1]] * length
        causes[-1] = cause
    causes += [causes[-1]] * (401 - len(causes))
    bucket, stamp = Bucket(causes[0], 0.0), None
    for second in range(left + 1):
        bucket.switch(causes[second], float(second))
        if second == entered:
            stamp = bucket.enter(float(second))
    assert stamp is not None
    waited = bucket.leave(stamp, float(left))
    expected = {cause: float(causes[entered:left].count(cause)) for cause in causes[entered:left]}
    assert waited == expected
    assert sum(waited.values()) == left - entered


def test_two_tasks_in_a_bucket_have_accounts_of_their_own() -> None:
    bucket = Bucket(Cause.FAIR_SHARE, 0.0)
    early = bucket.enter(1.0)
    bucket.switch(Cause.TENANT_LIMIT, 3.0)
    late = bucket.enter(4.0)
    bucket.switch(Cause.FAIR_SHARE, 6.0)
    assert bucket.leave(early, 7.0) == {Cause.FAIR_SHARE: 3.0, Cause.TENANT_LIMIT: 3.0}
    assert bucket.leave(late, 7.0) == {Cause.TENANT_LIMIT: 2.0, Cause.FAIR_SHARE: 1.0}


@pytest.mark.parametrize(
    ("waited", "phase"),
    [
        ({}, "scheduler"),
        ({"tenant_limit": 2.0, "fair_share": 1.0}, "limits"),
        ({"concurrency_key": 2.0}, "limits"),
        ({"no_worker": 2.0, "tenant_limit": 1.0}, "capacity"),
        ({"fair_share": 1.0}, "capacity"),
        ({"unattributed": 9.0, "fair_share": 1.0}, "scheduler"),
    ],
)
def test_the_largest_part_is_to_blame(waited: dict[str, float], phase: str) -> None:
    assert blame(waited) == phase


def held(number: int, fence: int = 1) -> HeldLease:
    return HeldLease(1, task_id(number), fence)


def test_a_lease_is_extended_at_a_third() -> None:
    leases = HeldLeases(15.0)
    leases.add(held(1))
    assert leases.due_for_extension(0.0, 10) == []
    assert leases.next_extension() == 5.0
    assert leases.due_for_extension(4.9, 10) == []
    assert [lease.id for lease in leases.due_for_extension(5.0, 10)] == [task_id(1)]
    assert leases.due_for_extension(5.0, 10) == []
    assert leases.next_extension() == 10.0


def test_a_short_task_is_never_extended() -> None:
    leases = HeldLeases(15.0)
    for number in (1, 2):
        leases.add(held(number))
        leases.due_for_extension(0.0, 10)
        leases.drop(task_id(number), 1)
    leases.add(held(3))
    leases.drop(task_id(3), 1)
    assert leases.due_for_extension(5.0, 10) == []
    assert (len(leases), leases.next_extension()) == (0, None)


def test_a_stale_fence_drops_nothing() -> None:
    leases = HeldLeases(15.0)
    leases.add(held(1, fence=2))
    leases.drop(task_id(1), 1)
    assert leases.has(task_id(1), 2)
    assert not leases.has(task_id(1), 1)
    assert leases.find([task_id(1), task_id(2)])[0].fence == 2


def test_leases_are_extended_in_batches() -> None:
    leases = HeldLeases(15.0)
    for number in range(5):
        leases.add(held(number))
    assert leases.due_for_extension(0.0, 0) == []
    assert leases.due_for_extension(6.0, 0) == []
    assert len(leases.due_for_extension(6.0, 3)) == 3
    assert len(leases.due_for_extension(6.0, 3)) == 2


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=40))
def test_every_lease_is_extended_in_time(steps: list[tuple[int, bool]]) -> None:
    """However tasks come and go: who is held is extended at least every third of a lease."""
    leases, now, turns = HeldLeases(15.0), 0.0, dict[int, list[float]]()
    for number, (seconds, drop) in enumerate(steps):
        now += seconds
        for lease in leases.due_for_extension(now, 100):
            turns[lease.id.int].append(now)
        leases.add(held(number))
        leases.due_for_extension(now, 0)
        turns[number] = [now]
        if drop:
            leases.drop(task_id(number), 1)
    for lease in leases:
        assert now - turns[lease.id.int][-1] < 5.0 + 5
        assert all(later - earlier < 10.1 for earlier, later in pairwise(turns[lease.id.int]))


def running(number: int, lease_end: float, partition: int = 0) -> RunningTask:
    return RunningTask(1, task_id(number), partition, None, 1, 1, lease_end)


def test_our_own_leases_are_not_watched() -> None:
    tasks = RunningTasks()
    tasks.add(running(1, 5.0), ours=True)
    tasks.add(running(2, 5.0), ours=False)
    assert [task.id for task in tasks.expired_leases(9.0)] == [task_id(2)]


def test_a_task_that_is_over_is_watched_no_more() -> None:
    tasks = RunningTasks()
    tasks.add(running(1, 5.0), ours=False)
    assert tasks.remove(task_id(1)) is not None
    assert tasks.remove(task_id(1)) is None
    assert tasks.expired_leases(9.0) == []


def test_tasks_leave_with_their_partition() -> None:
    tasks = RunningTasks()
    tasks.add(running(1, 5.0, partition=3), ours=False)
    tasks.add(running(2, 5.0, partition=4), ours=False)
    assert [task.id for task in tasks.remove_partitions({3})] == [task_id(1)]
    assert [task.id for task in tasks] == [task_id(2)]
    assert tasks.get(task_id(1)) is None
