"""What fields may say together: the document and the server agree about every combination."""

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import pytest
from jsonschema_rs import Draft202012Validator

from mainspring.store.vault import Vault
from support.identities import Authority
from support.in_process_api import InProcessApi
from support.routes import document

DOCUMENT = document()
ABSENT = object()
TASK = {"target": {"type": "handler", "name": "mainspring.noop"}}
LIMITED = {**TASK, "concurrency": {"key": "k"}}
KINDS: Mapping[str, object] = {"cron": "0 8 * * *", "interval": 60, "rrule": "FREQ=DAILY"}
SOON, LATER = "2027-01-01T00:00:00Z", "2028-01-01T00:00:00Z"


@pytest.fixture
def api_vault() -> Vault:
    return Vault(b"k" * 32)


def fits(component: str, body: object) -> bool:
    schema = {"$ref": f"#/components/schemas/{component}", "components": DOCUMENT["components"]}
    return Draft202012Validator(schema).is_valid(body)


def bodies(values: Mapping[str, object]) -> Iterator[dict[str, object]]:
    """Yield every way to leave each field out, to make it null, and to give it."""
    choices = [(ABSENT, None, value) for value in values.values()]
    for chosen in product(*choices):
        pairs = zip(values, chosen, strict=True)
        yield {name: value for name, value in pairs if value is not ABSENT}


async def agree(api: InProcessApi, component: str, call: tuple[str, str], *tried: Any) -> None:
    """Send each body, and compare the answers with what the document says of them."""
    taken = []
    for body in tried:
        client = api.operator if "tenants" in call[1] else api.admin
        answer = await client.call(*call, body)
        assert (answer.status < 300) == fits(component, body), (body, answer.body)
        assert answer.status < 300 or answer.status == 422, answer.body
        taken.append(answer.status < 300)
    assert {True, False} == set(taken)


async def test_times_of_a_task(api: InProcessApi) -> None:
    times: dict[str, object] = {"run_at": SOON, "delay": 5}
    url = "/v1/tasks?dry_run=true"
    await agree(api, "TaskIn", ("POST", url), *({**TASK, **body} for body in bodies(times)))


async def test_times_of_a_schedule(api: InProcessApi) -> None:
    call = ("POST", "/v1/schedules?dry_run=true")
    named = [{"name": "s", "task": TASK, **body} for body in bodies(KINDS)]
    await agree(api, "ScheduleIn", call, *named)
    call = ("POST", "/v1/schedules/preview")
    await agree(api, "PreviewIn", call, *bodies(KINDS))


async def test_what_a_schedule_makes(api: InProcessApi) -> None:
    step = {"id": "one", **TASK}
    made = await api.admin.post("/v1/workflows", {"name": "nightly", "steps": [step]})
    assert made.status == 201
    things = list(bodies({"task": TASK, "workflow": "nightly"}))
    keyed: list[dict[str, object]] = [
        {"task": task, "overlap": overlap}
        for task in (TASK, LIMITED)
        for overlap in ("skip", "allow", "queue", "cancel_running")
    ]
    named = [{"name": "s", "cron": "@daily", **body} for body in (*things, *keyed)]
    await agree(api, "ScheduleIn", ("POST", "/v1/schedules?dry_run=true"), *named)


async def test_times_in_a_patch_of_a_schedule(api: InProcessApi) -> None:
    body = {"name": "s", "cron": "@daily", "task": TASK}
    made = (await api.admin.post("/v1/schedules", body)).json()
    call = ("PATCH", f"/v1/schedules/{made['id']}?dry_run=true")
    await agree(api, "SchedulePatch", call, *bodies(KINDS))


async def test_ends_of_a_key(api: InProcessApi) -> None:
    ends: dict[str, object] = {"expires_at": LATER, "expires_in": 60}
    tried = [{"scopes": ["read"], **body} for body in bodies(ends)]
    await agree(api, "KeyIn", ("POST", "/v1/keys"), *tried)


async def test_an_identity_has_both_parts(api: InProcessApi) -> None:
    own = Authority().identity("tenant")
    parts = {"certificate": own.certificate.decode(), "key": own.key.decode()}
    call = ("PUT", f"/v1/tenants/{api.tenants['a']}/egress")
    await agree(api, "EgressIn", call, *bodies(parts))


async def test_only_unresolved_ones_are_replayed(api: InProcessApi) -> None:
    tried = [{"filter": {"resolved": flag}} for flag in (True, False, None)]
    await agree(api, "ReplayIn", ("POST", "/v1/dead-letters/replay"), *tried)
