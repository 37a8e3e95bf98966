"""A node whose database was set back drops what it believes: whatever is in the tables then is so.

The rows are changed to what they were before, together with the start of the server that the node
has joined: so it looks as after a restore.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import asyncpg
import pytest

from mainspring.clock import monotonic
from mainspring.domain.webhook import WebhookProfile
from mainspring.execution.http import HttpExecutor, _CachedProfile
from support.client import noop
from support.waiting import eventually
from support.workers import LocalNode, open_local_node

_OTHER_SERVER = "UPDATE nodes SET server_started = server_started - interval '1 minute'"


@pytest.fixture
async def local_node(database_url: str) -> AsyncIterator[LocalNode]:
    async with open_local_node(database_url, worker_lease=5.0) as opened:
        yield opened


@pytest.fixture
async def tables(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close()


async def set_back(tables: asyncpg.Connection, *changes: str) -> None:
    async with tables.transaction():
        for change in (*changes, _OTHER_SERVER):
            await tables.execute(change)


async def test_what_ran_since_the_backup_is_leased_again(
    local_node: LocalNode, tables: asyncpg.Connection
) -> None:
    """Though the engine knows of a later rev of it."""
    task_id = await local_node.create()
    (lost,) = await local_node.worker("before").lease()
    await set_back(
        tables,
        "UPDATE tasks SET state = 'scheduled', rev = 1, fence = 0, attempts = 0, picked_at = NULL,"
        " lease_until = NULL, worker = NULL, incarnation = NULL",
    )
    (again,) = await local_node.worker("after").lease(wait=10)
    assert (again["id"], lost["id"]) == (task_id, task_id)
    assert again["fence"] > lost["fence"]
    for status in ("failed", "released", "succeeded"):
        assert await local_node.worker("before").report(lost, status=status) == ["fenced"]
    assert await local_node.worker("after").report(again) == ["accepted"]


async def test_what_ended_since_the_backup_runs_again(
    local_node: LocalNode, tables: asyncpg.Connection
) -> None:
    task_id = await local_node.create()
    await tables.execute("CREATE TABLE backup AS SELECT * FROM tasks")
    worker = local_node.worker()
    (lost,) = await worker.lease()
    assert await worker.report(lost) == ["accepted"]
    await set_back(
        tables,
        "SET LOCAL mainspring.purge = 'on'",
        "DELETE FROM task_history",
        "DELETE FROM executions",
        "INSERT INTO tasks SELECT * FROM backup",
    )
    (again,) = await worker.lease(wait=10)
    assert again["id"] == task_id
    assert again["fence"] > lost["fence"]
    assert await worker.report(again) == ["accepted"]


async def test_a_worker_that_began_since_the_backup_goes_on(
    local_node: LocalNode, tables: asyncpg.Connection
) -> None:
    """The restored registry names an earlier process of it."""
    worker = local_node.worker()
    asked = asyncio.create_task(worker.lease(wait=10))
    await eventually(local_node.polled_by(1), within=5, what="the worker waits")
    await set_back(tables, "UPDATE workers SET incarnation = 'an earlier one', former = '{}'")
    task_id = await local_node.create()

    async def got() -> bool:
        nonlocal asked
        if not asked.done():
            return False
        tasks = asked.result()  # it raises where the worker was told that it is replaced
        if not tasks:
            asked = asyncio.create_task(worker.lease(wait=10))
        return [task["id"] for task in tasks] == [task_id]

    await eventually(got, within=10, what="the worker gets the task")


async def test_repeated_wake_numbers_are_read(
    local_node: LocalNode, tables: asyncpg.Connection
) -> None:
    """What was heard under these numbers was something else."""
    worker = local_node.worker()
    before = await local_node.create(delay=60)
    await local_node.client.post(f"/v1/tasks/{before}/run")
    (task,) = await worker.lease()
    await worker.report(task)
    await set_back(tables, "DELETE FROM wakes", "ALTER TABLE wakes ALTER COLUMN id RESTART WITH 1")
    for _ in range(5):
        task_id = await local_node.create(delay=60)
        await local_node.client.post(f"/v1/tasks/{task_id}/run")
        (task,) = await worker.lease(wait=10)
        assert task["id"] == task_id
        await worker.report(task)


async def test_a_version_that_is_another_since_is_read_anew(
    local_node: LocalNode, tables: asyncpg.Connection
) -> None:
    """Two workflows had the same number: the first one in a life of the database that was lost."""
    steps = [step("lost"), step("second", needs=["lost"], when="all_finished")]
    flow = {"name": "flow", "steps": steps}
    assert (await local_node.client.post("/v1/workflows", flow)).status == 201
    await finished_run(local_node)
    again = joined_anew(local_node)
    await set_back(
        tables,
        "DELETE FROM workflow_steps",
        "DELETE FROM workflow_runs",
        "DELETE FROM workflow_versions",
        "DELETE FROM workflows",
    )
    await eventually(again, within=30, what="the node has joined anew")
    # By a definition without these steps, or with others after them, the run would stand still.
    flow["steps"] = [
        step("other"),
        step("second", needs=["other"], when="all_finished"),
        step("third", needs=["second"], when="all_finished"),
    ]
    assert (await local_node.client.post("/v1/workflows", flow)).json()["version"] == 1
    await finished_run(local_node)


async def test_a_key_that_is_unknown_since_is_refused_at_once(
    local_node: LocalNode, tables: asyncpg.Connection
) -> None:
    """Its tenant's number may be another's soon."""
    assert (await local_node.client.get("/v1/tasks")).status == 200
    again = joined_anew(local_node)
    await set_back(tables, "DELETE FROM api_keys WHERE id = 'work-all'")
    await eventually(again, within=30, what="the node has joined anew")
    assert (await local_node.client.get("/v1/tasks")).status == 401


async def test_profiles_of_webhooks_are_read_anew(local_node: LocalNode) -> None:
    """Secrets and allow-lists may be others since, and a tenant's number be another's."""
    node = local_node.server.node
    (webhooks,) = [each for each in node._executors if isinstance(each, HttpExecutor)]
    profile = WebhookProfile()
    webhooks._known[1] = _CachedProfile(profile, webhooks._settings.egress, monotonic())
    node._state.renew()
    assert not webhooks._known


async def test_a_run_started_since_the_backup_starts_again(
    local_node: LocalNode, tables: asyncpg.Connection
) -> None:
    """The task that runs it was leased before, and its lease is kept."""
    flow = {"name": "flow", "steps": [step("slow", name="work")]}
    assert (await local_node.client.post("/v1/workflows", flow)).status == 201
    target = {"type": "handler", "name": "mainspring.workflow"}
    task_id = await local_node.client.create({"target": target, "payload": {"workflow": "flow"}})
    worker = local_node.worker()
    (lost,) = await worker.lease()
    await set_back(
        tables,
        "DELETE FROM workflow_steps",
        "DELETE FROM workflow_runs",
        f"DELETE FROM tasks WHERE id = '{lost['id']}'",
    )
    (again,) = await worker.lease(wait=10)
    assert again["id"] != lost["id"]
    assert await worker.report(again) == ["accepted"]
    await local_node.until(str(task_id), "completed")


async def test_eagerly_leased_steps_have_new_fences_after_a_restore(
    local_node: LocalNode, tables: asyncpg.Connection
) -> None:
    """They are claimed by the statement that releases them."""
    flow = {"name": "flow", "steps": [step("first", name="work"), step("second", needs=["first"])]}
    assert (await local_node.client.post("/v1/workflows", flow)).status == 201
    run = (await local_node.client.post("/v1/workflows/flow/runs", {})).json()
    again = joined_anew(local_node)
    await set_back(tables)
    await eventually(again, within=30, what="the node has joined anew")
    (first,) = await local_node.worker().lease(wait=10)
    assert await local_node.worker().report(first) == ["accepted"]
    await ended_run(local_node, run["id"])
    fences = await tables.fetch("SELECT fence FROM executions")
    floor = await tables.fetchval("SELECT floor FROM fence_floor")
    assert len(fences) == 2
    assert all(row["fence"] >= floor for row in fences), fences


async def test_fewer_heartbeats_than_were_counted_are_noticed(
    local_node: LocalNode, tables: asyncpg.Connection
) -> None:
    """A dump was loaded into the same server, which was not restarted."""
    known = local_node.server.node.ownership().node_id
    await eventually(lambda: beats(tables, 2), within=5, what="heartbeats are counted")
    again = joined_anew(local_node)
    await tables.execute("UPDATE nodes SET beats = 0")
    await eventually(again, within=30, what="the node has joined anew")
    states = {n["id"]: n["state"] for n in await tables.fetch("SELECT id, state FROM nodes")}
    assert states == {known: "dead", local_node.server.node.ownership().node_id: "active"}


async def test_after_a_restart_nothing_waits_for_the_nodes_own_row(
    database_url: str, tables: asyncpg.Connection
) -> None:
    """Its partitions are its own again at once, and not when the old row has been silent."""
    async with open_local_node(database_url, node_ttl=120.0) as local_node:
        again = joined_anew(local_node)
        await set_back(tables)
        await eventually(again, within=30, what="the node has joined anew")
        task = await local_node.client.create(noop())
        await local_node.until(str(task), "completed")


def step(step_id: str, *, name: str = "mainspring.noop", **fields: object) -> dict[str, object]:
    return {"id": step_id, "target": {"type": "handler", "name": name}, **fields}


async def finished_run(local_node: LocalNode) -> None:
    """Run the workflow to its end."""
    begun = await local_node.client.post("/v1/workflows/flow/runs", {})
    assert begun.status == 201, begun.body
    await ended_run(local_node, begun.json()["id"])


async def ended_run(local_node: LocalNode, run_id: str) -> None:
    async def ended() -> bool:
        run = (await local_node.client.get(f"/v1/workflow-runs/{run_id}")).json()
        return bool(run["state"] == "completed")

    await eventually(ended, within=10, what="the run has ended")


def joined_anew(local_node: LocalNode) -> Callable[[], Awaitable[bool]]:
    """To be asked for before the database is set back: a node may notice that at once."""
    known = local_node.server.node.ownership().node_id

    async def joined() -> bool:
        ownership = local_node.server.node.ownership()
        return ownership.node_id != known and len(ownership.partitions) == 256

    return joined


async def beats(tables: asyncpg.Connection, least: int) -> bool:
    return bool(await tables.fetchval("SELECT max(beats) >= $1 FROM nodes", least))
