"""What holds for every operation of the API, tried on each that it concerns."""

import re
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from mainspring.api.http.operations import OpenOperation, TenantOperation
from mainspring.api.openapi.document import describe
from mainspring.config import Config
from mainspring.errors import StoreUnavailable
from mainspring.wiring.api import paths_of
from support.asgi import Answer, AsgiClient
from support.in_process_api import InProcessApi, open_api

TASK = {"target": {"type": "handler", "name": "x"}, "delay": 3600}
TASK_ONLY = {"target": TASK["target"]}
NDJSON = {"Content-Type": "application/x-ndjson"}
CONFIG = Config(requests_per_second=0, max_payload=5000)


@pytest.fixture
def api_config() -> Config:
    return CONFIG


def operations(api: InProcessApi) -> Iterator[tuple[str, str, AsgiClient]]:
    """Every operation with a key: method, path with some id, and who may call it."""
    for path, known in paths_of(api.deps).items():
        for method, operation in known.items():
            if not isinstance(operation, OpenOperation):
                who = api.admin if isinstance(operation, TenantOperation) else api.operator
                yield method, re.sub(r"\{\w+\}", str(uuid4()), path), who


def assert_problem(answer: Answer, status: int, code: str) -> None:
    assert (answer.status, answer.headers["content-type"]) == (status, "application/problem+json")
    document = answer.json()
    assert document["type"] == f"urn:mainspring:problem:{code}"
    assert (document["status"], document["request_id"]) == (status, answer.headers["x-request-id"])
    assert document["title"]
    assert document["detail"]


async def test_unknown_paths_and_methods(api: InProcessApi) -> None:
    for path in ("/", "/v1", "/v1/", "/v1/tasks/", "/v1/tasks//x", "/v1/tasks/a/b/c", "/V1/TASKS"):
        assert_problem(await api.admin.get(path), 404, "not-found")
    answer = await api.admin.call("PUT", "/v1/tasks")
    assert_problem(answer, 405, "method-not-allowed")
    assert answer.headers["allow"] == "GET, HEAD, POST"
    for method in ("TRACE", "OPTIONS", "CONNECT", "ODD"):
        assert (await api.admin.call(method, f"/v1/tasks/{uuid4()}")).status == 405


async def test_no_operation_answers_without_a_key(api: InProcessApi) -> None:
    for method, path, _ in operations(api):
        for nobody in (api.client(None), api.client("wrong")):
            answer = await nobody.call(method, path, b"{}")
            assert_problem(answer, 401, "unauthenticated")
            assert answer.headers["www-authenticate"].startswith("Bearer")


async def test_every_operation_refuses_forms_it_cannot_answer_in(api: InProcessApi) -> None:
    for method, path, who in operations(api):
        answer = await who.call(method, path, b"{}", headers={"accept": "image/png"})
        assert_problem(answer, 406, "not-acceptable")
    for accept in ("*/*", "application/*", "text/html, application/json;q=0.1", ""):
        assert (await api.admin.get("/v1/tasks", accept=accept)).status == 200
    for accept in ("application/json;q=0", "text/html", "application/json;q=0.0, text/*"):
        assert (await api.admin.get("/v1/tasks", accept=accept)).status == 406


async def test_every_operation_refuses_parameters_it_does_not_know(api: InProcessApi) -> None:
    """`?dryrun=true` must not do what `?dry_run=true` would only have shown."""
    for method, path, who in operations(api):
        answer = await who.call(method, path + "?dryrun=true&a%2Fb=1", b"{}")
        assert_problem(answer, 422, "invalid-request")
        assert answer.pointers() == ["/query/dryrun", "/query/a~1b"]
    twice = await api.admin.get("/v1/tasks?limit=1&limit=2&label=a:b&label=c:d")
    assert twice.pointers() == ["/query/limit"]
    flood = await api.admin.get("/v1/tasks?" + "&".join(f"x{n}=1" for n in range(1000)))
    assert flood.status == 422


async def test_verbs_take_no_body_and_do_not_ignore_one(api: InProcessApi) -> None:
    """`{"dry_run": true}` must not do what `?dry_run=true` would only have shown."""
    bare = []
    for path, known in paths_of(api.deps).items():
        for method, operation in known.items():
            if method == "GET" or operation.doc is None or operation.doc.body:
                continue
            who = api.admin if isinstance(operation, TenantOperation) else api.operator
            url = re.sub(r"\{\w+\}", str(uuid4()), path)
            bare.append(f"{method} {path}")
            for key in ({}, {"idempotency-key": url}):
                answer = await who.call(method, url, {"dry_run": True, "a/b": 1}, headers=key)
                assert_problem(answer, 422, "invalid-request")
                assert answer.pointers() == ["/dry_run", "/a~1b"]
            assert_problem(await who.call(method, url, b"abc"), 400, "malformed-request")
            assert_problem(await who.call(method, url, b"[]"), 422, "invalid-request")
            for nothing in (b"", b"{}", b" { } "):
                assert_problem(await who.call(method, url, nothing), 404, "not-found")
    assert {"POST /v1/tasks/{id}/cancel", "DELETE /v1/tasks/{id}"} < set(bare)
    task = (await api.admin.post("/v1/tasks", TASK)).json()
    url = f"/v1/tasks/{task['id']}"
    assert (await api.admin.post(f"{url}/cancel", {"dry_run": True})).status == 422
    assert (await api.admin.get(url)).json() == task
    assert (await api.admin.post(f"{url}/cancel", {}, idempotency_key="k")).status == 200


async def test_too_many_bytes_are_too_large_in_any_field(api: InProcessApi) -> None:
    task = (await api.admin.post("/v1/tasks", TASK)).json()
    schedule = {"name": "s", "interval": 60, "task": TASK_ONLY}
    made = (await api.admin.post("/v1/schedules", schedule)).json()
    flow = {"name": "flow", "steps": [{"id": "a", **TASK_ONLY}]}
    assert (await api.admin.post("/v1/workflows", flow)).status == 201
    large = "x" * 6000
    loaded = {**TASK_ONLY, "payload": large}
    outcome = {"id": task["id"], "fence": 1, "status": "succeeded", "result": large}
    for method, path, body, pointer in [
        ("POST", "/v1/tasks", loaded, "/payload"),
        ("POST", "/v1/tasks/batch", {"tasks": [TASK, loaded]}, "/tasks/1/payload"),
        ("PATCH", f"/v1/tasks/{task['id']}", {"payload": large}, "/payload"),
        ("POST", "/v1/effects", {"key": "k", "answer": large}, "/answer"),
        ("POST", "/v1/leases/report", {"outcomes": [outcome]}, "/outcomes/0/result"),
        ("POST", "/v1/schedules", {**schedule, "name": "t", "task": loaded}, "/task/payload"),
        ("PATCH", f"/v1/schedules/{made['id']}", {"task": loaded}, "/task/payload"),
        ("POST", "/v1/workflows", {**flow, "input": {"x": large}}, "/input"),
        ("PUT", "/v1/workflows/flow", {"steps": [{"id": "a", **loaded}]}, "/steps/0/payload"),
        (
            "PUT",
            "/v1/workflows/flow",
            {"steps": [{"id": "a", **TASK_ONLY, "foreach": [large]}]},
            "/steps/0/foreach",
        ),
        ("POST", "/v1/workflows/flow/runs", {"input": {"x": large}}, "/input"),
    ]:
        answer = await api.admin.call(method, path, body)
        assert_problem(answer, 413, "too-large")
        assert answer.pointers() == [pointer]


async def test_all_mistakes_are_reported_together(api: InProcessApi) -> None:
    body = {
        "target": {"type": "http", "url": 7, "colour": "red"},
        "priority": 99,
        "labels": {"a:": "x", "ok": "fine", "b": 1},
        "retry": {"max_attempts": 0},
        "when": "now",
    }
    answer = await api.admin.post("/v1/tasks", body)
    wrong = ["/target/url", "/target/colour", "/priority", "/retry/max_attempts"]
    assert answer.pointers() == [*wrong, "/labels/a:", "/labels/b", "/when"]
    answer = await api.admin.post("/v1/tasks/batch", {"tasks": [TASK, body, {}]})
    assert "/tasks/1/priority" in answer.pointers()
    assert "/tasks/2" in answer.pointers()
    many = {"tasks": [{"target": 1, "name": 2}] * 200}
    assert len((await api.admin.post("/v1/tasks/batch", many)).pointers()) == 100
    sense = {**TASK, "run_at": "2027-01-01T00:00:00Z", "expires_at": "2020-01-01T00:00:00Z"}
    assert (await api.admin.post("/v1/tasks", sense)).pointers() == ["/delay", "/expires_at"]


ODD: dict[str, Any] = {
    "target": {"type": "http", "url": "ftp://x"},
    "priority": 99,
    "delay": 5,
    "run_at": "2027-01-01T00:00:00Z",
}


@pytest.mark.parametrize(
    ("change", "pointers"),
    [
        ({}, ["/priority", "/target/url", "/delay"]),
        ({"priority": 5, "target": {**ODD["target"], "method": "post"}},
         ["/target/method", "/target/url", "/delay"]),
        ({"target": {"type": "http", "url": 1, "headers": {"Host": "x"}}},
         ["/target/url", "/priority", "/target/headers/Host", "/delay"]),
        ({"target": None, "payload": msgspec.Raw(b"[" * 99 + b"]" * 99)},
         ["/target", "/priority", "/payload", "/delay"]),
        # What could be a consequence of what cannot be read is not told.
        ({"run_at": "soon", "expires_at": "2020-01-01T00:00:00Z"},
         ["/run_at", "/priority", "/target/url"]),
        ({"delay": -1, "run_at": None, "expires_at": "2020-01-01T00:00:00Z"},
         ["/delay", "/priority", "/target/url", "/expires_at"]),
    ],
)  # fmt: skip
async def test_a_wrong_shape_hides_no_wrong_value(
    api: InProcessApi, change: dict[str, object], pointers: list[str]
) -> None:
    body = {**ODD, **change}
    answer = await api.admin.post("/v1/tasks", body)
    assert_problem(answer, 422, "invalid-request")
    assert answer.pointers() == pointers
    # Nor does that of one task hide the values of the others.
    tasks = [{"target": TASK["target"], "priority": "high"}, {**ODD, "priority": 5}, body, TASK]
    wrong = {"/tasks/0/priority", "/tasks/1/target/url", "/tasks/1/delay"}
    wrong |= {f"/tasks/2{pointer}" for pointer in pointers}
    batch = await api.admin.post("/v1/tasks/batch", {"tasks": tasks})
    assert set(batch.pointers()) == wrong
    batch = await api.admin.post("/v1/tasks/batch", {"tasks": tasks, "when": "now"})
    assert set(batch.pointers()) == {*wrong, "/when"}
    lines = b"\n".join(msgspec.json.encode(task) for task in tasks)
    batch = await api.admin.call("POST", "/v1/tasks/batch", lines, headers=NDJSON)
    assert set(batch.pointers()) == wrong


async def test_a_line_that_is_no_json_hides_no_wrong_value(api: InProcessApi) -> None:
    lines = b"{nonsense}\n" + msgspec.json.encode(ODD)
    answer = await api.admin.call("POST", "/v1/tasks/batch", lines, headers=NDJSON)
    assert answer.pointers()[1:] == ["/tasks/1/priority", "/tasks/1/target/url", "/tasks/1/delay"]


@pytest.mark.parametrize(
    "cursor",
    ["x", "%00", "AAAA", "A" * 22 + "==", "A" * 23, "é", "' OR 1=1 --", "B" * 22, "A" * 5000],
)
async def test_cursors_cannot_be_forged(api: InProcessApi, cursor: str) -> None:
    for path in ("/v1/tasks", "/v1/dead-letters", "/v1/keys", "/v1/audit"):
        answer = await api.admin.get(f"{path}?cursor={cursor}")
        assert (answer.status, answer.pointers()) == (422, ["/query/cursor"])


async def test_revisions(api: InProcessApi) -> None:
    created = await api.admin.post("/v1/tasks", TASK)
    url, tag = created.headers["location"], created.headers["etag"]
    same = await api.admin.get(url, if_none_match=f'"x", W/{tag}')
    assert (same.status, same.body, same.headers["etag"]) == (304, b"", tag)
    assert (await api.admin.get(url, if_none_match='"7"')).status == 200
    changed = await api.admin.call("PATCH", url, {"priority": 1}, headers={"if-match": tag})
    assert (changed.status, changed.headers["etag"] != tag) == (200, True)
    stale = await api.admin.call("PATCH", url, {"priority": 2}, headers={"if-match": tag})
    assert_problem(stale, 412, "precondition-failed")
    assert (await api.admin.get(url, if_none_match=tag)).status == 200


async def test_a_dry_run_changes_nothing(api: InProcessApi) -> None:
    created = await api.admin.post("/v1/tasks", TASK)
    url = created.headers["location"]
    for method, path, body in [
        ("POST", "/v1/tasks", TASK),
        ("POST", "/v1/tasks/batch", {"tasks": [TASK]}),
        ("POST", "/v1/tasks/cancel", {"filter": {}}),
        ("PATCH", url, {"priority": 1}),
    ]:
        answer = await api.admin.call(method, path + "?dry_run=true", body)
        assert answer.status == 200, (method, path, answer.body)
        assert "location" not in answer.headers
        assert ("etag" in answer.headers) == (method == "PATCH"), "there is no other to name"
        odd = await api.admin.call(method, path + "?dry_run=maybe", body)
        assert (odd.status, odd.pointers()) == (422, ["/query/dry_run"])
    assert len((await api.admin.get("/v1/tasks")).json()["items"]) == 1
    assert (await api.admin.get(url)).json() == created.json()
    bad_key = await api.admin.post("/v1/tasks?dry_run=true", TASK, idempotency_key="\x7f")
    assert bad_key.pointers() == ["/headers/Idempotency-Key"]


async def test_request_ids_are_echoed_or_made(api: InProcessApi) -> None:
    for path in ("/v1/tasks", "/nowhere", "/healthz"):
        assert (await api.admin.get(path, x_request_id="a-1")).headers["x-request-id"] == "a-1"
        assert re.fullmatch("[0-9a-f]{32}", (await api.admin.get(path)).headers["x-request-id"])


async def test_temporary_errors_say_when_to_retry(
    api: InProcessApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(*_arguments: object, **_named: object) -> None:
        raise StoreUnavailable("gone")

    monkeypatch.setattr(api.deps.tasks, "list", lost)
    answer = await api.admin.get("/v1/tasks")
    assert_problem(answer, 503, "store-unavailable")
    assert answer.headers["retry-after"] == "1"


async def test_too_many_requests(database_url: str) -> None:
    async with open_api(database_url, Config(requests_per_second=1)) as api:
        answers = [await api.admin.get("/v1/tasks") for _ in range(5)]
        assert_problem(answers[-1], 429, "too-many-requests")
        assert int(answers[-1].headers["retry-after"]) >= 1


async def test_what_is_open_to_all_is_served_whatever_they_accept(api: InProcessApi) -> None:
    for path, known in paths_of(api.deps).items():
        if isinstance(known.get("GET"), OpenOperation):
            for accept in ("text/html", "image/png", "application/json;q=0"):
                assert (await api.client(None).get(path, accept=accept)).status == 200, path


async def test_a_time_to_wait_is_promised_where_one_is_given(api: InProcessApi) -> None:
    """Of the reasons for a 409 only one passes by itself, and says when."""
    for known in describe(paths_of(api.deps), "1")["paths"].values():
        for operation in known.values():
            for status, reply in operation["responses"].items():
                told = reply["headers"].get("Retry-After", {}).get("description", "")
                if status != "409":
                    assert bool(told) == (status in ("429", "503"))
                    continue
                schema = reply["content"]["application/problem+json"]["schema"]
                kinds = {kind.split(":")[-1] for kind in schema["properties"]["type"]["enum"]}
                assert bool(told) == ("still-in-progress" in kinds)
                assert ("still-in-progress" in told) == (bool(told) and len(kinds) > 1)


async def test_the_document_and_its_pages(api: InProcessApi) -> None:
    anybody = api.client(None)
    document = await anybody.get("/openapi.json")
    assert (document.status, document.json()["openapi"]) == (200, "3.1.0")
    tag = document.headers["etag"]
    assert (await anybody.get("/openapi.json", if_none_match=tag)).status == 304
    page = await anybody.get("/docs")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    for asset in re.findall(r'(?:href|src)="(/docs/[^"]+)"', page.body.decode()):
        answer = await anybody.get(asset)
        assert answer.status == 200
        assert not re.search(
            rb"https?://|innerHTML|insertAdjacent|eval\(|localStorage", answer.body
        )
