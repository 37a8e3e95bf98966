"""Pure rules: ids, placement, backoff, and what becomes of an execution."""

from collections import Counter
from itertools import pairwise
from random import Random
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.domain.execution import Outcome, Report, TaskError, believed
from mainspring.domain.ids import TaskIds
from mainspring.domain.outcome_rules import Finish, RetryLater, decide_outcome
from mainspring.domain.partitions import PARTITIONS, partition_of, preferred_owner
from mainspring.domain.retry import RetryPolicy, backoff, retry_delay
from mainspring.domain.task import TaskState
from mainspring.domain.tenant import TenantLimits
from support.ids import time_of
from support.rows import execution, row

NOW = 1_800_000_000.0


# Ids -------------------------------------------------------------------------------------------


@given(st.lists(st.floats(NOW - 5, NOW + 5), min_size=2, max_size=50), st.integers())
def test_ids_rise_strictly_whatever_the_clock_does(times: list[float], seed: int) -> None:
    ids = TaskIds(Random(seed))
    made = [ids.make(now) for now in times]
    assert all(earlier < later for earlier, later in pairwise(made))


def test_ids_rise_through_a_counter_that_overflows() -> None:
    class AlwaysMost(Random):
        def getrandbits(self, k: int, /) -> int:
            return (1 << k) - 1

    ids = TaskIds(AlwaysMost(0))
    first = ids.make(NOW)
    ids._counter = 2**26 - 2
    made = [ids.make(NOW) for _ in range(4)]
    assert first < made[0]
    assert all(earlier < later for earlier, later in pairwise(made))
    assert time_of(made[-1]) == NOW + 0.001


@given(st.floats(0, 2**33), st.integers())
def test_ids_are_version_7_and_know_their_time(now: float, seed: int) -> None:
    made = TaskIds(Random(seed)).make(max(now, 1.0))
    assert made.version == 7
    assert made.variant == "specified in RFC 4122"
    assert time_of(made) == pytest.approx(max(now, 1.0), abs=0.001)


def test_other_ids_have_no_time() -> None:
    assert time_of(uuid4()) == 0.0


# Placement -------------------------------------------------------------------------------------

_tenants = st.integers(1, 2**31 - 1)


@given(_tenants, st.uuids(), st.none() | st.text(max_size=9), st.integers(1, 256))
def test_every_task_has_a_partition(tenant: int, task: UUID, key: str | None, spread: int) -> None:
    assert 0 <= partition_of(tenant, task, key, spread) < PARTITIONS


@given(_tenants, st.lists(st.uuids(), min_size=2, max_size=9), st.integers(1, 256))
def test_tasks_of_one_key_meet(tenant: int, tasks: list[UUID], spread: int) -> None:
    assert len({partition_of(tenant, task, "key", spread) for task in tasks}) == 1


@given(_tenants, st.integers(1, 256))
def test_a_tenant_uses_as_many_partitions_as_its_spread(tenant: int, spread: int) -> None:
    used = {partition_of(tenant, UUID(int=last), None, spread) for last in range(256)}
    assert len(used) == spread


def test_tenants_lie_apart() -> None:
    places = Counter(partition_of(tenant, UUID(int=0), None, 1) for tenant in range(1, 257))
    assert max(places.values()) == 1


@given(st.lists(st.uuids(), min_size=2, max_size=6, unique=True))
def test_a_node_that_goes_moves_only_its_own_partitions(nodes: list[UUID]) -> None:
    gone, *others = nodes
    for partition in range(0, PARTITIONS, 16):
        before = preferred_owner(partition, nodes)
        if before != gone:
            assert preferred_owner(partition, others) == before


def test_partitions_are_shared_about_evenly() -> None:
    rng = Random(7)
    nodes = [UUID(int=rng.getrandbits(128)) for _ in range(4)]
    shares = Counter(preferred_owner(partition, nodes) for partition in range(PARTITIONS))
    assert min(shares.values()) > 40


def test_a_limit_is_shared_by_the_spread() -> None:
    assert TenantLimits(max_running=9, spread=4).running_per_partition == 2
    assert TenantLimits().running_per_partition is None


# Retries ---------------------------------------------------------------------------------------

_policies = st.builds(
    RetryPolicy,
    max_attempts=st.integers(1, 10),
    initial=st.floats(0, 1000),
    factor=st.floats(1, 10),
    max_delay=st.floats(0, 10_000),
    jitter=st.floats(0, 1),
)


@given(_policies, st.integers(1, 10_000), st.integers())
def test_backoff_stays_in_its_bounds(policy: RetryPolicy, failures: int, seed: int) -> None:
    delay = backoff(policy, failures, Random(seed))
    assert 0 <= delay <= policy.max_delay * (1 + policy.jitter) + 1e-6


def test_backoff_grows_by_its_factor() -> None:
    policy = RetryPolicy(initial=10.0, factor=3.0, max_delay=200.0, jitter=0.0)
    delays = [backoff(policy, failures, Random(0)) for failures in range(1, 6)]
    assert delays == [10.0, 30.0, 90.0, 200.0, 200.0]


@given(_policies, st.integers(1, 20), st.booleans(), st.none() | st.floats(0, 1e6), st.integers())
def test_executions_end_and_delays_are_capped(
    policy: RetryPolicy, failures: int, retryable: bool, retry_after: float | None, seed: int
) -> None:
    delay = retry_delay(
        policy, failures, retryable=retryable, retry_after=retry_after, rng=Random(seed)
    )
    if not retryable or failures >= policy.max_attempts:
        assert delay is None
        return
    assert delay is not None
    assert delay >= min(retry_after or 0.0, policy.max_delay)
    assert delay <= policy.max_delay * (1 + policy.jitter) + 1e-6


# Settlement ------------------------------------------------------------------------------------


def decided(
    outcome: Outcome, *, retryable: bool = True, failures: int = 0, attempts: int = 3
) -> Finish | RetryLater:
    task = execution(row(1), failures=failures, retry=RetryPolicy(max_attempts=attempts))
    error = TaskError("test", "it failed")
    report = Report(task, outcome, 1.0, 2.0, error=error, retryable=retryable)
    return decide_outcome(report, Random(0))


def test_an_error_has_no_words_that_cannot_be_stored() -> None:
    assert TaskError("x", "\0 \ud800 \U0001f600").message == "\ufffd ? \U0001f600"


@pytest.mark.parametrize(
    ("outcome", "state"),
    [(Outcome.SUCCEEDED, TaskState.COMPLETED), (Outcome.CANCELLED, TaskState.CANCELLED)],
)
def test_an_end_is_an_end(outcome: Outcome, state: TaskState) -> None:
    end = decided(outcome)
    assert isinstance(end, Finish)
    assert (end.state, end.dead_because) == (state, None)


@pytest.mark.parametrize("outcome", [Outcome.RELEASED, Outcome.LOST])
def test_a_blameless_end_keeps_the_due_time(outcome: Outcome) -> None:
    again = decided(outcome, failures=99)
    assert isinstance(again, RetryLater)
    assert again.delay is None


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.TIMED_OUT])
def test_a_failure_with_attempts_left_is_retried(outcome: Outcome) -> None:
    again = decided(outcome, failures=1)
    assert isinstance(again, RetryLater)
    assert again.delay is not None
    assert again.delay > 0


@pytest.mark.parametrize(
    ("retryable", "failures", "reason"),
    [(True, 2, "exhausted"), (False, 0, "not_retryable")],
)
def test_a_last_failure_is_final(retryable: bool, failures: int, reason: str) -> None:
    end = decided(Outcome.FAILED, retryable=retryable, failures=failures)
    assert isinstance(end, Finish)
    assert (end.state, end.dead_because) == (TaskState.FAILED, reason)


@pytest.mark.parametrize(("started", "met"), [(30.0, True), (30.1, False)])
def test_the_sla_bounds_the_start(started: float, met: bool) -> None:
    task = execution(row(1))._replace(picked=30.0, waited={"tenant_limit": 29.0, "fair_share": 1.0})
    report = Report(task, Outcome.SUCCEEDED, started, started + 100)
    end = decide_outcome(report, Random(0))
    assert isinstance(end, Finish)
    assert (end.sla_met, end.blame) == (met, None if met else "limits")


# How long an execution took -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("started", "finished", "found"),
    [
        (101.0, 121.0, (101.0, 121.0)),
        (101.0 - 3600, 121.0 - 3600, (100.0, 120.0)),
        (101.0 + 3600, 121.0 + 3600, (110.0, 130.0)),
        (101.0, 101.0 + 3600, (100.0, 130.0)),
        (121.0, 101.0, (121.0, 121.0)),
        (None, None, (100.0, 130.0)),
        (105.0, None, (105.0, 130.0)),
        (105.0 + 3600, None, (100.0, 130.0)),
        (None, 120.0, (100.0, 120.0)),
        (None, 120.0 - 3600, (100.0, 130.0)),
    ],
)
def test_how_long_it_took_survives_a_wrong_clock(
    started: float | None, finished: float | None, found: tuple[float, float]
) -> None:
    assert believed(100.0, 30.0, started, finished) == found


@given(st.floats(0, 1e10), st.floats(-10, 1e5), st.floats(0, 1e10), st.floats(0, 1e10))
def test_an_execution_lies_between_its_claim_and_now(
    picked: float, held: float, started: float, finished: float
) -> None:
    begun, ended = believed(picked, held, started, finished)
    assert picked <= begun <= ended <= picked + max(0.0, held) + 1e-5
