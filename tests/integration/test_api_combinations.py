"""What fields may say together: the document and the server agree about every combination."""

from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from jsonschema_rs import Draft202012Validator

from mainspring.config import Config
from mainspring.store.vault import Vault
from mainspring.wiring.api import build_app
from support.api import Office, opened_office
from support.identities import Authority
from support.routes import document

DOCUMENT = document()
ABSENT = object()
TASK = {"target": {"type": "handler", "name": "mainspring.noop"}}
LIMITED = {**TASK, "concurrency": {"key": "k"}}
KINDS: Mapping[str, object] = {"cron": "0 8 * * *", "interval": 60, "rrule": "FREQ=DAILY"}
SOON, LATER = "2027-01-01T00:00:00Z", "2028-01-01T00:00:00Z"


@pytest.fixture
async def office(database_url: str) -> AsyncIterator[Office]:
    async with opened_office(database_url, Config()) as opened:
        deps = replace(opened.deps, vault=Vault(b"k" * 32))
        yield Office(deps, build_app(deps), opened.tenants)


def fits(component: str, body: object) -> bool:
    schema = {"$ref": f"#/components/schemas/{component}", "components": DOCUMENT["components"]}
    return Draft202012Validator(schema).is_valid(body)


def bodies(values: Mapping[str, object]) -> Iterator[dict[str, object]]:
    """Yield every way to leave each field out, to make it null, and to give it."""
    choices = [(ABSENT, None, value) for value in values.values()]
    for chosen in product(*choices):
        pairs = zip(values, chosen, strict=True)
        yield {name: value for name, value in pairs if value is not ABSENT}


async def agree(office: Office, component: str, call: tuple[str, str], *tried: Any) -> None:
    """Send each body, and compare the answers with what the document says of them."""
    taken = []
    for body in tried:
        client = office.operator if "tenants" in call[1] else office.admin
        answer = await client.call(*call, body)
        assert (answer.status < 300) == fits(component, body), (body, answer.body)
        assert answer.status < 300 or answer.status == 422, answer.body
        taken.append(answer.status < 300)
    assert {True, False} == set(taken)


async def test_times_of_a_task(office: Office) -> None:
    times: dict[str, object] = {"run_at": SOON, "delay": 5}
    url = "/v1/tasks?dry_run=true"
    await agree(office, "TaskIn", ("POST", url), *({**TASK, **body} for body in bodies(times)))


async def test_times_of_a_schedule(office: Office) -> None:
    call = ("POST", "/v1/schedules?dry_run=true")
    named = [{"name": "s", "task": TASK, **body} for body in bodies(KINDS)]
    await agree(office, "ScheduleIn", call, *named)
    call = ("POST", "/v1/schedules/preview")
    await agree(office, "PreviewIn", call, *bodies(KINDS))


async def test_what_a_schedule_makes(office: Office) -> None:
    step = {"id": "one", **TASK}
    made = await office.admin.post("/v1/workflows", {"name": "nightly", "steps": [step]})
    assert made.status == 201
    things = list(bodies({"task": TASK, "workflow": "nightly"}))
    keyed: list[dict[str, object]] = [
        {"task": task, "overlap": overlap}
        for task in (TASK, LIMITED)
        for overlap in ("skip", "allow", "queue", "cancel_running")
    ]
    named = [{"name": "s", "cron": "@daily", **body} for body in (*things, *keyed)]
    await agree(office, "ScheduleIn", ("POST", "/v1/schedules?dry_run=true"), *named)


async def test_times_in_a_patch_of_a_schedule(office: Office) -> None:
    body = {"name": "s", "cron": "@daily", "task": TASK}
    made = (await office.admin.post("/v1/schedules", body)).json()
    call = ("PATCH", f"/v1/schedules/{made['id']}?dry_run=true")
    await agree(office, "SchedulePatch", call, *bodies(KINDS))


async def test_ends_of_a_key(office: Office) -> None:
    ends: dict[str, object] = {"expires_at": LATER, "expires_in": 60}
    tried = [{"scopes": ["read"], **body} for body in bodies(ends)]
    await agree(office, "KeyIn", ("POST", "/v1/keys"), *tried)


async def test_an_identity_has_both_parts(office: Office) -> None:
    own = Authority().identity("tenant")
    parts = {"certificate": own.certificate.decode(), "key": own.key.decode()}
    call = ("PUT", f"/v1/tenants/{office.tenants['a']}/egress")
    await agree(office, "EgressIn", call, *bodies(parts))


async def test_only_unresolved_ones_are_replayed(office: Office) -> None:
    tried = [{"filter": {"resolved": flag}} for flag in (True, False, None)]
    await agree(office, "ReplayIn", ("POST", "/v1/dead-letters/replay"), *tried)
