"""Tasks for workers: matched only with a worker that can run them, and never looked at in vain."""

from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mainspring.domain.capability import (
    ALONE,
    THERE_FOR,
    Offer,
    capability_of,
    need_of,
    needs_worker,
    there_for,
)
from mainspring.domain.task import Requirements, Target, TaskSpec
from mainspring.domain.tenant import TenantLimits
from mainspring.engine.core import Engine, EngineSettings
from mainspring.engine.demand import Poll, WorkerSession
from mainspring.engine.entry import Entry
from support.rows import execution, row, task_id

WORK = Offer(frozenset({"default"}), frozenset({"work"}))
ANYTHING = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


def make_engine(limits: TenantLimits | None = None, there_for: float = THERE_FOR) -> Engine:
    engine = Engine(EngineSettings(there_for=there_for), needs_worker)
    engine.extend_horizon(100.0)
    engine.own([0], [], 0.0)
    engine.set_limits({1: limits or TenantLimits()}, 0.0)
    return engine


def poll(name: str = "w", slots: int = 10, offer: Offer = WORK, **more: bool) -> Poll:
    return Poll(WorkerSession(1, name, "1"), offer, slots, **more)


def numbers(picked: list[Entry]) -> list[int]:
    return [entry.row.id.int for entry in picked]


def start(engine: Engine, picked: list[Entry], now: float = 0.0) -> None:
    engine.finish_claim(picked, [execution(entry.row) for entry in picked], now)


@given(st.lists(ANYTHING, max_size=4), st.integers(0, 10**6), st.floats(0, 1000))
def test_a_capability_can_be_read_again(tags: list[str], memory: int, cpu: float) -> None:
    requires = Requirements(tags, memory, round(cpu, 3))
    word = capability_of(TaskSpec(Target("handler", name="train"), requires=requires))
    need = need_of(word + ALONE)
    assert (need.word, need.tags, need.alone) == ("handler:train", frozenset(tags), True)
    assert need.memory_mb == memory
    assert abs(need.cpu - cpu) <= 0.01 + cpu / 1000
    assert needs_worker(word + ALONE)


@pytest.mark.parametrize(
    ("tasks", "how", "presumed"),
    [
        (1, {}, [True]),
        (2, {}, [False, False]),  # it may have begun either, or none
        (1, {"announces": True}, [False]),
        (1, {"idle": False}, [False]),
        (1, {"shared": True}, [False]),  # another node may have given it another task
    ],
)
def test_leases_that_count_as_started_without_a_report(
    tasks: int, how: dict[str, bool], presumed: list[bool]
) -> None:
    engine = make_engine()
    engine.workers.open(Poll(WorkerSession(1, "w", "1"), WORK, 10, **how), 0.0)
    engine.update([row(n) for n in range(1, tasks + 1)], 0.0)
    start(engine, engine.match(1.0, 10))
    held = engine.running.of_former_sessions(WorkerSession(1, "w", "2"))
    assert [task.presumed_started for task in held] == presumed


def test_what_runs_inside_the_node_needs_no_worker() -> None:
    inside = [Target("http", url="https://a.example"), Target("handler", name="mainspring.noop")]
    outside = [Target("handler", name="mainspringer"), Target("command", argv=["a"])]
    gpu = Requirements(["gpu"])
    assert not any(needs_worker(capability_of(TaskSpec(t, requires=gpu))) for t in inside)
    assert all(needs_worker(capability_of(TaskSpec(t, requires=gpu))) for t in outside)


@pytest.mark.parametrize(("busy", "cause"), [(False, "no_worker"), (True, "fair_share")])
def test_nothing_is_picked_without_a_free_worker(busy: bool, cause: str) -> None:
    """A busy worker is a worker all the same."""
    engine = make_engine()
    if busy:
        engine.workers.touch(1, WORK, 0.0)
    engine.update([row(1)], 0.0)
    assert engine.pick(1.0, 10, lambda _capability: True) == []
    assert engine.match(1.0, 10) == []
    assert engine.situation(row(1), 1.0).can_run is busy
    engine.workers.open(poll(), 5.0)
    (entry,) = engine.match(5.0, 10)
    assert entry.lateness(5.0) == {cause: 5.0}


def test_an_offer_not_seen_for_long_is_forgotten() -> None:
    engine = make_engine()
    engine.workers.touch(1, WORK, 0.0)
    engine.update([row(1)], 0.0)
    engine.match(14.0, 10)
    assert engine.situation(row(1), 14.0).can_run is True
    engine.match(16.0, 10)
    assert engine.situation(row(1), 16.0).can_run is False


def test_a_busy_worker_is_remembered_between_its_heartbeats() -> None:
    assert there_for(15.0) == there_for(1.0) == 15.0
    engine = make_engine(there_for=there_for(600.0))
    engine.workers.touch(1, WORK, 0.0)
    engine.update([row(1)], 0.0)
    engine.match(401.0, 10)  # a third of the 1,200 seconds that a heartbeat gives
    assert engine.situation(row(1), 401.0).can_run is True
    engine.match(410.0, 10)
    assert engine.situation(row(1), 410.0).can_run is False


def test_a_worker_that_holds_a_task_is_there() -> None:
    engine = make_engine()
    engine.workers.open(poll(slots=1), 0.0)
    engine.update([row(1), row(2)], 0.0)
    (entry,) = engine.match(0.0, 10)
    assert entry.poll is not None
    engine.finish_claim([entry], [execution(entry.row, lease_end=500.0)], 0.0)
    engine.workers.close(entry.poll)
    engine.match(100.0, 10)
    assert engine.situation(row(2), 100.0).can_run is True
    engine.end(entry.row.id, 1, 100.0)
    engine.match(102.0, 10)
    assert engine.situation(row(2), 102.0).can_run is False


def test_a_worker_with_ever_new_offers_is_kept_as_few_kinds() -> None:
    engine = make_engine()
    engine.workers.open(poll(slots=1), 0.0)
    engine.update([row(1)], 0.0)
    (entry,) = engine.match(0.0, 10)
    assert entry.poll is not None
    engine.finish_claim([entry], [execution(entry.row, lease_end=5000.0)], 0.0)
    engine.workers.close(entry.poll)
    for second in range(1, 200):
        asked = poll(offer=WORK._replace(memory_mb=second))
        engine.workers.open(asked, float(second))
        engine.workers.close(asked)
        engine.match(float(second), 10)
    engine.match(300.0, 10)
    assert engine.situation(row(2), 300.0).can_run is True
    assert len(engine.workers._pools[1]) == 16


def test_a_worker_at_another_node_counts_as_there() -> None:
    engine = make_engine()
    one = poll()
    engine.workers.open(one, 0.0)
    engine.workers.add_remote_node(UUID(int=7), 1, WORK, 0.0, 3.0)
    engine.workers.disconnect(one)
    engine.workers.close(one)
    engine.match(2.0, 10)
    assert engine.situation(row(1), 2.0).can_run is True
    engine.match(4.0, 10)
    assert engine.situation(row(1), 4.0).can_run is False


def test_a_worker_that_left_is_not_waited_for() -> None:
    engine = make_engine()
    one, two = poll("one"), poll("two")
    engine.workers.open(one, 0.0)
    engine.workers.open(two, 0.0)
    engine.workers.disconnect(one)
    engine.workers.close(one)
    engine.match(2.0, 10)
    late = row(1, due=2.0)
    engine.update([late], 2.0)
    assert engine.situation(late, 2.0).can_run is True
    engine.workers.disconnect(two)
    engine.workers.close(two)
    engine.match(4.0, 10)
    assert engine.situation(late, 4.0).can_run is False
    engine.workers.open(poll("three"), 10.0)
    (entry,) = engine.match(10.0, 10)
    assert entry.lateness(10.0) == {"fair_share": 2.0, "no_worker": 6.0}


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.integers(0, 20))
def test_no_poll_gets_more_than_its_slots_and_none_goes_empty(slots: list[int], tasks: int) -> None:
    engine = make_engine()
    polls = [poll(f"w{n}", count) for n, count in enumerate(slots)]
    for each in polls:
        engine.workers.open(each, 0.0)
    engine.update([row(n) for n in range(tasks)], 0.0)
    picked = engine.match(0.0, 100)
    assert len(picked) == min(tasks, sum(slots))
    given_to = [sum(entry.poll is each for entry in picked) for each in polls]
    assert all(got <= count for got, count in zip(given_to, slots, strict=True))
    if tasks >= len(slots):
        assert all(given_to), "each worker one before any gets its second"


def test_the_most_urgent_of_all_lines_goes_first() -> None:
    engine = make_engine()
    offer = Offer(frozenset({"default"}), frozenset({"a", "b"}))
    engine.update([row(1, capability="handler:a", priority=1)], 0.0)
    engine.update([row(2, capability="handler:b", priority=9)], 0.0)
    engine.update([row(3, capability="handler:a", priority=5)], 0.0)
    engine.workers.open(poll(offer=offer, slots=2), 0.0)
    assert numbers(engine.match(0.0, 10)) == [2, 3]


def test_a_limit_holds_and_lets_the_next_through() -> None:
    engine = make_engine(TenantLimits(max_running=1, spread=1))
    engine.update([row(1), row(2)], 0.0)
    engine.workers.open(poll(), 0.0)
    first = engine.match(0.0, 10)
    assert numbers(first) == [1]
    start(engine, first)
    assert engine.match(1.0, 10) == []
    engine.end(task_id(1), 1, 2.0)
    assert numbers(engine.match(2.0, 10)) == [2]


def test_what_is_refused_frees_its_place() -> None:
    engine = make_engine(TenantLimits(max_running=1, spread=1))
    engine.update([row(1), row(2)], 0.0)
    asked = poll()
    engine.workers.open(asked, 0.0)
    picked = engine.match(0.0, 10)
    assert asked.in_flight == 1
    assert engine.finish_claim(picked, [], 0.0) == [(1, task_id(1))]
    assert asked.in_flight == 0
    assert numbers(engine.match(0.0, 10)) == [2]


def test_what_expired_costs_a_worker_no_slot() -> None:
    engine = make_engine()
    keyed = row(2, key="k", expires=5.0, priority=8)
    engine.update([row(1, expires=5.0, priority=9), keyed, row(3, key="k"), row(4)], 0.0)
    asked = poll(slots=1)
    engine.workers.open(asked, 6.0)
    (entry,) = engine.match(6.0, 10)
    assert entry.row.id in (task_id(3), task_id(4))
    assert (asked.free, asked.in_flight) == (0, 1)
    assert len(engine.window) == 2, "the expired are in no window any more"
    engine.workers.open(poll("other"), 6.0)
    rest = engine.match(6.0, 10)
    assert {entry.row.id, *(e.row.id for e in rest)} == {task_id(3), task_id(4)}


_moves = st.one_of(
    st.tuples(st.just("due"), st.integers(0, 5), st.integers(0, 9)),
    st.tuples(st.just("cancel"), st.integers(0, 99), st.just(0)),
    st.tuples(st.just("ask"), st.integers(1, 3), st.just(0)),
)


@example(3, [("due", 0, 0)] * 4 + [("ask", 1, 0), ("cancel", 0, 0), ("ask", 3, 0)])
@given(st.sampled_from([None, 3]), st.lists(_moves, max_size=60))
def test_of_all_groups_the_earliest_deadline_goes_first(
    most: int | None, moves: list[tuple[str, int, int]]
) -> None:
    """However tasks come, go and are taken: who asks gets the first of all lines it can serve."""
    engine = make_engine(TenantLimits(max_running=most, spread=1) if most else None)
    offer = Offer(frozenset(f"q{n}" for n in range(4)), frozenset({"work"}))
    waiting: dict[int, int] = {}
    running: list[int] = []
    for number, (what, which, due) in enumerate(moves):
        if what == "due":
            engine.update([row(number, queue=f"q{which}", due=due)], 10.0)
            if which < 4:  # nobody serves the others
                waiting[number] = due
        elif what == "cancel":
            engine.remove([task_id(which)], 10.0)
            waiting.pop(which, None)
            running = [other for other in running if other != which]
        else:
            asking = poll(slots=which, offer=offer)
            engine.workers.open(asking, 10.0)
            picked = engine.match(10.0, 10)
            start(engine, picked, 10.0)
            room = which if most is None else min(which, most - len(running))
            earliest = sorted(waiting.values())[:room]
            assert [entry.row.due for entry in picked] == earliest
            for started in numbers(picked):
                del waiting[started]
            running += numbers(picked)
            engine.workers.close(asking)
            while len(running) > 2:
                engine.end(task_id(running.pop(0)), 1, 10.0)


def test_queues_that_nothing_waits_in_are_forgotten() -> None:
    """Their names are free: a queue a day, or a task, must not be kept for ever."""
    engine = make_engine()
    names = [f"q{n}" for n in range(500)]
    everywhere = Offer(frozenset({"default", *names}), frozenset({"work"}))
    engine.update(
        [row(9000, queue="q3", key="k"), row(9001, queue="q4", capability="handler:x")], 0.0
    )
    engine.workers.open(poll(slots=10_000, offer=everywhere), 0.0)
    share = engine._queue._tenants[1]
    most = 0
    for number, name in enumerate(names, 1):
        webhook = row(1000 + number, queue=name, capability="http")
        engine.update([row(number, queue=name), webhook], 0.0)
        start(engine, engine.match(0.0, 10))
        engine.finish_claim(webhooks := engine.pick(0.0, 10, lambda _capability: True), [], 0.0)
        assert len(webhooks) == 1
        most = max(most, len(share.worker_groups) + len(share.groups))
    assert most <= 64
    pools = [pool for group in share.worker_groups.values() for pool in group.pools]
    assert all(set(pool.ready) <= set(share.worker_groups.values()) for pool in pools)
    assert len(engine.running) == len(names) + 1
    engine.workers.open(poll("x", offer=Offer(frozenset({"q4"}), frozenset({"x"}))), 0.0)
    assert numbers(engine.match(0.0, 10)) == [9001], "who waits is not forgotten"
    assert len(engine.pick(0.0, 10, lambda _capability: True)) == 0


def test_a_suspect_gets_a_worker_for_itself() -> None:
    engine = make_engine()
    engine.update([row(1, capability="handler:work;alone", priority=9), row(2)], 0.0)
    busy = poll("busy", idle=False)
    engine.workers.open(busy, 0.0)
    assert numbers(engine.match(0.0, 10)) == [2]  # it holds something: not the suspect
    idle = poll("idle", slots=5)
    engine.workers.open(idle, 0.0)
    picked = engine.match(0.0, 10)
    assert numbers(picked) == [1]
    start(engine, picked)
    engine.update([row(3)], 0.0)
    engine.workers.close(busy)
    engine.workers.open(poll("idle", slots=5), 0.0)
    assert engine.match(0.0, 10) == []  # nothing beside it, from whatever poll
    engine.end(task_id(1), 1, 1.0)
    assert numbers(engine.match(1.0, 10)) == [3]


def test_leases_of_former_sessions_are_found() -> None:
    engine = make_engine()
    engine.update([row(1), row(2)], 0.0)
    engine.workers.open(poll("w", slots=1), 0.0)
    start(engine, engine.match(0.0, 10))
    engine.workers.open(poll("other", slots=1), 0.0)
    start(engine, engine.match(0.0, 10))
    assert [t.id for t in engine.running.of_former_sessions(WorkerSession(1, "w", "2"))] == [
        task_id(1)
    ]
    assert engine.running.of_former_sessions(WorkerSession(1, "w", "1")) == []
    assert engine.running.by_worker() == {(1, "w"): 1, (1, "other"): 1}


def test_workers_use_none_of_the_nodes_slots() -> None:
    """However much a tenant's workers hold, its own turn inside the node comes as before."""
    engine = make_engine()
    engine.set_limits({2: TenantLimits()}, 0.0)
    engine.workers.open(poll(slots=500), 0.0)
    engine.update([row(n) for n in range(200)], 0.0)
    start(engine, engine.match(0.0, 1000))
    engine.update([row(1001, capability="http"), row(1002, capability="http", tenant=2)], 0.0)
    picked = engine.pick(0.0, 2, lambda capability: capability == "http", free=2)
    assert sorted(numbers(picked)) == [1001, 1002]
    assert len(engine.leases) == 0
