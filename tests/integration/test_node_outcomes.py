"""Outcomes race lease ends and takeovers in the store: exactly one counts."""

import asyncio
from dataclasses import replace
from random import Random
from uuid import uuid4

import asyncpg
import pytest

from mainspring.domain.partitions import PARTITIONS
from mainspring.domain.tenant import TenantLimits
from mainspring.postgres.database import Database, DatabaseOptions, connect
from mainspring.store.cluster import ClusterStore
from mainspring.store.leases import HeldHeartbeat, LeaseStore
from mainspring.store.task_refs import TaskRef, WorkerPick
from mainspring.store.tasks import LockedTask, TaskChange, TaskStore
from mainspring.store.tenants import TenantStore
from mainspring.workflows.advancing import new_steps
from mainspring.workflows.task_changes import TaskChangeService
from support.evidence import Evidence
from support.store import StoreWorld, success
from support.waiting import eventually

RACES = 60

_SCHEDULED = "SELECT count(*) FROM tasks WHERE state = 'scheduled'"


@pytest.fixture
async def world(database: Database) -> StoreWorld:
    made = StoreWorld(database)
    await made.open()
    return made


async def test_completion_races_the_end_of_the_lease(world: StoreWorld) -> None:
    """Each execution ends once: as a success, or as lost and then scheduled again."""
    executions = await world.claim(await world.due_tasks(RACES), lease=0.0)
    shuffled = Random(3).sample(executions, RACES)
    batches = [shuffled[start : start + 10] for start in range(0, RACES, 10)]
    finished, lost = await asyncio.gather(
        asyncio.gather(*(world.engine.finish(world.ownership, map(success, b)) for b in batches)),
        asyncio.gather(
            *(
                world.engine.expire_leases(TaskRef(a.tenant_id, a.id, a.fence) for a in batch)
                for batch in reversed(batches)
            )
        ),
    )
    accepted = {task for answer in finished for task in answer}
    again = {row.id for seen in lost for row in seen.rows}
    assert accepted.isdisjoint(again)
    assert accepted | again == {a.id for a in executions}
    evidence = Evidence(world.database)
    assert await evidence.value("SELECT count(*) FROM executions") == RACES
    assert await evidence.value("SELECT count(*) FROM tasks WHERE state = 'scheduled'") == len(
        again
    )
    await evidence.sound(accepted)


async def test_a_stale_outcome_changes_nothing(world: StoreWorld) -> None:
    """An execution that was lost and taken by another is over, whatever its old holder says."""
    ids = await world.due_tasks(3)
    stale = await world.claim(ids, lease=0.0, worker="node:old")
    refs = [TaskRef(a.tenant_id, a.id, a.fence) for a in stale]
    assert len((await world.engine.expire_leases(refs)).rows) == 3
    current = await world.claim(ids, lease=60, worker="node:new")
    assert await world.engine.finish(world.ownership, map(success, stale)) == set()
    assert await world.engine.extend(refs, lease=60) == []
    assert await world.engine.finish(world.ownership, map(success, current)) == set(ids)
    await Evidence(world.database).sound(ids)


async def test_a_lease_that_was_extended_is_not_lost(world: StoreWorld) -> None:
    held = await world.claim(await world.due_tasks(1), lease=0.0)
    refs = [TaskRef(a.tenant_id, a.id, a.fence) for a in held]
    assert len(await world.engine.extend(refs, lease=60)) == 1
    seen = await world.engine.expire_leases(refs)
    assert (seen.rows, seen.gone) == ([], [])


async def test_two_nodes_want_the_same_partitions(database_url: str) -> None:
    """Each partition goes to one of them, and every change of hands raises its epoch."""
    connections = [await connect(DatabaseOptions(database_url)) for _ in range(2)]
    clusters = [ClusterStore(connection) for connection in connections]
    nodes = [uuid4(), uuid4()]
    for cluster, node in zip(clusters, nodes, strict=True):
        await cluster.join(node, "racer", None, "0")
    every = range(PARTITIONS)
    won = await asyncio.gather(
        *(c.take_over(node, 1, every) for c, node in zip(clusters, nodes, strict=True))
    )
    assert set(won[0]).isdisjoint(won[1])
    assert set(won[0]) | set(won[1]) == set(every)
    before = await epochs(connections[0])
    assert await clusters[0].declare_dead(nodes[1], ttl=0.0)
    assert await clusters[1].beat(nodes[1], 1) is None, "the dead are told"
    assert await clusters[1].take_over(nodes[1], 1, every) == [], "the dead take nothing"
    assert set(await clusters[0].take_over(nodes[0], 1, every)) == set(won[1])
    after = await epochs(connections[0])
    assert all(after[p] == before[p] + (p in won[1]) for p in every)
    for connection in connections:
        await connection.close()


async def test_a_dead_nodes_claim_changes_nothing(world: StoreWorld) -> None:
    ids = await world.due_tasks(2)
    await world.database.fetch("UPDATE nodes SET epoch = epoch + 1, state = 'dead'")
    assert await world.claim(ids, lease=60) == []
    assert await Evidence(world.database).value(_SCHEDULED) == 2


async def test_a_task_inserted_during_a_change_of_limits_moves_too(
    world: StoreWorld, database_url: str
) -> None:
    """An insert in flight while the tenant's spread changes must not lie in an old place."""
    tenants = TenantStore(world.database)
    writer = await connect(DatabaseOptions(database_url))
    async with writer.transaction():
        await writer.execute("SELECT FROM tenants FOR KEY SHARE")
        await writer.execute(
            "INSERT INTO tasks (id, created_at, run_at, due_at, tenant_id, partition, priority,"
            " queue, capability, spec, payload) SELECT gen_random_uuid(), now(), now(), now(), $1,"
            " p, 5, 'default', 'http', '', '' FROM generate_series(0, 255) AS p",
            world.tenant_id,
        )
        limits = TenantLimits(max_running=1, spread=1)
        change = asyncio.create_task(tenants.change(world.tenant_id, lambda _: limits, "test"))
        await eventually(lambda: somebody_waits(world), within=5, what="the change waits")
    await change
    await writer.close()
    evidence = Evidence(world.database)
    assert await evidence.value("SELECT count(DISTINCT partition) FROM tasks") == 1


async def test_a_new_weight_waits_for_no_task(world: StoreWorld, database_url: str) -> None:
    await world.due_tasks(1)
    writer = await connect(DatabaseOptions(database_url))
    async with asyncio.timeout(5), writer.transaction():
        await writer.execute("SELECT FROM tasks FOR UPDATE")
        changed = await TenantStore(world.database).change(
            world.tenant_id, lambda old: replace(old, weight=7), "test"
        )
    await writer.close()
    assert changed is not None
    assert changed.weight == 7


async def test_only_a_running_task_has_a_present_execution(world: StoreWorld) -> None:
    tasks = TaskStore(world.database, near=30)
    [task_id] = await world.due_tasks(1)
    assert await tasks.running(world.tenant_id, task_id) is None
    [given] = await world.claim([task_id], lease=60.0)
    assert await tasks.running(world.tenant_id, task_id) == given


async def test_a_late_heartbeat_does_not_extend_the_next_execution(
    world: StoreWorld, database_url: str
) -> None:
    leases = LeaseStore(world.database)
    [task_id] = await world.due_tasks(1)
    pick = WorkerPick(world.tenant_id, task_id, 1, "w", "1")
    [leased] = await leases.claim_for(world.ownership, [pick], lease=60.0)
    beats = [HeldHeartbeat(task_id, leased.execution.fence)]
    other = await asyncpg.connect(database_url)
    async with other.transaction():
        await other.execute("UPDATE tasks SET fence = fence + 1 WHERE id = $1", task_id)
        extended = leases.extend_for(world.tenant_id, "w", "1", beats, lease=600.0, grace=5.0)
        beating = asyncio.create_task(extended)
        await eventually(lambda: somebody_waits(world), within=5, what="the heartbeat waits")
    await other.close()
    assert await beating == []


async def somebody_waits(world: StoreWorld) -> bool:
    waiting = await Evidence(world.database).value(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    return waiting > 0


async def epochs(connection: asyncpg.Connection) -> dict[int, int]:
    rows = await connection.fetch("SELECT partition, epoch FROM partitions")
    return {row["partition"]: row["epoch"] for row in rows}


@pytest.mark.parametrize("state", ["paused", "cancelled"])
async def test_nothing_is_written_over_what_nobody_decided_on(
    world: StoreWorld, state: str
) -> None:
    """The lock keeps others away; the rev would show it if it did not."""
    [task_id] = await world.due_tasks(1)

    def decide(locked: LockedTask) -> TaskChange:
        change = replace(TaskChange.of(locked), state=state)
        object.__setattr__(locked, "rev", locked.rev - 1)
        return change

    with pytest.raises(AssertionError, match="cannot have changed"):
        await TaskChangeService(world.database, new_steps(Random(3))).change(
            world.tenant_id, task_id, decide
        )
    assert await Evidence(world.database).value(_SCHEDULED) == 1
