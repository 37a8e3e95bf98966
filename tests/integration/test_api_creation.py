"""Creating tasks: what reads the same, what is told to whom, and one task under one key."""

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from support.listening_api import NOOP, ListeningApi, listening_api

FIELDS = [
    "id",
    "name",
    "state",
    "cancel_requested",
    "target",
    "payload",
    "run_at",
    "due_at",
    "queue",
    "priority",
    "timeout",
    "retry",
    "labels",
    "attempts",
    "fence",
    "created_at",
    "picked_at",
    "started_at",
    "finished_at",
    "result",
    "error",
    "sla",
    "sla_met",
    "blame",
    "lateness",
    "schedule_id",
    "nominal_at",
    "progress",
    "workflow_run_id",
    "step",
    "replay_of",
    "expires_at",
    "jitter",
    "concurrency",
    "requires",
]


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[ListeningApi]:
    async with listening_api(database_url) as opened:
        yield opened


async def test_what_was_created_reads_the_same(api: ListeningApi) -> None:
    body = {
        "target": {"type": "http", "url": "https://a.example/", "headers": {"X-A": "1"}},
        "name": "n",
        "payload": {"user": 7},
        "delay": 3600,
        "jitter": 60,
        "labels": {"a": "b"},
        "concurrency": {"key": "k", "limit": 2},
        "requires": {"tags": ["gpu"]},
        "expires_at": "2099-01-01T00:00:00.25+01:00",
    }
    created = await api.a.post("/v1/tasks", body)
    assert created.status == 422  # too far ahead
    body["expires_at"] = "2030-01-01T00:00:00.25+01:00"
    created = await api.a.post("/v1/tasks", body)
    assert (created.status, created.headers["etag"]) == (201, '"1"')
    read = await api.a.get(created.headers["location"])
    assert (read.status, read.headers["etag"]) == (200, '"1"')
    assert read.json() == created.json()
    assert sorted(read.json()) == sorted(FIELDS)
    assert read.json()["expires_at"] == "2029-12-31T23:00:00.250000Z"
    assert read.json()["state"] == "scheduled"
    assert read.json()["lateness"] == {}


async def test_payload_bytes_survive(api: ListeningApi) -> None:
    body = b'{"target":{"type":"handler","name":"x"},"payload":{"z":1E2,"a":"\\u0061"}}'
    created = await api.a.post("/v1/tasks", body)
    read = await api.a.get(created.headers["location"])
    assert b'"payload":{"z":1E2,"a":"\\u0061"}' in read.body


async def test_only_near_tasks_are_announced_to_the_owner(api: ListeningApi) -> None:
    near = await api.make(priority=9)
    await api.make(delay=86400)
    assert [(str(row.id), row.priority, row.rev) for row in api.node.rows] == [(near["id"], 9, 1)]
    api.node.owned = frozenset()
    await api.make()
    assert len(api.node.rows) == 1
    assert len(api.node.hinted) == 1
    assert await api.count("wakes") == 3 - 1  # no such node row: the first was woken as well


async def test_concurrent_creates_share_statements(api: ListeningApi) -> None:
    answers = await asyncio.gather(*(api.make(name=str(n)) for n in range(300)))
    assert len({answer["id"] for answer in answers}) == 300
    assert await api.count() == 300
    assert api.tasks.statements < 30


async def test_one_bad_row_does_not_fail_the_others(api: ListeningApi) -> None:
    await api.database.fetch("ALTER TABLE tasks ADD CHECK (name <> 'bad')")
    names = [*map(str, range(20)), "bad"]
    answers = await asyncio.gather(
        *(api.a.post("/v1/tasks", {"target": NOOP, "name": name}) for name in names)
    )
    assert [answer.status for answer in answers] == [201] * 20 + [422]
    assert await api.count() == 20


async def test_an_answer_lost_after_the_commit_is_read_again(api: ListeningApi) -> None:
    api.tasks.lose_answer = True
    task = await api.make()
    assert [str(row.id) for row in api.node.rows] == [task["id"]]
    assert await api.count() == 1


async def test_every_member_of_a_batch_gets_its_result(api: ListeningApi) -> None:
    api.tasks.lose_answer = True
    clients = [api.a, api.b] * 20
    answers = await asyncio.gather(*(c.post("/v1/tasks", {"target": NOOP}) for c in clients))
    assert {answer.status for answer in answers} == {201}
    assert len(api.node.rows) == await api.count() == 40


async def test_an_insert_that_did_not_happen_is_not_acknowledged(api: ListeningApi) -> None:
    api.tasks.lose_request = True
    answer = await api.a.post("/v1/tasks", {"target": NOOP})
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert "Idempotency-Key" in answer.json()["detail"]


@pytest.fixture
async def generous(api: ListeningApi) -> ListeningApi:
    """A node that is in the cluster and offers eager leases."""
    await api.database.fetch(
        "INSERT INTO nodes (id, name, version) VALUES ($1, 'one', '0')", UUID(int=1)
    )
    api.node.offers = True
    return api


async def test_an_eager_lease_is_announced_and_other_tasks_as_waiting(
    generous: ListeningApi,
) -> None:
    now = UUID((await generous.make())["id"])
    later = UUID((await generous.make(delay=20))["id"])
    assert generous.node.leased == [([now], [now]), ([later], [])]
    assert [row.id for row in generous.node.rows] == [later]
    states = await generous.database.fetch("SELECT id, state, rev FROM tasks ORDER BY id")
    assert [tuple(row) for row in states] == [(now, "running", 2), (later, "scheduled", 1)]


async def test_after_a_lost_answer_the_node_recovers_its_own_offers(
    generous: ListeningApi,
) -> None:
    generous.tasks.lose_answer = True
    task_id = UUID((await generous.make())["id"])
    assert generous.node.leased == [([task_id], None)]
    assert generous.node.rows == [], "told of by two, it might be started twice"


async def test_every_offer_is_ended_also_where_the_insert_is_refused(
    generous: ListeningApi,
) -> None:
    await generous.database.fetch("ALTER TABLE tasks ADD CHECK (name <> 'bad')")
    answer = await generous.a.post("/v1/tasks", {"target": NOOP, "name": "bad"})
    assert answer.status == 422
    assert [leased for _, leased in generous.node.leased] == [[]]


@pytest.mark.parametrize("kind", ["application/json", "application/x-ndjson"])
async def test_a_batch_is_all_or_nothing(api: ListeningApi, kind: str) -> None:
    def body(*tasks: str) -> bytes:
        joined = ("\n" if "nd" in kind else ",").join(tasks)
        return (joined if "nd" in kind else f'{{"tasks":[{joined}]}}').encode()

    good = '{"target":{"type":"handler","name":"mainspring.noop"}}'
    answer = await api.a.post("/v1/tasks/batch", body(*[good] * 1500), content_type=kind)
    assert (answer.status, len(answer.json()["ids"])) == (201, 1500)
    assert await api.count() == 1500
    bad = good[:-1] + ',"delay":"soon"}'
    answer = await api.a.post("/v1/tasks/batch", body(good, bad), content_type=kind)
    assert (answer.status, answer.pointers()) == (422, ["/tasks/1/delay"])
    assert await api.count() == 1500


async def test_a_dry_run_inserts_nothing(api: ListeningApi) -> None:
    answer = await api.a.post("/v1/tasks?dry_run=true", {"target": NOOP})
    assert (answer.status, answer.json()["state"]) == (200, "scheduled")
    assert await api.count() == 0


async def test_a_hundred_creates_under_one_key_make_one_task(api: ListeningApi) -> None:
    body = {"target": NOOP}
    answers = await asyncio.gather(
        *(api.a.post("/v1/tasks", body, idempotency_key="k") for _ in range(100))
    )
    assert {answer.status for answer in answers} == {201}
    assert len({answer.body for answer in answers}) == 1
    assert len({answer.headers["location"] for answer in answers}) == 1
    assert sum("idempotency-replayed" in answer.headers for answer in answers) == 99
    assert await api.count() == 1


async def test_two_nodes_agree_on_who_was_first(api: ListeningApi) -> None:
    other = api.another_node()
    answers = await asyncio.gather(
        *(
            client.post("/v1/tasks", {"target": NOOP}, idempotency_key=f"k{n % 5}")
            for n in range(100)
            for client in (api.a, other)
        )
    )
    assert {answer.status for answer in answers} == {201}
    assert len({answer.body for answer in answers}) == 5
    assert await api.count() == 5


async def test_the_database_remembers_the_key(api: ListeningApi) -> None:
    """Another node, or this one later: the same body gets the same answer, also once it would be
    refused as new; another body is refused; another tenant is another matter."""
    body = {"target": NOOP, "expires_at": "2030-01-01T00:00:00Z"}
    first = await api.a.post("/v1/tasks", body, idempotency_key="k")
    again = await api.a.post("/v1/tasks", body, idempotency_key="k")
    assert (again.status, again.body) == (201, first.body)
    assert again.headers["idempotency-replayed"] == "true"
    api.clock.advance(5 * 366 * 86400)
    again = await api.a.post("/v1/tasks", body, idempotency_key="k")
    assert (again.status, again.body) == (201, first.body)
    other = await api.a.post("/v1/tasks", {"target": NOOP}, idempotency_key="k")
    assert other.status == 422
    assert other.json()["type"] == "urn:mainspring:problem:idempotency-key-reused"
    batch = {"tasks": [{"target": NOOP}]}
    assert (await api.a.post("/v1/tasks/batch", batch, idempotency_key="k")).status == 422
    assert (await api.b.post("/v1/tasks", {"target": NOOP}, idempotency_key="k")).status == 201
    assert await api.count() == 2


async def test_after_a_failed_first_request_the_next_one_runs(api: ListeningApi) -> None:
    bad = await api.a.post("/v1/tasks", {"target": NOOP, "priority": 99}, idempotency_key="k")
    assert bad.status == 422
    assert (await api.a.post("/v1/tasks", {"target": NOOP}, idempotency_key="k")).status == 201
    assert (await api.a.post("/v1/tasks", {"target": NOOP}, idempotency_key="\x7f")).status == 422
