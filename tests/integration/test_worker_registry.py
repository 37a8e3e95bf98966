"""What people see of workers: the registry, and the lines they wrote."""

from typing import Any, cast

from support.waiting import eventually
from support.workers import LocalNode


async def test_workers_are_shown_with_their_offers_and_leases(local_node: LocalNode) -> None:
    await local_node.create()
    worker = local_node.worker()
    about = {"host": "db7", "slots": 8, "versions": {"python": "3.11"}, "memory_bytes": 1e6}
    (task,) = await worker.lease(about=about, tags=["gpu"])

    async def shown() -> dict[str, Any] | None:
        (item,) = (await local_node.client.get("/v1/workers")).json()["items"]
        return item if item["leases"] == 1 and item["statistics"]["leased"] == 1 else None

    item = await eventually(shown, within=5, what="the worker is shown with its lease")
    assert item is not None
    assert (item["name"], item["state"], item["tags"]) == ("w1", "alive", ["gpu"])
    assert item["about"]["host"] == "db7"
    await worker.report(task)

    async def done() -> bool:
        (item,) = (await local_node.client.get("/v1/workers")).json()["items"]
        return bool(item["leases"] == 0 and item["statistics"]["succeeded"] == 1)

    await eventually(done, within=5, what="the report is counted")
    (node,) = (await local_node.client.get("/v1/workers/nodes")).json()["nodes"]
    assert (node["url"], node["partitions"]) == (local_node.server.url, 256)


async def test_offers_of_all_lanes_of_a_worker_are_shown(local_node: LocalNode) -> None:
    worker = local_node.worker(offers={"resources": {"cpu": 2}})
    lanes: tuple[dict[str, Any], ...] = (
        {"handlers": ["fetch", "Zip"], "queues": ["default"], "tags": ["gpu"]},
        {"handlers": ["train"], "queues": ["slow"], "commands": True},
    )

    async def item() -> dict[str, Any]:
        (item,) = (await local_node.client.get("/v1/workers")).json()["items"]
        return cast(dict[str, Any], item)

    async def whole() -> dict[str, Any] | None:
        for lane in lanes:
            await worker.lease(wait=0, **lane)
        shown = await item()
        return shown if len(shown["handlers"]) == 3 else None

    shown = await eventually(whole, within=5, what="both lanes are shown")
    assert shown is not None
    assert (shown["handlers"], shown["queues"]) == (["Zip", "fetch", "train"], ["default", "slow"])
    assert (shown["tags"], shown["commands"], shown["resources"]["cpu"]) == (["gpu"], True, 2)

    await local_node.create("train", queue="slow")
    there = await local_node.create("fetch")
    (task,) = await worker.lease(**lanes[0])
    assert task["id"] == there, "each poll gets what it asks for itself"

    await worker.restarted().lease(wait=0, handlers=["train"])
    assert (await item())["handlers"] == ["train"]


async def test_lines_are_kept_with_the_task_up_to_a_cap(local_node: LocalNode) -> None:
    there = await local_node.create()
    worker = local_node.worker()
    (task,) = await worker.lease()
    line = {"id": task["id"], "fence": 1, "level": "stdout"}
    lines = [{**line, "message": f"row {n}\x00"} for n in range(3)]
    stray = {**line, "id": "00000000-0000-7000-8000-000000000000", "message": "nobody's"}
    answer = await local_node.client.post("/v1/leases/logs", {"lines": [*lines, stray]})
    assert answer.json() == {"accepted": 3, "dropped": 1}
    later = {**line, "fence": 2, "message": "of an execution that has not begun"}
    untouched = {
        **line,
        "id": await local_node.create(queue="idle"),
        "message": "of a task nobody has",
    }
    answer = await local_node.client.post("/v1/leases/logs", {"lines": [later, untouched]})
    assert answer.json() == {"accepted": 0, "dropped": 2}
    read = (await local_node.client.get(f"/v1/tasks/{there}/logs?limit=2")).json()
    assert [item["message"] for item in read["items"]] == ["row 0\ufffd", "row 1\ufffd"]
    rest = await local_node.client.get(f"/v1/tasks/{there}/logs?cursor={read['next_cursor']}")
    assert [item["message"] for item in rest.json()["items"]] == ["row 2\ufffd"]
    many = {"lines": [{**line, "message": "x" * 500}] * 999}
    assert (await local_node.client.post("/v1/leases/logs", many)).json()["accepted"] == 997
    error = {**line, "level": "error", "message": "the last words"}
    last = {"lines": [{**line, "message": "x"}, error, error]}
    assert (await local_node.client.post("/v1/leases/logs", last)).json()["accepted"] == 2
    errors = {"lines": [error] * 200}
    assert (await local_node.client.post("/v1/leases/logs", errors)).json()["accepted"] == 98
    await local_node.client.call("DELETE", f"/v1/tasks/{there}")
    assert (await local_node.client.get(f"/v1/tasks/{there}/logs")).status == 404
