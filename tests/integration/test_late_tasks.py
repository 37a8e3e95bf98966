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

from mainspring.domain.placement import PARTITIONS, partition_of
from mainspring.domain.tenant import TenantLimits
from mainspring.postgres.database import Database, DatabaseOptions
from mainspring.store.keys import NewKey
from mainspring.store.tenants import TenantStore
from support.client import Client
from support.lateness import ROUNDING, check_causes, check_sums, moment
from support.waiting import eventually
from support.workers import Json, RawWorker, Shop, opened_shop

WAIT = 0.5
SLA = 0.2
LEASE = 3.0
"""Seconds that a worker may have between its lease and its report, on any machine."""


@dataclass
class Street:
    """One node or two; workers ask at the first, tasks may lie at the last."""

    shops: list[Shop]

    @property
    def here(self) -> Shop:
        return self.shops[0]

    @property
    def owner(self) -> Shop:
        return self.shops[-1]

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
            if place in there or len(self.shops) == 1 or key is not None:
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

    async def limited(self, database_url: str) -> tuple[Shop, Shop]:
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
        shops = [
            Shop(shop.server, Client(shop.session, shop.server.url, "limited:all"), shop.session)
            for shop in self.shops
        ]
        shops.sort(key=lambda shop: place in shop.server.node.ownership().partitions)
        return shops[0], shops[-1]

    async def explained(self, task_id: str, verdict: str) -> None:
        """Wait until the owner says so."""

        async def told() -> bool:
            answer = await self.owner.client.get(f"/v1/tasks/{task_id}/explain")
            return bool(answer.json()["verdict"] == verdict)

        await eventually(told, within=10, what=f"it says {verdict}")


@pytest.fixture(params=[1, 2], ids=["one-node", "wrong-node"])
async def street(request: pytest.FixtureRequest, database_url: str) -> AsyncIterator[Street]:
    async with AsyncExitStack() as stack:
        shops = [
            await stack.enter_async_context(
                opened_shop(database_url, worker_lease=LEASE, lease=1.0, node_ttl=20.0)
            )
            for _ in range(request.param)
        ]

        async def shared() -> bool:
            owned = [len(shop.server.node.ownership().partitions) for shop in shops]
            return sum(owned) == PARTITIONS and min(owned) > PARTITIONS / request.param / 2

        await eventually(shared, within=15, what="all nodes own partitions")
        yield Street(shops)


async def sums(shop: Shop, task: Json) -> list[Json]:
    """The executions of a task whose sums are right."""
    tries = await shop.tries(task["id"])
    check_sums(task, tries)
    return tries


# --- the first start decides ---------------------------------------------------------------------


async def test_a_retry_forgives_no_missed_sla(street: Street) -> None:
    """SCENARIOS 54: first try late and failed, the second prompt."""
    (there,) = await street.create()
    await asyncio.sleep(WAIT)
    worker = street.worker()
    await street.lease(worker, there, "failed")
    task = await street.finish(worker, there)
    assert (task["state"], task["sla_met"], task["blame"]) == ("completed", False, "capacity")
    first, second = await sums(street.here, task)
    check_causes(first["lateness"], no_worker=WAIT)
    check_causes(task["lateness"], no_worker=WAIT, retry_backoff=WAIT)
    assert moment(second["due_at"]) > moment(first["finished_at"])


async def test_a_late_retry_spoils_no_sla_that_was_met(street: Street) -> None:
    (there,) = await street.create(sla=20)
    worker = street.worker()
    held = await street.hold(worker, there)
    await asyncio.sleep(WAIT)
    assert await worker.report(held, status="failed", error={"code": "e", "message": "m"})
    await asyncio.sleep(3 * WAIT)
    task = await street.finish(worker, there)
    assert (task["sla_met"], task["blame"]) == (True, None)
    await sums(street.here, task)
    check_causes(task["lateness"], failed_tries=WAIT, retry_backoff=WAIT, fair_share=WAIT)


async def test_a_last_failure_says_all_of_it_in_the_dead_letter(street: Street) -> None:
    (there,) = await street.create(retry={"max_attempts": 2, "initial": 0.1, "jitter": 0})
    await asyncio.sleep(WAIT)
    worker = street.worker()
    for _ in range(2):
        await street.lease(worker, there, "failed")
    task = await street.here.task(there)
    assert (task["state"], task["sla_met"], task["blame"]) == ("failed", False, "capacity")
    await sums(street.here, task)
    letter = (await street.here.client.get(f"/v1/dead-letters/{there}")).json()
    assert letter["task"]["lateness"] == task["lateness"]
    assert (letter["task"]["sla_met"], letter["task"]["blame"]) == (False, "capacity")
    answer = await street.here.client.post(f"/v1/dead-letters/{there}/replay", {})
    again = answer.json()["id"]
    replayed = await street.finish(worker, again)
    await sums(street.here, replayed)
    assert moment(replayed["due_at"]) > moment(task["finished_at"]), "a replay is a new task"


# --- ways to wait --------------------------------------------------------------------------------


async def test_no_worker(street: Street) -> None:
    (there,) = await street.create()
    await street.explained(there, "no_worker")
    await asyncio.sleep(WAIT)
    task = await street.finish(street.worker(), there)
    check_causes(task["lateness"], no_worker=WAIT)
    assert task["blame"] == "capacity"
    await sums(street.here, task)


async def test_a_busy_worker(street: Street) -> None:
    worker = street.worker()
    (first,) = await street.create()
    held = await street.hold(worker, first)
    (second,) = await street.create()
    await asyncio.sleep(WAIT)
    assert await worker.report(held) == ["accepted"]
    task = await street.finish(worker, second)
    check_causes(task["lateness"], fair_share=WAIT)
    assert task["blame"] == "capacity"
    await sums(street.here, task)


async def test_the_limit_of_the_tenant(street: Street, database_url: str) -> None:
    limited, owner = await street.limited(database_url)
    worker = limited.worker()
    first, second = [await limited.create(sla=SLA) for _ in range(2)]
    held = await street.hold(worker, first, second)
    (second,) = {first, second} - {held["id"]}
    await Street([owner]).explained(second, "tenant_limit")
    await asyncio.sleep(WAIT)
    assert await worker.report(held) == ["accepted"]
    await street.lease(worker, second)
    task = await limited.task(second)
    check_causes(task["lateness"], tenant_limit=WAIT)
    assert task["blame"] == "limits"
    await sums(limited, task)


async def test_a_concurrency_key(street: Street) -> None:
    key = await street.key_elsewhere()
    there = await street.create(2, concurrency={"key": key, "limit": 1})
    worker = street.worker()
    held = await street.hold(worker, *there)
    (second,) = set(there) - {held["id"]}
    await asyncio.sleep(WAIT)
    assert await worker.report(held) == ["accepted"]
    task = await street.finish(worker, second)
    check_causes(task["lateness"], concurrency_key=WAIT)
    assert task["blame"] == "limits"
    await sums(street.here, task)


async def test_a_pause(street: Street) -> None:
    (there,) = await street.create()
    await street.explained(there, "no_worker")
    await asyncio.sleep(WAIT)
    await street.here.client.post(f"/v1/tasks/{there}/pause")
    await asyncio.sleep(3 * WAIT)
    await street.here.client.post(f"/v1/tasks/{there}/resume")
    task = await street.finish(street.worker(), there)
    check_causes(task["lateness"], no_worker=WAIT, paused=3 * WAIT)
    assert task["blame"] == "limits"
    await sums(street.here, task)


async def test_a_lease_of_a_worker_that_was_killed(street: Street) -> None:
    (there,) = await street.create()
    await asyncio.sleep(WAIT)
    await street.hold(street.worker("killed"), there)
    task = await street.finish(street.worker("other"), there)
    lost, last = await sums(street.here, task)
    assert (lost["outcome"], lost["started_at"]) == ("lost", None)
    assert lost["due_at"] == last["due_at"], "it is as due as before"
    check_causes(lost["lateness"], no_worker=WAIT)
    check_causes(task["lateness"], no_worker=WAIT, failed_tries=LEASE)
    assert task["lateness"] == last["lateness"]
    assert task["blame"] == "capacity"


async def test_a_task_that_its_worker_releases(street: Street) -> None:
    (there,) = await street.create()
    await asyncio.sleep(WAIT)
    worker = street.worker()
    held = await street.hold(worker, there)
    await asyncio.sleep(WAIT)
    assert await worker.report(held, status="released") == ["accepted"]
    task = await street.finish(worker, there)
    released, _ = await sums(street.here, task)
    assert (released["outcome"], released["started_at"]) == ("released", None)
    check_causes(task["lateness"], no_worker=WAIT, failed_tries=WAIT)
    assert task["blame"] == "capacity"


async def test_an_edit_moves_the_first_due_time(street: Street) -> None:
    (there,) = await street.create()
    await asyncio.sleep(WAIT)
    answer = await street.here.client.call("PATCH", f"/v1/tasks/{there}", {"delay": 0.1})
    assert answer.status == 200, answer.body
    task = await street.finish(street.worker(), there)
    (only,) = await sums(street.here, task)
    assert moment(only["due_at"]) > moment(task["created_at"]) + WAIT


async def test_to_run_a_retry_now_shortens_its_backoff(street: Street) -> None:
    (there,) = await street.create(retry={"initial": 60, "jitter": 0})
    worker = street.worker()
    await street.lease(worker, there, "failed")
    await asyncio.sleep(WAIT)
    await street.here.client.post(f"/v1/tasks/{there}/run")
    task = await street.finish(worker, there)
    check_causes(task["lateness"], retry_backoff=WAIT)
    await sums(street.here, task)


# --- tasks that end while they wait ---------------------------------------------------------------


async def ended(street: Street, task_id: str, state: str) -> Json:
    """The task once its owner has said what it waited for."""

    async def told() -> Json | None:
        task = await street.here.task(task_id)
        known = "unattributed" not in task["lateness"]
        return task if task["state"] == state and known else None

    task: Json | None = await eventually(told, within=10, what=f"it is {state}, and says why")
    assert task is not None
    return task


async def test_a_cancel_beyond_the_bound_is_a_miss(street: Street) -> None:
    (there,) = await street.create()
    await street.explained(there, "no_worker")
    await asyncio.sleep(WAIT)
    answer = await street.here.client.post(f"/v1/tasks/{there}/cancel")
    assert answer.json()["sla_met"] is False
    task = await ended(street, there, "cancelled")
    assert (task["sla_met"], task["blame"], task["started_at"]) == (False, "capacity", None)
    check_causes(task["lateness"], no_worker=WAIT)
    late = moment(task["finished_at"]) - moment(task["due_at"])
    assert sum(task["lateness"].values()) == pytest.approx(late, abs=ROUNDING)


async def test_a_cancel_within_the_bound_is_no_miss(street: Street) -> None:
    (there,) = await street.create(sla=20)
    await street.explained(there, "no_worker")
    await street.here.client.post(f"/v1/tasks/{there}/cancel")
    task = await ended(street, there, "cancelled")
    assert (task["sla_met"], task["blame"]) == (None, None)


async def test_a_cancel_before_the_due_time_is_no_miss(street: Street) -> None:
    (there,) = await street.create(delay=60)
    await street.here.client.post(f"/v1/tasks/{there}/cancel")
    task = await ended(street, there, "cancelled")
    assert (task["sla_met"], task["blame"], task["lateness"]) == (None, None, {})


async def test_many_that_are_cancelled_at_once_say_why(street: Street) -> None:
    (there,) = await street.create()
    await street.explained(there, "no_worker")
    await asyncio.sleep(WAIT)
    answer = await street.here.client.post("/v1/tasks/cancel", {"filter": {"queue": "default"}})
    assert answer.status == 200, answer.body
    task = await ended(street, there, "cancelled")
    assert (task["sla_met"], task["blame"]) == (False, "capacity")
    check_causes(task["lateness"], no_worker=WAIT)


async def test_a_cancel_while_paused_says_so(street: Street) -> None:
    (there,) = await street.create()
    await street.explained(there, "no_worker")
    await asyncio.sleep(WAIT)
    await street.here.client.post(f"/v1/tasks/{there}/pause")
    await asyncio.sleep(2 * WAIT)
    await street.here.client.post(f"/v1/tasks/{there}/cancel")
    task = await ended(street, there, "cancelled")
    check_causes(task["lateness"], no_worker=WAIT, paused=2 * WAIT)
    assert (task["sla_met"], task["blame"]) == (False, "limits")


async def test_a_cancel_between_tries_keeps_what_the_first_start_said(street: Street) -> None:
    (there,) = await street.create(retry={"initial": 60, "jitter": 0})
    await asyncio.sleep(WAIT)
    await street.lease(street.worker(), there, "failed")
    await street.here.client.post(f"/v1/tasks/{there}/cancel")
    task = await ended(street, there, "cancelled")
    assert (task["sla_met"], task["blame"]) == (False, "capacity")
    await sums(street.here, task)


async def test_a_cancel_leaves_each_try_its_own_lateness(street: Street) -> None:
    """The last try was on time, its task was not."""
    (there,) = await street.create(sla=20, retry={"initial": 0.1, "factor": 100, "jitter": 0})
    await asyncio.sleep(WAIT)
    worker = street.worker()
    await street.lease(worker, there, "failed")
    await street.lease(worker, there, "failed")
    await street.here.client.post(f"/v1/tasks/{there}/cancel")
    first, last = await sums(street.here, await ended(street, there, "cancelled"))
    check_causes(first["lateness"], no_worker=WAIT)
    assert "no_worker" not in last["lateness"]


async def test_an_expired_task_is_a_miss_and_says_why(street: Street) -> None:
    expires = (datetime.now(UTC) + timedelta(seconds=2)).isoformat()
    (there,) = await street.create(expires_at=expires)
    task = await ended(street, there, "expired")
    assert (task["sla_met"], task["blame"], task["started_at"]) == (False, "capacity", None)
    check_causes(task["lateness"], no_worker=1.0)
    late = moment(task["finished_at"]) - moment(task["due_at"])
    assert sum(task["lateness"].values()) == pytest.approx(late, abs=ROUNDING)


# --- what the node itself runs --------------------------------------------------------------------


async def test_eager_leases_are_on_time(street: Street) -> None:
    task = {"target": {"type": "handler", "name": "mainspring.noop"}}
    made = await street.here.client.create(task)
    done = await street.here.until(str(made), "completed")
    assert (done["sla_met"], done["blame"]) == (True, None)
    (only,) = await sums(street.here, done)
    assert only["lateness"] == done["lateness"]


async def test_retries_of_built_in_handlers_add_up(street: Street) -> None:
    task = {
        "target": {"type": "handler", "name": "mainspring.fail"},
        "retry": {"max_attempts": 3, "initial": 0.2, "factor": 1, "jitter": 0},
    }
    made = await street.here.client.create(task)
    done = await street.here.until(str(made), "failed")
    check_causes(done["lateness"], retry_backoff=0.4)
    assert len(await sums(street.here, done)) == 3


async def test_retries_of_steps_add_up(street: Street) -> None:
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
    client, worker = street.here.client, street.worker()
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
    paused = await street.here.task(first["id"])
    check_causes(paused["lateness"], paused=2 * WAIT, no_worker=WAIT)
    assert (paused["sla_met"], paused["blame"]) == (False, "limits")
    await sums(street.here, paused)
    tried = await street.here.task(second["id"])
    check_causes(tried["lateness"], fair_share=WAIT, retry_backoff=0.2)
    assert (tried["sla_met"], tried["blame"]) == (False, "capacity")
    await sums(street.here, tried)


async def test_a_step_that_was_never_due_misses_nothing(street: Street) -> None:
    work = {"target": {"type": "handler", "name": "work"}, "sla": SLA}
    steps = [{"id": "first", **work}, {"id": "second", "needs": ["first"], **work}]
    client = street.here.client
    await client.post("/v1/workflows", {"name": "two", "steps": steps})
    run = (await client.post("/v1/workflows/two/runs", {})).json()
    await asyncio.sleep(WAIT)
    listed = (await client.get(f"/v1/tasks?workflow_run_id={run['id']}&state=blocked")).json()
    (blocked,) = listed["items"]
    await client.post(f"/v1/tasks/{blocked['id']}/cancel")
    task = await street.here.task(blocked["id"])
    assert (task["state"], task["sla_met"], task["blame"]) == ("cancelled", None, None)
    assert task["lateness"] == {}
