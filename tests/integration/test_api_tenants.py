"""Tenants, limits and the cluster, for operators."""

from typing import Any
from uuid import UUID

import pytest

from mainspring.config import Config
from mainspring.store.tenants import TenantStore
from mainspring.store.upkeep.housekeeping import HousekeepingStore
from support.in_process_api import InProcessApi, open_api

NOOP = {"target": {"type": "handler", "name": "mainspring.noop"}, "delay": 3600}
NODES = (UUID(int=1), UUID(int=2), UUID(int=3))


async def make_tenant(api: InProcessApi, name: str = "acme", **fields: object) -> dict[str, Any]:
    answer = await api.operator.post("/v1/tenants", {"name": name, **fields})
    assert answer.status == 201, answer.body
    made: dict[str, Any] = answer.json()
    return made


async def edit(api: InProcessApi, tenant: dict[str, Any], **fields: object) -> dict[str, Any]:
    answer = await api.operator.call("PATCH", f"/v1/tenants/{tenant['id']}", fields)
    assert answer.status == 200, answer.body
    changed: dict[str, Any] = answer.json()
    return changed


async def test_a_tenant_comes_with_a_first_key(api: InProcessApi) -> None:
    made = await make_tenant(api)
    assert made["api_key"].startswith("ms_live_")
    assert (made["weight"], made["max_running"], made["spread"]) == (1, None, 256)
    first = api.client(made["api_key"])
    assert (await first.post("/v1/tasks", NOOP)).status == 201
    keys = (await first.get("/v1/keys")).json()["items"]
    assert [(key["name"], key["scopes"]) for key in keys] == [
        ("first", ["admin", "read", "work", "write"])
    ]
    shown = await api.operator.get(f"/v1/tenants/{made['id']}")
    assert made["api_key"].encode() not in shown.body
    assert {**shown.json(), "api_key": made["api_key"]} == made
    audit = (await first.get("/v1/audit")).json()["items"]
    assert [entry["action"] for entry in audit] == ["key.created", "tenant.created"]


async def test_a_name_is_taken_once(api: InProcessApi) -> None:
    await make_tenant(api)
    assert (await api.operator.post("/v1/tenants", {"name": "acme"})).status == 409


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, ""),
        ({"name": ""}, "/name"),
        ({"name": "a\n"}, "/name"),
        ({"name": "x" * 101}, "/name"),
        ({"name": "<script>"}, "/name"),
        ({"name": "t", "weight": 0}, "/weight"),
        ({"name": "t", "max_running": 0}, "/max_running"),
        ({"name": "t", "max_running": 2**31}, "/max_running"),
        ({"name": "t", "spread": 257}, "/spread"),
        ({"name": "t", "max_running": 3, "spread": 4}, "/max_running"),
        ({"name": "t", "id": 7}, "/id"),
    ],
)
async def test_what_makes_no_sense_is_refused(
    api: InProcessApi, body: dict[str, Any], pointer: str
) -> None:
    answer = await api.operator.post("/v1/tenants", body)
    assert (answer.status, answer.pointers()) == (422, [pointer])


async def test_the_list_has_pages(api: InProcessApi) -> None:
    names = [(await make_tenant(api, f"t{number}"))["name"] for number in range(3)]
    first = (await api.operator.get("/v1/tenants?limit=2")).json()
    cursor = first["next_cursor"]
    rest = (await api.operator.get(f"/v1/tenants?limit=1000&cursor={cursor}")).json()
    found = [tenant["name"] for tenant in first["items"] + rest["items"]]
    assert found == [*names[::-1], "b", "a"]
    assert "api_key" not in first["items"][0]


async def test_a_limit_gathers_a_tenant_in_one_partition(api: InProcessApi) -> None:
    tenant = await make_tenant(api)
    client = api.client(tenant["api_key"])
    for _ in range(20):
        await client.post("/v1/tasks", NOOP)

    async def places() -> int:
        row = await api.database.fetch_row(
            "SELECT count(DISTINCT partition) AS n FROM tasks WHERE tenant_id = $1", tenant["id"]
        )
        assert row is not None
        return int(row["n"])

    assert await places() > 1
    changed = await edit(api, tenant, max_running=10)
    assert (changed["max_running"], changed["spread"]) == (10, 1)
    assert await places() == 1
    assert (await edit(api, tenant, spread=5))["spread"] == 5
    assert (await edit(api, tenant, weight=7))["spread"] == 5
    changed = await edit(api, tenant, max_running=None)
    assert (changed["max_running"], changed["spread"], changed["weight"]) == (None, 256, 7)
    assert await places() > 1
    answer = await api.operator.call(
        "PATCH", f"/v1/tenants/{tenant['id']}", {"max_running": 4, "spread": 5}
    )
    assert answer.status == 422
    audit = (await client.get("/v1/audit?action=tenant.changed")).json()["items"]
    assert len(audit) == 4
    assert audit[0]["detail"] == {"weight": 7, "max_running": None, "spread": 256}


async def test_what_runs_is_counted_among_the_oldest_tasks(api: InProcessApi) -> None:
    tenant = api.tenants["a"]
    await api.database.fetch(
        "INSERT INTO tasks (id, created_at, run_at, due_at, tenant_id, partition, priority, queue,"
        " capability, spec, payload, state, lease_until, worker, picked_at)"
        " SELECT gen_random_uuid(), now(), now(), now(), $1, 0, 5, 'default', 'http', '', '',"
        " 'running', now(), 'node:one', now() FROM generate_series(1, 5)",
        tenant,
    )
    usage = await TenantStore(api.database).usage(tenant)
    assert usage is not None
    assert (usage.running, usage.running_at_least) == (5, False)
    usage = await TenantStore(api.database, scan=3).usage(tenant)
    assert usage is not None
    assert (usage.running, usage.running_at_least) == (3, True)


async def test_a_tenant_sees_its_own_limits(api: InProcessApi) -> None:
    tenant = await make_tenant(api, weight=3, max_running=9)
    client = api.client(tenant["api_key"])
    assert (await client.get("/v1/limits")).json() == {
        "weight": 3,
        "max_running": 9,
        "spread": 1,
        "running": 0,
        "running_at_least": False,
        "keys": 1,
        "max_keys": 1000,
        "requests_per_second": None,
    }
    assert (await client.call("PATCH", "/v1/limits", {"weight": 9})).status == 405


async def test_a_tenant_with_unfinished_tasks_stays(api: InProcessApi) -> None:
    tenant = await make_tenant(api)
    client = api.client(tenant["api_key"])
    task = (await client.post("/v1/tasks", NOOP)).json()
    elsewhere = api.another_node().client(tenant["api_key"])
    assert (await elsewhere.get("/v1/tasks")).status == 200
    path = f"/v1/tenants/{tenant['id']}"
    assert (await api.operator.call("DELETE", path)).status == 409
    assert (await client.post(f"/v1/tasks/{task['id']}/cancel")).status == 200
    assert (await api.operator.call("DELETE", path)).status == 204
    assert (await api.operator.call("DELETE", path)).status == 404
    assert (await api.operator.get(path)).status == 404
    assert (await client.get("/v1/tasks")).status == 401
    # For the few seconds in which another node remembers the key, no task can be made with it.
    for key in ({}, {"Idempotency_Key": "k"}, {"Idempotency_Key": "k"}):
        assert (await elsewhere.post("/v1/tasks", NOOP, **key)).status == 403
        assert (await elsewhere.post("/v1/tasks/batch", {"tasks": [NOOP]}, **key)).status == 403
    assert (await elsewhere.post("/v1/keys", {"scopes": ["read"]})).status == 403
    assert (await elsewhere.get("/v1/limits")).status == 403


async def test_what_a_tenant_leaves_behind_is_cleared(api: InProcessApi) -> None:
    tenant, stays = await make_tenant(api), await make_tenant(api, "stays")
    for one in (tenant, stays):
        client = api.client(one["api_key"])
        task = (await client.post("/v1/tasks", NOOP, Idempotency_Key="k")).json()
        await client.post(f"/v1/tasks/{task['id']}/cancel")
        await api.database.fetch(
            "INSERT INTO executions (task_id, due_at, picked_at, finished_at, tenant_id, fence,"
            " attempt, outcome, worker) VALUES ($1, now(), now(), now(), $2, 1, 1, 'lost', 'w')",
            UUID(task["id"]),
            one["id"],
        )
    assert (await api.operator.call("DELETE", f"/v1/tenants/{tenant['id']}")).status == 204
    assert await HousekeepingStore(api.database).clear_departed() >= 3
    assert await HousekeepingStore(api.database).clear_departed() == 0
    for table in ("tasks", "task_history", "executions", "idempotency_keys", "api_keys"):
        rows = await api.database.fetch(f"SELECT DISTINCT tenant_id FROM {table}")
        assert tenant["id"] not in {row["tenant_id"] for row in rows}, table
        if table in ("task_history", "executions"):
            assert stays["id"] in {row["tenant_id"] for row in rows}, table
    kept = await api.database.fetch(
        "SELECT action FROM audit WHERE tenant_id IN (0, $1) ORDER BY id", tenant["id"]
    )
    assert [row["action"] for row in kept][-1] == "tenant.deleted"


@pytest.mark.parametrize(
    "tenant_id", ["0", "-1", "99999999999999999999", "2147483648", "x", "%00", "1e3", "%D9%A1"]
)
async def test_unknown_tenants_are_not_found(api: InProcessApi, tenant_id: str) -> None:
    for method in ("GET", "PATCH", "DELETE"):
        answer = await api.operator.call(method, f"/v1/tenants/{tenant_id}", {})
        assert answer.status == 404, answer.body


async def test_the_cluster_is_shown(api: InProcessApi) -> None:
    states = ("active", "active", "dead")
    for node, state in zip(NODES, states, strict=True):
        await api.database.fetch(
            "INSERT INTO nodes (id, name, url, version, state) VALUES ($1, $2, $3, '1', $4)",
            node,
            f"n{node.int}",
            f"http://n{node.int}",
            state,
        )
    await api.database.fetch(
        "UPDATE partitions SET owner = CASE WHEN partition < 192 THEN $1::uuid ELSE $2 END,"
        " epoch = 1 WHERE partition < 250",
        *NODES[:2],
    )
    shown = (await api.operator.get("/v1/cluster")).json()
    assert [(n["name"], n["state"], n["partitions"]) for n in shown["nodes"]] == [
        ("n2", "active", 58),
        ("n1", "active", 192),
        ("n3", "dead", 0),
    ]
    assert all(0 <= node["silent"] < 60 and node["epoch"] == 1 for node in shown["nodes"])
    assert len(shown["partitions"]) == 256
    assert shown["partitions"][0] == {"partition": 0, "owner": str(NODES[0]), "epoch": 1}
    assert shown["partitions"][255] == {"partition": 255, "owner": None, "epoch": 0}
    assert (shown["unowned"], shown["skew"]) == (6, 1.5)


@pytest.mark.parametrize("path", ["/v1/tenants", "/v1/cluster", "/metrics"])
async def test_these_are_for_operators(api: InProcessApi, path: str) -> None:
    assert (await api.operator.get(path)).status == 200
    assert (await api.admin.get(path)).status == 403


async def test_a_rate_limit_is_enforced_and_shown(database_url: str) -> None:
    async with open_api(database_url, Config(requests_per_second=2)) as api:
        answers = [await api.admin.get("/v1/tasks") for _ in range(3)]
        assert [answer.status for answer in answers] == [200, 200, 429]
        assert [answer.headers["ratelimit-remaining"] for answer in answers] == ["1", "0", "0"]
        assert {answer.headers["ratelimit-limit"] for answer in answers} == {"2"}
        assert answers[2].headers["ratelimit-reset"] == answers[2].headers["retry-after"] == "1"
        assert answers[2].json()["type"].endswith(":too-many-requests")
        assert (await api.other_tenant.get("/v1/tasks")).status == 200, "each tenant has its own"
        assert (await api.admin.get("/v1/limits")).status == 429, "a tenant has one for all"
        assert (await api.operator.get("/v1/tenants")).status == 200


async def test_without_a_rate_limit_no_header_is_sent(api: InProcessApi) -> None:
    answer = await api.admin.get("/v1/tasks")
    assert not [name for name in answer.headers if name.startswith("ratelimit")]
