"""A node dies right after it did what a POST asked for: who asks again gets the same answer.

The answer is kept in the transaction of what it tells of, so that nothing is made twice and no
secret is lost that was shown to nobody.
"""

from datetime import timedelta

import pytest

from mainspring import crash_points
from mainspring.api.http import idempotency
from mainspring.store.answers import AnswerStore
from mainspring.store.vault import Vault
from support.asgi import AsgiClient
from support.in_process_api import InProcessApi

CRON = {"name": "hourly", "cron": "0 * * * *", "task": {"target": {"type": "handler", "name": "x"}}}
TABLES = (
    *("api_keys", "tenants", "webhook_secrets", "schedules", "tasks", "calendars", "audit"),
    *("workflows", "workflow_versions", "workflow_runs"),
)
MAKING = (
    "/v1/keys",
    "/v1/keys/{id}/rotate",
    "/v1/tenants",
    "/v1/secrets",
    "/v1/secrets/{id}/rotate",
    "/v1/schedules",
    "/v1/schedules/{id}/run",
    "/v1/schedules/{id}/backfill",
    "/v1/calendars",
    "/v1/workflows",
    "/v1/workflows/{id}/runs",
)
"""Every POST that makes something each time it is served; tasks are created otherwise."""


@pytest.fixture
def api_vault() -> Vault:
    return Vault(b"k" * 32)


class SimulatedKill(BaseException):
    """As near to SIGKILL as one process can come to see it."""


@pytest.mark.parametrize("path", MAKING)
async def test_what_was_made_is_not_made_again(
    api: InProcessApi, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    url, body = await prepared(api, path)
    before = await counted(api)
    with monkeypatch.context() as dying:
        dying.setattr(crash_points, "reach", die)
        dying.setattr(AnswerStore, "keep", die)
        dying.setattr(AnswerStore, "give_up", nothing)
        with pytest.raises(SimulatedKill):
            await client_for(api, path).post(url, body, idempotency_key="once")
    made = await counted(api)

    again = await client_for(api.another_node(), path).post(url, body, idempotency_key="once")

    assert again.status == 201, again.body
    assert again.headers["idempotency-replayed"] == "true"
    assert made != before, "it was made before the node died"
    assert await counted(api) == made, "and not once more"


async def test_a_key_created_by_a_crashed_node_can_be_used(
    api: InProcessApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as dying:
        dying.setattr(crash_points, "reach", die)
        dying.setattr(AnswerStore, "give_up", nothing)
        with pytest.raises(SimulatedKill):
            await api.admin.post("/v1/keys", {"scopes": ["read"]}, idempotency_key="once")
    again = await api.admin.post("/v1/keys", {"scopes": ["read"]}, idempotency_key="once")
    assert (await api.client(again.json()["api_key"]).get("/v1/tasks")).status == 200


async def test_a_turn_that_ran_out_makes_nothing(
    api: InProcessApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another request under the key may be served by then: the slow one undoes what it did."""
    monkeypatch.setattr(idempotency, "keep_answer", ended_leases)
    before = await counted(api)
    answer = await api.admin.post("/v1/keys", {"scopes": ["read"]}, idempotency_key="slow")
    assert answer.status == 409, answer.body
    assert await counted(api) == before


def client_for(api: InProcessApi, path: str) -> AsgiClient:
    return api.operator if path == "/v1/tenants" else api.admin


async def prepared(api: InProcessApi, path: str) -> tuple[str, object]:
    """What the path needs to be there, and a body for it."""
    bodies: dict[str, object] = {
        "/v1/keys": {"scopes": ["read"]},
        "/v1/tenants": {"name": "new"},
        "/v1/secrets": {},
        "/v1/schedules": CRON,
        "/v1/calendars": {"name": "holidays", "dates": []},
        "/v1/workflows": {
            "name": "nightly",
            "steps": [{"id": "only", "target": {"type": "handler", "name": "x"}}],
        },
    }
    if "{id}" not in path:
        return path, bodies[path]
    collection, verb = path.split("/{id}/")
    made = await api.admin.post(collection, bodies[collection])
    assert made.status == 201, made.body
    thing = made.json().get("id") or made.json()["name"]
    return path.replace("{id}", thing), await last_hours(api, verb)


async def last_hours(api: InProcessApi, verb: str) -> object:
    if verb != "backfill":
        return {}
    row = await api.database.fetch_row("SELECT now() AS now")
    assert row is not None
    return {"from": (row["now"] - timedelta(hours=5)).isoformat(), "to": row["now"].isoformat()}


async def counted(api: InProcessApi) -> dict[str, int]:
    rows = {}
    for table in TABLES:
        found = await api.database.fetch_row(f"SELECT count(*) AS rows FROM {table}")
        assert found is not None
        rows[table] = found["rows"]
    return rows


def die(*_arguments: object) -> None:
    raise SimulatedKill


async def nothing(*_arguments: object) -> None:
    """A dead process tidies nothing up."""


async def ended_leases(*_arguments: object) -> bool:
    return False
