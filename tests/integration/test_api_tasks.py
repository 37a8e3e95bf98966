"""Reading and changing tasks, over a real database with a node that only listens."""

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any, NoReturn
from uuid import uuid4

import pytest

from mainspring.errors import StoreUnavailable
from mainspring.postgres.database import DatabaseOptions, connect
from mainspring.store.tasks import TaskStore
from support.asgi import Answer
from support.listening_api import NOOP, ListeningApi, listening_api


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[ListeningApi]:
    async with listening_api(database_url) as opened:
        yield opened


async def test_keys_and_scopes(api: ListeningApi) -> None:
    nobody = await api.stranger.get("/v1/tasks")
    assert (nobody.status, nobody.headers["www-authenticate"][:6]) == (401, "Bearer")
    assert (await api.a.get("/v1/tasks", authorization="Basic YQ==")).status == 401
    assert (await api.reader.get("/v1/tasks")).status == 200
    assert (await api.reader.post("/v1/tasks", {"target": NOOP})).status == 403
    assert (await api.operator.get("/v1/tasks")).status == 403
    assert (await api.a.get("/metrics")).status == 403
    metrics = await api.operator.get("/metrics")
    assert metrics.status == 200
    assert b"mainspring_http_requests_total" in metrics.body


async def test_health_and_readiness(api: ListeningApi) -> None:
    assert (await api.stranger.get("/healthz")).status == 200
    assert (await api.stranger.get("/readyz")).status == 200
    api.node.is_ready = False
    assert (await api.stranger.get("/readyz")).status == 503
    assert (await api.stranger.get("/healthz")).status == 200


async def test_wrong_methods_and_routes(api: ListeningApi) -> None:
    wrong = await api.a.call("PUT", "/v1/tasks")
    assert (wrong.status, wrong.headers["allow"]) == (405, "GET, HEAD, POST")
    assert (await api.a.get("/v1/nothing")).status == 404
    assert (await api.a.get("/v1/tasks/")).status == 404


async def test_another_tenants_task_looks_like_none(api: ListeningApi) -> None:
    task = await api.make()
    for shown in (task["id"], str(uuid4())):
        for method, path in [
            ("GET", ""),
            ("PATCH", ""),
            ("DELETE", ""),
            ("GET", "/executions"),
            *(("POST", f"/{verb}") for verb in ("cancel", "pause", "resume", "run")),
        ]:
            answer = await api.b.call(method, f"/v1/tasks/{shown}{path}", {})
            assert answer.status == 404, (method, path)
            assert answer.json()["detail"] == f"there is no task '{shown}'"
    for strange in ("x", "{" + task["id"] + "}", task["id"].replace("-", ""), "%00"):
        assert (await api.a.get(f"/v1/tasks/{strange}")).status == 404
    assert (await api.b.get("/v1/tasks")).json()["items"] == []


async def verb(api: ListeningApi, task: dict[str, Any], name: str) -> Answer:
    return await api.a.post(f"/v1/tasks/{task['id']}/{name}")


async def test_the_life_of_a_waiting_task(api: ListeningApi) -> None:
    task = await api.make(delay=3600)
    for name, state in [
        ("pause", "paused"),
        ("pause", "paused"),
        ("resume", "scheduled"),
        ("resume", "scheduled"),
    ]:
        answer = await verb(api, task, name)
        assert (answer.status, answer.json()["state"]) == (200, state)
        assert answer.json()["due_at"] == task["due_at"]
    assert api.node.changes == 2
    run = (await verb(api, task, "run")).json()
    assert (run["due_at"], run["run_at"]) == (task["created_at"], task["run_at"])
    for _ in range(2):
        cancelled = (await verb(api, task, "cancel")).json()
        assert cancelled["state"] == "cancelled"
        assert cancelled["finished_at"] is not None
    for name in ("pause", "resume", "run"):
        assert (await verb(api, task, name)).status == 409
    assert await api.count() == 0


async def test_a_running_task_is_asked_to_stop(api: ListeningApi) -> None:
    api.node.owned = frozenset()
    task = await api.make()
    await api.start(task["id"])
    api.node.hinted.clear()
    api.node.changes = 0
    for _ in range(2):
        answer = await verb(api, task, "cancel")
        assert (answer.status, answer.json()["state"]) == (200, "running")
        assert answer.json()["cancel_requested"] is True
    assert (api.node.changes, len(api.node.hinted)) == (1, 1)
    assert (await verb(api, task, "pause")).status == 409
    assert (await verb(api, task, "run")).status == 200
    assert (await api.a.call("PATCH", f"/v1/tasks/{task['id']}", {"priority": 1})).status == 409
    read = (await api.a.get(f"/v1/tasks/{task['id']}")).json()
    assert read["started_at"] == read["picked_at"] is not None


async def test_editing(api: ListeningApi) -> None:
    task = await api.make(delay=3600, labels={"a": "b"}, name="old")
    url = f"/v1/tasks/{task['id']}"
    preview = await api.a.call("PATCH", url + "?dry_run=true", {"priority": 1, "delay": 60})
    assert (preview.status, preview.json()["priority"]) == (200, 1)
    assert (await api.a.get(url)).json() == task
    body = {
        "priority": 9,
        "name": None,
        "payload": [1],
        "delay": "PT2H",
        "timeout": 5,
        "target": {"type": "http", "url": "http://a.example/"},
        "labels": {"c": "d"},
    }
    answer = await api.a.call("PATCH", url, body, headers={"if-match": '"1"'})
    assert (answer.status, answer.headers["etag"]) == (200, '"2"')
    changed = answer.json()
    assert (changed["priority"], changed["name"], changed["payload"]) == (9, None, [1])
    assert (changed["timeout"], changed["labels"]) == (5, {"c": "d"})
    assert changed["target"] == {"type": "http", "url": "http://a.example/", "method": "POST"}
    assert changed["due_at"] == changed["run_at"] > task["run_at"]
    assert (changed["queue"], changed["retry"]) == (task["queue"], task["retry"])
    row = (await api.database.fetch("SELECT capability FROM tasks"))[0]
    assert row["capability"] == "http"
    stale = await api.a.call("PATCH", url, {"priority": 1}, headers={"if-match": '"1"'})
    assert stale.status == 412


async def test_editing_durations(api: ListeningApi) -> None:
    url = f"/v1/tasks/{(await api.make(delay=3600))['id']}"
    body = {"timeout": "PT5M", "sla": "PT1H", "jitter": "PT1S", "retry": {"initial": "PT2S"}}
    changed = (await api.a.call("PATCH", url, body)).json()
    assert (changed["timeout"], changed["sla"], changed["jitter"]) == (300, 3600, 1)
    assert changed["retry"]["initial"] == 2
    bad = {"timeout": "P2D", "sla": "x", "jitter": "P1M", "retry": {"max_delay": "P99D"}}
    answer = await api.a.call("PATCH", url, bad)
    assert answer.pointers() == ["/timeout", "/sla", "/jitter", "/retry/max_delay"]


async def test_editing_has_rules(api: ListeningApi) -> None:
    task = await api.make(delay=3600)
    url = f"/v1/tasks/{task['id']}"
    bad = {"concurrency": {"key": "k"}, "target": {"type": "http", "url": "x"}, "delay": "soon"}
    answer = await api.a.call("PATCH", url, bad)
    assert answer.status == 422
    assert answer.pointers() == ["/concurrency", "/target/url", "/delay"]
    answer = await api.a.call("PATCH", url, {**bad, "priority": 99, "sla": "long"})
    assert answer.pointers() == ["/priority", "/concurrency", "/target/url", "/sla", "/delay"]
    bad = {"target": {"type": "http", "url": 1, "headers": {"Host": "x"}}, "run_at": "soon"}
    answer = await api.a.call("PATCH", url, {**bad, "expires_at": "2020-01-01T00:00:00Z"})
    assert answer.pointers() == ["/target/url", "/run_at", "/target/headers/Host"]
    assert (await api.a.get(url)).json() == task
    nowhere = await api.a.call("PATCH", f"/v1/tasks/{uuid4()}", bad)
    assert (nowhere.status, nowhere.pointers()) == (422, ["/target/url", "/run_at"])
    both = {"run_at": "2027-01-01T00:00:00Z", "delay": 1}
    assert (await api.a.call("PATCH", url, both)).pointers() == ["/delay"]
    early = await api.a.call("PATCH", url, {"expires_at": "2020-01-01T00:00:00Z"})
    assert early.pointers() == ["/expires_at"]
    await api.a.call("PATCH", url, {"expires_at": "2030-01-01T00:00:00Z"})
    late = await api.a.call("PATCH", url, {"run_at": "2030-01-01T00:00:00Z"})
    assert late.json()["errors"] == [
        {"pointer": "/run_at", "detail": "is not before the task expires, 2030-01-01T00:00:00Z"}
    ]
    await verb(api, task, "cancel")
    answer = await api.a.call("PATCH", url, {"priority": 1})
    assert (answer.status, "this one is cancelled" in answer.json()["detail"]) == (409, True)


async def test_a_bad_patch_is_refused_while_the_task_is_locked(
    api: ListeningApi, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of a bad patch is looked at as a favour: that waits for nobody."""
    task = await api.make(delay=3600)
    url, bad = f"/v1/tasks/{task['id']}", {"priority": 99, "delay": "soon"}
    other = await connect(DatabaseOptions(database_url))
    async with other.transaction():
        await other.execute("SELECT FROM tasks FOR UPDATE")
        async with asyncio.timeout(10):
            answer = await api.a.call("PATCH", url, bad)
    await other.close()
    assert (answer.status, answer.pointers()) == (422, ["/priority", "/delay"])

    async def away(*_: object) -> NoReturn:
        raise StoreUnavailable("the database is away")

    monkeypatch.setattr(TaskStore, "see", away)
    answer = await api.a.call("PATCH", url, bad)
    assert (answer.status, answer.pointers()) == (422, ["/priority"])


async def test_an_expiry_alone_is_compared_with_the_present_due_time(
    api: ListeningApi,
) -> None:
    """The jitter was drawn when the task was made: it is not feared again."""
    task = await api.make(delay=60, jitter=86400)
    due = datetime.fromisoformat(task["due_at"])
    soon = {"expires_at": (due + timedelta(seconds=60)).isoformat()}
    answer = await api.a.call("PATCH", f"/v1/tasks/{task['id']}", soon)
    assert (answer.status, answer.json()["due_at"]) == (200, task["due_at"])
    early = {"expires_at": (due - timedelta(seconds=1)).isoformat()}
    refused = await api.a.call("PATCH", f"/v1/tasks/{task['id']}", early)
    assert refused.pointers() == ["/expires_at"]


async def test_deleting_leaves_nothing_but_the_audit(api: ListeningApi) -> None:
    for finished in (False, True):
        task = await api.make(delay=3600)
        if finished:
            await verb(api, task, "cancel")
        url = f"/v1/tasks/{task['id']}"
        assert (await api.a.call("DELETE", url)).status == 204
        assert (await api.a.call("DELETE", url)).status == 404
        assert (await api.a.get(url)).status == 404
    assert await api.count("audit") == 2


@pytest.mark.parametrize("finished", [False, True])
async def test_no_change_of_a_revision_that_the_caller_did_not_see(
    api: ListeningApi, finished: bool
) -> None:
    for method, place in [
        ("PATCH", ""),
        ("DELETE", ""),
        *(("POST", f"/{verb}") for verb in ("cancel", "pause", "resume", "run")),
    ]:
        task = await api.make(delay=3600)
        if finished:
            await verb(api, task, "cancel")
        url, rev = f"/v1/tasks/{task['id']}", 2 if finished else 1
        body: object = {"priority": 1} if method == "PATCH" else b""
        before = (await api.a.get(url)).json()
        for wrong in ('"99"', f'W/"{rev}"', str(rev), f'"{rev + 1}", "0"', ""):
            refused = await api.a.call(method, url + place, body, headers={"if-match": wrong})
            assert refused.status == 412, (method, place, wrong)
        assert (await api.a.get(url)).json() == before
        right = 409 if finished and place != "/cancel" else 200
        for tag in (f'"7", "{rev}"', "*"):
            answer = await api.a.call(method, url + place, body, headers={"if-match": tag})
            if method == "DELETE":
                assert answer.status == (404 if tag == "*" else 204)
            else:
                assert answer.status == right, (method, place, tag)


async def test_of_many_changes_to_the_same_revision_one_succeeds(api: ListeningApi) -> None:
    task = await api.make(delay=3600)
    url, seen = f"/v1/tasks/{task['id']}", {"if-match": '"1"'}
    answers = await asyncio.gather(
        *(api.a.call("POST", f"{url}/{verb}", headers=seen) for verb in ("pause", "run") * 4),
        api.a.call("DELETE", url, headers=seen),
    )
    won = [answer.status for answer in answers if answer.status not in (404, 412)]
    assert won in ([200], [204])


async def test_executions(api: ListeningApi) -> None:
    task = await api.make()
    url = f"/v1/tasks/{task['id']}/executions"
    assert (await api.a.get(url)).json() == {"items": []}
    for fence, outcome, response in [(1, "failed", b"<h1>"), (2, "succeeded", b'{"a": 1}')]:
        await api.database.fetch(
            "INSERT INTO executions (task_id, due_at, picked_at, started_at, finished_at,"
            " tenant_id, fence, attempt, outcome, worker, response, error)"
            " SELECT id, due_at, now(), now(), now() + interval '1 second', tenant_id, $1, $1, $2,"
            " 'w', $3, $4 FROM tasks",
            fence,
            outcome,
            response,
            {"code": "x", "message": "y"} if outcome == "failed" else None,
        )
    items = (await api.a.get(url)).json()["items"]
    assert [item["response"] for item in items] == ["<h1>", {"a": 1}]
    assert items[0]["error"] == {"code": "x", "message": "y"}
    assert items[0]["duration_ms"] == 1000
    filtered = (await api.a.get(url + "?outcome=failed")).json()["items"]
    assert [item["fence"] for item in filtered] == [1]
    assert (await api.a.get(url + "?outcome=odd")).status == 422


async def test_listing(api: ListeningApi) -> None:
    tasks = [
        await api.make(name=f"n{n}", queue="q" if n % 2 else "default", labels={"n": str(n)})
        for n in range(7)
    ]
    await verb(api, tasks[0], "cancel")
    seen = await api.a.all_items("/v1/tasks?limit=3")
    assert [item["name"] for item in seen] == [f"n{n}" for n in range(6, -1, -1)]

    async def names(query: str) -> list[str]:
        items = (await api.a.get(f"/v1/tasks?{query}")).json()["items"]
        return [item["name"] for item in items]

    await verb(api, tasks[1], "pause")
    assert await names("state=cancelled") == ["n0"]
    assert await names("state=paused") == ["n1"]
    assert await names("queue=q") == ["n5", "n3", "n1"]
    assert await names("name=n4") == ["n4"]
    assert await names("label=n:2") == ["n2"]
    assert await names("label=n:2&label=n2:x") == []
    assert await names("due_after=2100-01-01T00:00:00Z") == []
    assert len(await names("due_before=2100-01-01T00:00:00Z")) == 7
    assert await names("due_before=2020-01-01T00:00:00Z") == []
    assert await names("name='%20OR%201=1%20--") == []
    first = (await api.a.get("/v1/tasks?limit=1")).json()["items"][0]
    assert "payload" not in first
    first = (await api.a.get("/v1/tasks?limit=1&payload=true")).json()["items"][0]
    assert first["payload"] == {}
    assert (await api.a.get("/v1/tasks?queue=%00")).status == 422


async def test_a_lost_database_is_reported_as_unavailable(api: ListeningApi) -> None:
    task = await api.make()
    await api.database.close()
    answer = await api.a.get(f"/v1/tasks/{task['id']}")
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")


async def test_what_a_filter_matches_is_found_behind_many_others(api: ListeningApi) -> None:
    wanted = [await api.make(queue="wanted") for _ in range(2)]
    other = {"target": {"type": "handler", "name": "mainspring.noop"}, "delay": "PT1H"}
    for _ in range(3):
        answer = await api.a.post("/v1/tasks/batch", {"tasks": [other] * 900})
        assert answer.status == 201
    page = (await api.a.get("/v1/tasks?queue=wanted")).json()
    assert [item["id"] for item in page["items"]] == [task["id"] for task in reversed(wanted)]
    assert page["next_cursor"] is None
