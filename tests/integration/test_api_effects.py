"""The effect log, and first answers under idempotency keys for every kind of POST."""

import asyncio
from typing import Any

import pytest

from mainspring.api.http import idempotency
from mainspring.config import Config
from mainspring.store.answers import AnswerStore, Turn
from mainspring.store.upkeep.housekeeping import HousekeepingStore
from support.finished_tasks import INJECTIONS, TaskFinisher
from support.in_process_api import InProcessApi

URL = "/v1/effects"


@pytest.fixture
def api_config() -> Config:
    return Config(max_payload=5000)


# --- effects -------------------------------------------------------------------------------------


async def test_the_first_call_of_an_effect_is_marked(api: InProcessApi) -> None:
    first = await api.admin.post(URL, {"key": "mail/7", "answer": {"sent": 1}})
    again = await api.admin.post(URL, {"key": "mail/7", "answer": {"sent": 2}})
    assert (first.status, again.status) == (201, 200)
    assert first.json()["first"] is True
    assert again.json() == {**first.json(), "first": False}
    assert sorted(first.json()) == ["answer", "created_at", "first", "key"]
    assert again.json()["answer"] == {"sent": 1}
    bare = await api.admin.post(URL, {"key": "bare"})
    assert (bare.status, bare.json()["answer"]) == (201, None)


async def test_of_many_at_once_exactly_one_is_first(api: InProcessApi) -> None:
    clients = [api.admin, api.another_node().admin] * 20
    answers = await asyncio.gather(
        *(client.post(URL, {"key": "k", "answer": n}) for n, client in enumerate(clients))
    )
    assert sorted(answer.status for answer in answers) == [200] * 39 + [201]
    assert len({answer.json()["answer"] for answer in answers}) == 1


async def test_an_effect_is_forgotten_in_time(api: InProcessApi) -> None:
    await api.admin.post(URL, {"key": "short", "answer": 1, "ttl": 0.01})
    await api.admin.post(URL, {"key": "long", "ttl": "P1D"})
    await asyncio.sleep(0.02)
    again = await api.admin.post(URL, {"key": "short", "answer": 2, "ttl": 0.01})
    assert (again.status, again.json()["answer"]) == (201, 2)
    await asyncio.sleep(0.02)
    await HousekeepingStore(api.database).forget_expired()
    rows = await api.database.fetch("SELECT key FROM effects")
    assert [row["key"] for row in rows] == ["long"]


async def test_effects_belong_to_a_tenant(api: InProcessApi) -> None:
    assert (await api.admin.post(URL, {"key": "k", "answer": "a"})).status == 201
    assert (await api.other_tenant.post(URL, {"key": "k", "answer": "b"})).status == 201
    assert (await api.client("a:work").post(URL, {"key": "k"})).status == 200
    assert (await api.client("a:write").post(URL, {"key": "k"})).status == 200
    refused = await api.client("a:read").post(URL, {"key": "k"})
    assert (refused.status, "'write' or 'work'" in refused.json()["detail"]) == (403, True)


@pytest.mark.parametrize(
    ("body", "status", "pointer"),
    [
        ({}, 422, ""),
        ({"key": ""}, 422, "/key"),
        ({"key": "a\nb"}, 422, "/key"),
        ({"key": "x" * 256}, 422, "/key"),
        ({"key": "k", "ttl": 0}, 422, "/ttl"),
        ({"key": "k", "ttl": "soon"}, 422, "/ttl"),
        ({"key": "k", "ttl": 1e12}, 422, "/ttl"),
        ({"key": "k", "answer": "x" * 6000}, 413, "/answer"),
        (b'{"key": "k", "answer": ' + b"[" * 100 + b"]" * 100 + b"}", 422, "/answer"),
        (b'{"key": "k", "answer": NaN}', 400, ""),
        (b'{"key": "a", "key": "b"}', 422, ""),
        (b"[]", 422, ""),
    ],
)
async def test_an_effect_that_does_not_make_sense(
    api: InProcessApi, body: object, status: int, pointer: str
) -> None:
    answer = await api.admin.post(URL, body)
    assert (answer.status, answer.pointers()) == (status, [pointer])


@pytest.mark.parametrize("text", INJECTIONS)
async def test_values_stay_values(api: InProcessApi, text: str) -> None:
    first = await api.admin.post(URL, {"key": text, "answer": text})
    again = await api.admin.post(URL, {"key": text})
    assert (first.status, again.status, again.json()["answer"]) == (201, 200, text)


# --- first answers -------------------------------------------------------------------------------


async def test_every_post_keeps_its_first_answer(api: InProcessApi) -> None:
    """With its status and headers; the database remembers, so another node tells the same."""
    other = api.another_node()
    first = await api.admin.post(URL, {"key": "k", "answer": 1}, idempotency_key="i")
    again = await other.admin.post(URL, {"key": "k", "answer": 1}, idempotency_key="i")
    assert (first.status, again.status, again.body) == (201, 201, first.body)
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    assert again.headers["content-type"] == "application/json"
    changed = await api.admin.post(URL, {"key": "k", "answer": 2}, idempotency_key="i")
    assert changed.status == 422
    assert changed.json()["type"] == "urn:mainspring:problem:idempotency-key-reused"
    create = await api.admin.post("/v1/tasks", {"target": {}}, idempotency_key="i")
    assert create.status == 422
    assert (await api.other_tenant.post(URL, {"key": "k"}, idempotency_key="i")).status == 201
    assert (await api.admin.post(URL, {"key": "k"}, idempotency_key="\x7f")).status == 422


async def test_a_key_of_a_new_task_serves_nothing_else(api: InProcessApi) -> None:
    task = {"target": {"type": "handler", "name": "x"}}
    assert (await api.admin.post("/v1/tasks", task, idempotency_key="i")).status == 201
    assert (await api.admin.post(URL, {"key": "k"}, idempotency_key="i")).status == 422


async def test_a_verb_keeps_its_answer_and_revision(api: InProcessApi) -> None:
    task = await TaskFinisher(api).make(delay=3600)
    url = f"/v1/tasks/{task['id']}"
    first = await api.admin.post(f"{url}/pause", idempotency_key="i")
    await api.admin.post(f"{url}/resume")
    again = await api.admin.post(f"{url}/pause", idempotency_key="i")
    assert (again.body, again.headers["etag"]) == (first.body, first.headers["etag"])
    assert (await api.admin.get(url)).json()["state"] == "scheduled"


async def test_after_a_refused_request_the_next_one_runs(api: InProcessApi) -> None:
    bad = await api.admin.post(URL, {"key": ""}, idempotency_key="i")
    assert bad.status == 422
    good = await api.admin.post(URL, {"key": "k"}, idempotency_key="i")
    assert good.status == 201


async def test_many_at_once_are_served_once(api: InProcessApi) -> None:
    tasks = TaskFinisher(api)
    for _ in range(3):
        await tasks.make()
    body: dict[str, Any] = {"filter": {}}
    clients = [api.admin, api.another_node().admin] * 10
    answers = await asyncio.gather(
        *(client.post("/v1/tasks/cancel", body, idempotency_key="i") for client in clients)
    )
    assert {answer.status for answer in answers} == {200}
    assert {answer.json()["cancelled"] for answer in answers} == {3}
    assert sum("idempotency-replayed" in answer.headers for answer in answers) == 19


async def test_a_second_caller_waits_for_a_while(
    api: InProcessApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another node serves the key: wait, then say so; when its turn runs out, serve."""
    monkeypatch.setattr(idempotency, "_WAIT", 0.1)
    body = {"key": "k"}
    sent = await api.admin.post(URL, body, idempotency_key="i")
    row = await api.database.fetch_row("SELECT body_hash FROM idempotency_keys")
    assert row is not None
    turn = Turn(api.tenants["a"], "i", b"other")
    await api.database.fetch("DELETE FROM idempotency_keys")
    answers = AnswerStore(api.database)
    assert await answers.take_turn(turn, row["body_hash"], 0.3)
    busy = await api.admin.post(URL, body, idempotency_key="i")
    assert (busy.status, busy.headers["retry-after"]) == (409, "1")
    other = await api.admin.post(URL, {"key": "z"}, idempotency_key="i")
    assert other.status == 422
    await asyncio.sleep(0.3)
    served = await api.admin.post(URL, body, idempotency_key="i")
    assert (sent.status, served.status) == (201, 200)
    await answers.give_up(turn)  # too late: the turn is another's
    again = await api.admin.post(URL, body, idempotency_key="i")
    assert (again.status, again.body) == (200, served.body)


async def test_a_secret_is_kept_sealed(api: InProcessApi) -> None:
    """Who asks again with the same key hears the secret again; the database does not know it."""
    body = {"scopes": ["read"]}
    first = await api.admin.post("/v1/keys", body, idempotency_key="i")
    again = await api.another_node().admin.post("/v1/keys", body, idempotency_key="i")
    assert (first.status, again.status, again.body) == (201, 201, first.body)
    secret = first.json()["api_key"]
    rows = await api.database.fetch("SELECT answer FROM idempotency_keys")
    assert len(rows) == 1
    assert secret.encode() not in rows[0]["answer"]
    other = await api.client("a:admin").post("/v1/keys", body, idempotency_key="i")
    assert other.status == 422, "another key of the tenant cannot open it"
    assert "another API key" in other.json()["detail"]


async def test_operators_have_keys_of_their_own(api: InProcessApi) -> None:
    body = {"name": "new"}
    first = await api.operator.post("/v1/tenants", body, idempotency_key="i")
    again = await api.operator.post("/v1/tenants", body, idempotency_key="i")
    assert (first.status, again.status, again.body) == (201, 201, first.body)
    assert (await api.admin.post(URL, {"key": "k"}, idempotency_key="i")).status == 201
