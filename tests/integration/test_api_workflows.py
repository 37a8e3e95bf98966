"""Definitions of workflows over the API and a real database: versions, errors, graphs."""

import asyncio
from time import perf_counter
from typing import Any

import msgspec
import pytest

from mainspring.domain.task import TaskSpec
from mainspring.store.secrets import SecretStore
from mainspring.store.vault import Vault
from mainspring.store.workflows.workflows import WorkflowStore
from support.asgi import Answer
from support.in_process_api import InProcessApi

URL = "/v1/workflows"
NOOP = {"type": "handler", "name": "mainspring.noop"}


@pytest.fixture
def api_vault() -> Vault:
    return Vault(bytes(32))


def step(name: str, *needs: str, **fields: Any) -> dict[str, Any]:
    return {"id": name, "needs": list(needs), "target": NOOP, **fields}


def workflow(*steps: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"name": "nightly", "steps": list(steps), **fields}


async def put(api: InProcessApi, document: dict[str, Any], version: int | None = None) -> Answer:
    headers = {} if version is None else {"If-Match": f'"{version}"'}
    body = {name: value for name, value in document.items() if name != "name"}
    return await api.admin.call("PUT", f"{URL}/nightly", body, headers=headers)


# --- versions ----------------------------------------------------------------------------------


async def test_a_workflow_is_kept_as_it_was_sent(api: InProcessApi) -> None:
    document = workflow(
        step("extract", retry={"max_attempts": 2}, timeout=5, sla=9, priority=1, queue="night"),
        step(
            "clean",
            "extract",
            foreach="{{steps.extract.result.files}}",
            payload={"file": "{{item.name}}", "n": "{{index}}"},
            concurrency={"key": "clean-{{input.day}}", "limit": 3},
            delay="PT90S",
        ),
        {
            "id": "load",
            "needs": ["clean"],
            "if": "steps.extract.result.rows > 0",
            "target": {
                "type": "http",
                "url": "{{input.base}}/load/{{input.day}}",
                "auth": {"bearer": "s3cret"},
            },
        },
        step("sweep", cleanup=True),
        deadline="PT1H",
        input={"day": "today"},
    )
    made = await api.admin.post(URL, document)
    assert made.status == 201, made.body
    assert made.headers["location"] == f"{URL}/nightly"
    assert made.headers["etag"] == '"1"'
    shown = (await api.admin.get(f"{URL}/nightly")).json()
    assert shown == made.json()
    assert (shown["name"], shown["version"], shown["on_failure"]) == ("nightly", 1, "fail_fast")
    assert (shown["deadline"], shown["input"]) == (3600, {"day": "today"})
    extract, clean, load, sweep = shown["steps"]
    assert (extract["timeout"], extract["sla"], extract["priority"]) == (5, 9, 1)
    assert (extract["queue"], extract["retry"]["max_attempts"]) == ("night", 2)
    assert extract["when"] == "all_succeeded"
    assert clean["foreach"] == "{{steps.extract.result.files}}"
    assert clean["payload"] == {"file": "{{item.name}}", "n": "{{index}}"}
    assert clean["concurrency"] == {"key": "clean-{{input.day}}", "limit": 3}
    assert clean["delay"] == 90
    assert load["if"] == "steps.extract.result.rows > 0"
    assert load["target"]["url"] == "{{input.base}}/load/{{input.day}}"
    assert load["target"]["auth"] == {"bearer": "***"}
    assert "s3cret" not in str(shown)
    assert sweep["needs"] == [], "without needs it comes after everything else"
    assert (sweep["cleanup"], sweep["when"]) == (True, "all_finished")


async def test_secrets_of_steps_move_to_a_new_key(api: InProcessApi) -> None:
    target = {"type": "http", "url": "https://x.example/{{input.x}}", "auth": {"bearer": "s3cret"}}
    plain = {**target, "url": "https://x.example/\u00e9", "auth": {"bearer": "another"}}
    made = await api.admin.post(URL, workflow(step("a", target=target), step("b", target=plain)))
    assert made.status == 201, made.body
    vault = Vault(bytes([1]) * 32, (bytes(32),))
    assert await SecretStore(api.database, vault).renew() == (1, 0)
    stored = await WorkflowStore(api.database).get(api.tenants["a"], "nightly")
    assert stored is not None
    heads = []
    for one in stored.definition.steps:
        spec = msgspec.json.decode(one.template.spec, type=TaskSpec)
        assert spec.target.secret is not None
        heads.append(Vault(bytes([1]) * 32).open_headers(spec.target.secret.sealed))
    assert [head["Authorization"] for head in heads] == ["Bearer s3cret", "Bearer another"]
    assert await SecretStore(api.database, vault).renew() == (0, 0)


async def test_the_same_name_again_is_the_next_version(api: InProcessApi) -> None:
    first = await api.admin.post(URL, workflow(step("a")))
    second = await api.admin.post(URL, workflow(step("a"), step("b", "a")))
    assert (first.json()["version"], second.json()["version"]) == (1, 2)
    latest = (await api.admin.get(f"{URL}/nightly")).json()
    assert [s["id"] for s in latest["steps"]] == ["a", "b"]
    old = await api.admin.get(f"{URL}/nightly?version=1")
    assert old.json() == first.json()
    assert old.headers["etag"] == '"1"'
    assert (await api.admin.get(f"{URL}/nightly?version=3")).status == 404
    for wrong in ("0", "-1", "x", "99999999999", "1.0"):
        assert (await api.admin.get(f"{URL}/nightly?version={wrong}")).status == 422
    page = (await api.admin.get(f"{URL}/nightly/versions?limit=1")).json()
    assert [(v["version"], v["step_count"]) for v in page["items"]] == [(2, 2)]
    rest = await api.admin.get(f"{URL}/nightly/versions?limit=1&cursor={page['next_cursor']}")
    assert [(v["version"], v["step_count"]) for v in rest.json()["items"]] == [(1, 1)]


async def test_writers_at_the_same_time_get_a_version_each(api: InProcessApi) -> None:
    answers = await asyncio.gather(
        *(api.admin.post(URL, workflow(step(f"s{n}"))) for n in range(12))
    )
    assert sorted(a.json()["version"] for a in answers) == list(range(1, 13))
    for answer in answers:
        version = answer.json()["version"]
        kept = (await api.admin.get(f"{URL}/nightly?version={version}")).json()
        assert kept["steps"] == answer.json()["steps"]


async def test_only_the_latest_version_can_be_replaced(api: InProcessApi) -> None:
    assert (await put(api, workflow(step("a")))).status == 404
    await api.admin.post(URL, workflow(step("a")))
    answers = await asyncio.gather(*(put(api, workflow(step(f"b{n}")), 1) for n in range(4)))
    assert sorted(a.status for a in answers) == [200, 412, 412, 412]
    assert (await api.admin.get(f"{URL}/nightly")).json()["version"] == 2


async def test_a_dry_run_changes_nothing(api: InProcessApi) -> None:
    tried = await api.admin.post(f"{URL}?dry_run=true", workflow(step("a")))
    assert (tried.status, tried.json()["version"]) == (200, 1)
    assert (await api.admin.get(f"{URL}/nightly")).status == 404
    await api.admin.post(URL, workflow(step("a")))
    again = await api.admin.call("PUT", f"{URL}/nightly?dry_run=true", {"steps": [step("b")]})
    assert (again.status, again.json()["version"]) == (200, 2)
    assert (await api.admin.get(f"{URL}/nightly")).json()["version"] == 1
    wrong = await api.admin.post(f"{URL}?dry_run=true", workflow(step("a", "a")))
    assert wrong.status == 422


async def test_an_archived_workflow_is_hidden_and_keeps_its_versions(
    api: InProcessApi,
) -> None:
    await api.admin.post(URL, workflow(step("a")))
    stale = await api.admin.call("DELETE", f"{URL}/nightly", headers={"If-Match": '"7"'})
    assert stale.status == 412
    assert (await api.admin.call("DELETE", f"{URL}/nightly")).status == 204
    for path in ("", "?version=1", "/versions", "/graph"):
        assert (await api.admin.get(f"{URL}/nightly{path}")).status == 404
    assert (await api.admin.call("DELETE", f"{URL}/nightly")).status == 404
    assert (await api.admin.get(URL)).json()["items"] == []
    again = await api.admin.post(URL, workflow(step("b")))
    assert again.json()["version"] == 2
    audit = (await api.admin.get("/v1/audit")).json()["items"]
    assert [line["action"] for line in audit if line["subject"] == "nightly"] == [
        "workflow.put",
        "workflow.archived",
        "workflow.put",
    ]


async def test_workflows_are_listed_by_name(api: InProcessApi) -> None:
    for name in ("b", "B", "a-1", "c"):
        made = await api.admin.post(URL, {"name": name, "steps": [step("only")]})
        assert made.status == 201
    await api.other_tenant.post(URL, {"name": "theirs", "steps": [step("only")]})
    seen = await api.admin.all_items(f"{URL}?limit=2")
    assert [item["name"] for item in seen] == ["B", "a-1", "b", "c"]
    assert (await api.admin.get(f"{URL}?cursor=non%20sense")).status == 422


# --- what is wrong -----------------------------------------------------------------------------


async def test_all_mistakes_are_reported(api: InProcessApi) -> None:
    answer = await api.admin.post(URL, workflow(step("a", "b"), step("b", "a"), step("b")))
    assert answer.status == 422
    found = {error["pointer"]: error["detail"] for error in answer.json()["errors"]}
    assert found == {
        "/steps/0/needs": "is part of a cycle: a → b → a",
        "/steps/2/id": "'b' is the id of step 1 already",
    }


async def test_ten_thousand_steps_into_one_join(api: InProcessApi) -> None:
    parents = [step(f"s{n}") for n in range(9_999)]
    join = step("join", *(s["id"] for s in parents), payload={"all": "{{steps.s77.result}}"})
    begun = perf_counter()
    answer = await api.admin.post(URL, workflow(*parents, join))
    took = perf_counter() - begun
    assert answer.status == 201, answer.body[:500]
    assert took < 5, took
    shown = (await api.admin.get(f"{URL}/nightly/graph")).json()
    assert (len(shown["nodes"]), len(shown["edges"])) == (10_000, 9_999)


# --- graphs ------------------------------------------------------------------------------------


async def test_a_graph_in_three_forms(api: InProcessApi) -> None:
    document = workflow(
        step("extract"),
        step("clean", "extract", foreach=[1, 2], **{"if": '"x" == "]"'}),
        step("end", "clean", when="any_failed"),
        step("sweep", cleanup=True),
    )
    assert (await api.admin.post(URL, document)).status == 201
    data = await api.admin.get(f"{URL}/nightly/graph")
    assert data.json()["edges"] == [
        {"from": "extract", "to": "clean", "when": "all_succeeded"},
        {"from": "clean", "to": "end", "when": "any_failed"},
        {"from": "extract", "to": "sweep", "when": "all_finished"},
        {"from": "clean", "to": "sweep", "when": "all_finished"},
        {"from": "end", "to": "sweep", "when": "all_finished"},
    ]
    assert data.json()["nodes"][1] == {
        "id": "clean",
        "foreach": True,
        "cleanup": False,
        "if": '"x" == "]"',
        "state": None,
    }
    mermaid = await api.admin.get(f"{URL}/nightly/graph?format=mermaid")
    assert mermaid.headers["content-type"] == "text/vnd.mermaid; charset=utf-8"
    assert mermaid.body.decode().splitlines()[:3] == [
        "flowchart TD",
        '    s0["extract"]',
        '    s1[["clean<br/>for each<br/>if …"]]',
    ]
    arrows = [line.strip() for line in mermaid.body.decode().splitlines() if "-->" in line]
    assert arrows == ["s0 --> s1", "s1 -->|any_failed| s2", "s2 -->|all_finished| s3"]
    dot = await api.admin.get(f"{URL}/nightly/graph?format=dot&version=1")
    assert dot.headers["content-type"] == "text/vnd.graphviz; charset=utf-8"
    assert '"clean" -> "end" [label="any_failed"];' in dot.body.decode()
    assert (await api.admin.get(f"{URL}/nightly/graph?format=png")).status == 422


# --- schedules of them --------------------------------------------------------------------------


async def test_a_schedule_of_a_workflow_that_is_not_there_is_refused(api: InProcessApi) -> None:
    """Also if another tenant has one of that name, or if it was taken out of use."""
    assert (await api.other_tenant.post(URL, workflow(step("only")))).status == 201
    nightly = {"name": "s", "cron": "0 2 * * *", "workflow": "nightly"}
    for path in ("/v1/schedules", "/v1/schedules?dry_run=true"):
        assert _errors(await api.admin.post(path, nightly)) == [
            {"pointer": "/workflow", "detail": "there is no workflow 'nightly'"}
        ]
    assert (await api.admin.get("/v1/schedules")).json()["items"] == []
    assert (await api.admin.post(URL, workflow(step("only")))).status == 201
    made = await api.admin.post("/v1/schedules", nightly)
    assert made.status == 201, made.body
    one = f"/v1/schedules/{made.json()['id']}"
    assert (await api.admin.call("DELETE", f"{URL}/nightly")).status == 204
    for path in (one, f"{one}?dry_run=true"):
        for method, body in (("PUT", nightly), ("PATCH", {"workflow": "nightly"})):
            [error] = _errors(await api.admin.call(method, path, body))
            assert error["pointer"] == "/workflow"


async def test_a_schedule_outlives_its_workflow(api: InProcessApi) -> None:
    """It can still be paused, changed and deleted; and goes on when there is one again."""
    await api.admin.post(URL, workflow(step("only")))
    made = await api.admin.post(
        "/v1/schedules", {"name": "s", "cron": "0 2 * * *", "workflow": "nightly"}
    )
    one = f"/v1/schedules/{made.json()['id']}"
    assert (await api.admin.call("DELETE", f"{URL}/nightly")).status == 204
    for change in ({"cron": "0 3 * * *"}, {"input": {"full": True}}):
        changed = await api.admin.call("PATCH", one, change)
        assert changed.status == 200, changed.body
    assert (await api.admin.post(f"{one}/pause")).status == 200
    assert (await api.admin.post(URL, workflow(step("only")))).status == 201
    assert (await api.admin.call("PATCH", one, {"workflow": "nightly"})).status == 200
    assert (await api.admin.call("DELETE", one)).status == 204


async def test_a_preview_warns_of_a_workflow_that_is_not_there(api: InProcessApi) -> None:
    """Its times are what was asked for."""
    nightly = {"cron": "0 2 * * *", "workflow": "nightly"}
    shown = (await api.admin.post("/v1/schedules/preview", nightly)).json()
    assert len(shown["times"]) == 10
    assert shown["warnings"] == ["there is no workflow 'nightly': without one it is refused"]
    await api.admin.post(URL, workflow(step("only")))
    shown = (await api.admin.post("/v1/schedules/preview", nightly)).json()
    assert shown["warnings"] == []


def _errors(answer: Answer) -> list[dict[str, str]]:
    assert answer.status == 422, answer.body
    found: list[dict[str, str]] = answer.json()["errors"]
    return found
