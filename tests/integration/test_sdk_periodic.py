"""What apps declare as periodic, and the schedules on the server: who may change which."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

import mainspring
from mainspring import App, AsyncClient, Client, Conflict
from mainspring.sdk.environment import Address
from mainspring.sdk.http1 import Request, Response
from mainspring.sdk.resources.schedules import Schedule
from mainspring.sdk.transport import AsyncTransport
from support.cluster import Cluster, Node
from support.sdk_workers import Workers, workers_at
from support.waiting import eventually

NOOP = mainspring.handler("mainspring.noop")
HOURLY, DAILY = "0 * * * *", "0 1 * * *"

Declare = Callable[..., App]


@pytest.fixture
async def node(cluster: Cluster) -> Node:
    return await cluster.start()


@pytest.fixture
async def client(cluster: Cluster, node: Node) -> AsyncIterator[AsyncClient]:
    tenant = await cluster.tenant()
    async with AsyncClient(node.url, tenant.key) as made:
        yield made


@pytest.fixture
def declare(client: AsyncClient) -> Declare:
    """An app that declares these periodics, all at the same times."""

    def app_of(cron: str, *names: str, app: str = "shop", version: int = 0) -> App:
        made = App(app, version=version)
        made.use(Client("http://x", "unused"), client)
        for name in names:
            made.periodic(cron=cron)(made.task(name=name)(lambda: None))
        return made

    return app_of


async def crons(client: AsyncClient) -> dict[str, str | None]:
    return {schedule.name: schedule.cron async for schedule in client.schedules.list()}


async def only(client: AsyncClient) -> Schedule:
    (found,) = [schedule async for schedule in client.schedules.list()]
    return await client.schedules.get(found.id)


async def test_many_workers_at_once(client: AsyncClient, declare: Declare) -> None:
    first = [declare(DAILY, "a", "b", "c") for _ in range(5)]
    await asyncio.gather(*(app.sync_periodic() for app in first))
    before = {s.name: s async for s in client.schedules.list()}
    assert set(before) == {"a", "b", "c"}
    await client.schedules.create("theirs", {"target": NOOP}, cron=DAILY)

    await first[1].sync_periodic()
    assert (await client.schedules.named("a")) == before["a"], "nothing differs: nothing is written"
    second = [declare(HOURLY, "a", "c") for _ in range(3)]
    synced = await asyncio.gather(*(app.sync_periodic() for app in second))
    assert [told.names for told in synced] == [["a", "c"]] * 3
    assert [name for told in synced for name in told.removed] == ["b"], "one of them removed it"
    assert await crons(client) == {"a": HOURLY, "c": HOURLY, "theirs": DAILY}
    after = await client.schedules.named("a")
    assert after is not None
    assert after.id == before["a"].id


async def test_what_belongs_to_others_is_left_alone(client: AsyncClient, declare: Declare) -> None:
    manual_task = await client.schedules.create("report", {"target": NOOP}, cron=DAILY)
    with pytest.raises(Conflict, match="'report' was not declared by an app"):
        await declare(HOURLY, "report").sync_periodic()
    assert await only(client) == manual_task

    await client.schedules.delete(manual_task.id)
    await declare(DAILY, "report", app="billing").sync_periodic()
    theirs = await only(client)
    with pytest.raises(Conflict, match="'report' belongs to the app 'billing'"):
        await declare(HOURLY, "report").sync_periodic()
    with pytest.raises(Conflict, match="'report' belongs to the app 'billing'"):
        await client.schedules.put("report", {"target": NOOP}, cron=HOURLY)
    await declare(HOURLY).sync_periodic()
    assert await only(client) == theirs


async def test_apps_without_a_name_are_told_apart_by_their_modules() -> None:
    assert App().name == __name__


async def test_of_two_versions_the_newer_one_has_its_way(
    client: AsyncClient, declare: Declare
) -> None:
    """Side by side, with workers of both that restart: whoever starts last."""
    old = declare(DAILY, "a", "b", version=1)
    new = declare(HOURLY, "a", "c", version=2)
    await old.sync_periodic()
    assert (await new.sync_periodic()).removed == ["b"]
    assert await crons(client) == {"a": HOURLY, "c": HOURLY}
    for late in (old, declare(DAILY, "a"), declare(DAILY)):
        assert (await late.sync_periodic()).newer == 2
    assert await crons(client) == {"a": HOURLY, "c": HOURLY}

    back = declare(DAILY, "a", "b", version=3)
    assert (await back.sync_periodic()).newer is None
    assert await crons(client) == {"a": DAILY, "b": DAILY}


async def test_versions_that_start_at_once_do_not_overwrite_each_other(
    client: AsyncClient, declare: Declare
) -> None:
    """The older one has looked before the newer one wrote."""
    old, new = declare(DAILY, "a", version=1), declare(HOURLY, "a", "b", version=2)
    await declare(DAILY, "a", "b").sync_periodic()

    async def newer_starts() -> None:
        await new.sync_periodic()

    async with interrupted(client, newer_starts, before="GET", skip=1) as late:
        old.use(Client("http://x", "unused"), late)
        await old.sync_periodic()
    assert await crons(client) == {"a": HOURLY, "b": HOURLY}


async def test_a_schedule_that_changed_meanwhile_is_not_removed(
    client: AsyncClient, declare: Declare
) -> None:
    await declare(DAILY, "a").sync_periodic()
    gone = declare(DAILY)

    async def somebody_edits() -> None:
        await client.schedules.edit((await only(client)).id, cron=HOURLY)

    async with interrupted(client, somebody_edits, before="DELETE") as late:
        gone.use(Client("http://x", "unused"), late)
        assert (await gone.sync_periodic()).removed == []
    assert await crons(client) == {"a": HOURLY}
    assert (await declare(DAILY).sync_periodic()).removed == ["a"]


class InterruptedTransport(AsyncTransport):
    """Something happens before the first request of a kind, after so many others of it."""

    def __init__(
        self, where: Address, event: Callable[[], Awaitable[None]], method: str, skip: int
    ) -> None:
        super().__init__(where)
        self._event = event
        self._method = method
        self._skip = skip

    async def send(self, request: Request, within: float) -> Response:
        if request.method == self._method:
            self._skip -= 1
            if self._skip == -1:
                await self._event()
        return await super().send(request, within)


def interrupted(
    client: AsyncClient, event: Callable[[], Awaitable[None]], *, before: str, skip: int = 0
) -> AsyncClient:
    where = client.address
    return AsyncClient(
        where.url, where.api_key, transport=InterruptedTransport(where, event, before, skip)
    )


# --- workers -----------------------------------------------------------------------------------

WITH = """
import mainspring
app = mainspring.App("shop")

@app.task
def sell() -> None: ...
"""
PERIODIC = WITH.replace("@app.task", '@app.periodic(cron="0 1 * * *")')


@pytest.fixture
async def workers(cluster: Cluster, node: Node, tmp_path: Path) -> AsyncIterator[Workers]:
    async with workers_at(cluster, node, tmp_path) as made:
        yield made


async def test_a_worker_removes_what_its_app_declares_no_longer(
    workers: Workers, client: AsyncClient, tmp_path: Path
) -> None:
    (tmp_path / "shop_one.py").write_text(PERIODIC)
    (tmp_path / "shop_two.py").write_text(WITH)
    first = await workers.start(app="shop_one:app")
    assert "schedules in place: sell" in first.output()
    first.kill()
    assert await crons(client) == {"sell": "0 1 * * *"}
    second = await workers.start(app="shop_two:app")

    async def removed() -> bool:
        return "schedules removed: sell" in second.output()

    await eventually(removed, within=10, what="the schedule is removed")
    assert await crons(client) == {}


async def test_a_worker_whose_key_allows_nothing_else_still_works(
    workers: Workers, client: AsyncClient, tmp_path: Path
) -> None:
    (tmp_path / "shop_two.py").write_text(WITH)
    made = await client.keys.create(["work"])
    assert made.api_key is not None
    workers.settings["MAINSPRING_API_KEY"] = made.api_key
    worker = await workers.start(app="shop_two:app")
    task = await client.tasks.create(mainspring.handler("sell"))
    assert (await client.tasks.wait(task.id, timeout=20)).state == "completed"
    assert worker.alive
