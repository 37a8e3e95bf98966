"""Every resource of the client against a real node, with both faces."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import mainspring
from mainspring import AsyncClient, Client, Conflict, NotFound, PreconditionFailed, TaskNotCompleted
from mainspring.sdk.resources.tasks import Task
from support.cluster import Cluster, Tenant

NOOP = mainspring.handler("mainspring.noop")
DAY = timedelta(days=1)


@pytest.fixture
async def where(cluster: Cluster) -> tuple[str, Tenant, Tenant]:
    node = await cluster.start()
    return node.url, await cluster.tenant(), await cluster.operator()


@pytest.fixture
def use(where: tuple[str, Tenant, Tenant]) -> Callable[..., Any]:
    """Run something with a client of each face."""
    url, tenant, operator = where

    async def both(
        awaiting: Callable[[AsyncClient], Awaitable[None]] | None = None,
        blocking: Callable[[Client], None] | None = None,
        *,
        as_operator: bool = False,
    ) -> None:
        key = operator.key if as_operator else tenant.key
        if awaiting is not None:
            async with AsyncClient(url, key) as client:
                await awaiting(client)
        if blocking is not None:
            await asyncio.to_thread(_with_client, url, key, blocking)

    return both


def _with_client(url: str, key: str, work: Callable[[Client], None]) -> None:
    with Client(url, key) as client:
        work(client)


async def test_tasks(use: Any) -> None:
    async def awaiting(client: AsyncClient) -> None:
        later = datetime.now(UTC) + DAY
        task = await client.tasks.create(
            NOOP, name="t", run_at=later, payload={"a": [1]}, labels={"team": "x"}
        )
        assert (task.state, task.payload, task.labels) == ("scheduled", {"a": [1]}, {"team": "x"})
        edited = await client.tasks.edit(task.id, priority=9, if_match=task.etag)
        assert edited.priority == 9
        with pytest.raises(PreconditionFailed):
            await client.tasks.edit(task.id, priority=1, if_match=task.etag)
        assert (await client.tasks.pause(task.id)).state == "paused"
        assert (await client.tasks.resume(task.id)).state == "scheduled"
        assert (await client.tasks.explain(task.id)).verdict == "not_due"
        await client.tasks.run(task.id)
        done = await client.tasks.wait(task.id, timeout=10)
        assert done.state == "completed"
        (execution,) = await client.tasks.executions(task.id)
        assert execution.outcome == "succeeded"
        ids = await client.tasks.create_many(
            [{"target": NOOP, "delay": 3600, "name": "many"} for _ in range(5)]
        )
        found = [task.id async for task in client.tasks.list(name="many", limit=2)]
        assert sorted(found) == sorted(ids)
        assert (await client.tasks.cancel_all(name="many", dry_run=True)).cancelled == 5
        assert (await client.tasks.cancel_all(name="many")).cancelled == 5
        assert [t async for t in client.tasks.list(name="many", state="scheduled")] == []

    def blocking(client: Client) -> None:
        task = client.tasks.create(NOOP, delay=timedelta(hours=1), name="sync")
        assert client.tasks.cancel(task.id).state == "cancelled"
        with pytest.raises(TaskNotCompleted) as told:
            client.tasks.result(task.id, timeout=5)
        assert told.value.state == "cancelled"
        client.tasks.delete(task.id)
        with pytest.raises(NotFound):
            client.tasks.get(task.id)
        again = [client.tasks.create(NOOP, idempotency_key="one").id for _ in range(2)]
        assert again[0] == again[1]
        assert {task.name for task in client.tasks.list(limit=3)} >= {"t", "many"}

    await use(awaiting, blocking)


async def test_a_result_and_dead_letters(use: Any) -> None:
    def blocking(client: Client) -> None:
        fail = mainspring.handler("mainspring.fail")
        tasks = [client.tasks.create(fail, retry={"max_attempts": 1}, name=n) for n in "ab"]
        with pytest.raises(TaskNotCompleted, match="on purpose"):
            client.tasks.result(tasks[0].id, timeout=10)
        client.tasks.wait(tasks[1].id, timeout=10)
        letters = list(client.dead_letters.list(resolved=False))
        assert {letter.task.name for letter in letters} == {"a", "b"}
        (group,) = client.dead_letters.groups()
        assert group.count == 2
        first = client.dead_letters.replay(letters[0].id)
        assert client.dead_letters.replay(letters[0].id).id == first.id
        assert client.dead_letters.archive(letters[1].id).resolution == "archived"
        assert client.dead_letters.replay_all(name="nobody").replayed == 0
        assert client.dead_letters.get(letters[0].id).replayed_as == first.id
        client.dead_letters.delete(letters[1].id)
        noted = client.effects.note("once", {"a": 1})
        again = client.effects.note("once", {"a": 2}, ttl=60)
        assert (noted.first, again.first, again.answer) == (True, False, {"a": 1})

    await use(None, blocking)


async def test_workflows_and_their_runs(use: Any) -> None:
    def blocking(client: Client) -> None:
        flow = mainspring.Workflow("pair")
        first = flow.step("first", handler="mainspring.noop")
        flow.step("second", handler="mainspring.fail", needs=first, retry={"max_attempts": 1})
        assert client.workflows.create(flow).version == 1
        assert client.workflows.create(flow).version == 2
        assert client.workflows.get("pair", version=1).steps[1]["needs"] == ["first"]
        assert [(w.name, w.step_count) for w in client.workflows.list()] == [("pair", 2)]
        begun = client.workflows.run("pair", {"day": "monday"}, version=1)
        ended = client.workflow_runs.wait(begun.id, timeout=30)
        assert (ended.state, ended.input, ended.version) == ("failed", {"day": "monday"}, 1)
        assert [(s.id, s.state) for s in ended.steps] == [
            ("first", "completed"),
            ("second", "failed"),
        ]
        assert client.workflow_runs.retry(begun.id).state == "running"
        client.workflow_runs.wait(begun.id, timeout=30)
        skipped = client.workflow_runs.skip_step(begun.id, "second")
        assert skipped.step("second").skipped_by_hand

    async def awaiting(client: AsyncClient) -> None:
        flow = {
            "name": "nap",
            "steps": [
                {
                    "id": "sleep",
                    "target": mainspring.handler("mainspring.sleep"),
                    "payload": {"seconds": 25},
                }
            ],
        }
        await client.workflows.create(flow)
        begun = await client.workflows.run("nap")
        assert (await client.workflow_runs.pause(begun.id)).state == "paused"
        assert (await client.workflow_runs.resume(begun.id)).state == "running"
        await client.workflow_runs.cancel(begun.id)
        assert (await client.workflow_runs.wait(begun.id, timeout=30)).state == "cancelled"
        assert [run.id async for run in client.workflow_runs.list(workflow="nap")] == [begun.id]
        await client.workflows.delete("nap")
        with pytest.raises(NotFound):
            await client.workflows.run("nap")

    await use(awaiting, blocking)


async def test_schedules_and_calendars(use: Any) -> None:
    async def awaiting(client: AsyncClient) -> None:
        await client.calendars.create("holidays", ["2027-12-25"])
        made = await client.schedules.create(
            "nightly", {"target": NOOP}, cron="0 2 * * *", calendars=["holidays"]
        )
        with pytest.raises(Conflict):
            await client.schedules.create("nightly", {"target": NOOP}, interval=60)
        assert (await client.schedules.edit(made.id, timezone="Europe/Berlin")).runs == 0
        assert len(await client.schedules.upcoming(made.id, 3)) == 3
        assert (await client.schedules.pause(made.id)).state == "paused"
        assert (await client.schedules.resume(made.id)).state == "active"
        task = await client.schedules.run(made.id)
        assert task.schedule_id == made.id
        end = datetime.now(UTC)
        assert (await client.schedules.backfill(made.id, end - 3 * DAY, end)).count == 3
        decisions = [o.decision async for o in client.schedules.occurrences(made.id)]
        assert decisions == ["backfilled"] * 3
        times = (await client.schedules.preview(cron="@daily", timezone="UTC")).times
        assert len(times) >= 2
        assert (await client.calendars.replace("holidays", [])).dates == []
        assert [c.name async for c in client.calendars.list()] == ["holidays"]

    def blocking(client: Client) -> None:
        found = client.schedules.named("nightly")
        assert found is not None
        client.schedules.replace(found.id, "nightly", {"target": NOOP}, interval="PT1H")
        client.calendars.delete("holidays")
        assert client.schedules.get(found.id).interval == 3600.0
        client.schedules.delete(found.id)
        assert [schedule.name for schedule in client.schedules.list()] == []

    await use(awaiting, blocking)


async def test_admins_and_operators(use: Any) -> None:
    def admin(client: Client) -> None:
        key = client.keys.create(["read"], name="reader", expires_in=timedelta(days=1))
        assert key.api_key is not None
        assert client.keys.get(key.id).api_key is None
        assert key.id in {found.id for found in client.keys.list()}
        newer = client.keys.rotate(key.id, grace=0)
        client.keys.revoke(newer.id)
        assert client.limits().running == 0
        assert {entry.action for entry in client.audit()} >= {"key.created"}

    def operator(client: Client) -> None:
        tenant = client.tenants.create("globex", weight=2)
        assert tenant.api_key is not None
        assert client.tenants.edit(tenant.id, max_running=5).max_running == 5
        assert client.tenants.set_egress(tenant.id, allow=["10.0.0.0/8"]).allow == ["10.0.0.0/8"]
        assert client.tenants.egress(tenant.id).deny == []
        assert "globex" in {found.name for found in client.tenants.list()}
        assert [node.state for node in client.cluster().nodes] == ["active"]
        client.tenants.delete(tenant.id)
        with pytest.raises(NotFound):
            client.tenants.get(tenant.id)

    await use(None, admin)
    await use(None, operator, as_operator=True)


async def test_signing_secrets(cluster: Cluster) -> None:
    node = await cluster.start(secrets_key="ab" * 32)
    tenant = await cluster.tenant()
    async with AsyncClient(node.url, tenant.key) as client:
        made = await client.secrets.create(name="main")
        assert made.secret is not None
        rotated = await client.secrets.rotate(made.id, overlap=60)
        assert rotated.previous.id == made.id
        assert len(await client.secrets.list()) == 2
        await client.secrets.delete(made.id)


async def test_functions_become_tasks(where: tuple[str, Tenant, Tenant]) -> None:
    url, tenant, _ = where
    app = mainspring.App(url=url, api_key=tenant.key)

    @app.task(queue="mail", retries=1)
    def send(to: str, copies: int = 1) -> None: ...

    later = datetime.now(UTC) + DAY

    def work() -> None:
        assert send.delay("ann").queue == "mail"
        at = send.schedule("ann", at=later)
        soon = send.schedule("ann", delay="PT1H")
        assert isinstance(at, Task)
        assert isinstance(soon, Task)
        assert (at.due_at, soon.payload) == (later, {"to": "ann"})
        eta = send.apply_async(("bob",), {"copies": 2}, eta=later, queue="slow", task_id="x-1")
        assert (eta.due_at, eta.queue, eta.payload) == (later, "slow", {"to": "bob", "copies": 2})
        repeated = send.apply_async(("bob",), {"copies": 2}, eta=later, queue="slow", task_id="x-1")
        assert repeated.id == eta.id
        assert send.apply_async(["c"], countdown=60, expires=later, priority=1).priority == 1
        made = send.schedule("ann", cron="0 8 * * *", timezone="Europe/Berlin")
        same = send.schedule("ann", cron="0 8 * * *", timezone="Europe/Berlin")
        assert made.id == same.id
        assert len(app.client.tasks.create_many([send.prepare("x"), send.prepare("y")])) == 2

    await asyncio.to_thread(work)
    assert (await send.adelay("zoe")).payload == {"to": "zoe"}
    scheduled: Any = await send.aschedule("zoe", cron="0 9 * * *", schedule_name="morning")
    assert scheduled.name == "morning"
    app.client.close()
    await app.async_client.close()
