"""Creates on the fast path and on the ordinary one: the answers are the same."""

import asyncio
import gc
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import UUID

import msgspec
import pytest

from mainspring.api.http import auth
from mainspring.api.http.rate_limits import RateLimits
from mainspring.api.tasks import ingest
from mainspring.config import Config
from mainspring.errors import StoreUnavailable
from mainspring.store.tasks import TaskStore
from support.live_api import Answer, LiveApi, open_live_api

NOOP = b'{"target": {"type": "handler", "name": "noop"}}'


@pytest.fixture
async def live_api(database_url: str) -> AsyncIterator[LiveApi]:
    async with open_live_api(database_url, Config()) as opened:
        yield opened


@pytest.fixture
async def limited(database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LiveApi]:
    """With twenty requests for each tenant, and no time in which there come to be more."""
    monkeypatch.setattr("mainspring.wiring.api.RateLimits", partial(RateLimits, now=lambda: 0.0))
    async with open_live_api(database_url, Config(requests_per_second=20)) as opened:
        yield opened


def without_what_differs(answer: Answer) -> Answer:
    """All but ids: the clock of the API stands still."""
    status, headers, body = answer
    headers = dict.fromkeys(("x-request-id", "location", "date", "content-length"), "")
    headers |= {name: value for name, value in answer[1].items() if name not in headers}
    for name in ("id", "request_id"):
        if name in body:
            body[name] = ""
    return status, headers, body


# --- the same answers --------------------------------------------------------------------------

HANDLER = {"type": "handler", "name": "noop"}
HTTP = {"type": "http", "url": "https://a.example/?q=1"}
GOOD: list[Any] = [
    {"target": HANDLER},
    {"target": HTTP, "payload": {"a": [1, 2.50, None, "ü"], "": {}}},
    {"target": {**HTTP, "method": "PUT", "headers": {"X": "y"}}, "name": 'a "name" \\ ü'},
    {"target": {**HTTP, "auth": {"bearer": "hush"}, "secret_headers": {"X-Key": "hush"}}},
    {"target": {"type": "command", "argv": ["ls", "-l"]}, "queue": "q", "priority": 0},
    {"target": {"type": "command", "argv": ["x" * 5000]}},
    {"target": HANDLER, "delay": 5},
    {"target": HANDLER, "delay": "PT1M", "payload": "text"},
    {"target": HANDLER, "run_at": "2027-01-02T03:04:05.000006+02:00", "labels": {"a": "b"}},
    {"target": HANDLER, "delay": 0.25, "expires_at": "2027-01-02T00:00:00Z"},
    {"target": HANDLER, "concurrency": {"key": "k", "limit": 3}, "requires": {"tags": ["gpu"]}},
    {"target": HANDLER, "timeout": 7, "sla": 0, "retry": {"max_attempts": 1, "on": [503]}},
    {"target": HANDLER, "payload": None, "labels": {}},
]
BAD: list[Any] = [
    b"",
    b"{",
    b"null",
    b"[]",
    b"\xff\xfe",
    b'{"target": {"type": "handler", "name": "x"}} ' + b'{"target": 1}',
    b'{"target": {"type": "handler", "name": "x"}, "name": "a", "name": "b"}',
    b'{"target": {"type": "handler", "name": "x"}, "payload": ' + b"[" * 1500 + b"]" * 1500 + b"}",
    {},
    {"target": {"type": "nothing"}},
    {"target": HANDLER, "priority": 10, "queue": "a b"},
    {"target": HANDLER, "delay": 5, "run_at": "2027-01-02T03:04:05Z"},
    {"target": HANDLER, "delay": "PT1X"},
    {"target": HANDLER, "unknown": 1},
    {"target": {"type": "http", "url": "ftp://a.example/"}},
    {"target": HANDLER, "payload": "x" * (2**20 + 1)},
]


def encoded(body: Any) -> bytes:
    return body if isinstance(body, bytes) else msgspec.json.encode(body)


async def test_successes_answer_the_same_on_both_paths(live_api: LiveApi) -> None:
    connection = await live_api.connect()
    await connection.make_known(NOOP)
    for body in map(encoded, GOOD):
        await connection.make_known(body)
        fast, ordinary = await connection.post_fast(body), await connection.post_normally(body)
        assert fast[0] == 201, body
        assert fast[1]["location"] == f"/v1/tasks/{fast[2]['id']}"
        assert UUID(hex=fast[1]["x-request-id"])
        shown = await live_api.api.admin.get(fast[1]["location"])
        assert shown.json() == fast[2], body
        assert without_what_differs(fast) == without_what_differs(ordinary), body
    assert await live_api.count_tasks() == 2 + 4 * len(GOOD)
    assert live_api.answered(201) == live_api.metric("tasks_created_total") == 2 + 4 * len(GOOD)


async def test_failures_answer_the_same_on_both_paths(live_api: LiveApi) -> None:
    connection = await live_api.connect()
    await connection.make_known(NOOP)
    for body in map(encoded, BAD):
        first = await connection.post(body)
        if first[1].get("connection") == "close":
            connection = await live_api.connect()
        asked = live_api.answered(first[0])
        if len(body) < 65_536:  # what is larger may come in pieces
            second = await connection.post_declined(body)
            assert live_api.answered(first[0]) == asked + 1, "each request is counted once"
            assert without_what_differs(second) == without_what_differs(first)
        ordinary = await connection.post_normally(body)
        assert ordinary[0] in (400, 413, 422), body
        assert without_what_differs(first) == without_what_differs(ordinary)
        if ordinary[1].get("connection") == "close":
            connection = await live_api.connect()
    assert await live_api.count_tasks() == 2


async def test_one_key_is_enough(live_api: LiveApi) -> None:
    connection = await live_api.connect()
    keys = ("Idempotency-Key: a", "idempotency-key: b")
    for path in ("/v1/tasks", "/v1/tasks/batch", "/v1/effects"):
        status, _, body = await connection.post(NOOP, *keys, path=path)
        assert (status, body["errors"][0]["pointer"]) == (422, "/headers/Idempotency-Key")
    assert await live_api.count_tasks() == 0


OWN = {
    "Idempotency-Key: k": 201,
    "Idempotency-Key:": 422,
    "X-Request-Id: mine": 201,
    "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01": 201,
    "Expect: 100-continue": 201,
    "Upgrade: h2c": 201,
    "Content-Type: text/xml": 415,
    "Content-Encoding: gzip": 415,
    "Accept: text/html": 406,
}


async def test_heads_that_ask_for_something_of_their_own(live_api: LiveApi) -> None:
    connection = await live_api.connect()
    await connection.make_known(NOOP)
    answers = {}
    for header, status in OWN.items():
        answers[header] = [await connection.post(NOOP, header) for _ in range(3)]
        assert [answer[0] for answer in answers[header]] == [status] * 3, header
        assert live_api.served_fast == [], header
    assert len({body["id"] for _, _, body in answers["Idempotency-Key: k"]}) == 1
    assert {headers["x-request-id"] for _, headers, _ in answers["X-Request-Id: mine"]} == {"mine"}
    assert await live_api.count_tasks() == 2 + 1 + 4 * 3


async def test_a_query_goes_the_ordinary_way(live_api: LiveApi) -> None:
    connection = await live_api.connect()
    await connection.make_known(NOOP)
    for query, status in (("dry_run=true", 200), ("nonsense=1", 422)):
        for _ in range(3):
            assert (await connection.post(NOOP, path=f"/v1/tasks?{query}"))[0] == status
    assert live_api.served_fast == []
    assert await live_api.count_tasks() == 2


# --- who may -----------------------------------------------------------------------------------


async def key_of(live_api: LiveApi, **fields: object) -> tuple[str, str]:
    answer = await live_api.api.admin.post("/v1/keys", {"scopes": ["write"], **fields})
    assert answer.status == 201, answer.body
    return answer.json()["id"], answer.json()["api_key"]


async def test_a_key_that_was_revoked_here_is_refused_at_once(live_api: LiveApi) -> None:
    key_id, secret = await key_of(live_api)
    connection = await live_api.connect(secret)
    await connection.make_known(NOOP)
    await connection.post_fast(NOOP)
    assert (await live_api.api.admin.call("DELETE", f"/v1/keys/{key_id}")).status == 204
    assert (await connection.post_declined(NOOP))[0] == 401
    assert (await (await live_api.connect(secret)).post_declined(NOOP))[0] == 401
    assert await live_api.count_tasks() == 3


async def test_a_key_is_looked_up_again_when_its_time_has_come(
    live_api: LiveApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on the ordinary path: an answer is remembered for four seconds, or until the key ends."""
    now = 1000.0
    monkeypatch.setattr(auth, "monotonic", lambda: now)
    for fields, remembered in (({}, 4.0), ({"expires_in": 2}, 2.0)):
        key_id, secret = await key_of(live_api, **fields)
        connection = await live_api.connect(secret)
        await connection.make_known(NOOP)
        await live_api.api.database.fetch(
            "UPDATE api_keys SET expires_at = clock_timestamp() WHERE id = $1", key_id
        )
        now += remembered - 0.1
        assert (await connection.post_fast(NOOP))[0] == 201
        now += 0.2
        assert (await connection.post_declined(NOOP))[0] == 401


async def test_a_key_that_lives_on_is_served_on_the_spot_again(
    live_api: LiveApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(auth, "monotonic", lambda: now)
    connection = await live_api.connect()
    await connection.make_known(NOOP)
    now += 6.0
    assert (await connection.post_declined(NOOP))[0] == 201
    assert (await connection.post_fast(NOOP))[0] == 201


async def test_keys_that_may_not(live_api: LiveApi) -> None:
    for key, status in (("a:read", 403), ("a:work", 403), ("operator", 403), ("nobody", 401)):
        connection = await live_api.connect(key)
        for _ in range(3):
            answer = await connection.post(NOOP)
            assert answer[0] == status, key
        assert without_what_differs(answer) == without_what_differs(
            await connection.post_normally(NOOP)
        )
    assert True not in live_api.served_fast
    assert await live_api.count_tasks() == 0


async def test_nobody_without_a_key_makes_heads_known(live_api: LiveApi) -> None:
    """They would push out the headers of others."""
    connection = await live_api.connect("nobody")
    for _ in range(3):
        assert (await connection.post(NOOP))[0] == 401
    assert live_api.served_fast == []


async def test_each_key_creates_for_its_own_tenant(live_api: LiveApi) -> None:
    ours, theirs = await live_api.connect("a:all"), await live_api.connect("b:write")
    for connection in (ours, theirs, ours, theirs):
        await connection.make_known(NOOP)
    await ours.post_fast(NOOP)
    await theirs.post_fast(NOOP)
    assert (await live_api.count_tasks("a"), await live_api.count_tasks("b")) == (5, 5)


# --- how many ----------------------------------------------------------------------------------


async def test_every_request_counts_once(limited: LiveApi) -> None:
    connection = await limited.connect()
    await connection.make_known(NOOP)
    bad = NOOP.replace(b"noop", b"no p")
    told = [
        await connection.post_fast(NOOP),
        await connection.post_normally(NOOP),
        await connection.post_declined(bad),
        await connection.post_fast(NOOP),
        await connection.post_normally(bad),
    ]
    assert [answer[0] for answer in told] == [201, 201, 422, 201, 422]
    assert [answer[1]["ratelimit-remaining"] for answer in told] == ["17", "16", "15", "14", "13"]
    assert {answer[1]["ratelimit-limit"] for answer in told} == {"20"}


async def test_too_many_requests_are_refused_on_both_paths(limited: LiveApi) -> None:
    connection = await limited.connect()
    await connection.make_known(NOOP)
    for _ in range(18):
        assert (await connection.post_fast(NOOP))[0] == 201
    refused = await connection.post_declined(NOOP)
    assert (refused[0], refused[1]["retry-after"]) == (429, "1")
    assert without_what_differs(refused) == without_what_differs(
        await connection.post_normally(NOOP)
    )
    assert await limited.count_tasks() == 20


# --- what goes wrong later ---------------------------------------------------------------------


async def test_an_insert_of_which_nothing_is_known(
    live_api: LiveApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(*_: object) -> None:
        raise StoreUnavailable("the connection is gone")

    connection = await live_api.connect()
    await connection.make_known(NOOP)
    monkeypatch.setattr(ingest, "_REREAD_FOR", 0.0)
    monkeypatch.setattr(TaskStore, "create", lost)
    fast = await connection.post_fast(NOOP)
    assert live_api.metric("database_errors_total") == 1
    assert fast[0] == 503
    assert without_what_differs(fast) == without_what_differs(await connection.post_normally(NOOP))
    assert live_api.answered(503) == 2


async def test_an_insert_that_fails(live_api: LiveApi, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object) -> None:
        raise ValueError("our own fault")

    connection = await live_api.connect()
    await connection.make_known(NOOP)
    monkeypatch.setattr(TaskStore, "create", broken)
    fast = await connection.post_fast(NOOP)
    assert fast[0] == 500
    assert without_what_differs(fast) == without_what_differs(await connection.post_normally(NOOP))


async def test_a_tenant_that_is_gone(live_api: LiveApi) -> None:
    connection = await live_api.connect("b:write")
    await connection.make_known(NOOP)
    for table in ("tasks", "api_keys", "tenants"):
        column = "id" if table == "tenants" else "tenant_id"
        await live_api.api.database.fetch(
            f"DELETE FROM {table} WHERE {column} = $1", live_api.api.tenants["b"]
        )
    fast = await connection.post_fast(NOOP)
    assert fast[0] == 403
    assert without_what_differs(fast) == without_what_differs(await connection.post_normally(NOOP))


@dataclass
class HeldInserts:
    """Inserts that are held back."""

    monkeypatch: pytest.MonkeyPatch
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    open: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        create = TaskStore.create

        async def slowly(*arguments: Any) -> Any:
            self.begun.set()
            await self.open.wait()
            return await create(*arguments)

        self.monkeypatch.setattr(TaskStore, "create", slowly)


async def test_a_request_in_flight_is_answered_while_the_server_stops(
    live_api: LiveApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert live_api.listener is not None
    connection, idle = await live_api.connect(), await live_api.connect()
    await connection.make_known(NOOP)
    await idle.post_fast(NOOP)
    held = HeldInserts(monkeypatch)
    connection.send(NOOP)
    await held.begun.wait()
    assert live_api.served_fast == [True, True]
    live_api.listener.server.should_exit = True
    assert await idle.http.read_to_end() == b"", "the server is stopping"
    held.open.set()
    status, headers, _ = await connection.read_response()
    assert (status, headers["connection"]) == (201, "close")
    assert await connection.http.read_to_end() == b""


async def test_a_request_whose_client_left_is_carried_out(
    live_api: LiveApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert live_api.listener is not None
    connection = await live_api.connect()
    await connection.make_known(NOOP)
    held = HeldInserts(monkeypatch)
    connection.send(NOOP)
    await held.begun.wait()
    await connection.http.close()
    held.open.set()
    other = await live_api.connect()
    assert (await other.post_fast(NOOP))[0] == 201
    assert await live_api.count_tasks() == 4
    assert live_api.answered(201) == 4


# --- what is left behind -----------------------------------------------------------------------


async def test_requests_leave_no_rings_behind(live_api: LiveApi) -> None:
    """Objects that refer to one another in a ring are found by the collector alone, when they have
    grown cold: at thousands of requests a second that is what takes the time."""
    connection = await live_api.connect()
    for _ in range(5):
        await connection.post(NOOP)
        await connection.post_normally(NOOP)
    gc.collect()
    gc.disable()
    try:
        for _ in range(50):
            await connection.post_fast(NOOP)
        fast = gc.collect()
        for _ in range(50):
            await connection.post_normally(NOOP)
        ordinary = gc.collect()
    finally:
        gc.enable()
    assert (fast < 50, ordinary < 50) == (True, True), (fast, ordinary)
