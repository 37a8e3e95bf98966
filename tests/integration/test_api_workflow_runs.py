"""Runs of workflows over the API and a real database; steps are ended by hand."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest

from mainspring.config import Config
from mainspring.domain.task import TaskState
from support.asgi import Answer
from support.in_process_api import InProcessApi, open_api
from support.runs import RunWorld

NOOP = {"type": "handler", "name": "mainspring.noop"}
DIAMOND: list[dict[str, Any]] = [
    {"id": "a", "target": NOOP},
    {"id": "b", "needs": ["a"], "target": NOOP, "payload": {"day": "{{input.day}}"}},
    {"id": "c", "needs": ["a"], "target": NOOP},
    {"id": "d", "needs": ["b", "c"], "target": NOOP, "priority": 7, "labels": {"k": "v"}},
]


@dataclass
class RunApi:
    """The API of tenant a, and hands that do its steps."""

    api: InProcessApi
    world: RunWorld

    async def define(self, steps: list[dict[str, Any]], **fields: Any) -> None:
        body = {"name": "flow", "steps": steps, **fields}
        answer = await self.api.admin.post("/v1/workflows", body)
        assert answer.status == 201, answer.body

    async def begin(self, **body: Any) -> str:
        answer = await self.api.admin.post("/v1/workflows/flow/runs", body)
        assert answer.status == 201, answer.body
        return str(answer.json()["id"])

    async def read(self, run: str) -> dict[str, Any]:
        answer = await self.api.admin.get(f"/v1/workflow-runs/{run}")
        assert answer.status == 200, answer.body
        found: dict[str, Any] = answer.json()
        return found

    async def states(self, run: str) -> dict[str, str]:
        return {step["id"]: step["state"] for step in (await self.read(run))["steps"]}

    async def post(self, run: str, verb: str) -> Answer:
        return await self.api.admin.post(f"/v1/workflow-runs/{run}/{verb}")

    async def drain(self, run: str, failing: tuple[str, ...] = ()) -> list[str]:
        return await self.world.drain(UUID(run), failing)


@pytest.fixture
async def run_api(database_url: str) -> AsyncIterator[RunApi]:
    async with open_api(database_url, Config()) as api:
        world = RunWorld(api.database)
        await world.open()
        world.tenant_id = api.tenants["a"]
        yield RunApi(api, world)


async def test_a_run_is_started_read_and_completed(run_api: RunApi) -> None:
    await run_api.define(DIAMOND, input={"day": "monday", "n": 1})
    answer = await run_api.api.admin.post("/v1/workflows/flow/runs", {"input": {"n": 2}})
    assert answer.status == 201
    run = answer.json()["id"]
    assert answer.headers["location"] == f"/v1/workflow-runs/{run}"
    shown = await run_api.read(run)
    assert (shown["state"], shown["version"], shown["input"]) == (
        "running", 1, {"day": "monday", "n": 2}
    )  # fmt: skip
    assert {s["id"]: s["state"] for s in shown["steps"]} == {
        "a": "scheduled", "b": "blocked", "c": "blocked", "d": "blocked"
    }  # fmt: skip
    assert len(shown["graph"]["edges"]) == 4
    await run_api.drain(run)
    ended = await run_api.read(run)
    assert (ended["state"], ended["steps_unfinished"]) == ("completed", 0)
    assert ended["finished_at"] >= ended["created_at"]
    assert all(step["started_at"] and step["finished_at"] for step in ended["steps"])
    same = await run_api.api.admin.get(f"/v1/workflows/flow/runs/{run}/status")
    assert same.json() == ended


async def test_a_run_keeps_its_version(run_api: RunApi) -> None:
    await run_api.define(DIAMOND)
    run = await run_api.begin(input={"day": 1})
    await run_api.define([{"id": "other", "target": NOOP}])
    assert sorted(await run_api.drain(run)) == ["a", "b", "c", "d"]
    assert await run_api.drain(await run_api.begin()) == ["other"]
    assert (await run_api.drain(await run_api.begin(version=1, input={"day": 1})))[0] == "a"
    assert (await run_api.api.admin.call("DELETE", "/v1/workflows/flow")).status == 204
    assert (await run_api.read(run))["workflow"] == "flow", "an archived workflow keeps its runs"


async def test_the_same_key_begins_one_run(run_api: RunApi) -> None:
    await run_api.define(DIAMOND)
    answers = await asyncio.gather(
        *(
            run_api.api.admin.post("/v1/workflows/flow/runs", {}, Idempotency_Key="one")
            for _ in range(10)
        )
    )
    assert {answer.status for answer in answers} == {201}
    assert len({answer.json()["id"] for answer in answers}) == 1
    other = await run_api.api.admin.post(
        "/v1/workflows/flow/runs", {"input": {"x": 1}}, Idempotency_Key="one"
    )
    assert other.status == 422


async def test_runs_are_listed_and_filtered(run_api: RunApi) -> None:
    await run_api.define(DIAMOND)
    runs = [await run_api.begin(input={"day": 1}) for _ in range(5)]
    await run_api.drain(runs[0])
    listed = (await run_api.api.admin.get("/v1/workflow-runs?limit=3")).json()
    assert [run["id"] for run in listed["items"]] == runs[:1:-1]
    rest = await run_api.api.admin.get(f"/v1/workflow-runs?cursor={listed['next_cursor']}")
    assert [run["id"] for run in rest.json()["items"]] == runs[1::-1]
    over = await run_api.api.admin.get("/v1/workflow-runs?state=completed&workflow=flow")
    assert [run["id"] for run in over.json()["items"]] == runs[:1]
    of_flow = await run_api.api.admin.get("/v1/workflows/flow/runs?state=running")
    assert len(of_flow.json()["items"]) == 4
    for bad in ("state=odd", "limit=0", "cursor=x", "colour=red"):
        assert (await run_api.api.admin.get(f"/v1/workflow-runs?{bad}")).status == 422


async def test_steps_are_tasks_that_say_whose_they_are(run_api: RunApi) -> None:
    await run_api.define(DIAMOND)
    run = await run_api.begin(input={"day": 1})
    await run_api.begin(input={"day": 1})
    tasks = (await run_api.api.admin.get(f"/v1/tasks?workflow_run_id={run}")).json()["items"]
    assert {task["step"]: task["state"] for task in tasks} == await run_api.states(run)
    blocked = await run_api.api.admin.get(f"/v1/tasks?workflow_run_id={run}&state=blocked")
    task = next(t for t in blocked.json()["items"] if t["step"] == "d")
    assert (task["priority"], task["labels"], task["workflow_run_id"]) == (7, {"k": "v"}, run)
    told = (await run_api.api.admin.get(f"/v1/tasks/{task['id']}/explain")).json()
    assert told["verdict"] == "dependency"
    gate = next(gate for gate in told["gates"] if gate["gate"] == "dependency")
    assert gate["detail"] == "it waits for 2 of 2 steps before it: b, c"


async def test_nothing_is_taken_for_a_step_that_its_release_would_undo(run_api: RunApi) -> None:
    await run_api.define(DIAMOND)
    run = await run_api.begin(input={"day": 1})
    tasks = {step["id"]: step["task_id"] for step in (await run_api.read(run))["steps"]}
    url = f"/v1/tasks/{tasks['d']}"
    before = (await run_api.api.admin.get(url)).json()
    for patch in (b'{"delay": 60}', b'{"priority": 1, "name": "x"}', b'{"payload": {}}'):
        for query in ("", "?dry_run=true"):
            answer = await run_api.api.admin.call("PATCH", url + query, patch)
            assert answer.status == 409
            assert "from its workflow when its turn comes" in answer.json()["detail"]
    for verb in ("pause", "resume", "run"):
        assert (await run_api.api.admin.post(f"{url}/{verb}")).status == 409
    assert (await run_api.api.admin.get(url)).json() == before
    ready = await run_api.api.admin.call("PATCH", f"/v1/tasks/{tasks['a']}", {"priority": 1})
    assert (ready.status, ready.json()["priority"]) == (200, 1)


@pytest.mark.parametrize(
    ("fields", "begun"),
    [({}, ["b"]), ({"payload": ["{{input.day}}"]}, ["b"]), ({"foreach": [1, 2]}, ["b[0]", "b[1]"])],
    ids=["plain", "templates", "list"],
)
async def test_priority_and_queue_of_a_waiting_step_can_be_changed(
    run_api: RunApi, fields: dict[str, Any], begun: list[str]
) -> None:
    """They are not touched when its turn comes, whichever way it is released."""
    steps = [{"id": "a", "target": NOOP}, {"id": "b", "needs": ["a"], "target": NOOP, **fields}]
    await run_api.define(steps)
    run = await run_api.begin(input={"day": 1})
    waiting = next(s["task_id"] for s in (await run_api.read(run))["steps"] if s["id"] == "b")
    patch = {"priority": 8, "queue": "mine"}
    for query in ("?dry_run=true", ""):
        answer = await run_api.api.admin.call("PATCH", f"/v1/tasks/{waiting}{query}", patch)
        shown = answer.json()
        assert answer.status == 200
        assert (shown["state"], shown["priority"], shown["queue"]) == ("blocked", 8, "mine")
    await run_api.world.report(await run_api.world.claim(UUID(run)))
    ready = await run_api.api.admin.get(f"/v1/tasks?workflow_run_id={run}&state=scheduled")
    found = sorted((t["step"], t["priority"], t["queue"]) for t in ready.json()["items"])
    assert found == [(label, 8, "mine") for label in begun]


async def test_a_list_whose_items_have_begun_has_started(run_api: RunApi) -> None:
    await run_api.define([{"id": "each", "target": NOOP, "foreach": [1, 2]}])
    run = await run_api.begin()
    [step] = (await run_api.read(run))["steps"]
    late = await run_api.api.admin.call("PATCH", f"/v1/tasks/{step['task_id']}", {"priority": 8})
    assert late.status == 409
    assert "the items of this step have begun" in late.json()["detail"]


async def test_cancelling_or_purging_a_step_advances_its_run(
    run_api: RunApi,
) -> None:
    await run_api.define(DIAMOND, on_failure="continue")
    other = await run_api.begin(input={"day": 1})
    for act in ("cancel", "purge", "bulk"):
        run = await run_api.begin(input={"day": 1})
        tasks = {step["id"]: step["task_id"] for step in (await run_api.read(run))["steps"]}
        if act == "cancel":
            answer = await run_api.api.admin.post(f"/v1/tasks/{tasks['b']}/cancel")
        elif act == "purge":
            answer = await run_api.api.admin.call("DELETE", f"/v1/tasks/{tasks['b']}")
        else:
            where = {"filter": {"label": ["k:v"], "workflow_run_id": run}}
            answer = await run_api.api.admin.post("/v1/tasks/cancel", where)
        assert answer.status < 300, answer.body
        await run_api.drain(run)
        ended = await run_api.read(run)
        assert ended["state"] == "cancelled", act
        lost = "d" if act == "bulk" else "b"
        assert next(s for s in ended["steps"] if s["id"] == lost)["state"] == "cancelled"
    assert "cancelled" not in (await run_api.states(other)).values()


async def test_a_purged_step_that_ran_does_not_stop_its_run(run_api: RunApi) -> None:
    await run_api.define(DIAMOND, on_failure="continue")
    run = await run_api.begin(input={"day": 1})
    [running] = await run_api.world.claim(UUID(run))
    assert (await run_api.api.admin.call("DELETE", f"/v1/tasks/{running.id}")).status == 204
    assert (await run_api.read(run))["state"] == "cancelled"
    late = await run_api.world.report([running])
    assert late.accepted == set()


async def test_pause_resume_cancel_and_retry(run_api: RunApi) -> None:
    await run_api.define(DIAMOND)
    run = await run_api.begin(input={"day": 1})
    assert (await run_api.post(run, "pause")).json()["state"] == "paused"
    assert (await run_api.post(run, "pause")).status == 200
    assert await run_api.drain(run) == []
    assert (await run_api.post(run, "resume")).json()["state"] == "running"
    await run_api.drain(run, failing=("b",))
    assert (await run_api.read(run))["state"] == "failed"
    assert (await run_api.post(run, "cancel")).status == 409
    again = await run_api.post(run, "retry")
    assert (again.status, again.json()["state"]) == (200, "running")
    assert sorted(await run_api.drain(run)) == ["b", "d"]
    assert (await run_api.read(run))["state"] == "completed"
    assert (await run_api.post(run, "retry")).status == 409
    cancelled = await run_api.begin(input={"day": 1})
    assert (await run_api.post(cancelled, "cancel")).json()["state"] == "cancelled"
    assert set((await run_api.states(cancelled)).values()) == {"cancelled"}
    assert (await run_api.post(cancelled, "cancel")).status == 200
    assert (await run_api.post(cancelled, "resume")).status == 409


async def test_retrying_or_skipping_one_step_is_audited(
    run_api: RunApi,
) -> None:
    await run_api.define(DIAMOND)
    run = await run_api.begin(input={"day": 1})
    await run_api.drain(run, failing=("b",))
    assert (await run_api.post(run, "steps/nowhere/skip")).status == 404
    assert (await run_api.post(run, "steps/a/skip")).status == 409
    skipped = await run_api.post(run, "steps/b/skip")
    assert skipped.status == 200, skipped.body
    assert next(s for s in skipped.json()["steps"] if s["id"] == "b")["skipped_by_hand"]
    assert await run_api.drain(run) == ["d"]
    assert (await run_api.read(run))["state"] == "completed"
    assert (await run_api.post(run, "steps/c/retry")).status == 200
    assert await run_api.drain(run) == ["c", "d"]
    audit = (await run_api.api.admin.get("/v1/audit")).json()["items"]
    actions = [entry["action"] for entry in audit if entry["subject"] == run]
    assert sorted(actions) == ["workflow_run.retried", "workflow_step.skipped"]


async def test_a_run_can_be_drawn(run_api: RunApi) -> None:
    await run_api.define(DIAMOND)
    run = await run_api.begin(input={"day": 1})
    for form, word in (("mermaid", "flowchart"), ("dot", "digraph"), ("json", '"nodes"')):
        answer = await run_api.api.admin.get(f"/v1/workflow-runs/{run}/graph?format={form}")
        assert (answer.status, word in answer.body.decode()) == (200, True)


async def test_items_of_a_list_are_shown_on_demand(run_api: RunApi) -> None:
    each = {"id": "each", "foreach": [1, 2], "payload": {"n": "{{item}}"}, "target": NOOP}
    await run_api.define([each])
    run = await run_api.begin()
    [step] = (await run_api.read(run))["steps"]
    assert (step["state"], step["items_total"], step["items_finished"]) == ("running", 2, 0)
    for execution in await run_api.world.claim(UUID(run)):
        await run_api.world.report([execution], TaskState.COMPLETED, execution.payload)
    shown = await run_api.api.admin.get(f"/v1/workflow-runs/{run}?items=true")
    [step] = shown.json()["steps"]
    assert (step["state"], step["result"]) == ("completed", [{"n": 1}, {"n": 2}])
    assert [item["result"] for item in step["items"]] == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b'{"input": 3}',
        b'{"input": {}, "x": 1}',
        b'{"version": 0}',
        b'{"input": {"a": 1e999}}',
    ],
)
async def test_a_bad_body_begins_nothing(run_api: RunApi, body: bytes) -> None:
    await run_api.define(DIAMOND)
    answer = await run_api.api.admin.post("/v1/workflows/flow/runs", body)
    assert 400 <= answer.status < 500, answer.body
    assert (await run_api.api.admin.get("/v1/workflow-runs")).json()["items"] == []


async def test_a_replayed_dead_letter_of_a_step_is_a_separate_task(
    run_api: RunApi,
) -> None:
    each = {"id": "each", "needs": ["a"], "target": NOOP, "foreach": [1, 2]}
    await run_api.define([{"id": "a", "target": NOOP}, each], on_failure="continue")
    run = await run_api.begin()
    await run_api.drain(run, failing=("a",))
    await run_api.post(run, "steps/a/skip")
    await run_api.drain(run, failing=("each[1]",))
    listed = (await run_api.api.admin.get("/v1/dead-letters")).json()["items"]
    told = [(letter["task"]["workflow_run_id"], letter["task"]["step"]) for letter in listed]
    assert told == [(run, "each[1]"), (run, "a")]
    before = await run_api.read(run)
    replayed = await run_api.api.admin.post(f"/v1/dead-letters/{listed[0]['id']}/replay")
    assert replayed.status == 201, replayed.body
    task = replayed.json()
    assert (task["workflow_run_id"], task["step"]) == (None, None)
    assert task["replay_of"] == listed[0]["id"]
    assert await run_api.read(run) == before


async def test_the_dead_letter_of_a_retried_step_is_not_replayed(
    run_api: RunApi,
) -> None:
    await run_api.define([{"id": "a", "target": NOOP}])
    run = await run_api.begin()
    await run_api.drain(run, failing=("a",))
    [letter] = (await run_api.api.admin.get("/v1/dead-letters")).json()["items"]
    assert (await run_api.post(run, "retry")).status == 200
    many = await run_api.api.admin.post("/v1/dead-letters/replay", {"filter": {}})
    assert many.json()["replayed"] == 0
    one = await run_api.api.admin.post(f"/v1/dead-letters/{letter['id']}/replay")
    [step] = (await run_api.read(run))["steps"]
    assert (one.status, one.json()["id"]) == (200, step["task_id"])
    assert await run_api.drain(run) == ["a"]
