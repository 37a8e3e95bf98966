"""The engine as its drivers use it: rows in, picks out, counts exact."""

from collections.abc import Sequence

import pytest

from mainspring.domain.lateness import Waited
from mainspring.domain.rows import TaskRow
from mainspring.domain.tenant import TenantLimits
from mainspring.engine.core import Engine, EngineSettings
from mainspring.engine.entry import Entry
from support.rows import execution, row, task_id

ONE_AT_A_TIME = TenantLimits(max_running=1, spread=1)
RUNNING_FIRST = row(1, rev=2, key="k", state="running", fence=1, lease_end=15.0)
SECOND = row(2, due=0.5, key="k")


def anything(_capability: str) -> bool:
    return True


def make_engine(
    rows: Sequence[TaskRow] = (), *, limits: TenantLimits | None = None, cap: int = 8
) -> Engine:
    engine = Engine(EngineSettings(stream_cap=cap, tenant_cap=64))
    engine.extend_horizon(100.0)
    engine.set_limits(dict.fromkeys((1, 2), limits or TenantLimits()), 0.0)
    engine.own([0, 1], rows, 0.0)
    return engine


def pick(engine: Engine, now: float = 1.0, slots: int = 10) -> list[Entry]:
    return engine.pick(now, slots, anything)


def numbers(picked: Sequence[Entry]) -> list[int]:
    return [entry.row.id.int for entry in picked]


def start(engine: Engine, now: float = 1.0, slots: int = 10) -> list[Entry]:
    """Pick, and let every claim succeed."""
    picked = pick(engine, now, slots)
    assert engine.finish_claim(picked, [execution(entry.row) for entry in picked], now) == []
    return picked


def test_a_task_is_picked_when_it_is_due_and_not_before() -> None:
    engine = make_engine([row(1, due=5.0)])
    assert pick(engine, 4.9) == []
    assert engine.next_wake() == 5.0
    assert numbers(pick(engine, 5.0)) == [1]


def test_a_picked_task_is_not_picked_again() -> None:
    engine = make_engine([row(1)])
    assert numbers(pick(engine)) == [1]
    engine.update([row(1), row(1, rev=2)], 1.0)
    assert pick(engine) == []


def test_no_more_are_picked_than_there_are_slots() -> None:
    engine = make_engine([row(n) for n in range(5)])
    assert len(pick(engine, slots=2)) == 2
    assert pick(engine, slots=0) == []


def test_what_is_not_ours_is_not_picked() -> None:
    engine = make_engine([row(1, partition=7)])
    assert pick(engine) == []


def test_what_is_due_beyond_the_horizon_waits_in_the_database() -> None:
    engine = make_engine([row(1, due=101.0)])
    assert len(engine.window) == 0


def test_an_old_row_changes_nothing() -> None:
    engine = make_engine([row(1, rev=3, due=5.0)])
    engine.update([row(1, rev=2, due=0.0)], 1.0)
    assert pick(engine, 1.0) == []


def test_a_newer_row_replaces_the_older() -> None:
    engine = make_engine([row(1, rev=1, due=5.0)])
    engine.update([row(1, rev=2, due=0.0)], 1.0)
    (entry,) = pick(engine)
    assert entry.row.rev == 2


@pytest.mark.parametrize("state", ["paused", "blocked"])
def test_a_parked_task_is_forgotten(state: str) -> None:
    engine = make_engine([row(1)])
    engine.update([row(1, rev=2, state=state)], 1.0)
    assert pick(engine) == []


def test_a_finished_task_is_forgotten() -> None:
    engine = make_engine([row(1)])
    assert engine.remove([task_id(1)], 1.0) == []
    assert pick(engine) == []


def test_an_expired_task_is_not_picked_and_takes_no_place() -> None:
    engine = make_engine([row(1, expires=2.0), row(2, due=0.5)], limits=ONE_AT_A_TIME)
    assert numbers(pick(engine, 3.0)) == [2]
    assert len(engine.window) == 1


def test_what_was_refused_is_answered_and_counts_no_more() -> None:
    engine = make_engine([row(1), row(2, due=0.5)], limits=ONE_AT_A_TIME)
    picked = pick(engine)
    assert engine.finish_claim(picked, [], 1.0) == [(1, task_id(1))]
    assert numbers(pick(engine)) == [2]


def test_what_is_running_is_counted_before_anything_starts() -> None:
    running = row(1, state="running", fence=1, lease_end=15.0)
    engine = make_engine([running, row(2)], limits=ONE_AT_A_TIME)
    assert pick(engine) == []
    engine.remove([task_id(1)], 1.0)
    assert numbers(pick(engine)) == [2]


def test_a_running_task_seen_twice_counts_once() -> None:
    running = row(1, rev=2, state="running", fence=1, lease_end=15.0)
    engine = make_engine([running, row(2)], limits=ONE_AT_A_TIME)
    engine.update([running, running._replace(rev=3)], 1.0)
    assert len(engine.running) == 1
    engine.end(task_id(1), 1, 1.0)
    assert numbers(pick(engine)) == [2]


def test_an_end_with_a_stale_fence_changes_nothing() -> None:
    running = row(1, rev=4, state="running", fence=2, lease_end=15.0)
    engine = make_engine([running, row(2)], limits=ONE_AT_A_TIME)
    engine.end(task_id(1), 1, 1.0)
    assert pick(engine) == []


def test_a_started_task_counts_until_it_ends() -> None:
    engine = make_engine([row(1), row(2, due=0.5)], limits=ONE_AT_A_TIME)
    assert numbers(start(engine)) == [1]
    assert pick(engine) == []
    engine.leases.drop(task_id(1), 1)
    assert pick(engine) == []
    engine.end(task_id(1), 1, 2.0)
    assert numbers(pick(engine, 2.0)) == [2]


def test_a_partition_given_away_is_not_acted_for() -> None:
    engine = make_engine([row(1), row(2, partition=1)])
    engine.disown([0], 1.0)
    assert engine.partitions == {1}
    assert numbers(pick(engine)) == [2]


def test_running_tasks_of_a_released_partition_stay_leased() -> None:
    engine = make_engine([row(1)])
    start(engine)
    engine.disown([0], 1.0)
    assert (len(engine.running), len(engine.leases)) == (0, 1)
    assert engine.leases.due_for_extension(1.0, 10) == []
    assert [held.id for held in engine.leases.due_for_extension(6.0, 10)] == [task_id(1)]


def test_a_claim_answered_after_the_partition_was_given_away() -> None:
    engine = make_engine([row(1), row(2)], limits=ONE_AT_A_TIME)
    picked = pick(engine)
    engine.disown([0], 1.0)
    engine.finish_claim(picked, [execution(entry.row) for entry in picked], 1.0)
    assert (len(engine.running), len(engine.leases), len(engine.window)) == (0, 1, 0)


def test_a_claim_answered_after_its_partition_went_and_came_back() -> None:
    """The partition was read again before the claim was written: it counts all the same."""
    rows = [row(1), row(2, due=0.5)]
    engine = make_engine(rows, limits=ONE_AT_A_TIME)
    picked = pick(engine)
    engine.disown([0], 1.0)
    engine.own([0], rows, 1.0)
    engine.finish_claim(picked, [execution(entry.row) for entry in picked], 1.0)
    assert len(engine.running) == 1
    assert pick(engine) == []
    engine.end(task_id(1), 1, 2.0)
    assert numbers(pick(engine, 2.0)) == [2]


def test_cancelling_reaches_our_executors_only() -> None:
    engine = make_engine([row(1)])
    start(engine)
    asked = row(1, rev=3, state="running", fence=1, lease_end=15.0, cancel_requested=True)
    assert [held.id for held in engine.update([asked], 2.0)] == [task_id(1)]
    engine.leases.drop(task_id(1), 1)
    assert engine.update([asked], 2.0) == []


def test_unknown_limits_hold_a_tenants_tasks() -> None:
    engine = make_engine()
    engine.update([row(1, tenant=9)], 1.0)
    assert pick(engine) == []
    wanted = [engine.wants_limits]
    engine.set_limits({9: TenantLimits()}, 2.0)
    wanted.append(engine.wants_limits)
    assert wanted == [True, False]
    assert numbers(pick(engine, 2.0)) == [1]


def test_a_changed_limit_counts_running_and_claimed_tasks() -> None:
    engine = make_engine([row(n, due=n / 10) for n in range(4)])
    start(engine, slots=1)
    pick(engine, slots=1)
    engine.set_limits({1: TenantLimits(max_running=2, spread=1)}, 1.0)
    assert pick(engine) == []
    engine.set_limits({1: TenantLimits(max_running=3, spread=1)}, 1.0)
    assert numbers(pick(engine)) == [2]


def test_leases_of_others_are_watched() -> None:
    engine = make_engine([row(1, state="running", fence=1, lease_end=15.0)])
    assert engine.running.expired_leases(14.0) == []
    assert [task.id for task in engine.running.expired_leases(15.1)] == [task_id(1)]
    assert engine.running.expired_leases(15.2) == []
    assert [task.id for task in engine.running.expired_leases(17.0)] == [task_id(1)]


def test_an_extended_lease_is_not_lost() -> None:
    engine = make_engine([row(1, state="running", fence=1, lease_end=15.0)])
    engine.update([row(1, state="running", fence=1, lease_end=30.0)], 10.0)
    assert engine.running.expired_leases(20.0) == []
    assert [task.id for task in engine.running.expired_leases(31.0)] == [task_id(1)]


def test_the_window_is_refilled_as_it_drains() -> None:
    rows = [row(n, due=n / 10) for n in range(12)]
    engine = make_engine(rows[:9], cap=8)
    assert len(engine.window) == 8
    seen: list[int] = []
    while len(seen) < 12:
        picked = start(engine, now=5.0, slots=3)
        assert picked
        seen += numbers(picked)
        for entry in picked:
            engine.leases.drop(entry.row.id, 1)
            engine.end(entry.row.id, 1, 5.0)
        for refill in engine.window.refills():
            found = [
                r for r in rows
                if r.due >= refill.since and r.id not in refill.known and r.id.int not in seen
            ]  # fmt: skip
            engine.update(found[: refill.limit], 5.0)
            engine.window.refilled(refill, found[: refill.limit])
    assert seen == list(range(12))


def test_lateness_says_where_the_time_went() -> None:
    engine = make_engine([row(1), row(2, due=0.0)], limits=ONE_AT_A_TIME)
    first = start(engine, now=0.0)[0]
    pick(engine, now=0.0)
    engine.leases.drop(first.row.id, 1)
    engine.end(first.row.id, 1, 4.0)
    (second,) = start(engine, now=5.0)
    assert second.lateness(5.0) == {"tenant_limit": 5.0}
    assert first.lateness(0.0) is None


def test_lateness_before_we_owned_the_task_is_nobodys() -> None:
    engine = make_engine([row(1, due=-50.0)])
    (entry,) = start(engine, now=0.0)
    assert entry.lateness(0.0) == {"unattributed": 50.0}


def lost_at(engine: Engine, now: float, *, due: float = 0.0, waited: Waited | None = None) -> None:
    """The first task waits again; nobody will hear of its execution."""
    engine.leases.drop(task_id(1), 1)
    engine.update([row(1, rev=3, fence=1, due=due, waited=waited)], now)


def test_a_task_that_comes_back_goes_on_with_what_is_written() -> None:
    engine = make_engine([row(1)])
    start(engine, now=5.0)
    lost_at(engine, 20.0, waited={"tenant_limit": 5.0, "failed_tries": 15.0})
    (again,) = pick(engine, now=21.0)
    spent = {"tenant_limit": 5.0, "failed_tries": 15.0, "fair_share": 1.0}
    assert again.lateness(21.0) == spent


def test_a_retry_that_is_due_later_begins_a_ledger_of_its_own() -> None:
    engine = make_engine([row(1)])
    start(engine, now=0.0)
    lost_at(engine, 20.0, due=30.0)
    (again,) = pick(engine, now=30.0)
    assert again.lateness(30.0) is None


def test_of_what_came_before_a_takeover_the_rest_is_nobodys() -> None:
    engine = make_engine([row(1, due=-50.0, waited={"failed_tries": 15.0})])
    (entry,) = pick(engine, now=2.0)
    spent = {"failed_tries": 15.0, "unattributed": 35.0, "fair_share": 2.0}
    assert entry.lateness(2.0) == spent


def test_a_late_announcement_counts_as_scheduler_time() -> None:
    engine = make_engine()
    engine.update([row(1, due=1.0)], 4.0)
    (entry,) = pick(engine, now=6.0)
    assert entry.lateness(6.5) == {"waiting": 3.5, "fair_share": 2.0}


@pytest.mark.parametrize("paused", [True, False])
def test_a_task_that_is_edited_or_paused_keeps_its_account(paused: bool) -> None:
    engine = make_engine([row(1)], limits=TenantLimits(max_running=0, spread=1))
    assert pick(engine, now=0.0) == []
    if paused:
        engine.update([row(1, rev=2, state="paused")], 3.0)
        engine.update([row(1, rev=3, waited={"paused": 2.0})], 5.0)
    else:
        engine.update([row(1, rev=2, priority=7)], 3.0)
    engine.set_limits({1: TenantLimits()}, 6.0)
    (entry,) = pick(engine, now=6.0)
    spent = {"tenant_limit": 4.0, "paused": 2.0} if paused else {"tenant_limit": 6.0}
    assert entry.lateness(6.0) == spent


def test_an_account_is_not_taken_up_for_another_due_time() -> None:
    engine = make_engine([row(1)], limits=TenantLimits(max_running=0, spread=1))
    assert pick(engine, now=0.0) == []
    engine.update([row(1, rev=2, due=4.0)], 5.0)
    engine.set_limits({1: TenantLimits()}, 6.0)
    (entry,) = pick(engine, now=6.0)
    assert entry.lateness(6.0) == {"tenant_limit": 1.0, "waiting": 1.0}


def test_an_account_is_not_taken_up_after_another_owner() -> None:
    engine = make_engine([row(1)], limits=TenantLimits(max_running=0, spread=1))
    assert pick(engine, now=0.0) == []
    engine.update([row(1, rev=2, state="paused")], 3.0)
    engine.disown([0], 4.0)
    engine.own([0], [row(1, rev=3)], 9.0)
    assert pick(engine, now=9.0) == []
    engine.set_limits({1: TenantLimits()}, 10.0)
    (entry,) = pick(engine, now=10.0)
    assert entry.lateness(10.0) == {"unattributed": 9.0, "tenant_limit": 1.0}


def test_a_task_beyond_the_window_waits_for_the_same_cause() -> None:
    """Tasks that were turned away come into the window late, and their owner knows why."""
    engine = make_engine([row(n, due=n / 10) for n in range(5)], limits=ONE_AT_A_TIME, cap=2)
    for now in range(1, 6):
        (entry,) = start(engine, now=float(now))
        engine.leases.drop(entry.row.id, 1)
        engine.end(entry.row.id, 1, now + 0.9)
        pick(engine, now=now + 0.95, slots=0)
        for refill in engine.window.refills():
            rows = [row(n, due=n / 10) for n in range(5) if n / 10 >= refill.since]
            new = [r for r in rows if r.id not in refill.known][: refill.limit]
            engine.update(new, now + 0.95)
            engine.window.refilled(refill, new)
    late = entry.lateness(5.0)
    assert late is not None
    assert sum(late.values()) == pytest.approx(5.0 - entry.row.due)
    assert {"waiting", "unattributed"}.isdisjoint(late), late


RUN = "handler:mainspring.workflow"


def test_a_task_that_runs_a_workflow_takes_no_share_of_the_limit() -> None:
    engine = make_engine([row(1, capability=RUN), row(2, capability=RUN)], limits=ONE_AT_A_TIME)
    assert len(start(engine)) == 2
    assert (len(engine.running), len(engine.leases), engine.leases.slots) == (2, 2, 0)
    engine.update([row(3), row(4)], 1.0)
    assert len(start(engine)) == 1, "steps have the limit to themselves"
    engine.set_limits({1: TenantLimits(max_running=2, spread=1)}, 1.0)
    assert len(start(engine)) == 1, "those that run are counted anew, but not the runs"
    for number in (1, 2):
        engine.end(task_id(number), 1, 1.0)
        engine.leases.drop(task_id(number), 1)
    engine.update([row(5)], 1.0)
    assert start(engine) == [], "their end opens no gate"


def test_a_loaded_running_run_takes_no_share_of_the_limit() -> None:
    found = row(1, capability=RUN, state="running", fence=1, lease_end=9.0)
    engine = make_engine([found, row(2)], limits=ONE_AT_A_TIME)
    assert numbers(start(engine)) == [2]
    engine.remove([task_id(1)], 1.0)
    engine.update([row(3)], 1.0)
    assert start(engine) == []


def test_tasks_that_run_workflows_count_for_their_key() -> None:
    engine = make_engine([row(1, capability=RUN, key="k"), row(2, capability=RUN, key="k")])
    assert numbers(start(engine)) == [1]
    engine.end(task_id(1), 1, 1.0)
    assert numbers(start(engine)) == [2]


def test_a_tenant_that_may_not_run_anything_begins_no_run() -> None:
    nothing = TenantLimits(max_running=0, spread=1)
    assert start(make_engine([row(1, capability=RUN)], limits=nothing)) == []


def test_tasks_that_run_workflows_take_no_slots_of_their_steps() -> None:
    engine = make_engine([row(n, capability=RUN) for n in range(8)])
    picked = engine.pick(1.0, 10, anything, free=1)
    assert len(picked) == 8
    engine.update([row(20)], 1.0)
    assert numbers(engine.pick(1.0, 1, anything, free=1)) == [20], "nothing is held yet"
    engine.finish_claim(picked, [execution(entry.row) for entry in picked], 1.0)
    engine.update([row(21)], 1.0)
    assert numbers(engine.pick(1.0, 1, anything, free=1)) == [21], "nor now"


def test_a_task_with_an_eager_lease_counts_like_any_other() -> None:
    engine = make_engine()
    child = row(7, rev=2, state="running", fence=1, lease_end=16.0)
    engine.add_eager_lease(child, 1.0)
    engine.update([child._replace(rev=1, state="scheduled", fence=0, lease_end=None)], 1.0)
    assert (engine.leases.slots, pick(engine)) == (1, []), "an older row does not start it again"
    assert engine.leases.due_for_extension(1.0, 10) == []
    assert [held.id for held in engine.leases.due_for_extension(20.0, 10)] == [child.id]
    engine.leases.drop(child.id, 1)
    engine.end(child.id, 1, 2.0)
    assert (engine.leases.slots, list(engine.running.in_partition(0))) == (0, [])


def test_a_task_of_a_released_partition_runs_and_is_not_counted() -> None:
    engine = make_engine()
    engine.add_eager_lease(
        row(7, partition=9, rev=2, state="running", fence=1, lease_end=16.0), 1.0
    )
    assert (engine.leases.slots, list(engine.running.in_partition(9))) == (1, [])


def test_the_oldest_start_while_more_arrive_than_can_start() -> None:
    """Each start makes room for one, and the next create would take it: what was turned away has
    to come first, so that in the end all that still waits is young."""
    engine = make_engine([row(n) for n in range(20)], cap=8)
    database = {n: row(n) for n in range(20)}
    for number in range(20, 420):
        now = number / 10
        database[number] = row(number, due=now)
        engine.update([database[number]], now)
        for entry in start(engine, now, slots=1):
            del database[entry.row.id.int]
        for refill in engine.window.refills():
            ordered = sorted(database.values(), key=lambda found: (found.due, found.id))
            wanted = [r for r in ordered if r.due >= refill.since and r.id not in refill.known]
            engine.update(wanted[: refill.limit], now)
            engine.window.refilled(refill, wanted[: refill.limit])
    assert min(found.due for found in database.values()) > 39.0


def test_a_task_due_now_starts_now_whatever_else_is_planned() -> None:
    engine = make_engine([row(n, due=9.0) for n in range(100)], cap=8)
    engine.update([row(500, due=1.0)], 1.0)
    assert numbers(pick(engine, 1.0)) == [500]


def test_what_is_being_claimed_counts_though_limits_change() -> None:
    """Also when its partition was given up and came back meanwhile."""
    rows = [row(n, due=0.5) for n in range(1, 6)]
    engine = make_engine(rows, limits=TenantLimits(max_running=2, spread=1))
    claiming = pick(engine)
    assert len(claiming) == 2
    engine.disown([0, 1], 1.0)
    engine.own([0, 1], rows, 1.0)
    engine.set_limits({1: TenantLimits(max_running=4, spread=1)}, 1.0)
    assert len(pick(engine)) == 2
    engine.finish_claim(claiming, [], 1.0)  # it changed nothing: its ownership was over
    assert len(pick(engine)) == 2


def test_what_ended_before_all_was_given_up_may_run_again() -> None:
    """The database may have been set back: whatever is found then is so."""
    engine = make_engine([row(1)])
    (first,) = start(engine)
    with engine.running.reading():
        engine.end(first.row.id, 1, 2.0)
        engine.disown([0, 1], 2.0)
        engine.own([0, 1], [row(1)], 2.0)
    assert numbers(pick(engine, 2.0)) == [1]


@pytest.mark.parametrize("waits_again", [False, True])
def test_what_ended_while_rows_were_read_does_not_run_again(waits_again: bool) -> None:
    engine = make_engine([row(1, key="k"), SECOND])
    (first,) = start(engine)
    with engine.running.reading():
        # The database was asked before the outcome was written, and answers after it.
        if waits_again:
            engine.update([row(1, rev=3, key="k", fence=1, due=500.0)], 2.0)
        else:
            engine.end(first.row.id, 1, 2.0)
        engine.update([RUNNING_FIRST], 2.0)
    assert len(engine.running) == 0
    assert numbers(pick(engine, 2.0)) == [2]


def test_running_tasks_of_a_partition_that_came_back_count() -> None:
    engine = make_engine([row(1, key="k"), SECOND])
    start(engine)
    with engine.running.reading():
        engine.disown([0], 2.0)
        engine.own([0], [RUNNING_FIRST, SECOND], 2.0)
    assert pick(engine, 2.0) == []


def test_a_later_execution_that_was_read_meanwhile_counts() -> None:
    engine = make_engine([row(1)])
    (first,) = start(engine)
    with engine.running.reading():
        engine.end(first.row.id, 1, 2.0)
        engine.update([row(1, rev=4, state="running", fence=2, lease_end=15.0)], 2.0)
    assert len(engine.running) == 1


def test_a_task_finished_while_rows_are_read_does_not_wait_again() -> None:
    engine = make_engine([row(1), row(2)])
    with engine.running.reading():
        engine.remove([row(1).id], 1.0)  # cancelled, say: nobody else would ever take it out again
        engine.update([row(1), row(2)], 1.0)
    assert len(engine.window) == 1


@pytest.mark.parametrize(("found", "waiting"), [(row(1), 0), (row(1, rev=3, fence=1), 1)])
def test_of_a_task_run_while_rows_were_read_a_retry_waits(found: TaskRow, waiting: int) -> None:
    engine = make_engine([row(1)])
    (first,) = start(engine)
    with engine.running.reading():
        engine.end(first.row.id, 1, 2.0)
        engine.update([found], 2.0)
    assert len(engine.window) == waiting


def test_what_was_never_known_to_run_does_not_run_after_its_end() -> None:
    engine = make_engine([])
    with engine.running.reading():
        engine.remove([row(1).id], 1.0)
        engine.update([row(1, rev=2, state="running", fence=1, lease_end=15.0)], 1.0)
    assert len(engine.running) == 0


def test_a_read_that_is_over_takes_nothing_from_one_that_goes_on() -> None:
    engine = make_engine([row(1)])
    with engine.running.reading():
        with engine.running.reading():
            engine.remove([row(1).id], 1.0)
        engine.update([row(1)], 1.0)
    assert len(engine.window) == 0


def test_an_old_row_of_a_released_partition_is_ignored() -> None:
    engine = make_engine([])
    engine.own(
        [1],
        [row(1, rev=3, key="k", state="running", fence=1, lease_end=15.0)._replace(partition=1)],
        1.0,
    )
    engine.disown([0], 1.0)
    engine.update([row(1, rev=2, key="k")], 1.0)
    assert len(engine.running) == 1
    engine.update([row(1, rev=4, key="k")], 1.0)
    assert len(engine.running) == 0


def test_the_ledger_survives_a_change_of_limits() -> None:
    rows = [row(1), row(2, due=0.5), row(3, due=0.6, key="k"), row(4, due=0.7, key="k")]
    engine = make_engine(rows, limits=ONE_AT_A_TIME)
    (first,) = start(engine)
    pick(engine, 1.0)
    engine.set_limits({1: TenantLimits(max_running=2, spread=1)}, 4.0)
    engine.end(first.row.id, 1, 4.0)
    second, third = start(engine, 4.0)
    assert numbers([second, third]) == [2, 3]
    assert (second.lateness(4.0) or {})["tenant_limit"] == pytest.approx(3.0)
    engine.end(third.row.id, 1, 6.0)
    (fourth,) = start(engine, 6.0)
    assert (fourth.lateness(6.0) or {})["concurrency_key"] == pytest.approx(5.0)


def test_slotless_tasks_beyond_a_bound_wait_for_a_fair_share() -> None:
    """A flood of runs that are yet to begin would be claimed at once, past the fair queue."""
    runs = [row(n, capability="handler:mainspring.workflow") for n in range(1, 7)]
    engine = make_engine([*runs, row(7, capability="http"), row(8, tenant=2, capability="http")])
    picked = engine.pick(1.0, 10, anything, free=10, slotless=2)
    assert sorted(numbers(picked)) == [1, 2, 7, 8]
    assert engine.pick(1.0, 10, anything, free=8, slotless=0) == []
    (entry,) = engine.pick(4.0, 10, anything, free=8, slotless=1)
    assert entry.lateness(4.0) == {"fair_share": 4.0}


def test_a_cancel_before_the_answer_to_the_claim_is_remembered() -> None:
    engine = make_engine([row(1), row(2), row(3)])
    picked = pick(engine)
    asked = row(1, rev=3, state="running", fence=1, lease_end=16.0, cancel_requested=True)
    another = asked._replace(id=task_id(2), fence=9)
    assert engine.update([asked, another], 1.0) == []
    engine.finish_claim(picked, [execution(entry.row) for entry in picked], 1.0)
    claimed = [entry.row.id for entry in picked]
    cancelled = engine.leases.cancelled_during_claim(claimed)
    assert [held.id for held in cancelled] == [task_id(1)]
    assert engine.leases.cancelled_during_claim(claimed) == [], "once is enough"


@pytest.mark.parametrize("ends", [False, True])
def test_limits_that_change_while_a_task_waits_for_its_key(ends: bool) -> None:
    """It stood in the queue before the limits were known, and waits for its key since then."""
    engine = Engine(EngineSettings())
    engine.extend_horizon(1000.0)
    engine.own([0], [row(1, due=10.0, key="k"), row(9)], 0.0)
    assert pick(engine) == []
    engine.update([row(2, due=2.0, key="k")], 3.0)
    assert pick(engine, 11.0) == []
    engine.set_limits({1: TenantLimits()}, 12.0)
    if ends:
        engine.remove([task_id(2)], 20.0)
    else:
        engine.set_limits({1: TenantLimits(weight=2)}, 20.0)
    assert numbers(pick(engine, 21.0)) == [9, 1]
