"""Why a task is not running: the same gates as on its way, told to a person."""

from typing import Any
from uuid import UUID

import pytest

from mainspring.domain.lateness import Cause
from mainspring.domain.rows import TaskRow
from mainspring.domain.tenant import TenantLimits
from mainspring.engine.core import Engine, EngineSettings
from mainspring.engine.explain import Explanation, Situation, explain

NOW = 1_800_000_000.0
TENANT = 1
FREE = Situation(owned=True, can_run=True, free_slots=3, tenant_running=0, key_running=0)


def row(number: int = 1, **fields: Any) -> TaskRow:
    task = TaskRow(
        tenant_id=TENANT, id=UUID(int=number), rev=1, partition=0, state="scheduled",
        queue="default", capability="http", concurrency_key=None, concurrency_limit=None,
        priority=5, due=NOW - 1, expires=None, fence=0, lease_end=None, cancel_requested=False,
    )  # fmt: skip
    return task._replace(**fields)


def told(task: TaskRow, around: Situation = FREE, attempts: int = 0) -> Explanation:
    return explain(task, attempts, around, NOW)


def engine_with(*rows: TaskRow, limits: TenantLimits | None = None, cap: int = 8) -> Engine:
    engine = Engine(EngineSettings(stream_cap=cap))
    engine.set_limits({TENANT: limits or TenantLimits()}, NOW)
    engine.extend_horizon(NOW + 10)
    engine.own({0}, rows, NOW)
    engine.pick(NOW, 0, lambda _capability: True)
    return engine


@pytest.mark.parametrize(
    ("task", "attempts", "verdict"),
    [
        (row(), 0, "ready"),
        (row(state="paused"), 0, "paused"),
        (row(state="paused", due=NOW + 5), 0, "paused"),
        (row(state="blocked"), 0, "dependency"),
        (row(due=NOW + 5), 0, "not_due"),
        (row(due=NOW + 5), 2, "retry_backoff"),
        (row(expires=NOW), 0, "expiry"),
        (row(state="running"), 1, "running"),
        (row(state="running", cancel_requested=True), 1, "running"),
    ],
)
def test_the_first_gate_that_says_no_is_the_verdict(
    task: TaskRow, attempts: int, verdict: str
) -> None:
    explanation = told(task, attempts=attempts)
    assert explanation.verdict == verdict
    assert explanation.unblock
    failed = [gate.gate for gate in explanation.gates if not gate.passed]
    assert failed[:1] == [verdict][: len(failed)]
    assert ("cancel" in explanation.unblock) == task.cancel_requested


@pytest.mark.parametrize(
    ("around", "verdict"),
    [
        (Situation(tenant_running=5, tenant_limit=5), "tenant_limit"),
        (Situation(tenant_running=4, tenant_limit=5), "ready"),
        (Situation(key_running=2), "concurrency_key"),
        (Situation(key_running=1), "ready"),
        (Situation(can_run=False), "no_worker"),
        (Situation(can_run=True, free_slots=0), "fair_share"),
        (Situation(can_run=True, free_slots=9, crowded_out=True), "fair_share"),
        (Situation(), "ready"),
    ],
)
def test_what_surrounds_it(around: Situation, verdict: str) -> None:
    explanation = told(row(concurrency_key="k", concurrency_limit=2), around)
    assert explanation.verdict == verdict


def test_gates_come_in_the_order_of_the_way() -> None:
    gates = [gate.gate for gate in told(row()).gates]
    assert gates == [
        *("paused", "dependency", "not_due", "expiry", "tenant_limit", "concurrency_key"),
        *("no_worker", "fair_share"),
    ]
    known = set(Cause) | {"expiry"}
    assert set(gates) <= known


def test_when_it_will_start() -> None:
    assert told(row(due=NOW + 5)).estimated_start == NOW + 5
    assert told(row()).estimated_start == NOW
    assert told(row(state="paused")).estimated_start is None
    assert told(row(due=NOW + 5), Situation(place=3)).position is None
    assert told(row(), Situation(place=3)).position == 3


def test_what_nobody_knows_is_left_out() -> None:
    gates = {gate.gate for gate in told(row(), Situation(tenant_limit=3)).gates}
    assert not gates & {"tenant_limit", "no_worker", "fair_share"}


def test_an_owner_knows_a_tasks_place() -> None:
    tasks = [row(n, due=NOW - n) for n in range(1, 5)]
    engine = engine_with(*tasks)
    places = [engine.situation(task, NOW).place for task in tasks]
    assert places == [4, 3, 2, 1]
    engine.remove([tasks[3].id], NOW)
    assert engine.situation(tasks[0], NOW).place == 3
    assert engine.situation(row(9, partition=7), NOW) == Situation()


def test_an_owner_knows_which_tasks_take_the_limit() -> None:
    running = row(1, state="running", fence=1, lease_end=NOW + 9, concurrency_key="k")
    waiting = [row(n, due=NOW - 9 + n, concurrency_key="k", concurrency_limit=1) for n in (2, 3, 4)]
    engine = engine_with(running, *waiting, limits=TenantLimits(max_running=1, spread=1))
    around = engine.situation(waiting[1], NOW)
    assert (around.tenant_running, around.tenant_limit, around.key_running) == (1, 1, 1)
    assert [engine.situation(task, NOW).place for task in waiting] == [1, 2, 3]
    assert told(waiting[0], around).verdict == "tenant_limit"
    engine.end(running.id, 1, NOW)
    assert [engine.situation(task, NOW).place for task in waiting] == [1, 2, 3]
    assert engine.situation(waiting[0], NOW).key_running == 0


def test_a_task_without_room_in_the_window() -> None:
    tasks = [row(n) for n in range(1, 12)]
    engine = engine_with(*tasks, cap=8)
    around = engine.situation(tasks[-1], NOW)
    assert around.crowded_out
    assert told(tasks[-1], around).verdict == "fair_share"
    assert not engine.situation(row(99, due=NOW + 99), NOW).crowded_out
    assert not engine.situation(row(99, state="paused"), NOW).crowded_out
    assert not engine.situation(row(99, queue="quiet", due=NOW), NOW).crowded_out


def test_a_task_that_is_being_claimed_is_not_in_its_own_way() -> None:
    task = row(1, concurrency_key="k", concurrency_limit=1)
    engine = engine_with(task, limits=TenantLimits(max_running=1, spread=1))
    assert len(engine.pick(NOW, 1, lambda _capability: True)) == 1
    assert told(task, engine.situation(task, NOW)).verdict == "ready"


def test_a_task_that_started_since_it_was_read() -> None:
    engine = engine_with(row(1, state="running", fence=1, lease_end=NOW + 9, rev=2))
    around = engine.situation(row(1), NOW)
    assert around.started
    assert told(row(1), around).verdict == "running"


def test_a_tenant_that_nothing_is_known_of_yet() -> None:
    engine = engine_with()
    around = engine.situation(row(5, due=NOW + 60), NOW)
    assert (around.owned, around.tenant_running, around.key_running) == (True, 0, 0)
