"""The API over a real database, with a node that only listens."""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any
from uuid import UUID, uuid4

import pytest

from mainspring.api.app import ApiDependencies, build_app
from mainspring.clock import ManualClock
from mainspring.config import Config
from mainspring.domain.execution import Report
from mainspring.domain.ids import TaskIds
from mainspring.domain.placement import Tenure
from mainspring.domain.rows import TaskRow
from mainspring.engine.explain import Situation
from mainspring.errors import StoreUnavailable
from mainspring.observe.metrics import Metrics
from mainspring.store.database import Database, DatabaseOptions
from mainspring.store.keys import Keys, NewKey
from mainspring.store.tasks import Creation, Tasks
from support.api import QuietDesk
from support.asgi import Answer, AsgiClient

NOOP = {"type": "handler", "name": "mainspring.noop"}
ALL = frozenset({"read", "write"})


@dataclass
class ListeningNode:
    """A node that remembers what it was told."""

    owned: frozenset[int] = frozenset(range(256))
    is_ready: bool = True
    rows: list[TaskRow] = field(default_factory=list)
    hinted: set[int] = field(default_factory=set)
    changes: int = 0

    def tenure(self) -> Tenure:
        return Tenure(UUID(int=1), 1, self.owned)

    def created(self, rows: Sequence[TaskRow]) -> None:
        self.rows.extend(rows)

    def changed(self) -> None:
        self.changes += 1

    def hint_others(self, partitions: Collection[int]) -> None:
        self.hinted.update(partitions)

    def explain(self, row: TaskRow) -> Situation:
        return Situation()

    async def conclude(self, report: Report) -> bool:
        return False

    def ready(self) -> bool:
        return self.is_ready


class FragileTasks(Tasks):
    """A store whose next insert can be made to fail around its commit."""

    statements = 0
    lose_answer = False
    lose_request = False

    async def create(self, creations: Sequence[Creation], tenure: Tenure) -> dict[UUID, int]:
        self.statements += 1
        if self.lose_request:
            raise StoreUnavailable("lost before")
        made = await super().create(creations, tenure)
        if self.lose_answer:
            raise StoreUnavailable("lost after")
        return made


@dataclass
class Api:
    """The application under test and what stands around it."""

    deps: ApiDependencies
    database: Database
    tasks: FragileTasks
    node: ListeningNode
    clock: ManualClock
    a: AsgiClient
    b: AsgiClient
    reader: AsgiClient
    operator: AsgiClient
    stranger: AsgiClient

    def another_node(self) -> AsgiClient:
        """A second application over the same database, which shares no memory with the first."""
        return AsgiClient(build_app(replace(self.deps, ids=TaskIds(Random(3)))), "a")

    async def make(self, **fields: object) -> dict[str, Any]:
        answer = await self.a.post("/v1/tasks", {"target": NOOP, **fields})
        assert answer.status == 201, answer.body
        made: dict[str, Any] = answer.json()
        return made

    async def count(self, table: str = "tasks") -> int:
        rows = await self.database.fetch(f"SELECT count(*) AS n FROM {table}")
        return int(rows[0]["n"])

    async def start(self, task_id: str) -> None:
        """Put a task into the state that a claim leaves behind."""
        await self.database.fetch(
            "UPDATE tasks SET state = 'running', fence = 1, attempts = 1, worker = 'w',"
            " rev = rev + 1, picked_at = clock_timestamp(),"
            " lease_until = clock_timestamp() + interval '1 minute'"
            " WHERE id = $1::uuid",
            UUID(task_id),
        )


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    database = Database(DatabaseOptions(database_url, connections=5))
    await database.open()
    keys = Keys(database)
    await _add_keys(keys)
    config = Config(max_batch=2000, max_payload=5000, max_body=2**20)
    now = await database.fetch("SELECT extract(epoch FROM clock_timestamp())::float8 AS now")
    clock = ManualClock(now[0]["now"])
    node = ListeningNode()
    tasks = FragileTasks(database, near=config.near)
    ids = TaskIds(Random(1))
    deps = ApiDependencies(
        config, clock, tasks, keys, ids, Random(2), node, Metrics(), database, QuietDesk()
    )
    app = build_app(deps)
    clients = {k: AsgiClient(app, k) for k in ("a", "b", "reader", "operator", "stranger")}
    yield Api(deps, database, tasks, node, clock, **clients)
    await database.close()


async def _add_keys(keys: Keys) -> None:
    tenant_a, tenant_b = await keys.ensure_tenant("a"), await keys.ensure_tenant("b")
    await keys.add(NewKey("1", "a", tenant_a, ALL))
    await keys.add(NewKey("2", "b", tenant_b, ALL))
    await keys.add(NewKey("3", "reader", tenant_a, frozenset({"read"})))
    await keys.add(NewKey("4", "operator", None, frozenset(), operator=True))


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
    "workflow_run_id",
    "step",
    "replay_of",
    "expires_at",
    "jitter",
    "concurrency",
    "requires",
]


async def test_what_was_created_reads_the_same(api: Api) -> None:
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


async def test_payload_bytes_survive(api: Api) -> None:
    body = b'{"target":{"type":"handler","name":"x"},"payload":{"z":1,"a":"\\u0000"}}'
    created = await api.a.post("/v1/tasks", body)
    read = await api.a.get(created.headers["location"])
    assert b'"payload":{"z":1,"a":"\\u0000"}' in read.body


async def test_the_owner_hears_of_near_tasks_only(api: Api) -> None:
    near = await api.make(priority=9)
    await api.make(delay=86400)
    assert [(str(row.id), row.priority, row.rev) for row in api.node.rows] == [(near["id"], 9, 1)]
    api.node.owned = frozenset()
    await api.make()
    assert len(api.node.rows) == 1
    assert len(api.node.hinted) == 1
    assert await api.count("wakes") == 3 - 1  # no such node row: the first was woken as well


async def test_concurrent_creates_share_statements(api: Api) -> None:
    answers = await asyncio.gather(*(api.make(name=str(n)) for n in range(300)))
    assert len({answer["id"] for answer in answers}) == 300
    assert await api.count() == 300
    assert api.tasks.statements < 30


async def test_one_bad_row_does_not_fail_the_others(api: Api) -> None:
    await api.database.fetch("ALTER TABLE tasks ADD CHECK (name <> 'bad')")
    names = [*map(str, range(20)), "bad"]
    answers = await asyncio.gather(
        *(api.a.post("/v1/tasks", {"target": NOOP, "name": name}) for name in names)
    )
    assert [answer.status for answer in answers] == [201] * 20 + [422]
    assert await api.count() == 20


async def test_an_answer_lost_after_the_commit_is_read_again(api: Api) -> None:
    api.tasks.lose_answer = True
    task = await api.make()
    assert [str(row.id) for row in api.node.rows] == [task["id"]]
    assert await api.count() == 1


async def test_every_member_of_a_group_hears_what_became_of_it(api: Api) -> None:
    api.tasks.lose_answer = True
    clients = [api.a, api.b] * 20
    answers = await asyncio.gather(*(c.post("/v1/tasks", {"target": NOOP}) for c in clients))
    assert {answer.status for answer in answers} == {201}
    assert len(api.node.rows) == await api.count() == 40


async def test_an_insert_that_did_not_happen_is_not_acknowledged(api: Api) -> None:
    api.tasks.lose_request = True
    answer = await api.a.post("/v1/tasks", {"target": NOOP})
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert "Idempotency-Key" in answer.json()["detail"]


@pytest.mark.parametrize("kind", ["application/json", "application/x-ndjson"])
async def test_a_batch_is_all_or_nothing(api: Api, kind: str) -> None:
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


async def test_a_dry_run_inserts_nothing(api: Api) -> None:
    answer = await api.a.post("/v1/tasks?dry_run=true", {"target": NOOP})
    assert (answer.status, answer.json()["state"]) == (200, "scheduled")
    assert await api.count() == 0


async def test_a_hundred_creates_under_one_key_make_one_task(api: Api) -> None:
    body = {"target": NOOP}
    answers = await asyncio.gather(
        *(api.a.post("/v1/tasks", body, idempotency_key="k") for _ in range(100))
    )
    assert {answer.status for answer in answers} == {201}
    assert len({answer.body for answer in answers}) == 1
    assert len({answer.headers["location"] for answer in answers}) == 1
    assert sum("idempotency-replayed" in answer.headers for answer in answers) == 99
    assert await api.count() == 1


async def test_two_nodes_agree_on_who_was_first(api: Api) -> None:
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


async def test_the_database_remembers_the_key(api: Api) -> None:
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


async def test_a_failed_first_request_lets_the_next_one_try(api: Api) -> None:
    bad = await api.a.post("/v1/tasks", {"target": NOOP, "priority": 99}, idempotency_key="k")
    assert bad.status == 422
    assert (await api.a.post("/v1/tasks", {"target": NOOP}, idempotency_key="k")).status == 201
    assert (await api.a.post("/v1/tasks", {"target": NOOP}, idempotency_key="\x7f")).status == 422


async def test_keys_and_scopes(api: Api) -> None:
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


async def test_health_and_readiness(api: Api) -> None:
    assert (await api.stranger.get("/healthz")).status == 200
    assert (await api.stranger.get("/readyz")).status == 200
    api.node.is_ready = False
    assert (await api.stranger.get("/readyz")).status == 503
    assert (await api.stranger.get("/healthz")).status == 200


async def test_wrong_methods_and_routes(api: Api) -> None:
    wrong = await api.a.call("PUT", "/v1/tasks")
    assert (wrong.status, wrong.headers["allow"]) == (405, "GET, HEAD, POST")
    assert (await api.a.get("/v1/nothing")).status == 404
    assert (await api.a.get("/v1/tasks/")).status == 404


async def test_another_tenants_task_looks_like_none(api: Api) -> None:
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


async def verb(api: Api, task: dict[str, Any], name: str) -> Answer:
    return await api.a.post(f"/v1/tasks/{task['id']}/{name}")


async def test_the_life_of_a_waiting_task(api: Api) -> None:
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


async def test_a_running_task_is_asked_to_stop(api: Api) -> None:
    api.node.owned = frozenset()
    task = await api.make()
    await api.start(task["id"])
    api.node.hinted.clear()
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


async def test_editing(api: Api) -> None:
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


async def test_editing_has_rules(api: Api) -> None:
    task = await api.make(delay=3600)
    url = f"/v1/tasks/{task['id']}"
    bad = {"concurrency": {"key": "k"}, "target": {"type": "http", "url": "x"}, "delay": "soon"}
    answer = await api.a.call("PATCH", url, bad)
    assert answer.status == 422
    assert answer.pointers() == ["/concurrency", "/target/url", "/delay"]
    both = {"run_at": "2027-01-01T00:00:00Z", "delay": 1}
    assert (await api.a.call("PATCH", url, both)).pointers() == ["/delay"]
    early = await api.a.call("PATCH", url, {"expires_at": "2020-01-01T00:00:00Z"})
    assert early.pointers() == ["/expires_at"]
    await verb(api, task, "cancel")
    assert (await api.a.call("PATCH", url, {"priority": 1})).status == 409


async def test_deleting_leaves_nothing_but_the_audit(api: Api) -> None:
    for finished in (False, True):
        task = await api.make(delay=3600)
        if finished:
            await verb(api, task, "cancel")
        url = f"/v1/tasks/{task['id']}"
        assert (await api.a.call("DELETE", url)).status == 204
        assert (await api.a.call("DELETE", url)).status == 404
        assert (await api.a.get(url)).status == 404
    assert await api.count("audit") == 2


async def test_executions(api: Api) -> None:
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


async def test_listing(api: Api) -> None:
    tasks = [
        await api.make(name=f"n{n}", queue="q" if n % 2 else "default", labels={"n": str(n)})
        for n in range(7)
    ]
    await verb(api, tasks[0], "cancel")
    seen, cursor = [], ""
    while True:
        page = (await api.a.get(f"/v1/tasks?limit=3{cursor}")).json()
        seen += [item["name"] for item in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert seen == [f"n{n}" for n in range(6, -1, -1)]

    async def names(query: str) -> list[str]:
        items = (await api.a.get(f"/v1/tasks?{query}")).json()["items"]
        return [item["name"] for item in items]

    assert await names("state=cancelled") == ["n0"]
    assert await names("queue=q") == ["n5", "n3", "n1"]
    assert await names("name=n4") == ["n4"]
    assert await names("label=n:2") == ["n2"]
    assert await names("label=n:2&label=n2:x") == []
    assert await names("due_after=2100-01-01T00:00:00Z") == []
    assert len(await names("due_before=2100-01-01T00:00:00Z")) == 7
    assert await names("name='%20OR%201=1%20--") == []
    first = (await api.a.get("/v1/tasks?limit=1")).json()["items"][0]
    assert "payload" not in first
    first = (await api.a.get("/v1/tasks?limit=1&payload=true")).json()["items"][0]
    assert first["payload"] == {}
    assert (await api.a.get("/v1/tasks?queue=%00")).status == 422


async def test_a_lost_database_is_told_as_such(api: Api) -> None:
    task = await api.make()
    await api.database.close()
    answer = await api.a.get(f"/v1/tasks/{task['id']}")
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
