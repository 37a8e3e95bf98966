"""Dead letters and explanations over HTTP, with real nodes: what people do after a bad night."""

from typing import Any

from support.client import Client, fail, noop, sleep
from support.cluster import Cluster
from support.waiting import eventually


async def dead_letter(client: Client, task_id: str) -> dict[str, Any]:
    """Wait until a task is a dead letter."""

    async def is_there() -> bool:
        return (await client.call("GET", f"/v1/dead-letters/{task_id}")).status == 200

    await eventually(is_there, within=10, what="the task is a dead letter")
    found: dict[str, Any] = (await client.call("GET", f"/v1/dead-letters/{task_id}")).json()
    return found


async def test_a_dead_letter_is_replayed_by_another_node(cluster: Cluster) -> None:
    tenant = await cluster.tenant()
    one, other = [node.client(tenant) for node in await cluster.pair()]
    made = (await one.call("POST", "/v1/tasks", fail(attempts=2, queue="bad"))).json()
    letter = await dead_letter(one, made["id"])
    assert [attempt["outcome"] for attempt in letter["attempts"]] == ["failed", "failed"]
    replay = await other.call("POST", f"/v1/dead-letters/{made['id']}/replay")
    assert replay.status == 201
    again = await one.call("POST", f"/v1/dead-letters/{made['id']}/replay")
    assert (again.status, again.json()["id"]) == (200, replay.json()["id"])
    second = await dead_letter(one, replay.json()["id"])
    assert second["task"]["replay_of"] == made["id"]
    groups = (await one.call("GET", "/v1/dead-letters?group=true")).json()["items"]
    assert [group["count"] for group in groups] == [2]


async def test_every_waiting_task_can_say_why(cluster: Cluster) -> None:
    """One node owns everything, so it is the owner that answers."""
    tenant = await cluster.tenant()
    client = (await cluster.start()).client(tenant)

    async def explained(verdict: str, task: dict[str, Any]) -> dict[str, Any]:
        made = (await client.call("POST", "/v1/tasks", task)).json()
        told: dict[str, Any] = {}

        async def is_told() -> bool:
            answer = await client.call("GET", f"/v1/tasks/{made['id']}/explain")
            told.update(answer.json())
            return bool(told["verdict"] == verdict)

        await eventually(is_told, within=10, what=f"the task is {verdict}")
        return told

    key = {"concurrency": {"key": "k", "limit": 1}}
    await explained("running", sleep(60, **key))
    behind = await explained("concurrency_key", noop(**key))
    assert (behind["position"], behind["source"]) == (1, "owner")
    await explained("no_worker", {"target": {"type": "handler", "name": "nobody-offers-this"}})
    await explained("not_due", noop(delay=60))
    await explained("retry_backoff", fail(delay=60))
    assert (await explained("finished", noop()))["state"] == "completed"
    cancelled = await client.call("POST", "/v1/tasks/cancel", {"filter": {}})
    assert cancelled.json() == {"cancelled": 4, "cancel_requested": 1}
