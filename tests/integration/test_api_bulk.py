"""Cancelling many tasks at once."""

import asyncio
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from mainspring.store.lists.index_paths import TaskFilter
from mainspring.workflows import task_changes
from mainspring.workflows.advancing import new_steps
from support.finished_tasks import INJECTIONS, TaskFinisher
from support.in_process_api import InProcessApi

URL = "/v1/tasks/cancel"
NOOP = {"type": "handler", "name": "mainspring.noop"}


async def cancel(api: InProcessApi, query: str = "", **where: object) -> tuple[int, int]:
    answer = await api.admin.post(URL + query, {"filter": where})
    assert answer.status == 200, answer.body
    told: dict[str, int] = answer.json()
    assert sorted(told) == ["cancel_requested", "cancelled"]
    return told["cancelled"], told["cancel_requested"]


async def state_of(api: InProcessApi, task: dict[str, Any]) -> tuple[str, bool]:
    read = (await api.admin.get(f"/v1/tasks/{task['id']}")).json()
    return read["state"], read["cancel_requested"]


async def test_what_waits_ends_and_what_runs_is_asked(
    api: InProcessApi, tasks: TaskFinisher
) -> None:
    waiting, paused, running, done = [await tasks.make(name=f"n{n}") for n in range(4)]
    await api.admin.post(f"/v1/tasks/{paused['id']}/pause")
    await tasks.start(running["id"])
    await tasks.end(done["id"])
    await api.database.fetch("DELETE FROM wakes")
    assert await cancel(api, "?dry_run=true") == (2, 1)
    in_the_body = await api.admin.post(URL, {"filter": {}, "dry_run": True})
    assert in_the_body.json() == {"cancelled": 2, "cancel_requested": 1}
    assert await tasks.count() == 3
    assert await cancel(api) == (2, 1)
    assert await state_of(api, waiting) == ("cancelled", False)
    assert await state_of(api, paused) == ("cancelled", False)
    assert await state_of(api, running) == ("running", True)
    assert await state_of(api, done) == ("completed", False)
    woken = await api.database.fetch("SELECT task_id FROM wakes")
    assert {str(row["task_id"]) for row in woken} == {t["id"] for t in (waiting, paused, running)}
    assert await cancel(api) == (0, 0), "calling twice is harmless"
    entries = (await api.admin.get("/v1/audit?action=tasks.cancelled")).json()["items"]
    assert [entry["detail"] for entry in entries] == [{"cancelled": 2, "cancel_requested": 1}]


async def test_only_those_of_a_schedule(api: InProcessApi, tasks: TaskFinisher) -> None:
    schedules, made = [], []
    for name in ("one", "two"):
        wanted = {"name": name, "interval": 3600, "task": {"target": NOOP}}
        answer = await api.admin.post("/v1/schedules", wanted)
        schedules.append(answer.json()["id"])
        made.append((await api.admin.post(f"/v1/schedules/{schedules[-1]}/run")).json())
    alone = await tasks.make()
    assert await cancel(api, schedule_id=schedules[0], queue="other") == (0, 0)
    assert await cancel(api, "?dry_run=true", schedule_id=schedules[0]) == (1, 0)
    assert await cancel(api, schedule_id=schedules[0]) == (1, 0)
    states = [(await state_of(api, task))[0] for task in (*made, alone)]
    assert states == ["cancelled", "scheduled", "scheduled"]
    assert await cancel(api, workflow_run_id=schedules[1]) == (0, 0)


async def test_only_what_matches(api: InProcessApi, tasks: TaskFinisher) -> None:
    for n in range(6):
        await tasks.make(
            name=f"n{n}", queue="q" if n % 2 else "default", labels={"n": str(n), "all": "1"},
            delay=3600 * n,
        )  # fmt: skip
    counts: list[tuple[dict[str, object], int]] = [
        ({"name": "n0"}, 1),
        ({"queue": "q"}, 3),
        ({"state": "scheduled"}, 6),
        ({"state": "paused"}, 0),
        ({"state": "completed"}, 0),
        ({"label": "n:3"}, 1),
        ({"label": ["n:3", "all:1"]}, 1),
        ({"labels": {"all": "1"}, "queue": "q"}, 3),
        ({"due_after": "2100-01-01T00:00:00Z"}, 0),
        ({"due_before": "2100-01-01T00:00:00Z"}, 6),
    ]
    for where, count in counts:
        assert await cancel(api, "?dry_run=true", **where) == (count, 0), where
    assert await cancel(api, queue="q") == (3, 0)
    assert await tasks.count() == 3


async def test_many_are_cancelled_in_steps(
    api: InProcessApi, tasks: TaskFinisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_changes, "CHUNK", 7)
    batch = {"tasks": [{"target": {"type": "handler", "name": "x"}, "delay": 60}] * 40}
    assert (await api.admin.post("/v1/tasks/batch", batch)).status == 201
    assert await cancel(api, "?dry_run=true") == (40, 0)
    answers = await asyncio.gather(*(cancel(api) for _ in range(3)))
    assert sum(cancelled for cancelled, _ in answers) == 40
    assert await tasks.count("task_history") == 40


async def test_the_scan_goes_on_where_nothing_matches(
    api: InProcessApi, tasks: TaskFinisher
) -> None:
    for n in range(9):
        await tasks.make(name="last" if n == 8 else "other")
    narrow = task_changes.TaskChangeService(api.database, new_steps(Random(1)), 2)
    where = TaskFilter(name="last")
    tenant = api.tenants["a"]
    assert (await narrow.count_cancellable(tenant, where)).ended == 1
    done = [step async for step in narrow.cancel_matching(tenant, where, "me")]
    assert [step.ended for step in done] == [1]


async def test_a_cancel_that_races_a_start_misses_nothing(
    api: InProcessApi, tasks: TaskFinisher
) -> None:
    """Whatever state a task is in when its row is held: it ends, or is asked to stop."""
    made = [await tasks.make() for _ in range(20)]

    async def start(task: dict[str, Any]) -> None:
        with suppress(ValueError):  # it may be cancelled before it can start
            await tasks.start(task["id"])

    starts = asyncio.gather(*(start(task) for task in made))
    cancelled, asked = await cancel(api)
    await starts
    assert cancelled + asked == 20
    rows = await api.database.fetch("SELECT cancel_requested FROM tasks")
    assert [row["cancel_requested"] for row in rows] == [True] * asked


@pytest.mark.parametrize(
    ("body", "status", "pointer"),
    [
        (b"", 400, ""),
        ({}, 422, ""),
        ({"filter": None}, 422, "/filter"),
        ({"filter": {"sate": "paused"}}, 422, "/filter/sate"),
        ({"filter": {"state": "odd"}}, 422, "/filter/state"),
        ({"filter": {"queue": 1}}, 422, "/filter/queue"),
        ({"filter": {"schedule_id": "x"}}, 422, "/filter/schedule_id"),
        ({"filter": {"workflow_run_id": 1}}, 422, "/filter/workflow_run_id"),
        ({"filter": {"name": "a\x00"}}, 422, "/filter/name"),
        ({"filter": {"labels": {"a\x00": "b"}}}, 422, "/filter/labels/a\x00"),
        ({"filter": {"due_after": "9999-12-31T23:00:00-05:00"}}, 422, "/filter/due_after"),
        ({"filter": {"due_after": "2026-01-01"}}, 422, "/filter/due_after"),
        (b'{"filter": {}, "filter": {"name": "x"}}', 422, ""),
        (b'{"filter": {"name": "\\ud800"}}', 400, ""),
    ],
)
async def test_a_filter_that_does_not_make_sense_cancels_nothing(
    api: InProcessApi, tasks: TaskFinisher, body: object, status: int, pointer: str
) -> None:
    await tasks.make()
    answer = await api.admin.post(URL, body)
    assert (answer.status, answer.pointers()) == (status, [pointer])
    assert await tasks.count() == 1


async def test_tenants_and_scopes(api: InProcessApi, tasks: TaskFinisher) -> None:
    await tasks.make(name="mine")
    answer = await api.other_tenant.post(URL, {"filter": {}})
    assert answer.json() == {"cancelled": 0, "cancel_requested": 0}
    assert (await api.client("a:read").post(URL, {"filter": {}})).status == 403
    assert await tasks.count() == 1


@pytest.mark.parametrize("text", INJECTIONS)
async def test_values_stay_values(api: InProcessApi, tasks: TaskFinisher, text: str) -> None:
    await tasks.make()
    for where in ({"name": text}, {"queue": text}, {"label": f"x:{text}"}, {"labels": {"x": text}}):
        assert await cancel(api, **where) == (0, 0)
    for name in ("state", "due_after", "due_before"):
        assert (await api.admin.post(URL, {"filter": {name: text}})).status == 422
    assert await tasks.count() == 1


async def test_the_same_key_gives_the_same_count(api: InProcessApi, tasks: TaskFinisher) -> None:
    await tasks.make()
    body: dict[str, object] = {"filter": {}}
    first = await api.admin.post(URL, body, idempotency_key="k")
    await tasks.make()
    again = await api.admin.post(URL, body, idempotency_key="k")
    assert first.json()["cancelled"] == again.json()["cancelled"] == 1
    assert await tasks.count() == 1
    other = await api.admin.post(URL, {"filter": {"name": "x"}}, idempotency_key="k")
    assert other.status == 422
    dry = await api.admin.post(URL + "?dry_run=true", body, idempotency_key="k")
    assert (dry.status, dry.json()["cancelled"]) == (200, 1), "a dry run takes no key"
