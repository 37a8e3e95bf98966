"""A walk over every route there is: who gets in, and what another tenant's ids are worth.

The routes come from the application itself, so that a new one is walked too. One with an id in its
path needs a maker here: something of the right kind that belongs to the other tenant.
"""

import asyncio
import logging
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterator, Mapping
from io import StringIO
from urllib.parse import quote
from uuid import UUID, uuid4

import pytest
from starlette.types import ASGIApp

from mainspring.api.http.operations import (
    OpenOperation,
    Operation,
    OperatorOperation,
    TenantOperation,
)
from mainspring.observe.logging import set_up_logging
from support.asgi import Answer, AsgiClient
from support.finished_tasks import INJECTIONS
from support.in_process_api import SCOPES, InProcessApi
from support.routes import every_route

NOOP = {"target": {"type": "handler", "name": "mainspring.noop"}, "delay": 3600}
STREAMS_AFTER = 2.0
"""An answer that has not ended by then is a stream: whoever gets one was let in."""


ROUTES = list(every_route())
FOR_TENANTS = [route for route in ROUTES if isinstance(route[2], TenantOperation)]
WITH_IDS = [route for route in FOR_TENANTS if "{" in route[1]]


def name_of(value: object) -> str:
    return value if isinstance(value, str) else ""


# --- things that belong to the other tenant ------------------------------------------------------


async def a_task(api: InProcessApi) -> str:
    answer = await api.other_tenant.post("/v1/tasks", NOOP)
    return str(answer.json()["id"])


async def a_dead_letter(api: InProcessApi) -> str:
    letter = uuid4()
    await api.database.fetch(
        "INSERT INTO dead_letters (id, tenant_id, died_at, reason, queue, priority, attempts, spec,"
        " payload) VALUES ($1, $2, now(), 'exhausted', 'default', 5, '[]', $3, '{}')",
        letter,
        api.tenants["b"],
        b'{"target":{"type":"handler","name":"mainspring.noop"}}',
    )
    return str(letter)


async def a_key(api: InProcessApi) -> str:
    answer = await api.other_tenant.post("/v1/keys", {"scopes": ["read"]})
    return str(answer.json()["id"])


async def a_secret(api: InProcessApi) -> str:
    secret = uuid4()
    await api.database.fetch(
        "INSERT INTO webhook_secrets (id, tenant_id, kind, sealed) VALUES ($1, $2, 'hmac', 'x')",
        secret,
        api.tenants["b"],
    )
    return str(secret)


async def a_schedule(api: InProcessApi) -> str:
    schedule = {"name": "theirs", "cron": "0 0 * * *", "task": {"target": NOOP["target"]}}
    answer = await api.other_tenant.post("/v1/schedules", schedule)
    return str(answer.json()["id"])


async def a_calendar(api: InProcessApi) -> str:
    answer = await api.other_tenant.post("/v1/calendars", {"name": "theirs", "dates": []})
    return str(answer.json()["name"])


async def a_workflow(api: InProcessApi) -> str:
    workflow = {"name": "theirs", "steps": [{"id": "only", "target": NOOP["target"]}]}
    answer = await api.other_tenant.post("/v1/workflows", workflow)
    return str(answer.json()["name"])


async def a_run(api: InProcessApi) -> str:
    await a_workflow(api)
    answer = await api.other_tenant.post("/v1/workflows/theirs/runs", {})
    return str(answer.json()["id"])


MAKERS: Mapping[str, Callable[[InProcessApi], Awaitable[str]]] = {
    "/v1/tasks/{id}": a_task,
    "/v1/dead-letters/{id}": a_dead_letter,
    "/v1/keys/{id}": a_key,
    "/v1/secrets/{id}": a_secret,
    "/v1/schedules/{id}": a_schedule,
    "/v1/calendars/{id}": a_calendar,
    "/v1/workflows/{id}": a_workflow,
    "/v1/workflow-runs/{id}": a_run,
}
UNKNOWN = {
    "/v1/keys/{id}": "0123456789",
    "/v1/calendars/{id}": "nobodys",
    "/v1/workflows/{id}": "nobodys",
}
"""An id that could be one but is not; a UUID where nothing else is said."""

BODIES: Mapping[tuple[str, str], object] = {
    ("POST", "/v1/tasks/{id}/complete"): {"fence": 1, "status": "succeeded"},
}
"""What a route needs to be sent before it looks for the id in its path; `{}` else."""


def kind_of(path: str) -> str:
    """The part of a path that names the thing: up to its first id."""
    return path[: path.index("}") + 1]


# --- the walks ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "path", "operation"), ROUTES, ids=name_of)
async def test_every_route_asks_for_the_right_key(
    api: InProcessApi, method: str, path: str, operation: Operation
) -> None:
    """Nobody gets in without a key, with a wrong one, or with a key of another scope."""
    url = path.replace("{id}", str(UUID(int=7)))
    for key in (None, "nobody's"):
        answer = await knock(api.client(key), method, url)
        if isinstance(operation, OpenOperation):
            assert answer is None or answer.status < 400, answer
        else:
            assert answer is not None
            assert answer.status == 401, answer
    for key in (*(f"a:{scope}" for scope in SCOPES), "operator"):
        answer = await knock(api.client(key), method, url)
        status = 200 if answer is None else answer.status
        assert status < 500, answer
        assert (status == 403) is not may(key, operation), (key, answer)
        assert status != 401


def may(key: str, operation: Operation) -> bool:
    match operation:
        case TenantOperation():
            if key == "operator":
                return operation.or_operators is not None
            return key.removeprefix("a:") in (operation.scope, operation.or_scope)
        case OperatorOperation():
            return key == "operator"
        case OpenOperation():
            return True


@pytest.mark.parametrize(("method", "path", "operation"), WITH_IDS, ids=name_of)
async def test_anothers_id_is_worth_as_much_as_an_unknown_one(
    api: InProcessApi, method: str, path: str, operation: Operation
) -> None:
    """The same 404, word for word: not even that a thing exists is told."""
    kind = kind_of(path)
    assert kind in MAKERS, f"add a maker for {kind} to this test"
    theirs = await MAKERS[kind](api)
    unknown = UNKNOWN.get(kind, str(uuid4()))
    body = BODIES.get((method, path), {})
    refused = await api.admin.call(method, path.replace("{id}", theirs), body)
    missing = await api.admin.call(method, path.replace("{id}", unknown), body)
    assert refused.status == missing.status == 404, (refused.body, missing.body)
    assert told(refused, theirs) == told(missing, unknown)
    if ("GET", kind) in {(method, path) for method, path, _ in ROUTES}:
        unharmed = await api.other_tenant.get(kind.replace("{id}", theirs))
        assert unharmed.status == 200, "the owner still has it"


async def test_anothers_ids_are_worth_nothing_elsewhere(api: InProcessApi) -> None:
    """In filters, bodies and cursors: no more than ids that nobody has."""
    schedule, calendar, task = (
        await a_schedule(api),
        await a_calendar(api),
        await a_task(api),
    )
    await api.other_tenant.post(f"/v1/schedules/{schedule}/run")
    listed = await api.admin.get(f"/v1/tasks?schedule_id={schedule}")
    assert (listed.status, listed.json()["items"]) == (200, [])
    mine = {"name": "mine", "cron": "0 0 * * *", "task": {"target": NOOP["target"]}}
    for body in ({**mine, "calendars": [calendar]}, {**mine, "calendars": ["nobodys"]}):
        refused = await api.admin.post("/v1/schedules", body)
        assert (refused.status, refused.pointers()) == (422, ["/calendars/0"])
    cancelled = await api.admin.post("/v1/tasks/cancel", {"filter": {}})
    assert cancelled.json() == {"cancelled": 0, "cancel_requested": 0}
    cursor = (await api.other_tenant.get("/v1/tasks?limit=1")).json()["next_cursor"]
    page = await api.admin.get(f"/v1/tasks?cursor={cursor}")
    assert (page.status, page.json()["items"]) == (200, [])
    assert (await api.other_tenant.get(f"/v1/tasks/{task}")).json()["state"] == "scheduled"


async def test_parameters_are_values_and_not_code(api: InProcessApi) -> None:
    """Every query parameter there is: refused, or looked for and not found."""
    await a_task(api)
    await api.admin.post("/v1/tasks", NOOP)
    for path, name, client in query_parameters(api):
        for text in INJECTIONS:
            value = quote(f"team:{text}" if name == "label" else text)
            answer = await client.get(f"{path.replace('{id}', str(UUID(int=7)))}?{name}={value}")
            assert answer.status in (200, 404, 422), (text, answer.body)
            if answer.status == 200:
                assert answer.json()["items"] == [], (path, name, text)


def query_parameters(api: InProcessApi) -> Iterator[tuple[str, str, AsgiClient]]:
    """Of everything that is read with a key."""
    for method, path, operation in ROUTES:
        if method == "GET" and operation.doc and not isinstance(operation, OpenOperation):
            client = api.operator if isinstance(operation, OperatorOperation) else api.admin
            for param in operation.doc.params:
                if param.where == "query":
                    yield path, param.name, client


def told(answer: Answer, thing: str) -> tuple[dict[str, str], str]:
    """An answer without what must differ."""
    headers = {
        k: v for k, v in answer.headers.items() if k not in ("x-request-id", "content-length")
    }
    document = answer.json()
    document.pop("request_id")
    return headers, str(document).replace(thing, "<id>")


async def knock(client: AsgiClient, method: str, url: str) -> Answer | None:
    """Send a request; None when the answer goes on and on."""
    try:
        async with asyncio.timeout(STREAMS_AFTER):
            return await client.call(method, url, {})
    except TimeoutError:
        return None


# --- secrets -----------------------------------------------------------------------------------


class Broken:
    """A pool that fails in a way nobody expects: the worst case for a log."""

    def acquire(self, **_options: object) -> object:
        raise RuntimeError("the pool is broken")


@pytest.fixture
def logged(restored_logging: None) -> Iterator[StringIO]:
    """Everything that is logged, as in production, at the most talkative level."""
    stream = StringIO()
    set_up_logging("debug", "json", stream)
    handler = logging.StreamHandler(stream)
    logging.getLogger().addHandler(handler)
    yield stream
    logging.getLogger().removeHandler(handler)


async def test_secrets_are_shown_once_and_nowhere_else(
    api: InProcessApi, logged: StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys are made in every way there is, then used on every route, also while the store fails."""
    secrets = await canaries(api)
    answers = ""
    for failing in (False, True):
        if failing:
            monkeypatch.setattr(api.database, "_pool", Broken())
        for secret in secrets:
            for method, path, _ in ROUTES:
                for client in (api.client(secret), WrongFormClient(api.app, secret)):
                    url = path.replace("{id}", str(UUID(int=7)))
                    answer = await knock(client, method, url)
                    answers += "" if answer is None else f"{answer.headers}{answer.body!r}"
    monkeypatch.undo()
    places = {
        "an answer": answers,
        "the log": logged.getvalue(),
        "the metrics": api.deps.metrics.exposition().decode(),
        "the database": await everything_stored(api),
    }
    for place, text in places.items():
        assert text, f"{place} was looked at"
        for secret in secrets:
            for form in (secret, secret.encode().hex(), b64encode(secret.encode()).decode()):
                assert form not in text, f"a key is told by {place}"


async def canaries(api: InProcessApi) -> list[str]:
    """A new key of each origin, each with an answer that is kept for who asks again."""
    created = await api.admin.post("/v1/keys", {"scopes": list(SCOPES)}, Idempotency_Key="1")
    rotated = await api.admin.post(f"/v1/keys/{created.json()['id']}/rotate", Idempotency_Key="2")
    tenant = await api.operator.post("/v1/tenants", {"name": "canary"}, Idempotency_Key="3")
    answers = (created, rotated, tenant)
    assert [answer.status for answer in answers] == [201, 201, 201]
    return [answer.json()["api_key"] for answer in answers]


class WrongFormClient(AsgiClient):
    """A caller who sends a key in the wrong form."""

    def __init__(self, app: ASGIApp, secret: str) -> None:
        super().__init__(app)
        self._headers = {"authorization": f"Basic {secret}", "x-api-key": secret}


async def everything_stored(api: InProcessApi) -> str:
    tables = await api.database.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    text = ""
    for table in tables:
        rows = await api.database.fetch(f"SELECT t::text AS row FROM {table['tablename']} t")
        text += "".join(row["row"] for row in rows)
    return text
