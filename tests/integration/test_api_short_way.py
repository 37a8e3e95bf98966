"""Creates that are served on the spot, beside the same ones on the ordinary way: none can tell."""

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
from support.street import Answer, Street, opened_street

NOOP = b'{"target": {"type": "handler", "name": "noop"}}'


@pytest.fixture
async def street(database_url: str) -> AsyncIterator[Street]:
    async with opened_street(database_url, Config()) as opened:
        yield opened


@pytest.fixture
async def limited(database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Street]:
    """With twenty requests for each tenant, and no time in which there come to be more."""
    monkeypatch.setattr("mainspring.wiring.api.RateLimits", partial(RateLimits, now=lambda: 0.0))
    async with opened_street(database_url, Config(requests_per_second=20)) as opened:
        yield opened


def without_what_differs(answer: Answer) -> Answer:
    """All but ids: the office's clock stands still."""
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


async def test_what_succeeds_is_told_the_same(street: Street) -> None:
    caller = await street.caller()
    await caller.is_known(NOOP)
    for body in map(encoded, GOOD):
        await caller.is_known(body)
        fast, ordinary = await caller.on_the_spot(body), await caller.ordinarily(body)
        assert fast[0] == 201, body
        assert fast[1]["location"] == f"/v1/tasks/{fast[2]['id']}"
        assert UUID(hex=fast[1]["x-request-id"])
        shown = await street.office.admin.get(fast[1]["location"])
        assert shown.json() == fast[2], body
        assert without_what_differs(fast) == without_what_differs(ordinary), body
    assert await street.counted() == 2 + 4 * len(GOOD)
    assert street.answered(201) == street.metric("tasks_created_total") == 2 + 4 * len(GOOD)


async def test_what_fails_is_told_the_same(street: Street) -> None:
    caller = await street.caller()
    await caller.is_known(NOOP)
    for body in map(encoded, BAD):
        first = await caller.post(body)
        if first[1].get("connection") == "close":
            caller = await street.caller()
        asked = street.answered(first[0])
        if len(body) < 65_536:  # what is larger may come in pieces
            second = await caller.declined(body)
            assert street.answered(first[0]) == asked + 1, "each request is counted once"
            assert without_what_differs(second) == without_what_differs(first)
        ordinary = await caller.ordinarily(body)
        assert ordinary[0] in (400, 413, 422), body
        assert without_what_differs(first) == without_what_differs(ordinary)
        if ordinary[1].get("connection") == "close":
            caller = await street.caller()
    assert await street.counted() == 2


async def test_one_key_is_enough(street: Street) -> None:
    caller = await street.caller()
    keys = ("Idempotency-Key: a", "idempotency-key: b")
    for path in ("/v1/tasks", "/v1/tasks/batch", "/v1/effects"):
        status, _, said = await caller.post(NOOP, *keys, path=path)
        assert (status, said["errors"][0]["pointer"]) == (422, "/headers/Idempotency-Key")
    assert await street.counted() == 0


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


async def test_heads_that_ask_for_something_of_their_own(street: Street) -> None:
    caller = await street.caller()
    await caller.is_known(NOOP)
    answers = {}
    for header, status in OWN.items():
        answers[header] = [await caller.post(NOOP, header) for _ in range(3)]
        assert [answer[0] for answer in answers[header]] == [status] * 3, header
        assert street.ways == [], header
    assert len({body["id"] for _, _, body in answers["Idempotency-Key: k"]}) == 1
    assert {headers["x-request-id"] for _, headers, _ in answers["X-Request-Id: mine"]} == {"mine"}
    assert await street.counted() == 2 + 1 + 4 * 3


async def test_a_query_goes_the_ordinary_way(street: Street) -> None:
    caller = await street.caller()
    await caller.is_known(NOOP)
    for query, status in (("dry_run=true", 200), ("nonsense=1", 422)):
        for _ in range(3):
            assert (await caller.post(NOOP, path=f"/v1/tasks?{query}"))[0] == status
    assert street.ways == []
    assert await street.counted() == 2


# --- who may -----------------------------------------------------------------------------------


async def key_of(street: Street, **fields: object) -> tuple[str, str]:
    answer = await street.office.admin.post("/v1/keys", {"scopes": ["write"], **fields})
    assert answer.status == 201, answer.body
    return answer.json()["id"], answer.json()["api_key"]


async def test_a_key_that_was_revoked_here_is_refused_at_once(street: Street) -> None:
    key_id, secret = await key_of(street)
    caller = await street.caller(secret)
    await caller.is_known(NOOP)
    await caller.on_the_spot(NOOP)
    assert (await street.office.admin.call("DELETE", f"/v1/keys/{key_id}")).status == 204
    assert (await caller.declined(NOOP))[0] == 401
    assert (await (await street.caller(secret)).declined(NOOP))[0] == 401
    assert await street.counted() == 3


async def test_a_key_is_looked_up_again_when_its_time_has_come(
    street: Street, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on the ordinary way: an answer is remembered for four seconds, or until the key ends."""
    now = 1000.0
    monkeypatch.setattr(auth, "monotonic", lambda: now)
    for fields, remembered in (({}, 4.0), ({"expires_in": 2}, 2.0)):
        key_id, secret = await key_of(street, **fields)
        caller = await street.caller(secret)
        await caller.is_known(NOOP)
        await street.office.database.fetch(
            "UPDATE api_keys SET expires_at = clock_timestamp() WHERE id = $1", key_id
        )
        now += remembered - 0.1
        assert (await caller.on_the_spot(NOOP))[0] == 201
        now += 0.2
        assert (await caller.declined(NOOP))[0] == 401


async def test_a_key_that_lives_on_is_served_on_the_spot_again(
    street: Street, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(auth, "monotonic", lambda: now)
    caller = await street.caller()
    await caller.is_known(NOOP)
    now += 6.0
    assert (await caller.declined(NOOP))[0] == 201
    assert (await caller.on_the_spot(NOOP))[0] == 201


async def test_keys_that_may_not(street: Street) -> None:
    for key, status in (("a:read", 403), ("a:work", 403), ("operator", 403), ("nobody", 401)):
        caller = await street.caller(key)
        for _ in range(3):
            answer = await caller.post(NOOP)
            assert answer[0] == status, key
        assert without_what_differs(answer) == without_what_differs(await caller.ordinarily(NOOP))
    assert True not in street.ways
    assert await street.counted() == 0


async def test_nobody_without_a_key_makes_heads_known(street: Street) -> None:
    """So many others would be forgotten for theirs."""
    caller = await street.caller("nobody")
    for _ in range(3):
        assert (await caller.post(NOOP))[0] == 401
    assert street.ways == []


async def test_each_key_creates_for_its_own_tenant(street: Street) -> None:
    ours, theirs = await street.caller("a:all"), await street.caller("b:write")
    for caller in (ours, theirs, ours, theirs):
        await caller.is_known(NOOP)
    await ours.on_the_spot(NOOP)
    await theirs.on_the_spot(NOOP)
    assert (await street.counted("a"), await street.counted("b")) == (5, 5)


# --- how many ----------------------------------------------------------------------------------


async def test_every_request_counts_once(limited: Street) -> None:
    caller = await limited.caller()
    await caller.is_known(NOOP)
    bad = NOOP.replace(b"noop", b"no p")
    told = [
        await caller.on_the_spot(NOOP),
        await caller.ordinarily(NOOP),
        await caller.declined(bad),
        await caller.on_the_spot(NOOP),
        await caller.ordinarily(bad),
    ]
    assert [answer[0] for answer in told] == [201, 201, 422, 201, 422]
    assert [answer[1]["ratelimit-remaining"] for answer in told] == ["17", "16", "15", "14", "13"]
    assert {answer[1]["ratelimit-limit"] for answer in told} == {"20"}


async def test_who_comes_too_often_is_told_so(limited: Street) -> None:
    caller = await limited.caller()
    await caller.is_known(NOOP)
    for _ in range(18):
        assert (await caller.on_the_spot(NOOP))[0] == 201
    refused = await caller.declined(NOOP)
    assert (refused[0], refused[1]["retry-after"]) == (429, "1")
    assert without_what_differs(refused) == without_what_differs(await caller.ordinarily(NOOP))
    assert await limited.counted() == 20


# --- what goes wrong later ---------------------------------------------------------------------


async def test_an_insert_of_which_nothing_is_known(
    street: Street, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(*_: object) -> None:
        raise StoreUnavailable("the connection is gone")

    caller = await street.caller()
    await caller.is_known(NOOP)
    monkeypatch.setattr(ingest, "_REREAD_FOR", 0.0)
    monkeypatch.setattr(TaskStore, "create", lost)
    fast = await caller.on_the_spot(NOOP)
    assert street.metric("database_errors_total") == 1
    assert fast[0] == 503
    assert without_what_differs(fast) == without_what_differs(await caller.ordinarily(NOOP))
    assert street.answered(503) == 2


async def test_an_insert_that_fails(street: Street, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object) -> None:
        raise ValueError("our own fault")

    caller = await street.caller()
    await caller.is_known(NOOP)
    monkeypatch.setattr(TaskStore, "create", broken)
    fast = await caller.on_the_spot(NOOP)
    assert fast[0] == 500
    assert without_what_differs(fast) == without_what_differs(await caller.ordinarily(NOOP))


async def test_a_tenant_that_is_gone(street: Street) -> None:
    caller = await street.caller("b:write")
    await caller.is_known(NOOP)
    for table in ("tasks", "api_keys", "tenants"):
        column = "id" if table == "tenants" else "tenant_id"
        await street.office.database.fetch(
            f"DELETE FROM {table} WHERE {column} = $1", street.office.tenants["b"]
        )
    fast = await caller.on_the_spot(NOOP)
    assert fast[0] == 403
    assert without_what_differs(fast) == without_what_differs(await caller.ordinarily(NOOP))


@dataclass
class Held:
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


async def test_who_waits_while_the_server_stops_is_still_answered(
    street: Street, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert street.doorway is not None
    caller, idle = await street.caller(), await street.caller()
    await caller.is_known(NOOP)
    await idle.on_the_spot(NOOP)
    held = Held(monkeypatch)
    caller.say(NOOP)
    await held.begun.wait()
    assert street.ways == [True, True]
    street.doorway.server.should_exit = True
    assert await idle.visitor.hear_the_end() == b"", "the server is stopping"
    held.open.set()
    status, headers, _ = await caller.hear()
    assert (status, headers["connection"]) == (201, "close")
    assert await caller.visitor.hear_the_end() == b""


async def test_what_a_caller_asked_for_who_left_is_done(
    street: Street, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert street.doorway is not None
    caller = await street.caller()
    await caller.is_known(NOOP)
    held = Held(monkeypatch)
    caller.say(NOOP)
    await held.begun.wait()
    await caller.visitor.leave()
    held.open.set()
    other = await street.caller()
    assert (await other.on_the_spot(NOOP))[0] == 201
    assert await street.counted() == 4
    assert street.answered(201) == 4


# --- what is left behind -----------------------------------------------------------------------


async def test_requests_leave_no_rings_behind(street: Street) -> None:
    """Objects that refer to one another in a ring are found by the collector alone, when they have
    grown cold: at thousands of requests a second that is what takes the time."""
    caller = await street.caller()
    for _ in range(5):
        await caller.post(NOOP)
        await caller.ordinarily(NOOP)
    gc.collect()
    gc.disable()
    try:
        for _ in range(50):
            await caller.on_the_spot(NOOP)
        spot = gc.collect()
        for _ in range(50):
            await caller.ordinarily(NOOP)
        ordinary = gc.collect()
    finally:
        gc.enable()
    assert (spot < 50, ordinary < 50) == (True, True), (spot, ordinary)
