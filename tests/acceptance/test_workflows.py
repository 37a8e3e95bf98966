"""Workflows at real nodes: worked off, run by schedules, and through the death of nodes."""

import asyncio
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from mainspring.domain.tenant import TenantLimits
from support.client import Client, Unacknowledged
from support.cluster import Cluster, Node, Tenant
from support.waiting import eventually

NOOP = {"type": "handler", "name": "mainspring.noop"}
SLEEP = {"type": "handler", "name": "mainspring.sleep"}
FAIL = {"type": "handler", "name": "mainspring.fail"}
ONCE = {"max_attempts": 1}

_UNFINISHED = "SELECT count(*) FROM workflow_runs WHERE finished_at IS NULL"
# Every step that ran has exactly one task that ran to its end; joins are steps, too.
_NOT_ONCE = """
SELECT s.run_id, s.step, s.state, count(h.id) AS times FROM workflow_steps s
LEFT JOIN task_history h ON h.workflow_run_id = s.run_id
    AND h.step = s.step || CASE WHEN s.item >= 0 THEN '[' || s.item || ']' ELSE '' END
GROUP BY s.run_id, s.step, s.item, s.state HAVING count(h.id) <> 1
"""
# Nothing started before all that it needs had ended.
_TOO_EARLY = """
SELECT c.run_id, c.step, c.started_at, p.step AS parent, p.finished_at FROM workflow_steps p
CROSS JOIN LATERAL unnest(p.children) AS child
JOIN workflow_steps c ON c.run_id = p.run_id AND c.step = child AND c.item = -1
WHERE p.item = -1 AND c.started_at < p.finished_at
"""


def step(name: str, *needs: str, **fields: Any) -> dict[str, Any]:
    return {"id": name, "needs": list(needs), "target": NOOP, **fields}


async def define(client: Client, name: str, *steps: dict[str, Any], **fields: Any) -> None:
    answer = await client.post("/v1/workflows", {"name": name, "steps": list(steps), **fields})
    assert answer.status == 201, answer.body


async def begin(client: Client, name: str, **body: Any) -> str:
    answer = await client.post(f"/v1/workflows/{name}/runs", body)
    if answer.status != 201:
        raise Unacknowledged(f"{answer.status} {answer.body[:300]!r}")
    return str(answer.json()["id"])


async def ended(client: Client, run: str, within: float = 20.0) -> dict[str, Any]:
    """Wait for the end of a run."""

    async def over() -> dict[str, Any] | None:
        found: dict[str, Any] = (await client.get(f"/v1/workflow-runs/{run}?items=true")).json()
        return found if found["finished_at"] else None

    return await eventually(over, within=within, what="the run ends") or {}


async def all_over(cluster: Cluster, *, within: float) -> None:
    """Wait until no run is left. The database is asked: to show ten thousand steps is work, too."""

    async def over() -> bool:
        return await cluster.evidence.value(_UNFINISHED) == 0

    await eventually(over, within=within, what="all runs end", tick=0.1)


async def sound(cluster: Cluster) -> None:
    assert not await cluster.evidence.rows(_NOT_ONCE), "a step was done twice, or never"
    assert not await cluster.evidence.rows(_TOO_EARLY), "a step started before its parents ended"


@pytest.mark.slow
async def test_a_join_of_ten_thousand_steps_and_a_chain_of_a_thousand(
    cluster: Cluster,
) -> None:
    tenant = await cluster.tenant()
    client = (await cluster.start()).client(tenant)
    parents = [f"p{n}" for n in range(9_999)]
    await define(client, "join", *map(step, parents), step("join", *parents))
    chain = [step("s0"), *(step(f"s{n}", f"s{n - 1}") for n in range(1, 1000))]
    await define(client, "chain", *chain)
    for name in ("join", "chain"):
        run = await begin(client, name)
        await all_over(cluster, within=60)
        found = await ended(client, run)
        assert (found["state"], found["steps_failed"]) == ("completed", 0)
    starts = await cluster.evidence.value("SELECT count(*) FROM executions")
    assert starts == 10_000 + 1_000, "each of them started once"
    await sound(cluster)


async def test_every_kind_of_step_at_a_real_node(cluster: Cluster) -> None:
    client = (await cluster.start()).client(await cluster.tenant())
    await define(
        client,
        "all",
        step("each", foreach=[1, 2, 3]),
        step("wait", "each", delay=0.3),
        step("odd", "each", **{"if": "size(steps.each.result) > 5"}),
        step("break", "wait", target=FAIL, retry=ONCE, payload={"message": "{{input.word}}"}),
        step("never", "break"),
        step("alert", "break", when="any_failed"),
        step("tidy", cleanup=True),
    )
    found = await ended(client, await begin(client, "all", input={"word": "no"}))
    assert found["state"] == "failed"
    assert {s["id"]: s["state"] for s in found["steps"]} == {
        "each": "completed", "wait": "completed", "odd": "skipped", "break": "failed",
        "never": "skipped", "alert": "completed", "tidy": "completed",
    }  # fmt: skip
    assert next(s for s in found["steps"] if s["id"] == "break")["error"]["message"] == "no"
    await sound(cluster)


async def test_a_deadline_and_a_cancel_reach_what_runs(cluster: Cluster) -> None:
    client = (await cluster.start()).client(await cluster.tenant())
    long = {"target": SLEEP, "payload": {"seconds": 60}, "timeout": 300}
    steps = (step("long", **long), step("after", "long"), step("tidy", cleanup=True))
    await define(client, "late", *steps, deadline=0.5)
    await define(client, "long", *steps)
    late = await ended(client, await begin(client, "late"))
    assert (late["state"], late["ending"]) == ("failed", "deadline")
    run = await begin(client, "long")
    assert (await client.post(f"/v1/workflow-runs/{run}/cancel")).status == 200
    cancelled = await ended(client, run)
    assert (cancelled["state"], cancelled["ending"]) == ("cancelled", "cancel")
    for found in (late, cancelled):
        states = {s["id"]: s["state"] for s in found["steps"]}
        assert states == {"long": "cancelled", "after": "cancelled", "tidy": "completed"}


async def test_a_schedule_runs_a_workflow_and_overlap_counts_runs(cluster: Cluster) -> None:
    client = (await cluster.start()).client(await cluster.tenant())
    pause = {"target": SLEEP, "payload": {"seconds": 2.5}}
    await define(client, "slow", step("a", **pause), step("b", "a"), input={"x": 1})
    body = {"name": "often", "interval": 1, "workflow": "slow", "input": {"at": "{{scheduled_at}}"}}
    made = await client.post("/v1/schedules", {**body, "overlap": "skip"})
    assert made.status == 201, made.body
    schedule = made.json()
    assert (schedule["workflow"], schedule["task"]) == ("slow", None)
    url = f"/v1/schedules/{schedule['id']}/occurrences"

    async def skipped() -> bool:
        found = (await client.get(url)).json()["items"]
        decisions = [item["decision"] for item in found]
        return decisions.count("fired") >= 2 and "skipped_overlap" in decisions

    await eventually(skipped, within=20, what="two runs, and none beside the first")
    assert (await client.post(f"/v1/schedules/{schedule['id']}/pause")).status == 200
    listed = await client.get(f"/v1/workflow-runs?schedule_id={schedule['id']}")
    runs = listed.json()["items"]
    first = await ended(client, runs[-1]["id"])
    assert (first["state"], first["input"]["x"]) == ("completed", 1)
    assert first["input"]["at"] == first["nominal_at"]
    overlapping = await cluster.evidence.value(
        "SELECT count(*) FROM workflow_runs a JOIN workflow_runs b ON a.id < b.id"
        " AND a.finished_at > b.created_at"
    )
    assert overlapping == 0


async def test_a_schedule_of_a_deleted_workflow_makes_dead_letters(cluster: Cluster) -> None:
    client = (await cluster.start()).client(await cluster.tenant())
    await define(client, "gone", step("a"))
    body = {"name": "often", "cron": "0 0 1 1 *", "workflow": "gone"}
    schedule = (await client.post("/v1/schedules", body)).json()
    assert (await client.call("DELETE", "/v1/workflows/gone")).status == 204
    made = await client.post(f"/v1/schedules/{schedule['id']}/run")
    assert made.status == 201, made.body

    async def died() -> bool:
        return (await client.get(f"/v1/dead-letters/{made.json()['id']}")).status == 200

    await eventually(died, within=10, what="a dead letter")
    letter = (await client.get(f"/v1/dead-letters/{made.json()['id']}")).json()
    assert letter["final_error"] == {
        "code": "no-workflow", "message": "there is no workflow 'gone'"
    }  # fmt: skip


async def test_tasks_that_run_workflows_take_no_slots_from_their_steps(
    cluster: Cluster,
) -> None:
    """Of a tenant that may run one task at a time; and what cannot be begun holds up nobody."""
    node = await cluster.start(slots=4)
    tenant = await cluster.tenant()
    limits = TenantLimits(max_running=1, spread=1)
    await cluster.tenants.change(tenant.id, lambda _: limits, "test")
    client = node.client(tenant)
    await define(client, "flow", step("a"), step("b", "a", payload={"x": "{{input.x}}"}))
    target = {"type": "handler", "name": "mainspring.workflow"}
    bad = ({"workflow": ["flow"]}, {"workflow": "flow", "input": 7})
    refused = [await client.post("/v1/tasks", {"target": target, "payload": one}) for one in bad]
    good = {"target": target, "payload": {"workflow": "flow", "input": {"x": 1}}}
    begun = [await client.post("/v1/tasks", good) for _ in range(6)]

    async def begun_at(run: str) -> bool:
        return (await client.get(f"/v1/workflow-runs/{run}")).status == 200

    for answer in begun:
        assert answer.status == 201, answer.body
        run: str = answer.json()["id"]
        await eventually(partial(begun_at, run), within=20, what="the run is begun")
        found = await ended(client, run)
        assert found["state"] == "completed"

    assert [answer.status for answer in refused] == [201, 201]

    async def failed() -> bool:
        count = "SELECT count(*) FROM task_history WHERE error->>'code' = 'bad-payload'"
        return await cluster.evidence.value(count) == len(bad)

    await eventually(failed, within=10, what="those that cannot be begun fail")


@pytest.mark.slow
async def test_runs_go_on_while_nodes_are_killed(cluster: Cluster) -> None:
    """Two nodes, killed in turn under runs of joins: every step ends, each join starts once."""
    tenant = await cluster.tenant()
    nodes = list(await cluster.pair())
    wide = [f"w{n}" for n in range(30)]
    await define(
        nodes[0].client(tenant),
        "flow",
        step("root"),
        *(step(name, "root", delay=0.2 if n % 3 else 0) for n, name in enumerate(wide)),
        step("join", *wide),
        step("each", "join", foreach=list(range(5))),
        step("last", "each"),
    )
    stop, begun = asyncio.Event(), set[str]()
    feeding = asyncio.create_task(feed(nodes, tenant, begun, stop))
    for turn in range(3):
        await eventually(partial(enough, begun, 20 * (turn + 1)), within=30, what="runs are begun")
        nodes[turn % 2].kill()
        nodes[turn % 2] = await cluster.start()
    stop.set()
    await feeding

    await all_over(cluster, within=60)
    rows = await cluster.evidence.rows("SELECT id, state FROM workflow_runs")
    assert {UUID(run) for run in begun} <= {row["id"] for row in rows}, "none is lost"
    assert {row["state"] for row in rows} == {"completed"}
    await sound(cluster)


async def enough(begun: set[str], wanted: int) -> bool:
    return len(begun) >= wanted


async def feed(nodes: list[Node], tenant: Tenant, begun: set[str], stop: asyncio.Event) -> None:
    """Begin a run at each node, again and again."""
    while not stop.is_set():
        for node in list(nodes):
            try:
                begun.add(await begin(node.client(tenant), "flow"))
            except Unacknowledged:
                continue  # it was just killed, or is starting
        try:
            async with asyncio.timeout(0.1):
                await stop.wait()
        except TimeoutError:
            pass
