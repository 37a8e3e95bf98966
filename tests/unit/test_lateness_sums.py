"""The sums of lateness: over any sequence of executions each second counts once, with its cause."""

from collections import defaultdict
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.domain.lateness import (
    CAPACITY,
    LIMITS,
    Cause,
    Earlier,
    Moments,
    Waited,
    account_for,
    after,
    blame,
    judge_loss,
    judge_start,
)

SEEN = [Cause.NO_WORKER, Cause.FAIR_SHARE, Cause.TENANT_LIMIT, Cause.CONCURRENCY_KEY, Cause.PAUSED]
SLACK = 0.011
"""A start less late than a hundredth of a second counts as on time."""

seconds = st.one_of(st.just(0.0), st.floats(0.02, 1000.0))


@dataclass(frozen=True)
class OneExecution:
    """One execution: what it waited for, how long its claim took, and what became of it."""

    waits: dict[Cause, float]
    claim: float
    queue: float
    ran: float
    outcome: str
    backoff: float


executions = st.builds(
    OneExecution,
    waits=st.dictionaries(st.sampled_from(SEEN), st.floats(0.02, 1000.0), max_size=3),
    claim=st.sampled_from([0.0, 0.003, 0.5]),
    queue=seconds,
    ran=seconds,
    outcome=st.sampled_from(["failed", "lost", "released"]),
    backoff=seconds,
)


class Life:
    """A task on its way through executions, with the true account beside the one that is kept."""

    def __init__(self, due: float, sla: float) -> None:
        self.first_due = self.due = self.now = due
        self.sla = sla
        self.waited: Waited | None = None
        self.earlier: Earlier | None = None
        self.truth: defaultdict[str, float] = defaultdict(float)
        self.first_start: float | None = None
        self.count = 0

    def pick(self, one: OneExecution) -> Moments:
        self.count += 1
        waited = dict(self.waited or {})
        for cause, spent in one.waits.items():
            waited[cause] = waited.get(cause, 0.0) + spent
            self.now += spent
            self.truth[cause] += spent
        late = self.now - self.due
        self.now += one.claim
        self.truth[Cause.WAITING] += one.claim
        return Moments(self.due, self.now, waited if late >= 0.01 else None)

    def start(self, one: OneExecution) -> float:
        self.now += one.queue
        self.truth[Cause.WORKER_QUEUE] += one.queue
        if self.first_start is None:
            self.first_start = self.now
        return self.now

    def go_through(self, one: OneExecution) -> None:
        moments = self.pick(one)
        if one.outcome == "failed":
            started = self.start(one)
            self._check_own(moments, started)
            self.now += one.ran
            self.truth[Cause.FAILED_TRIES] += one.ran
            kept = after(moments, self.earlier, started, self.now, self.sla)
            self.earlier = Earlier.read(kept.stored())
            self.now += one.backoff
            self.truth[Cause.RETRY_BACKOFF] += one.backoff
            self.due, self.waited = self.now, None
        else:
            self.now += one.ran
            self.truth[Cause.FAILED_TRIES] += one.ran
            self.waited = moments.until_lost(self.now)

    def _check_own(self, moments: Moments, started: float) -> Waited | None:
        own = moments.until_started(started)
        total = sum((own or {}).values())
        assert total == pytest.approx(started - moments.due, abs=SLACK)
        return own


def life_after(before: list[OneExecution], sla: float) -> Life:
    life = Life(1_700_000_000.0, sla)
    for one in before:
        life.go_through(one)
    return life


lives = st.builds(life_after, st.lists(executions, max_size=6), st.floats(0.0, 2000.0))


@given(lives, executions)
def test_every_second_is_there_once(life: Life, last: OneExecution) -> None:
    moments = life.pick(last)
    started = life.start(last)
    verdict = judge_start(moments, life.earlier, started, life.sla)
    kept, slack = verdict.lateness or {}, SLACK * life.count
    assert sum(kept.values()) == pytest.approx(started - life.first_due, abs=slack)
    for cause, true in life.truth.items():
        assert kept.get(cause, 0.0) == pytest.approx(true, abs=slack), cause
    assert Cause.UNATTRIBUTED not in kept
    assert life.first_start is not None
    assert verdict.met is (life.first_start - life.first_due <= life.sla)
    assert (verdict.blame is None) is verdict.met


@given(lives, executions)
def test_a_task_that_ends_by_a_loss_is_judged_by_its_starts(life: Life, last: OneExecution) -> None:
    moments = life.pick(last)
    life.now += last.ran
    verdict = judge_loss(moments, life.earlier, life.now, life.sla)
    if life.first_start is not None:
        assert verdict.met is (life.first_start - life.first_due <= life.sla)
    else:
        late = life.now - life.first_due
        assert verdict.met is (False if late > life.sla else None)
        assert sum((verdict.lateness or {}).values()) == pytest.approx(late, abs=SLACK)


def test_an_account_of_another_due_time_is_no_account() -> None:
    """A node that knows nothing of accounts moved the due time and left the old one in the row."""
    assert Moments(100.0, 101.0, {"failed_tries": 15.0}).until_picked() == {"waiting": 1.0}


def test_what_is_missing_is_put_down_to_the_cause() -> None:
    assert account_for(None, 0.009, Cause.WAITING) is None
    assert account_for({"paused": 2.0}, 2.0009, Cause.WAITING) == {"paused": 2.0}
    assert account_for({"paused": 2.0}, 5.0, Cause.PAUSED) == {"paused": 5.0}


@pytest.mark.parametrize("cause", list(Cause))
def test_each_cause_belongs_to_one_phase(cause: Cause) -> None:
    phase = blame({cause.value: 2.0, "waiting" if cause in LIMITS | CAPACITY else "paused": 1.0})
    expected = "limits" if cause in LIMITS else "capacity" if cause in CAPACITY else "scheduler"
    assert phase == expected
