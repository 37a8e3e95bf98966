"""Schedules on real nodes that are killed: every occurrence is decided once, and none is missed."""

import asyncio
from collections.abc import Iterable
from datetime import datetime
from uuid import UUID

import pytest

from mainspring import crash_points
from support.chaos import kill_in_turns
from support.client import Client, noop, sleep
from support.cluster import Cluster
from support.ledger import Ledger
from support.waiting import eventually

pytestmark = pytest.mark.slow

SCHEDULES = 1000
UNDER_FIRE = 60.0
BETWEEN_KILLS = 3.0
EVERY_SECOND = {
    "cron": "* * * * * *",
    "overlap": "allow",
    "misfire": {"policy": "all", "window": 3600, "cap": 1000},
    "task": noop(),
}


async def make(client: Client, count: int, **fields: object) -> dict[str, int]:
    """Create schedules; return their ids, and the second at which each is due first."""
    made: dict[str, int] = {}

    async def one(number: int) -> None:
        body = {**EVERY_SECOND, "name": f"s{number}", **fields}
        async with few:
            answer = await client.post("/v1/schedules", body)
        assert answer.status == 201, answer.body
        first = datetime.fromisoformat(answer.json()["next_run_at"])
        made[answer.json()["id"]] = int(first.timestamp())

    few = asyncio.Semaphore(8)
    await asyncio.gather(*(one(number) for number in range(count)))
    return made


async def stop(client: Client, schedules: Iterable[str]) -> None:
    """Pausing decides on what is due, and then nothing changes any more."""

    async def one(schedule: str) -> None:
        async with few:
            answer = await client.post(f"/v1/schedules/{schedule}/pause")
        assert answer.status == 200, answer.body

    few = asyncio.Semaphore(8)
    await asyncio.gather(*(one(schedule) for schedule in schedules))


@pytest.mark.timeout(300)
async def test_kills_of_either_node_in_turn(cluster: Cluster) -> None:
    """A thousand schedules that fire every second, and a minute in which nodes are killed."""
    tenant = await cluster.tenant()
    ledger = Ledger(cluster.evidence)
    nodes = list(await cluster.pair())
    made = await make(nodes[0].client(tenant), SCHEDULES)
    kills = await kill_in_turns(cluster, nodes, seconds=UNDER_FIRE, between=BETWEEN_KILLS)
    await stop(nodes[0].client(tenant), list(made))
    decided = await ledger.decided()
    print(f"{kills} kills, {decided} occurrences decided")
    assert kills >= 5
    assert decided >= SCHEDULES * UNDER_FIRE
    await ledger.sound()
    for schedule, ends in (await ledger.ends()).items():
        # What the definition means, computed here: every second from the first one on.
        wanted = list(range(made[schedule], ends + 1))
        assert await ledger.seconds(schedule) == wanted, "each once, and none missing"


@pytest.mark.parametrize(
    "point", [p for p in sorted(crash_points.POINTS) if p.startswith("schedule.")]
)
async def test_a_kill_around_the_commit(cluster: Cluster, point: str) -> None:
    tenant = await cluster.tenant()
    ledger = Ledger(cluster.evidence)
    doomed = await cluster.start(crash_at=f"{point}:3")
    made = await make(doomed.client(tenant), 5)
    assert await doomed.ended(within=15) == -9
    survivor = await cluster.start()

    async def caught_up() -> bool:
        overdue = await cluster.evidence.value(
            "SELECT count(*) FROM schedules WHERE wake_at < clock_timestamp() - interval '1 second'"
        )
        return overdue == 0 and await ledger.decided() > 30

    await eventually(caught_up, within=20, what="the survivor catches up", tick=0.1)
    await stop(survivor.client(tenant), made)
    await ledger.sound()


async def test_an_undecidable_schedule_is_reported_and_delays_no_other(
    cluster: Cluster,
) -> None:
    tenant = await cluster.tenant()
    node = await cluster.start(overdue_after=1)
    client = node.client(tenant)
    [broken, *sound] = await make(client, 20)
    assert await cluster.metric(node, "schedules_overdue") == 0
    await cluster.evidence.rows(
        "UPDATE schedules SET definition = 'nonsense', rev = rev + 1 WHERE id = $1", UUID(broken)
    )
    before = await Ledger(cluster.evidence).ends()

    async def told() -> bool:
        return await cluster.metric(node, "schedules_overdue") == 1

    await eventually(told, within=20, what="the watchdog sees the broken one", tick=0.2)
    events = await cluster.evidence.rows("SELECT kind, body FROM outbox")
    assert [(row["kind"], row["body"]["schedule_id"]) for row in events] == [
        ("schedule.overdue", broken)
    ]
    operator = node.client(await cluster.operator())
    assert (await operator.get("/v1/cluster")).json()["schedules"]["overdue"] == 1
    after = await Ledger(cluster.evidence).ends()
    assert all(after[schedule] > before[schedule] for schedule in sound)
    assert after[broken] == before[broken]
    assert "schedule.undecidable" in node.output()
    await stop(client, sound)


async def test_a_slow_run_is_not_overlapped(cluster: Cluster) -> None:
    tenant = await cluster.tenant()
    node = await cluster.start()
    client = node.client(tenant)
    [skipping] = await make(client, 1, name="skip", overlap="skip", task=sleep(2.5))
    [queueing] = await make(client, 1, name="queue", overlap="queue", task=sleep(1.5))

    async def enough() -> bool:
        rows = await cluster.evidence.rows(
            "SELECT schedule_id FROM task_history GROUP BY 1 HAVING count(*) >= 3"
        )
        return len(rows) == 2

    await eventually(enough, within=30, what="three runs of each", tick=0.1)
    overlapping = await cluster.evidence.rows(
        "SELECT a.id FROM task_history a JOIN task_history b USING (schedule_id)"
        " WHERE a.id < b.id AND b.started_at < a.finished_at"
    )
    assert not overlapping
    found = (await client.get(f"/v1/schedules/{skipping}/occurrences?limit=1000")).json()
    assert "skipped_overlap" in {line["decision"] for line in found["items"]}
    await stop(client, [skipping, queueing])
    await Ledger(cluster.evidence).sound()


async def test_edits_while_it_fires_meet_the_old_or_the_new(cluster: Cluster) -> None:
    """Two definitions that can be told apart: every second with one payload, every even second with
    the other. A mix would show as the second payload at an odd second, a loss as a gap."""
    tenant = await cluster.tenant()
    client = (await cluster.start()).client(tenant)
    often = {"cron": "* * * * * *", "task": noop(payload={"often": True})}
    seldom = {"cron": "*/2 * * * * *", "task": noop(payload={"often": False})}
    [schedule] = await make(client, 1, **often)
    path = f"/v1/schedules/{schedule}"
    for number in range(40):
        answer = await client.call("PATCH", path, often if number % 2 else seldom)
        assert answer.status == 200, answer.body
        await asyncio.sleep(0.17)
    await stop(client, [schedule])
    mixed = await cluster.evidence.rows(
        "SELECT nominal_at FROM (SELECT nominal_at, payload FROM tasks"
        " UNION ALL SELECT nominal_at, payload FROM task_history) every"
        " WHERE convert_from(payload, 'UTF8') LIKE '%false%'"
        " AND extract(second FROM nominal_at)::integer % 2 = 1"
    )
    assert not mixed
    even = await cluster.evidence.rows(
        "SELECT second FROM generate_series("
        " (SELECT min(nominal_at) FROM occurrences), (SELECT max(to_at) FROM occurrences),"
        " interval '1 second') AS second"
        " WHERE extract(second FROM second)::integer % 2 = 0 AND NOT EXISTS ("
        " SELECT FROM occurrences o WHERE second BETWEEN o.nominal_at AND o.to_at)"
    )
    assert not even, "an even second is due by either definition"
