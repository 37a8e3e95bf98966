"""What tasks have waited for is kept in their rows, for whichever node records their executions."""

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import asyncpg
import hypothesis
import msgspec
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from contract.store_set import StoreSet, held, retry
from mainspring.domain.execution import Execution, Outcome
from mainspring.domain.lateness import (
    Cause,
    Earlier,
    EndedWaiting,
    Moments,
    Waited,
    account_for,
    blame,
)
from mainspring.domain.outcome_rules import RetryLater
from mainspring.domain.partitions import Ownership
from mainspring.domain.rows import TaskRow
from mainspring.domain.task import Target, TaskSpec
from mainspring.postgres.database import Database, DatabaseOptions
from mainspring.store.task_refs import TaskRef, WorkerPick
from support.store import StoreWorld, success

SEEN = {"no_worker": 0.9}
EARLIER = Earlier(1.0, 2.0, 3.0, False, "capacity", {"no_worker": 1.0})


async def claimed(
    stores: StoreSet,
    ownership: Ownership,
    row: TaskRow,
    waited: Waited | None,
    *,
    lease: float = 60.0,
) -> Execution:
    ref = TaskRef(row.tenant_id, row.id, row.rev, waited)
    (execution,) = await stores.engine.claim(ownership, [ref], worker=stores.worker, lease=lease)
    return execution


async def waiting(stores: StoreSet) -> tuple[Ownership, TaskRow]:
    ownership, tenant = await stores.join(), await stores.tenant()
    return ownership, await stores.create(tenant, ownership=ownership, due=-1.0)


async def test_a_claim_writes_down_what_was_waited_for(stores: StoreSet) -> None:
    ownership, row = await waiting(stores)
    task = await claimed(stores, ownership, row, SEEN)
    assert (task.waited, task.earlier) == (SEEN, None)
    assert (await stores.row(row.tenant_id, row.id)).waited == SEEN
    (again,) = await stores.engine.claimed_by(
        [TaskRef(row.tenant_id, row.id, 1)], worker=stores.worker
    )
    assert again.waited == SEEN
    (found,) = await stores.partition_loader([row.partition])
    assert found.waited == SEEN


async def test_a_task_on_time_leaves_nothing_in_the_row(stores: StoreSet) -> None:
    ownership, row = await waiting(stores)
    assert (await claimed(stores, ownership, row, None)).waited is None
    assert (await stores.row(row.tenant_id, row.id)).waited is None


async def test_any_node_reads_what_a_worker_s_task_waited_for(stores: StoreSet) -> None:
    ownership, row = await waiting(stores)
    pick = WorkerPick(row.tenant_id, row.id, row.rev, "w", "1", SEEN)
    (leased,) = await stores.leases.claim_for(ownership, [pick], lease=60.0)
    assert leased.execution.waited == SEEN
    name = (row.id, leased.execution.fence)
    (there,) = await stores.leases.leased(row.tenant_id, [name])
    assert there.execution.waited == SEEN
    (read,) = await stores.leases.held(row.tenant_id, [name])
    assert read.execution.waited == SEEN


async def test_a_lost_execution_is_a_failed_one_for_the_ledger(stores: StoreSet) -> None:
    ownership, row = await waiting(stores)
    task = await claimed(stores, ownership, row, SEEN, lease=-2.0)
    seen = await stores.engine.expire_leases([held(task)])
    check_came_back(seen.rows[0], task)
    again = await stores.claim(ownership, seen.rows[0])
    assert again is not None
    assert again.due == row.due


async def test_so_is_a_released_one(stores: StoreSet) -> None:
    ownership, row = await waiting(stores)
    task = await claimed(stores, ownership, row, SEEN)
    (back,) = await stores.engine.retry(
        ownership, [retry(task, outcome=Outcome.RELEASED, delay=None)]
    )
    check_came_back(back, task)


def check_came_back(row: TaskRow, task: Execution) -> None:
    """The time with whoever had it counts as a failed execution; what came before is known."""
    assert row.waited is not None
    assert row.waited["no_worker"] == SEEN["no_worker"]
    assert row.waited["waiting"] == pytest.approx(task.picked - task.due - 0.9, abs=0.001)
    assert row.waited.get("failed_tries", 0.0) < 5.0


async def test_a_retry_hands_on_what_came_before(stores: StoreSet) -> None:
    ownership, row = await waiting(stores)
    task = await claimed(stores, ownership, row, SEEN)
    failed = RetryLater(retry(task).report, -1.0, SEEN, EARLIER)
    (back,) = await stores.engine.retry(ownership, [failed])
    assert back.waited is None, "it is due at another time"
    again = await claimed(stores, ownership, back, None)
    assert (again.waited, again.earlier) == (None, EARLIER)
    (read,) = await stores.engine.claimed_by(
        [TaskRef(row.tenant_id, row.id, 3)], worker=stores.worker
    )
    assert read.earlier == EARLIER


async def test_a_loss_keeps_what_came_before_the_execution(stores: StoreSet) -> None:
    ownership, row = await waiting(stores)
    task = await claimed(stores, ownership, row, None)
    (back,) = await stores.engine.retry(
        ownership, [RetryLater(retry(task).report, -1.0, None, EARLIER)]
    )
    second = await claimed(stores, ownership, back, None, lease=-1.0)
    (lost,) = (await stores.engine.expire_leases([held(second)])).rows
    assert (await claimed(stores, ownership, lost, None)).earlier == EARLIER


async def test_each_execution_says_how_late_it_was(stores: StoreSet) -> None:
    ownership, row = await waiting(stores)
    task = await claimed(stores, ownership, row, SEEN, lease=-1.0)
    (back,) = (await stores.engine.expire_leases([held(task)])).rows
    second = await claimed(stores, ownership, back, back.waited)
    own = {"no_worker": 0.9, "failed_tries": 2.0}
    (back,) = await stores.engine.retry(
        ownership, [RetryLater(retry(second).report, -1.0, own, EARLIER)]
    )
    first, last = await stores.inspect.lateness_of(row.id)
    assert first is not None
    assert first["no_worker"] == 0.9
    assert "failed_tries" not in first
    assert last == own


# --- the sums in SQL are those in Python ----------------------------------------------------------

CAUSES = [cause.value for cause in Cause]
accounts = st.none() | st.dictionaries(
    st.sampled_from(CAUSES), st.integers(1, 10**8).map(lambda n: n / 10**6), min_size=1, max_size=4
)
moments = st.lists(
    st.tuples(accounts, *(st.integers(0, 10**8).map(lambda n: n / 10**6) for _ in range(3))),
    min_size=300,
    max_size=300,
)


async def test_sums_in_sql_are_those_in_python(database_url: str) -> None:
    rows = example(moments)
    connection = await asyncpg.connect(database_url)
    try:
        found = await connection.fetch(
            "SELECT until_picked(w, to_timestamp(0), to_timestamp(p))::text,"
            " until_lost(w, to_timestamp(0), to_timestamp(p), to_timestamp(p + l))::text,"
            " account_for(w, s, 'paused')::text, phase_to_blame(w)"
            " FROM unnest($1::jsonb[], $2::float8[], $3::float8[], $4::float8[])"
            " WITH ORDINALITY AS t (w, p, l, s, n) ORDER BY n",
            [None if w is None else msgspec.json.encode(w).decode() for w, _, _, _ in rows],
            *([row[n] for row in rows] for n in (1, 2, 3)),
        )
    finally:
        await connection.close()
    for (waited, picked, lease, seconds), (at_pick, lost, filled, phase) in zip(
        rows, found, strict=True
    ):
        known = Moments(0.0, picked, waited)
        assert same(at_pick, known.until_picked()), (waited, picked)
        assert same(lost, known.until_lost(picked + lease)), (waited, picked, lease)
        assert same(filled, account_for(waited, seconds, "paused")), (waited, seconds)
        if waited and len(set(waited.values())) == len(waited):
            assert phase == blame(waited)


def example(strategy: st.SearchStrategy[list[Any]]) -> list[Any]:
    """One large example, the same in every run."""
    found: list[list[Any]] = []
    settings = hypothesis.settings(
        max_examples=3, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )

    @settings
    @given(strategy)
    def draw(rows: list[Any]) -> None:
        found.append(rows)

    draw()
    return found[-1]


def same(stored: str | None, expected: Waited | None) -> bool:
    read = {} if stored is None else msgspec.json.decode(stored)
    return bool(read == pytest.approx(expected or {}, abs=2e-6))


@pytest.mark.parametrize("spec", [b"{}", b'{"sla": 30}', b"not json", b"\xff", b'{"sla": "x"}'])
async def test_a_bound_that_nobody_can_read_is_the_usual_one(
    database_url: str, spec: bytes
) -> None:
    connection = await asyncpg.connect(database_url)
    try:
        assert (
            await connection.fetchval("SELECT bound_of($1)", spec) == TaskSpec(Target("http")).sla
        )
    finally:
        await connection.close()


# --- what an owner adds to tasks that ended while they waited -------------------------------------


@pytest.fixture
async def ends(database_url: str) -> AsyncIterator[StoreWorld]:
    database = Database(DatabaseOptions(database_url, connections=2))
    await database.open()
    world = StoreWorld(database)
    await world.open()
    yield world
    await database.close()


async def history(
    world: StoreWorld, lateness: Waited, *, started: bool = False, met: bool | None = False
) -> UUID:
    """A task that ended, and says this of its lateness."""
    (task_id,) = await world.due_tasks(1)
    (task,) = await world.claim([task_id], lease=60)
    await world.engine.finish(world.ownership, [success(task)])
    await world.database.fetch(
        "UPDATE task_history SET lateness = $2, sla_met = $3, blame = 'scheduler',"
        " started_at = CASE WHEN $4 THEN started_at END WHERE id = $1",
        *(task_id, lateness, met, started),
    )
    return task_id


async def told(world: StoreWorld, task_id: UUID, waited: Waited) -> tuple[Waited, str | None]:
    await world.engine.explain_ends([EndedWaiting(world.tenant_id, task_id, waited)])
    row = await world.database.fetch_row(
        "SELECT lateness, blame FROM task_history WHERE id = $1", task_id
    )
    assert row is not None
    return row["lateness"], row["blame"]


async def test_the_owner_explains_the_unattributed_wait(ends: StoreWorld) -> None:
    task = await history(ends, {"paused": 1.0, "unattributed": 5.0})
    lateness, count_crash = await told(ends, task, {"no_worker": 4.0, "paused": 0.5})
    assert lateness == {"paused": 1.5, "no_worker": 4.0, "waiting": 0.5}
    assert count_crash == "capacity"


async def test_the_owner_explains_no_more_than_the_unattributed_wait(ends: StoreWorld) -> None:
    task = await history(ends, {"unattributed": 5.0})
    assert await told(ends, task, {"no_worker": 10.0}) == ({"no_worker": 5.0}, "capacity")


@pytest.mark.parametrize(
    ("lateness", "started"), [({"fair_share": 3.0}, False), ({"unattributed": 3.0}, True)]
)
async def test_what_is_accounted_for_stays_as_it_is(
    ends: StoreWorld, lateness: Waited, started: bool
) -> None:
    task = await history(ends, lateness, started=started)
    assert await told(ends, task, {"no_worker": 2.0}) == (lateness, "scheduler")


async def test_no_phase_is_blamed_where_nothing_was_missed(ends: StoreWorld) -> None:
    task = await history(ends, {"unattributed": 5.0}, met=None)
    assert await told(ends, task, {"no_worker": 5.0}) == ({"no_worker": 5.0}, None)
