"""What is decided about due occurrences: against a model that looks at them one by one."""

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from typing import get_args
from uuid import UUID

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from mainspring.domain.schedules import misfire
from mainspring.domain.schedules.definition import (
    ScheduleDefinition,
    spread_of,
    timetable,
)
from mainspring.domain.schedules.description import describe, warnings
from mainspring.domain.schedules.policies import Decision, Misfire, MisfirePolicy, OverlapPolicy
from mainspring.domain.schedules.template import Values, expand
from mainspring.domain.schedules.zones import DstPolicy
from mainspring.schedules.occurrences import decide
from mainspring.store.schedules.schedules import StoredSchedule

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC).timestamp()
ID = UUID(int=7)


def stored(
    definition: ScheduleDefinition, *, since: float, now: float, runs: int = 0
) -> StoredSchedule:
    """A schedule that was last decided on at `since`."""
    moment = datetime.fromtimestamp(since, UTC)
    return StoredSchedule(
        tenant_id=1,
        id=ID,
        rev=1,
        edition=1,
        partition=0,
        state="active",
        name="s",
        definition_bytes=msgspec.json.encode(definition),
        template_bytes=b"",
        created_at=moment,
        updated_at=moment,
        decided_to=since,
        next=timetable(definition).next(since),
        last=None,
        runs=runs,
        holidays=None,
        now=now,
    )


def each(
    definition: ScheduleDefinition, *, since: float, now: float, unfinished: int = 0
) -> Counter[str]:
    """How many occurrences got which decision."""
    found: Counter[str] = Counter()
    for ruling in decide(stored(definition, since=since, now=now), unfinished).verdict.rulings:
        found[ruling.decision.value] += ruling.span.size
    return found


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("skip", {"skipped_misfire": 120}),
        ("latest", {"fired": 1, "coalesced": 119}),
        ("all", {"fired": 120}),
    ],
)
def test_two_hours_of_outage(policy: MisfirePolicy, expected: dict[str, int]) -> None:
    definition = ScheduleDefinition(
        cron="* * * * *", misfire=Misfire(policy, window=7200, cap=500), overlap="allow"
    )
    # Half a minute after the last one: too late to be on time.
    assert each(definition, since=NOON, now=NOON + 7230) == expected


def test_what_was_due_when_the_window_begins_is_inside_it() -> None:
    definition = ScheduleDefinition(
        interval=1.0, anchor=NOON, misfire=Misfire("latest", window=60, cap=2), overlap="allow"
    )
    expected = {"skipped_misfire": 3540 - 1, "coalesced": 60, "fired": 1}
    assert each(definition, since=NOON, now=NOON + 3600) == expected


def test_the_cap_and_the_window_bound_catching_up() -> None:
    definition = ScheduleDefinition(
        cron="* * * * *", misfire=Misfire("all", window=3600, cap=10), overlap="allow"
    )
    verdict = decide(stored(definition, since=NOON, now=NOON + 7230), 0).verdict
    assert len(verdict.fired) == 10
    assert verdict.fired[-1] == NOON + 7200
    assert list(verdict.fired) == sorted(verdict.fired)
    skipped = [r.span.size for r in verdict.rulings if r.decision is Decision.SKIPPED_MISFIRE]
    assert skipped == [60, 50], "outside the window, and over the cap: one line each"


def test_a_failover_of_seconds_does_not_cost_a_daily_run() -> None:
    definition = ScheduleDefinition(cron="0 12 * * *", misfire=Misfire("skip"))
    assert each(definition, since=NOON - 60, now=NOON + 5) == {"fired": 1}


def test_an_outage_of_weeks_costs_no_more_than_a_moment() -> None:
    definition = ScheduleDefinition(cron="* * * * * *", exclude=("2026-06-03",), overlap="allow")
    step = decide(stored(definition, since=NOON, now=NOON + 21 * 86400), 0)
    sizes = Counter[str]()
    for ruling in step.verdict.rulings:
        sizes[ruling.decision.value] += ruling.span.size
    assert sizes["skipped_excluded"] == 86400
    assert sum(sizes.values()) == 21 * 86400
    assert len(step.verdict.rulings) < 10


@pytest.mark.parametrize(
    ("text", "a_day"),
    [("FREQ=SECONDLY", 86400), ("FREQ=MINUTELY;INTERVAL=2;BYSECOND=0,1,2,3,4,5,6,7,8,9", 7200)],
)
def test_a_long_outage_of_a_busy_rule_is_counted_in_stretches(text: str, a_day: int) -> None:
    start = 1_800_000_000.0
    table = timetable(ScheduleDefinition(rrule=text, anchor=start, start_at=start))
    at, until, counted, stretches = start - 1, start + 1500 * 86400 - 1, 0, 0
    while at < until:
        backlog = table.backlog(at, until, most=5, cut=until - 3600)
        assert backlog.until > at
        at, stretches = backlog.until, stretches + 1
        counted += len(backlog.recent) + sum(span.size for span in backlog.older)
    assert counted == 1500 * a_day
    assert stretches > 1


def test_an_excluded_day_is_decided_by_the_hour() -> None:
    definition = ScheduleDefinition(cron="* * * * * *", exclude=("2026-06-01",))
    step = decide(stored(definition, since=NOON, now=NOON + 1), 0)
    [ruling] = step.verdict.rulings
    assert ruling.decision is Decision.SKIPPED_EXCLUDED
    assert ruling.span.size == 3601
    assert step.next == ruling.span.last + 1


def test_max_runs_ends_it() -> None:
    definition = ScheduleDefinition(
        cron="* * * * * *", max_runs=5, misfire=Misfire("all"), overlap="allow"
    )
    step = decide(replace(stored(definition, since=NOON, now=NOON + 60), runs=2), 0)
    assert len(step.verdict.fired) == 3
    assert step.next is None


def test_spread_is_steady_and_even() -> None:
    offsets = [spread_of(UUID(int=n), 60) for n in range(2000)]
    assert offsets == [spread_of(UUID(int=n), 60) for n in range(2000)]
    assert 0 <= min(offsets) < 1
    assert 59 < max(offsets) < 60
    assert 28 < sum(offsets) / 2000 < 32


# --- stateful: misfire × overlap × outage length ------------------------------------------------


class Decisions(RuleBasedStateMachine):
    """A schedule lives through outages and slow runs; a model decides on each occurrence alone."""

    @initialize(
        policy=st.sampled_from(get_args(MisfirePolicy)),
        overlap=st.sampled_from(get_args(OverlapPolicy)),
        every=st.sampled_from([1, 7, 60]),
        window=st.sampled_from([5.0, 60.0, 3600.0]),
        cap=st.integers(1, 5),
        limit=st.integers(1, 3),
        excluded=st.booleans(),
    )
    def begin(
        self,
        policy: MisfirePolicy,
        overlap: OverlapPolicy,
        every: int,
        window: float,
        cap: int,
        limit: int,
        excluded: bool,
    ) -> None:
        self.definition = ScheduleDefinition(
            interval=float(every),
            anchor=NOON,
            misfire=Misfire(policy, window, cap),
            overlap=overlap,
            max_running=limit,
            exclude=("2026-06-02",) if excluded else (),
        )
        self.every = every
        self.now = self.decided = NOON
        self.unfinished: list[float] = []
        self.ledger: dict[float, str] = {}

    @rule(seconds=st.sampled_from([0.4, 1.0, 3.3, 30.0, 61.0, 600.0, 7200.0, 50_000.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(count=st.integers(1, 5))
    def runs_end(self, count: int) -> None:
        self.unfinished = self.unfinished[count:]

    @rule()
    def decisions_are_taken(self) -> None:
        step = decide(
            stored(self.definition, since=self.decided, now=self.now), len(self.unfinished)
        )
        taken = {
            nominal: ruling.decision.value
            for ruling in step.verdict.rulings
            for nominal in self._between(ruling.span.first - 0.5, ruling.span.last)
        }
        assert sum(r.span.size for r in step.verdict.rulings) == len(taken)
        assert not taken.keys() & self.ledger.keys(), "decided once"
        expected, cancelled = self._model(self._between(self.decided, step.decided_to))
        assert taken == expected
        assert step.verdict.cancel == cancelled
        self.ledger |= taken
        self.decided = step.decided_to
        assert step.next is not None
        assert step.next > self.decided
        fired = [at for at, decision in sorted(taken.items()) if decision == "fired"]
        self.unfinished = self.unfinished[step.verdict.cancel :] + fired

    def teardown(self) -> None:
        if hasattr(self, "ledger"):
            no_gap = self._between(NOON - 0.5, self.decided, first=1)
            assert sorted(self.ledger) == no_gap

    def _between(self, after: float, until: float, first: int = 0) -> list[float]:
        """Every occurrence in (after, until], by walking."""
        at = NOON + self.every * max(first, int((after - NOON) // self.every) + 1)
        times = []
        while at <= until + 1e-9:
            if at > after:
                times.append(at)
            at += self.every
        return times

    def _model(self, due: list[float]) -> tuple[dict[float, str], int]:
        d, now = self.definition, self.now
        fate: dict[float, str] = {}
        for at in due:
            if d.exclude and datetime.fromtimestamp(at, UTC).strftime("%F") in d.exclude:
                fate[at] = "skipped_excluded"
        rest = [at for at in due if at not in fate]
        tolerated = misfire.tolerance(self.every)
        late = [at for at in rest if now - at > tolerated]
        inside = [at for at in late if now - at <= d.misfire.window]
        wanted = [at for at in rest if now - at <= tolerated]
        for at in late:
            fate[at] = "skipped_misfire"
        if late and d.misfire.policy == "all":
            wanted = inside[-d.misfire.cap :] + wanted
        if late and d.misfire.policy == "latest":
            group = inside + wanted
            wanted = group[-1:]
            fate |= dict.fromkeys(group, "coalesced")
        room = d.max_running - len(self.unfinished)
        cancelled = 0
        for number, at in enumerate(wanted):
            if d.overlap == "queue":
                fires = number < room + d.misfire.cap
            elif d.overlap == "skip":
                fires = number < room
            else:
                fires = d.overlap == "allow" or number >= len(wanted) - d.max_running
            fate[at] = "fired" if fires else "skipped_overlap"
        if d.overlap == "cancel_running" and wanted:
            starting = min(len(wanted), d.max_running)
            cancelled = min(len(self.unfinished), max(0, starting - room))
        return fate, cancelled


TestDecisions = Decisions.TestCase
TestDecisions.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)


# --- words --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cron", "words"),
    [
        ("0 8 * * MON-FRI", "At 08:00, Monday through Friday, Europe/Berlin time."),
        ("*/15 * * * *", "Every 15 minutes, Europe/Berlin time."),
        ("0 0 L * *", "At 00:00, on the last day of the month, Europe/Berlin time."),
        ("0 0 LW * *", "At 00:00, on the last weekday of the month, Europe/Berlin time."),
        ("0 0 * * FRI#2", "At 00:00, on the second Friday, Europe/Berlin time."),
        ("30 2 29 2 *", "At 02:30, on the 29th of the month, in February, Europe/Berlin time."),
        ("@hourly", "Every hour, Europe/Berlin time."),
    ],
)
def test_plain_english(cron: str, words: str) -> None:
    assert describe(ScheduleDefinition(cron=cron, timezone="Europe/Berlin")) == words


def test_intervals_in_plain_english() -> None:
    assert describe(ScheduleDefinition(interval=90)) == "Every minute and 30 seconds."
    assert describe(ScheduleDefinition(interval=86400)) == "Every day."


def told(definition: ScheduleDefinition) -> str:
    return "\n".join(warnings(definition, timetable(definition), NOON))


def test_warnings_say_what_is_worth_knowing() -> None:
    assert "every second" in told(ScheduleDefinition(cron="* * * * * *"))
    assert "never fires" in told(ScheduleDefinition(cron="0 0 * * *", end_at=NOON))
    assert "contradicts" in told(ScheduleDefinition(cron="* * * * *", misfire=Misfire("all")))
    assert "jitter" in told(ScheduleDefinition(cron="* * * * *", jitter=60))
    berlin = told(ScheduleDefinition(cron="30 2 * * *", timezone="Europe/Berlin"))
    assert "2026-10-25 02:30 comes twice: it fires the first time" in berlin
    assert "2027-03-28 02:30 does not exist: it fires at 03:00" in berlin
    hourly = ScheduleDefinition(
        cron="@hourly", timezone="Europe/Berlin", dst=DstPolicy(repeat="second")
    )
    assert "no effect" in told(hourly)
    assert told(ScheduleDefinition(cron="0 8 * * *", timezone="Europe/Berlin")) == ""


def test_placeholders() -> None:
    values: Values = {
        "occurrence": 3,
        "scheduled_at": "2026-01-01T00:00:00Z",
        "schedule_id": "x",
    }
    payload = rb'{"n": "{{occurrence}}", "s": "at {{ scheduled_at }}!", "{{occurrence}}": 1.50}'
    assert expand(payload, values) == (
        rb'{"n": 3, "s": "at 2026-01-01T00:00:00Z!", "{{occurrence}}": 1.50}'
    )
    assert expand(rb'["\\{{occurrence}}", "{{other}}", "\u007b{occurrence}}"]', values) == (
        rb'["{{occurrence}}", "{{other}}", 3]'
    )
