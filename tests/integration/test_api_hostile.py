"""Hostile bodies on every route that reads one: refused with a problem document, never a 500.

The routes and their bodies come from the table of routes itself, so that a new one is attacked as
soon as it exists.
"""

import asyncio
import gzip
from collections.abc import Iterator
from uuid import uuid4

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mainspring.config import Config
from mainspring.wiring.api import paths_of
from support.asgi import Answer, AsgiClient
from support.in_process_api import InProcessApi

CONFIG = Config(max_body=2**20, max_payload=2**16)
REFUSALS = {400, 404, 409, 413, 415, 422}

Route = tuple[str, str, bytes]
"""Method, path and a body that is in order."""


@pytest.fixture
def api_config() -> Config:
    return CONFIG


async def routes(api: InProcessApi) -> list[Route]:
    """Every operation that reads JSON, with an example of it."""
    task = await api.admin.post("/v1/tasks", _TASK)
    assert task.status == 201
    found = []
    for path, known in paths_of(api.deps).items():
        for method, operation in known.items():
            body = operation.doc.body if operation.doc else None
            if body is None:
                continue
            some_id = task.json()["id"] if path.startswith("/v1/tasks/") else str(uuid4())
            example = next(iter(body.examples.values()))
            found.append((method, path.replace("{id}", some_id), msgspec.json.encode(example)))
    assert len(found) >= 3
    return found


def client_for(api: InProcessApi, path: str) -> AsgiClient:
    operators = ("/v1/tenants", "/v1/cluster")
    return api.operator if path.startswith(operators) else api.admin


async def send(api: InProcessApi, route: Route, body: bytes, **headers: str) -> Answer:
    method, path, _ = route
    return await client_for(api, path).call(method, path, body, headers=headers)


def assert_refused(answer: Answer, what: object) -> None:
    assert answer.status in REFUSALS, (what, answer.status, answer.body[:300])
    assert answer.headers["content-type"] == "application/problem+json", what
    document = answer.json()
    assert document["type"].startswith("urn:mainspring:problem:"), what
    assert document["status"] == answer.status
    assert document["request_id"] == answer.headers["x-request-id"]
    if answer.status in (400, 422):
        assert document["errors"], (what, document)
        assert all(error["detail"] for error in document["errors"])
        assert all(error["pointer"][:1] in ("", "/") for error in document["errors"])
    assert len(answer.body) < 100_000, "an answer does not repeat what it was sent"


def corpus(example: bytes) -> Iterator[tuple[str, bytes]]:
    """Bodies that no route may take, whatever it reads."""
    inside = example.rstrip()[:-1]
    yield "nothing", b""
    yield "blank", b" \n\t"
    yield "a bomb of arrays", b"[" * 200_000
    yield "a bomb of objects", b'{"a":' * 100_000
    yield "a closed bomb", b"[" * 50_000 + b"]" * 50_000
    yield "a bomb inside", inside + b',"zz":' + b"[" * 5000 + b"]" * 5000 + b"}"
    for word in (b"NaN", b"Infinity", b"-Infinity", b"nan", b"undefined", b"None", b"True"):
        yield f"{word!r}", word
        yield f"{word!r} inside", inside + b',"zz":' + word + b"}"
    for value in (
        b"null",
        b"true",
        b"1",
        b'"text"',
        b"[]",
        b"[{}]",
        b"1e999",
        b"-0",
        b"1" * 300_000,
    ):
        yield f"only {value[:10]!r}", value
    yield "a huge number inside", inside + b',"zz":' + b"9" * 300_000 + b"}"
    yield "an overflow inside", inside + b',"zz":1e999}'
    yield "a NUL", b"\x00"
    yield "a NUL inside", inside + b',"zz":"\x00"}'
    yield "a control character", inside + b',"zz":"\x01"}'
    yield "invalid UTF-8", inside + b',"zz":"\xff\xfe"}'
    yield "an overlong form", inside + b',"zz":"\xc0\xaf"}'
    yield "an encoded surrogate", inside + b',"zz":"\xed\xa0\x80"}'
    yield "a lone surrogate", inside + b',"zz":"\\ud800"}'
    yield "UTF-16", example.decode().encode("utf-16")
    yield "a mark of byte order", b"\xef\xbb\xbf" + example
    yield "a name twice", inside + b"," + example[1:]
    yield "an unknown name", inside + b',"zz":1}'
    yield "an empty name", inside + b',"":1}'
    yield "__proto__", inside + b',"__proto__":{}}'
    yield "half", example[: len(example) // 2]
    yield "all but the end", inside
    yield "two documents", example + example
    yield "a tail", example + b"x"
    yield "a comma too many", inside + b",}"
    yield "a comment", inside + b"/* no */}"
    yield "single quotes", example.replace(b'"', b"'")
    yield "compressed", gzip.compress(example)


async def test_the_corpus(api: InProcessApi) -> None:
    for route in await routes(api):
        for what, body in corpus(route[2]):
            assert_refused(await send(api, route, body), (route[:2], what))


async def test_forms_that_are_not_read(api: InProcessApi) -> None:
    for route in await routes(api):
        for kind in ("text/plain", "application/xml", "multipart/form-data", "x"):
            answer = await send(api, route, route[2], content_type=kind)
            assert (answer.status, answer.json()["title"] != "") == (415, True), (route, kind)
        answer = await send(api, route, route[2], content_type="application/json; charset=utf-16")
        assert answer.status == 415
        answer = await send(api, route, gzip.compress(route[2]), content_encoding="gzip")
        assert answer.status == 415


async def test_a_body_that_ends_early_or_lies_about_its_length(api: InProcessApi) -> None:
    for method, path, example in await routes(api):
        client = client_for(api, path)
        answer = await client.call(method, path, chunks=[example[:3], b""])
        assert_refused(answer, (method, path))
        big = [b" " * 2**19] * 3
        answer = await client.call(method, path, chunks=big)
        assert answer.status in (404, 413)
        for length in ("-1", "x", "9" * 30):
            answer = await client.call(method, path, b"{}", headers={"content-length": length})
            assert answer.status in (400, 413)


_TASK = {"target": {"type": "handler", "name": "x"}, "delay": 3600}

BAD_FIELDS = {
    "/name": ['"\\u0000"', '"a\\nb"', '"\\ud800"', '""', "7", f'"{"x" * 300}"'],
    "/priority": ["1e999", "-1", "10", "5.5", '"5"', "true", "9" * 5000, "null"],
    "/timeout": ["1e999", "-1e999", "0", '"30"', "null", "1" * 400],
    "/run_at": ['"now"', '"2027-01-01"', '"2027-01-01T00:00:00"', "7", '"9999-12-31T23:59:59Z"'],
    "/delay": ["-1", "1e999", '"soon"', '"P1Y"', "[]", '"\\ud800"'],
    "/queue": ['"a b"', '"a\\r\\nb"', '"\\u0000"', '"\\ud83d"', "null"],
    "/labels": ['{"a\\u0000":"b"}', '{"a":"\\ud800"}', '{"":"x"}', '{"a":1}', "[]"],
    "/target": ['{"type":"http","url":"http://a\\r\\nb/"}', '{"type":"odd"}', "{}", "null"],
    "/retry": ['{"max_attempts":1e999}', '{"factor":0}', '{"x":1}', "[]"],
    "/concurrency": ['{"key":""}', '{"key":"\\u0000"}', '{"limit":1}', '{"key":"a","limit":0}'],
    "/expires_at": ['"2020-01-01T00:00:00Z"', '"x"', "0"],
}


@pytest.mark.parametrize("pointer", BAD_FIELDS)
async def test_a_bad_field_is_pointed_at(api: InProcessApi, pointer: str) -> None:
    for value in BAD_FIELDS[pointer]:
        target = "" if pointer == "/target" else '"target":{"type":"handler","name":"x"},'
        body = f'{{{target}"{pointer[1:]}":{value}}}'
        answer = await api.admin.post("/v1/tasks", body.encode())
        assert_refused(answer, body[:200])
        if answer.status == 422:
            assert all(p.startswith(pointer) for p in answer.pointers()), (body, answer.body)


async def test_payloads_are_kept_but_not_blindly(api: InProcessApi) -> None:
    """A payload is the caller's own, and kept to the byte: but it must mean the same to everybody
    who reads it."""

    async def created(payload: bytes) -> Answer:
        head = b'{"target":{"type":"handler","name":"x"},"payload":'
        return await api.admin.post("/v1/tasks", head + payload + b"}")

    for fine in (
        b"1e-999",
        b'[{"a": 1}, {"a":2, "b":":"},{"\\u0061":"\\u003a"}]',
        b'"\\\\u0000"',
        b"9" * 500,
        b"null",
        b"[" * 60 + b"]" * 60,
    ):
        answer = await created(fine)
        assert answer.status == 201, (fine, answer.body)
        read = await api.admin.get(answer.headers["location"])
        assert b'"payload":' + fine + b"," in read.body
    for bad in (b"NaN", b'"\xff"', b"[" * 65 + b"]" * 65, b"{", b'"\x00"', b'"\\ud800"'):
        assert_refused(await created(bad), bad)
    for bad in (
        b"1e999",
        b"[-1e999]",
        b"9" * 5000,
        b'{"a":1,"a":2}',
        b'[{"a":1,"\\u0061":2}]',
        b'{"a":{"b":[],"b":":"}}',
        b'"\\u0000"',
        b'{"\\\\\\u0000":1}',
    ):
        answer = await created(bad)
        assert_refused(answer, bad)
        assert (answer.status, answer.pointers()) == (422, ["/payload"]), bad
    too_large = await created(b'"' + b"x" * 70_000 + b'"')
    assert (too_large.status, too_large.pointers()) == (413, ["/payload"])


async def test_truncated_and_altered_bodies(api: InProcessApi) -> None:
    """Examples with some bytes changed: taken or refused, but always understood."""
    known = await routes(api)
    loop = asyncio.get_running_loop()

    @settings(
        max_examples=150,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
        derandomize=True,
    )
    @given(route=st.sampled_from(known), data=st.data())
    def twist(route: Route, data: st.DataObject) -> None:
        body = data.draw(twisted(route[2]))
        answer = asyncio.run_coroutine_threadsafe(send(api, route, body), loop).result(30)
        assert answer.status < 500, (route[:2], body, answer.body)
        if answer.status >= 400:
            assert_refused(answer, (route[:2], body))

    await asyncio.to_thread(twist)


SCRAPS = [
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b",",
    b":",
    b"\\",
    b"\x00",
    b"\xff",
    b"null",
    b"-",
    b"1e9999",
]
SCRAPS += [b"\\ud800", b"\\u0000", b"NaN", b'"a":1,', b" ", b"\n", b"0" * 400, b"\xc3", b"true"]


@st.composite
def twisted(draw: st.DrawFn, example: bytes) -> bytes:
    body = example
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(body)))
        until = draw(st.integers(at, min(len(body), at + 20)))
        scrap = draw(st.sampled_from(SCRAPS) | st.binary(max_size=8))
        body = body[:at] + scrap + body[until:]
    return body
