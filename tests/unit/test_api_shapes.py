"""Every mistake in a body is found, and looking for them is safe."""

import gc
import tracemalloc

import msgspec
import pytest
from msgspec import UNSET

from mainspring.api.admin_wire import KeyIn
from mainspring.api.bulk_wire import CancelIn, ReplayIn
from mainspring.api.decoding import decode_as, decode_patch, decode_task, readable_as
from mainspring.api.wire import HttpTarget, TaskPatch
from mainspring.domain.task import TaskState
from mainspring.errors import InvalidRequest, RequestError


def pointers(body: object, decode: object = decode_task) -> list[str]:
    with pytest.raises(InvalidRequest) as caught:
        decode(msgspec.json.encode(body))  # type: ignore[operator]
    return [problem.pointer for problem in caught.value.problems]


def test_each_part_is_looked_at() -> None:
    assert pointers({}) == [""]
    assert pointers([]) == [""]
    assert pointers({"target": {}}) == ["/target"]
    assert pointers({"target": {"type": "odd"}, "name": ""}) == ["/target/type", "/name"]
    assert pointers({"target": {"type": "command", "argv": ["a", 1, "\x00"]}}) == [
        "/target/argv/1",
        "/target/argv/2",
    ]
    headers = {"a b": "1", "fine": "1", "c": 5}
    assert pointers({"target": {"type": "http", "url": "u", "headers": headers}}) == [
        "/target/headers/a b",
        "/target/headers/c",
    ]


@pytest.mark.parametrize(
    ("kind", "body", "detail"),
    [
        (CancelIn, {"filter": {"state": "done"}}, f"'done': it is one of {', '.join(TaskState)}"),
        (KeyIn, {"scopes": ["all"]}, "'all': it is one of admin, read, work, write"),
    ],
)
def test_what_is_allowed_is_said(kind: type, body: object, detail: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_as(msgspec.json.Decoder(kind), msgspec.json.encode(body))
    (problem,) = caught.value.problems
    assert problem.detail == f"Invalid enum value {detail}"


def test_names_are_escaped_and_cut() -> None:
    assert pointers({"a/b~": 1, "priority": "x"}, decode_patch) == ["/priority", "/a~1b~0"]
    assert len(pointers({"x" * 5000: 1}, decode_patch)[0]) == 101


def test_payloads_are_not_looked_into() -> None:
    assert pointers({"target": 5, "payload": {"target": 5}}) == ["/target"]


def test_what_is_not_needed_of_a_refused_body_is_not_decoded() -> None:
    """It may be as large as a body can be, and everybody waits meanwhile."""
    payload = [{"a": n} for n in range(20_000)]
    body = msgspec.json.encode({"priority": 99, "payload": payload, "name": "x"})
    readable_as(TaskPatch, body)  # shapes are made once
    tracemalloc.start()
    patch = readable_as(TaskPatch, body)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert patch is not None
    assert (patch.name, patch.priority) == ("x", UNSET)
    assert peak < len(body)


def test_what_can_be_read_of_a_target_is_known_by_its_tag() -> None:
    target = {"headers": {"Host": "x"}, "type": "http", "url": 1}
    patch = readable_as(TaskPatch, msgspec.json.encode({"target": target}))
    assert patch is not None
    assert isinstance(patch.target, HttpTarget)
    assert patch.target.headers == {"Host": "x"}


def test_looking_closer_again_and_again_is_safe() -> None:
    """Types that are made and dropped crash the decoder's library: see `shapes`."""
    bodies = [
        {"filter": {"label": 5, "name": []}, "first": 0},
        {"filter": {"labels": {"a": 1}, "resolved": {}}},
        {"filter": {"label": ["x", 5]}},
        {"filter": {"state": "done"}},
    ]
    for kind in (ReplayIn, CancelIn):
        decoder: msgspec.json.Decoder[object] = msgspec.json.Decoder(kind)
        for _ in range(300):
            for body in bodies:
                with pytest.raises(RequestError):
                    decode_as(decoder, msgspec.json.encode(body))
    gc.collect()
