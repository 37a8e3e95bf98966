"""Keys and the audit log: made, shown once, used, replaced, revoked."""

from datetime import datetime
from random import Random
from typing import Any

import pytest

from mainspring.api.http import auth
from mainspring.config import Config
from mainspring.domain import apikey
from mainspring.domain.tenant import ApiKey
from mainspring.store.audit import AuditFilter, AuditStore
from mainspring.store.keys import KeyStore, NewKey
from mainspring.store.lists import paging
from support.asgi import Answer
from support.in_process_api import SCOPES, InProcessApi


@pytest.fixture
def api_config() -> Config:
    return Config(key_environment="test")


async def make_key(api: InProcessApi, **fields: object) -> dict[str, Any]:
    answer = await api.admin.post("/v1/keys", {"scopes": ["read"], **fields})
    assert answer.status == 201, answer.body
    made: dict[str, Any] = answer.json()
    return made


async def status_with(api: InProcessApi, key: str, path: str = "/v1/tasks") -> int:
    return (await api.client(key).get(path)).status


async def audited(api: InProcessApi, **filters: str) -> list[tuple[str, str]]:
    query = "&".join(f"{name}={value}" for name, value in filters.items())
    answer = await api.admin.get(f"/v1/audit?{query}")
    assert answer.status == 200, answer.body
    return [(entry["action"], entry["subject"]) for entry in answer.json()["items"]]


class ManualAuthClock:
    """The authenticator's clock, set by the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(auth, "monotonic", lambda: self.now)


# --- making and reading ------------------------------------------------------------------------


async def test_a_key_is_shown_once(api: InProcessApi) -> None:
    answer = await api.admin.post("/v1/keys", {"name": "ci", "scopes": ["read", "write"]})
    made = answer.json()
    assert answer.status == 201
    assert answer.headers["location"] == f"/v1/keys/{made['id']}"
    assert answer.headers["cache-control"] == "no-store"
    assert made["api_key"].startswith(f"{made['prefix']}_")
    assert made["prefix"] == f"ms_test_{made['id']}"
    assert (made["name"], made["scopes"]) == ("ci", ["read", "write"])
    assert made["expires_at"] is made["last_used_at"] is made["revoked_at"] is None
    assert await status_with(api, made["api_key"]) == 200
    one = await api.admin.get(f"/v1/keys/{made['id']}")
    listed = await api.admin.get("/v1/keys")
    for seen in (one, listed):
        assert seen.status == 200
        assert made["api_key"].encode() not in seen.body
        assert b"api_key" not in seen.body
    assert one.json() == listed.json()["items"][0]


async def test_only_hashes_are_stored(api: InProcessApi) -> None:
    made = await make_key(api)
    rows = await api.database.fetch("SELECT k::text AS row FROM api_keys k")
    assert rows
    assert not [row for row in rows if made["api_key"] in row["row"]]


async def test_the_list_has_pages(api: InProcessApi) -> None:
    names = [(await make_key(api))["id"] for _ in range(5)]
    found, cursor = [], None
    for _ in range(10):
        page = (await api.admin.get(f"/v1/keys?limit=2{cursor or ''}")).json()
        found += [key["id"] for key in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert found[:5] == names[::-1]
    assert len(found) == len(set(found)) == 5 + 1 + len(SCOPES)


async def test_a_key_belongs_to_the_tenant_that_made_it(api: InProcessApi) -> None:
    made = await make_key(api, scopes=list(SCOPES))
    task = await api.client(made["api_key"]).post(
        "/v1/tasks", {"target": {"type": "handler", "name": "mainspring.noop"}}
    )
    assert task.status == 201
    assert (await api.admin.get(f"/v1/tasks/{task.json()['id']}")).status == 200
    assert (await api.other_tenant.get(f"/v1/tasks/{task.json()['id']}")).status == 404
    assert (await api.client(made["api_key"]).get("/v1/tenants")).status == 403


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, ""),
        ({"scopes": []}, "/scopes"),
        ({"scopes": ["root"]}, "/scopes/0"),
        ({"scopes": ["operator"]}, "/scopes/0"),
        ({"scopes": "read"}, "/scopes"),
        ({"scopes": ["read"], "name": ""}, "/name"),
        ({"scopes": ["read"], "name": "a\nb"}, "/name"),
        ({"scopes": ["read"], "tenant_id": 2}, "/tenant_id"),
        ({"scopes": ["read"], "operator": True}, "/operator"),
        ({"scopes": ["read"], "expires_in": -1}, "/expires_in"),
        ({"scopes": ["read"], "expires_in": 0}, "/expires_in"),
        ({"scopes": ["read"], "expires_in": "P1Y"}, "/expires_in"),
        ({"scopes": ["read"], "expires_in": 1e300}, "/expires_in"),
        ({"scopes": ["read"], "expires_in": "P999999W"}, "/expires_in"),
        ({"scopes": ["read"], "expires_at": "2020-01-01T00:00:00Z"}, "/expires_at"),
        ({"scopes": ["read"], "expires_at": "9999-12-31T23:59:59Z"}, "/expires_at"),
        ({"scopes": ["read"], "expires_at": "0001-01-01T00:00:00+14:00"}, "/expires_at"),
        ({"scopes": ["read"], "expires_at": "2030-01-01T00:00:00"}, "/expires_at"),
        (
            {"scopes": ["read"], "expires_in": 5, "expires_at": "2030-01-01T00:00:00Z"},
            "/expires_in",
        ),
    ],
)
async def test_what_makes_no_sense_is_refused(
    api: InProcessApi, body: dict[str, Any], pointer: str
) -> None:
    answer = await api.admin.post("/v1/keys", body)
    assert answer.status == 422, answer.body
    assert answer.pointers() == [pointer]


@pytest.mark.parametrize(
    "key_id", ["nobody", "%00", "a%27--", "%F0%9F%94%91", "x" * 300, "..%2f.."]
)
async def test_unknown_ids_are_not_found(api: InProcessApi, key_id: str) -> None:
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/rotate")):
        answer = await api.admin.call(method, f"/v1/keys/{key_id}{path}")
        assert answer.status == 404, answer.body


async def test_the_number_of_live_keys_is_bounded(
    api: InProcessApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainspring.store.keys.MOST_LIVE_KEYS", 6)
    first = await make_key(api)
    assert (await api.admin.post("/v1/keys", {"scopes": ["read"]})).status == 409
    assert (await api.admin.call("DELETE", f"/v1/keys/{first['id']}")).status == 204
    assert (await api.admin.post("/v1/keys", {"scopes": ["read"]})).status == 201


async def test_an_idempotency_key_repeats_a_new_key_to_its_caller_only(
    api: InProcessApi,
) -> None:
    first = await api.admin.post("/v1/keys", {"scopes": ["read"]}, Idempotency_Key="k")
    again = await api.admin.post("/v1/keys", {"scopes": ["read"]}, Idempotency_Key="k")
    assert (first.status, again.status) == (201, 201)
    assert first.json() == again.json()
    other = await api.client("a:admin").post("/v1/keys", {"scopes": ["read"]}, Idempotency_Key="k")
    assert other.status == 422
    rows = await api.database.fetch("SELECT answer FROM idempotency_keys")
    assert not [row for row in rows if first.json()["api_key"].encode() in row["answer"]]


# --- ending ------------------------------------------------------------------------------------


async def test_the_revoking_node_refuses_a_revoked_key_at_once(
    api: InProcessApi,
) -> None:
    made = await make_key(api)
    assert await status_with(api, made["api_key"]) == 200
    for _ in range(2):  # revoking again is harmless
        assert (await api.admin.call("DELETE", f"/v1/keys/{made['id']}")).status == 204
    assert await status_with(api, made["api_key"]) == 401
    shown = (await api.admin.get(f"/v1/keys/{made['id']}")).json()
    assert shown["revoked_at"] is not None
    assert await audited(api, subject=made["id"]) == [
        ("key.revoked", made["id"]),
        ("key.created", made["id"]),
    ]


async def test_a_revoked_key_is_refused_everywhere_within_five_seconds(
    api: InProcessApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, other = ManualAuthClock(monkeypatch), api.another_node()
    made = await make_key(api)
    assert await status_with(other, made["api_key"]) == 200
    assert (await api.admin.call("DELETE", f"/v1/keys/{made['id']}")).status == 204
    clock.now += 5.0
    assert await status_with(other, made["api_key"]) == 401


async def test_answers_are_remembered_meanwhile(
    api: InProcessApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, looked_up = ManualAuthClock(monkeypatch), []
    find = KeyStore.find

    async def counting(self: KeyStore, secret: str) -> ApiKey | None:
        looked_up.append(secret)
        return await find(self, secret)

    monkeypatch.setattr(KeyStore, "find", counting)
    for _ in range(3):
        clock.now += 1
        assert await status_with(api, "a:all") == 200
    assert looked_up == ["a:all"]


async def test_one_may_revoke_the_key_in_ones_hand(api: InProcessApi) -> None:
    made = await make_key(api, scopes=["admin"])
    own = api.client(made["api_key"])
    assert (await own.call("DELETE", f"/v1/keys/{made['id']}")).status == 204
    assert (await own.get("/v1/keys")).status == 401


async def test_a_key_ends_at_its_time(api: InProcessApi, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualAuthClock(monkeypatch)
    made = await make_key(api, expires_in=2)
    assert await status_with(api, made["api_key"]) == 200
    await api.database.fetch(
        "UPDATE api_keys SET expires_at = clock_timestamp() WHERE id = $1", made["id"]
    )
    clock.now += 2.0  # sooner than an answer would be asked for again
    assert await status_with(api, made["api_key"]) == 401


async def test_the_expiry_of_a_key_is_shown(api: InProcessApi) -> None:
    made = await make_key(api, expires_at="2099-01-01T00:00:00+02:00")
    assert made["expires_at"] == "2098-12-31T22:00:00Z"
    made = await make_key(api, expires_in="P1D")
    assert lifetime(made) == pytest.approx(86400, abs=1)


def lifetime(key: dict[str, Any]) -> float:
    ends, begins = (datetime.fromisoformat(key[name]) for name in ("expires_at", "created_at"))
    return (ends - begins).total_seconds()


async def test_rotation_leaves_two_live_keys(api: InProcessApi) -> None:
    old = await make_key(api, name="deploy", scopes=["read", "work"], expires_in="P90D")
    answer = await api.admin.post(f"/v1/keys/{old['id']}/rotate")
    new = answer.json()
    assert answer.status == 201
    assert (new["name"], new["scopes"]) == ("deploy", ["read", "work"])
    assert new["id"] != old["id"]
    assert lifetime(new) == pytest.approx(90 * 86400, abs=1)
    for key in (old, new):
        assert await status_with(api, key["api_key"]) == 200
    ended = (await api.admin.get(f"/v1/keys/{old['id']}")).json()
    assert lifetime(ended) == pytest.approx(86400, abs=60)
    assert ("key.rotated", old["id"]) in await audited(api)


async def test_rotation_without_grace_ends_the_old_key(api: InProcessApi) -> None:
    old = await make_key(api)
    assert await status_with(api, old["api_key"]) == 200
    new = await api.admin.post(f"/v1/keys/{old['id']}/rotate", {"grace": 0})
    assert await status_with(api, old["api_key"]) == 401
    assert await status_with(api, new.json()["api_key"]) == 200
    again = await api.admin.post(f"/v1/keys/{old['id']}/rotate")
    assert again.status == 409


async def test_grace_never_lengthens_a_life(api: InProcessApi) -> None:
    old = await make_key(api, expires_in=60)
    await api.admin.post(f"/v1/keys/{old['id']}/rotate", {"grace": 3600})
    shown = (await api.admin.get(f"/v1/keys/{old['id']}")).json()
    assert shown["expires_at"] == old["expires_at"]


@pytest.mark.parametrize("grace", [-1, 1e9, "soon", "P31D"])
async def test_a_grace_that_makes_no_sense_is_refused(api: InProcessApi, grace: object) -> None:
    old = await make_key(api)
    answer = await api.admin.post(f"/v1/keys/{old['id']}/rotate", {"grace": grace})
    assert (answer.status, answer.pointers()) == (422, ["/grace"])


async def test_an_admin_cannot_come_by_an_operators_rights(api: InProcessApi) -> None:
    """The development key is a tenant's and an operator's: rotating it must not hand that on."""
    await api.database.fetch("UPDATE api_keys SET operator = true WHERE id = 'a-read'")
    assert (await api.admin.post("/v1/keys/a-read/rotate")).status == 409


# --- being known -------------------------------------------------------------------------------


async def test_a_mistyped_key_is_refused_without_asking_the_store(
    api: InProcessApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(_self: KeyStore, _secret: str) -> None:
        raise AssertionError("the store was asked")

    monkeypatch.setattr(KeyStore, "find", never)
    text = apikey.make("live", Random(1)).secret
    mistyped = text[:-1] + ("a" if text[-1] != "a" else "b")
    answer = await api.client(mistyped).get("/v1/tasks")
    assert answer.status == 401
    assert "checksum" in answer.json()["detail"]


async def test_uses_are_written_down_in_the_background(
    api: InProcessApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualAuthClock(monkeypatch)
    made = await make_key(api)
    await status_with(api, made["api_key"])

    async def last_used() -> datetime | None:
        row = await api.database.fetch_row(
            "SELECT last_used_at FROM api_keys WHERE id = $1", made["id"]
        )
        assert row is not None
        seen: datetime | None = row["last_used_at"]
        return seen

    assert await last_used() is None, "a request must not wait for this"
    clock.now += 10
    await api.deps.authenticator.write_uses()
    first = await last_used()
    assert first is not None
    assert first < datetime.fromisoformat(made["created_at"]), "ten seconds before it was written"
    await status_with(api, made["api_key"])
    await api.deps.authenticator.write_uses()
    assert await last_used() == first, "not twice in a minute"


async def test_an_operators_key_is_told_why_it_is_refused(api: InProcessApi) -> None:
    answer = await api.operator.get("/v1/keys")
    assert answer.status == 403
    assert "belongs to none" in answer.json()["detail"]


# --- the audit log -----------------------------------------------------------------------------


async def test_the_audit_log_has_pages_newest_first(api: InProcessApi) -> None:
    made = [(await make_key(api))["id"] for _ in range(5)]
    first = (await api.admin.get("/v1/audit?limit=3")).json()
    rest = (await api.admin.get(f"/v1/audit?limit=3&cursor={first['next_cursor']}")).json()
    entries = first["items"] + rest["items"]
    assert [entry["subject"] for entry in entries] == made[::-1]
    assert rest["next_cursor"] is None
    assert {entry["actor"] for entry in entries} == {"key:a-all"}
    assert (await api.other_tenant.get("/v1/audit")).json()["items"] == []


@pytest.mark.parametrize("of_tenant", [True, False])
async def test_a_selective_filter_reads_few_entries_of_the_audit_log(
    api: InProcessApi, of_tenant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [(await make_key(api))["id"] for _ in range(5)]
    audit = AuditStore(api.database, scan=2)
    where = AuditFilter(api.tenants["a"] if of_tenant else None, subject=made[0])
    found = await audit.list(where, before=None, limit=2)
    assert [entry.subject for entry in found.items] == [made[0]]

    monkeypatch.setattr(paging, "TIME_LIMIT", -1)
    pages: list[list[str]] = []
    before = None
    while not pages or before is not None:
        page = await audit.list(where, before=before, limit=2)
        before = page.next_before
        pages.append([entry.subject for entry in page.items])
    assert pages == [[], [], [made[0]]]


async def test_operators_read_the_audit_log_of_the_whole_installation(api: InProcessApi) -> None:
    ours = await make_key(api)
    theirs = (await api.other_tenant.post("/v1/keys", {"scopes": ["read"]})).json()
    tenant = (await api.operator.post("/v1/tenants", {"name": "short-lived"})).json()
    await api.operator.call("DELETE", f"/v1/tenants/{tenant['id']}")

    first = (await api.operator.get("/v1/audit?limit=2")).json()
    rest = (await api.operator.get(f"/v1/audit?cursor={first['next_cursor']}")).json()

    seen = [(e["tenant_id"], e["action"], e["subject"]) for e in first["items"] + rest["items"]]
    assert seen[0] == (None, "tenant.deleted", str(tenant["id"]))
    assert {entry[:2] for entry in seen[1:3]} == {
        (tenant["id"], "key.created"),
        (tenant["id"], "tenant.created"),
    }
    assert seen[3:] == [
        (api.tenants["b"], "key.created", theirs["id"]),
        (api.tenants["a"], "key.created", ours["id"]),
    ]
    filtered = (await api.operator.get("/v1/audit?action=tenant.deleted")).json()["items"]
    assert [entry["actor"] for entry in filtered] == ["key:operator"]


async def test_an_operator_of_a_tenant_reads_that_tenants_audit_log(
    api: InProcessApi,
) -> None:
    """As the key of `mainspring dev`: a tenant's key sees that tenant, whatever else it may."""
    both = NewKey("both", "both", api.tenants["a"], frozenset(SCOPES), operator=True)
    await api.deps.keys.add(both)
    await api.other_tenant.post("/v1/keys", {"scopes": ["read"]})
    made = await make_key(api)
    entries = (await api.client("both").get("/v1/audit")).json()["items"]
    assert [(e["tenant_id"], e["subject"]) for e in entries] == [(api.tenants["a"], made["id"])]


async def test_purges_are_in_the_audit_log(api: InProcessApi) -> None:
    task = await api.admin.post(
        "/v1/tasks", {"target": {"type": "handler", "name": "mainspring.noop"}}
    )
    await api.admin.call("DELETE", f"/v1/tasks/{task.json()['id']}")
    assert await audited(api, action="task.purged") == [("task.purged", task.json()["id"])]


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=1001",
        "cursor=x",
        "cursor=" + "_" * 21 + "w",
        "actor=%00",
        "sort=id",
        "cursor=%27%20OR%201=1--",
    ],
)
async def test_hostile_queries_are_refused(api: InProcessApi, query: str) -> None:
    for path in ("/v1/audit", "/v1/keys", "/v1/tenants"):
        client = api.operator if path == "/v1/tenants" else api.admin
        answer: Answer = await client.get(f"{path}?{query}")
        assert answer.status == 422, (path, answer.body)


async def test_filters_are_values_not_code(api: InProcessApi) -> None:
    await make_key(api)
    for text in ("' OR '1'='1", "%'; DROP TABLE audit; --", "\\", "$1"):
        assert await audited(api, action=text.replace("%", "%25").replace("&", "%26")) == []
