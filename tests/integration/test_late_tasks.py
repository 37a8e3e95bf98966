"""Where the seconds between due and start went: every way in which a task can wait, on one node and
on two where the worker asks at a node that does not own the task."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from mainspring.domain.partitions import PARTITIONS, partition_of
from mainspring.domain.tenant import TenantLimits
from mainspring.postgres.database import Database, DatabaseOptions
from mainspring.store.keys import NewKey
from mainspring.store.tenants import TenantStore
from support.client import Client
from support.lateness import ROUNDING, check_causes, check_sums, moment
from support.waiting import eventually
from support.workers import Json, LocalNode, RawWorker, open_local_node

WAIT = 0.5
SLA = 0.2
LEASE = 3.0
"""Seconds that a worker may have between its lease and its report, on any machine."""


@dataclass
class NodesUnderTest:
    """One node or two; workers ask at the first, tasks may lie at the last."""

    all: list[LocalNode]

    @property
    def here(self) -> LocalNode:
        return self.all[0]

    @property
    def owner(self) -> LocalNode:
        return self.all[-1]

    def worker(self, name: str = "w1", **more: Any) -> RawWorker:
        return self.here.worker(name, **more)

    async def create(self, count: int = 1, **fields: Any) -> list[str]:
        """Tasks that the last node owns, in the order of their ids."""
        fields = {"sla": SLA, "retry": {"initial": WAIT, "jitter": 0}, **fields}
        tenant = await self.here.server.keys.ensure_tenant("workshop")
        key = fields.get("concurrency", {}).get("key")
        there = self.owner.server.node.ownership().partitions
        made: list[str] = []
        while len(made) < count:
            task_id = await self.here.create(**fields)
            place = partition_of(tenant, UUID(task_id), key, PARTITIONS)
            if place in there or len(self.all) == 1 or key is not None:
                made.append(task_id)
            else:
                await self.here.client.post(f"/v1/tasks/{task_id}/cancel")
        return made

    async def finish(self, worker: RawWorker, task_id: str) -> Json:
        """Lease it, report success, and read it."""
        await self.lease(worker, task_id)
        return await self.here.task(task_id)

    async def lease(
        self, worker: RawWorker, task_id: str, status: str = "succeeded", **more: Any
    ) -> Json:
        """Lease this task, and report it so."""
        if status == "failed":
            more = {"error": {"code": "e", "message": "m"}, **more}
        task = await self.hold(worker, task_id)
        assert await worker.report(task, status=status, **more) == ["accepted"]
        return task

    async def hold(self, worker: RawWorker, *any_of: str) -> Json:
        """Lease one of these tasks, and no more."""
        async with asyncio.timeout(20):
            while not (tasks := await worker.lease(most=1, wait=5)):
                pass
        (task,) = tasks
        assert task["id"] in any_of
        return task

    async def key_elsewhere(self) -> str:
        """A concurrency key whose tasks the last node owns."""
        tenant = await self.here.server.keys.ensure_tenant("workshop")
        there = self.owner.server.node.ownership().partitions
        names = (f"key-{n}" for n in range(1000))
        return next(n for n in names if partition_of(tenant, UUID(int=0), n, PARTITIONS) in there)

    async def limited(self, database_url: str) -> tuple[LocalNode, LocalNode]:
        """A tenant that may run one task, as a client of a node that does not own its partition,
        if there is one, and of the node that does."""
        keys = self.here.server.keys
        tenant = await keys.ensure_tenant("limited")
        database = Database(DatabaseOptions(database_url, connections=1))
        await database.open()
        await TenantStore(database).change(tenant, lambda _: TenantLimits(1, 1, 1), "test")
        await database.close()
        await keys.add(
            NewKey("limited", "limited:all", tenant, frozenset({"read", "write", "work"}))
        )
        place = partition_of(tenant, UUID(int=0), None, 1)
        local_nodes = [
            LocalNode(
                local_node.server,
                Client(local_node.session, local_node.server.url, "limited:all"),
                local_node.session,
            )
            for local_node in self.all
        ]
        local_nodes.sort(
            key=lambda local_node: place in local_node.server.node.ownership().partitions
        )
        return local_nodes[0], local_nodes[-1]

    async def explained(self, task_id: str, verdict: str) -> None:
        """Wait until the owner says so."""

        async def told() -> bool:
            answer = await self.owner.client.get(f"/v1/tasks/{task_id}/explain")
            return bool(answer.json()["verdict"] == verdict)

        await eventually(told, within=10, what=f"it says {verdict}")


@pytest.fixture(params=[1, 2], ids=["one-node", "wrong-node"])
async def nodes(request: pytest.FixtureRequest, database_url: str) -> AsyncIterator[NodesUnderTest]:
    async with AsyncExitStack() as stack:
        local_nodes = [
            await stack.enter_async_context(
                open_local_node(database_url, worker_lease=LEASE, lease=1.0, node_ttl=20.0)
            )
            for _ in range(request.param)
        ]

        async def shared() -> bool:
            owned = [
                len(local_node.server.node.ownership().partitions) for local_node in local_nodes
            ]
            return sum(owned) == PARTITIONS and min(owned) > PARTITIONS / request.param / 2

        await eventually(shared, within=15, what="all nodes own partitions")
        yield NodesUnderTest(local_nodes)


async def sums(local_node: LocalNode, task: Json) -> list[Json]:
    """The executions of a task whose sums are right."""
    executions = await local_node.executions(task["id"])
    check_sums(task, executions)
    return executions


async def check_account(local_node: LocalNode, task: Json, blamed: str, **causes: float) -> None:
    """Check where a task's seconds went, what is to blame, and the sums of its executions."""
    check_causes(task["lateness"], **causes)
    assert task["blame"] == blamed
    await sums(local_node, task)


# --- the first start decides ---------------------------------------------------------------------


async def test_a_retry_forgives_no_missed_sla(nodes: NodesUnderTest) -> None:
    """SCENARIOS 54: first execution late and failed, the second prompt."""
    (there,) = await nodes.create()
    await asyncio.sleep(WAIT)
    worker = nodes.worker()
    await nodes.lease(worker, there, "failed")
    task = await nodes.finish(worker, there)
    assert (task["state"], task["sla_met"], task["blame"]) == ("completed", False, "capacity")
    first, second = await sums(nodes.here, task)
    check_causes(first["lateness"], no_worker=WAIT)
    check_causes(task["lateness"], no_worker=WAIT, retry_backoff=WAIT)
    assert moment(second["due_at"]) > moment(first["finished_at"])


async def test_a_late_retry_spoils_no_sla_that_was_met(nodes: NodesUnderTest) -> None:
    (there,) = await nodes.create(sla=20)
    worker = nodes.worker()
    held = await nodes.hold(worker, there)
    await asyncio.sleep(WAIT)
    assert await worker.report(held, status="failed", error={"code": "e", "message": "m"})
    await asyncio.sleep(3 * WAIT)
    task = await nodes.finish(worker, there)
    assert (task["sla_met"], task["blame"]) == (True, None)
    await sums(nodes.here, task)
    check_causes(task["lateness"], failed_tries=WAIT, retry_backoff=WAIT, fair_share=WAIT)


async def test_the_last_failure_is_complete_in_the_dead_letter(nodes: NodesUnderTest) -> None:
    (there,) = await nodes.create(retry={"max_attempts": 2, "initial": 0.1, "jitter": 0})
    await asyncio.sleep(WAIT)
    worker = nodes.worker()
    for _ in range(2):
        await nodes.lease(worker, there, "failed")
    task = await nodes.here.task(there)
    assert (task["state"], task["sla_met"], task["blame"]) == ("failed", False, "capacity")
    await sums(nodes.here, task)
    letter = (await nodes.here.client.get(f"/v1/dead-letters/{there}")).json()
    assert letter["task"]["lateness"] == task["lateness"]
    assert (letter["task"]["sla_met"], letter["task"]["blame"]) == (False, "capacity")
    answer = await nodes.here.client.post(f"/v1/dead-letters/{there}/replay", {})
    again = answer.json()["id"]
    replayed = await nodes.finish(worker, again)
    await sums(nodes.here, replayed)
    assert moment(replayed["due_at"]) > moment(task["finished_at"]), "a replay is a new task"


# --- ways to wait --------------------------------------------------------------------------------


async def test_no_worker(nodes: NodesUnderTest) -> None:
    (there,) = await nodes.create()
    await nodes.explained(there, "no_worker")
    await asyncio.sleep(WAIT)
    task = await nodes.finish(nodes.worker(), there)
    await check_account(nodes.here, task, "capacity", no_worker=WAIT)


async def test_a_busy_worker(nodes: NodesUnderTest) -> None:
    worker = nodes.worker()
    (first,) = await nodes.create()
    held = await nodes.hold(worker, first)
    (second,) = await nodes.create()
    await asyncio.sleep(WAIT)
    assert await worker.report(held) == ["accepted"]
    task = await nodes.finish(worker, second)
    await check_account(nodes.here, task, "capacity", fair_share=WAIT)


async def test_the_limit_of_the_tenant(nodes: NodesUnderTest, database_url: str) -> None:
    limited, owner = await nodes.limited(database_url)
    worker = limited.worker()
    first, second = [await limited.create(sla=SLA) for _ in range(2)]
    held = await nodes.hold(worker, first, second)
    (second,) = {first, second} - {held["id"]}
    await NodesUnderTest([owner]).explained(second, "tenant_limit")
    await asyncio.sleep(WAIT)
    assert await worker.report(held) == ["accepted"]
    await nodes.lease(worker, second)
    task = await limited.task(second)
    await check_account(limited, task, "limits", tenant_limit=WAIT)


async def test_a_concurrency_key(nodes: NodesUnderTest) -> None:
    key = await nodes.key_elsewhere()
    there = await nodes.create(2, concurrency={"key": key, "limit": 1})
    worker = nodes.worker()
    held = await nodes.hold(worker, *there)
    (second,) = set(there) - {held["id"]}
    await asyncio.sleep(WAIT)
    assert await worker.report(held) == ["accepted"]
    task = await nodes.finish(worker, second)
    await check_account(nodes.here, task, "limits", concurrency_key=WAIT)


async def paused(nodes: NodesUnderTest, seconds: float) -> str:
    """A task that waited for a worker, and then was paused for so long."""
    (there,) = await nodes.create()
    await nodes.explained(there, "no_worker")
    await asyncio.sleep(WAIT)
    await nodes.here.client.post(f"/v1/tasks/{there}/pause")
    await asyncio.sleep(seconds)
    return there


async def test_a_pause(nodes: NodesUnderTest) -> None:
    there = await paused(nodes, 3 * WAIT)
    await nodes.here.client.post(f"/v1/tasks/{there}/resume")
    task = await nodes.finish(nodes.worker(), there)
    await check_account(nodes.here, task, "limits", no_worker=WAIT, paused=3 * WAIT)


async def test_a_lease_of_a_worker_that_was_killed(nodes: NodesUnderTest) -> None:
    (there,) = await nodes.create()
    await asyncio.sleep(WAIT)
    await nodes.hold(nodes.worker("killed"), there)
    task = await nodes.finish(nodes.worker("other"), there)
    lost, last = await sums(nodes.here, task)
    assert (lost["outcome"], lost["started_at"]) == ("lost", None)
    assert lost["due_at"] == last["due_at"], "it is as due as before"
    check_causes(lost["lateness"], no_worker=WAIT)
    check_causes(task["lateness"], no_worker=WAIT, failed_tries=LEASE)
    assert task["lateness"] == last["lateness"]
    assert task["blame"] == "capacity"


async def test_a_task_that_its_worker_releases(nodes: NodesUnderTest) -> None:
    (there,) = await nodes.create()
    await asyncio.sleep(WAIT)
    worker = nodes.worker()
    held = await nodes.hold(worker, there)
    await asyncio.sleep(WAIT)
    assert await worker.report(held, status="released") == ["accepted"]
    task = await nodes.finish(worker, there)
    released, _ = await sums(nodes.here, task)
    assert (released["outcome"], released["started_at"]) == ("released", None)
    check_causes(task["lateness"], no_worker=WAIT, failed_tries=WAIT)
    assert task["blame"] == "capacity"


async def test_an_edit_moves_the_first_due_time(nodes: NodesUnderTest) -> None:
    (there,) = await nodes.create()
    await asyncio.sleep(WAIT)
    answer = await nodes.here.client.call("PATCH", f"/v1/tasks/{there}", {"delay": 0.1})
    assert answer.status == 200, answer.body
    task = await nodes.finish(nodes.worker(), there)
    (only,) = await sums(nodes.here, task)
    assert moment(only["due_at"]) > moment(task["created_at"]) + WAIT


async def test_to_run_a_retry_now_shortens_its_backoff(nodes: NodesUnderTest) -> None:
    (there,) = await nodes.create(retry={"initial": 60, "jitter": 0})
    worker = nodes.worker()
    await nodes.lease(worker, there, "failed")
    await asyncio.sleep(WAIT)
    await nodes.here.client.post(f"/v1/tasks/{there}/run")
    task = await nodes.finish(worker, there)
    check_causes(task["lateness"], retry_backoff=WAIT)
    await sums(nodes.here, task)


# --- tasks that end while they wait ---------------------------------------------------------------


async def ended(nodes: NodesUnderTest, task_id: str, state: str) -> Json:
    """The task once its owner has said what it waited for."""

    async def told() -> Json | None:
        task = await nodes.here.task(task_id)
        known = "unattributed" not in task["lateness"]
        return task if task["state"] == state and known else None

    task: Json | None = await eventually(told, within=10, what=f"it is {state}, and says why")
    assert task is not None
    return task


async def test_a_cancel_beyond_the_bound_is_a_miss(nodes: NodesUnderTest) -> None:
    (there,) = await nodes.create()
    await nodes.explained(there, "no_worker")
    await asyncio.sleep(WAIT)
    answer = await nodes.here.client.post(f"/v1/tasks/{there}/cancel")
    assert answer.json()["sla_met"] is False
    task = await ended(nodes, there, "cancelled")
    assert (task["sla_met"], task["blame"], task["started_at"]) == (False, "capacity", None)
    check_causes(task["lateness"], no_worker=WAIT)
    late = moment(task["finished_at"]) - moment(task["due_at"])
    assert sum(task["lateness"].values()) == pytest.approx(late, abs=ROUNDING)


async def test_a_cancel_within_the_bound_is_no_miss(nodes: NodesUnderTest) -> None:
    (there,) = await nodes.create(sla=20)
    await nodes.explained(there, "no_worker")
    await nodes.here.client.post(f"/v1/tasks/{there}/cancel")
    task = await ended(nodes, there, "cancelled")
    assert (task["sla_met"], task["blame"]) == (None, None)


async def test_a_cancel_before_the_due_time_is_no_miss(nodes: NodesUnderTest) -> None:
    (there,) = await nodes.create(delay=60)
    await nodes.here.client.post(f"/v1/tasks/{there}/cancel")
    task = await ended(nodes, there, "cancelled")
    assert (task["sla_met"], task["blame"], task["lateness"]) == (None, None, {})


async def test_many_that_are_cancelled_at_once_say_why(nodes: NodesUnderTest) -> None:
    (there,) = await nodes.create()
    await nodes.explained(there, "no_worker")
    await asyncio.sleep(WAIT)
    answer = await nodes.here.client.post("/v1/tasks/cancel", {"filter": {"queue": "default"}})
    assert answer.status == 200, answer.body
    task = await ended(nodes, there, "cancelled")
    assert (task["sla_met"], task["blame"]) == (False, "capacity")
    check_causes(task["lateness"], no_worker=WAIT)


async def test_a_cancel_while_paused_says_so(nodes: NodesUnderTest) -> None:
    there = await paused(nodes, 2 * WAIT)
    await nodes.here.client.post(f"/v1/tasks/{there}/cancel")
    task = await ended(nodes, there, "cancelled")
    check_causes(task["lateness"], no_worker=WAIT, paused=2 * WAIT)
    assert (task["sla_met"], task["blame"]) == (False, "limits")


async def test_a_cancel_between_executions_keeps_the_first_verdict(
    nodes: NodesUnderTest,
) -> None:
    (there,) = await nodes.create(retry={"initial": 60, "jitter": 0})
    await asyncio.sleep(WAIT)
    await nodes.lease(nodes.worker(), there, "failed")
    await nodes.here.client.post(f"/v1/tasks/{there}/cancel")
    task = await ended(nodes, there, "cancelled")
    assert (task["sla_met"], task["blame"]) == (False, "capacity")
    await sums(nodes.here, task)


async def test_a_cancel_leaves_each_execution_its_own_lateness(nodes: NodesUnderTest) -> None:
    """The last execution was on time, its task was not."""
    (there,) = await nodes.create(sla=20, retry={"initial": 0.1, "factor": 100, "jitter": 0})
    await asyncio.sleep(WAIT)
    worker = nodes.worker()
    await nodes.lease(worker, there, "failed")
    await nodes.lease(worker, there, "failed")
    await nodes.here.client.post(f"/v1/tasks/{there}/cancel")
    first, last = await sums(nodes.here, await ended(nodes, there, "cancelled"))
    check_causes(first["lateness"], no_worker=WAIT)
    assert "no_worker" not in last["lateness"]


async def test_an_expired_task_is_a_miss_and_says_why(nodes: NodesUnderTest) -> None:
    expires = (datetime.now(UTC) + timedelta(seconds=2)).isoformat()
    (there,) = await nodes.create(expires_at=expires)
    task = await ended(nodes, there, "expired")
    assert (task["sla_met"], task["blame"], task["started_at"]) == (False, "capacity", None)
    check_causes(task["lateness"], no_worker=1.0)
    late = moment(task["finished_at"]) - moment(task["due_at"])
    assert sum(task["lateness"].values()) == pytest.approx(late, abs=ROUNDING)


# --- what the node itself runs --------------------------------------------------------------------


async def test_eager_leases_are_on_time(nodes: NodesUnderTest) -> None:
    task = {"target": {"type": "handler", "name": "mainspring.noop"}}
    made = await nodes.here.client.create(task)
    done = await nodes.here.until(str(made), "completed")
    assert (done["sla_met"], done["blame"]) == (True, None)
    (only,) = await sums(nodes.here, done)
    assert only["lateness"] == done["lateness"]


async def test_retries_of_built_in_handlers_add_up(nodes: NodesUnderTest) -> None:
    task = {
        "target": {"type": "handler", "name": "mainspring.fail"},
        "retry": {"max_attempts": 3, "initial": 0.2, "factor": 1, "jitter": 0},
    }
    made = await nodes.here.client.create(task)
    done = await nodes.here.until(str(made), "failed")
    check_causes(done["lateness"], retry_backoff=0.4)
    assert len(await sums(nodes.here, done)) == 3


async def test_retries_of_steps_add_up(nodes: NodesUnderTest) -> None:
    """A step is due when its turn has come, and not when its run began."""
    steps = [
        {"id": "first", "target": {"type": "handler", "name": "work"}, "sla": SLA},
        {
            "id": "second",
            "needs": ["first"],
            "target": {"type": "handler", "name": "work"},
            "sla": SLA,
            "retry": {"initial": 0.2, "jitter": 0},
        },
    ]
    client, worker = nodes.here.client, nodes.worker()
    made = await client.post("/v1/workflows", {"name": "two", "steps": steps})
    assert made.status in (200, 201), made.body
    run = (await client.post("/v1/workflows/two/runs", {})).json()
    await client.post(f"/v1/workflow-runs/{run['id']}/pause")
    await asyncio.sleep(2 * WAIT)
    await client.post(f"/v1/workflow-runs/{run['id']}/resume")
    await asyncio.sleep(WAIT)
    (first,) = await worker.lease(most=1, wait=10)
    assert await worker.report(first) == ["accepted"]
    await asyncio.sleep(WAIT)
    for status in ("failed", "succeeded"):
        (second,) = await worker.lease(most=1, wait=10)
        more = {"error": {"code": "e", "message": "m"}} if status == "failed" else {}
        assert await worker.report(second, status=status, **more) == ["accepted"]
    paused = await nodes.here.task(first["id"])
    check_causes(paused["lateness"], paused=2 * WAIT, no_worker=WAIT)
    assert (paused["sla_met"], paused["blame"]) == (False, "limits")
    await sums(nodes.here, paused)
    tried = await nodes.here.task(second["id"])
    check_causes(tried["lateness"], fair_share=WAIT, retry_backoff=0.2)
    assert (tried["sla_met"], tried["blame"]) == (False, "capacity")
    await sums(nodes.here, tried)


async def test_a_step_that_was_never_due_misses_nothing(nodes: NodesUnderTest) -> None:
    work = {"target": {"type": "handler", "name": "work"}, "sla": SLA}
    steps = [{"id": "first", **work}, {"id": "second", "needs": ["first"], **work}]
    client = nodes.here.client
    await client.post("/v1/workflows", {"name": "two", "steps": steps})
    run = (await client.post("/v1/workflows/two/runs", {})).json()
    await asyncio.sleep(WAIT)
    listed = (await client.get(f"/v1/tasks?workflow_run_id={run['id']}&state=blocked")).json()
    (blocked,) = listed["items"]
    await client.post(f"/v1/tasks/{blocked['id']}/cancel")
    task = await nodes.here.task(blocked["id"])
    assert (task["state"], task["sla_met"], task["blame"]) == ("cancelled", None, None)
    assert task["lateness"] == {}
