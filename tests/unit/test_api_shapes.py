"""Every mistake in a body is found, and looking for them is safe."""

import gc
import tracemalloc
from time import process_time

import msgspec
import pytest
from msgspec import UNSET

from mainspring.api.http.body_errors import readable_as
from mainspring.api.http.decoding import (
    decode_as,
    decode_batch,
    decode_patch,
    decode_task,
)
from mainspring.domain.task import TaskState
from mainspring.errors import InvalidRequest, RequestError
from mainspring.wire.admin import KeyIn
from mainspring.wire.dead_letters import CancelIn, ReplayIn
from mainspring.wire.schedules import PreviewIn
from mainspring.wire.tasks import BatchIn, HttpTarget, TaskPatch
from mainspring.wire.workers import HeartbeatIn, LeaseIn


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
def test_the_allowed_values_are_listed(kind: type, body: object, detail: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_as(kind, msgspec.json.encode(body))
    (problem,) = caught.value.problems
    assert problem.detail == f"Invalid enum value {detail}"


@pytest.mark.parametrize("text", ["7.0", "7.00", "70e-1", "0.7E1", "7e0"])
def test_a_whole_number_is_an_integer(text: str) -> None:
    """JSON Schema says so, and with it the OpenAPI document."""
    body = """
        {"target": {"type": "handler", "name": "x"}, "priority": %s, "timeout": %s,
         "retry": {"max_attempts": %s, "on": [502.0, "timeout"]},
         "payload": {"priority": 5.0, "n": [1e2]}}"""
    task = decode_task((body % (text, text, text)).encode())
    assert (task.priority, task.timeout, task.retry.max_attempts) == (7, 7.0, 7)
    assert type(task.priority) is type(task.retry.max_attempts) is int
    assert task.retry.on == (502, "timeout")
    assert bytes(task.payload) == b'{"priority": 5.0, "n": [1e2]}'
    (same,) = decode_batch(b'{"tasks": [%s]}' % (body % (text, text, text)).encode(), most=1)
    assert same == task


@pytest.mark.parametrize(
    "text",
    ["7.5", "10.0", "1e999", "9007199254740994.0", '"7.0"', "-1e0", "1e99999999999999999999"],
)
def test_other_numbers_are_refused_as_before(text: str) -> None:
    body = '{"target": {"type": "handler", "name": "x"}, "priority": %s}'
    with pytest.raises(InvalidRequest) as caught:
        decode_task((body % text).encode())
    assert [problem.pointer for problem in caught.value.problems] == ["/priority"]


def test_a_full_list_of_numbers_with_fractions_is_taken() -> None:
    beat = b'{"id": "01a1e170-40be-706a-9c6e-50040828df4d", "fence": 7.0}'
    body = b'{"worker": "w", "incarnation": "i", "running": [' + b",".join([beat] * 10_000) + b"]}"
    heard = decode_as(HeartbeatIn, body)
    assert {one.fence for one in heard.running} == {7}


@pytest.mark.parametrize(
    ("kind", "start", "item", "end"),
    [
        (LeaseIn, b'{"worker": "w", "incarnation": "i", "handlers": [', b"1.0", b"]}"),
        (HeartbeatIn, b'{"worker": "w", "incarnation": "i", "running": [', b'{"fence":1.0}', b"]}"),
        (BatchIn, b'{"tasks": [', b'{"priority":1.0}', b"]}"),
        (HeartbeatIn, b'{"running": [', b'{"id": "x", "fence": 1.0, "progress": 1.5}', b"]}"),
    ],
)
def test_a_refused_body_of_many_fractions_costs_little(
    kind: type, start: bytes, item: bytes, end: bytes
) -> None:
    """The event loop stands still meanwhile: it took half a minute."""
    body = start + b",".join([item] * (16_000_000 // len(item))) + end
    began = process_time()
    with pytest.raises(InvalidRequest):
        decode_as(kind, body)
    assert process_time() - began < 1.5


def test_large_integers_are_taken_to_the_last_digit() -> None:
    most = decode_as(PreviewIn, b'{"max_runs": 9007199254740992.0}')
    assert most.max_runs == 2**53
    for text in (b"9007199254740993", b"9007199254740993.0", b"9007199254740992.5", b"1e999999999"):
        with pytest.raises(InvalidRequest):
            decode_as(PreviewIn, b'{"max_runs": %s}' % text)


def test_a_whole_number_is_no_mistake_beside_others() -> None:
    body = {"target": {"type": "handler", "name": "x"}, "priority": 7.0, "name": 5}
    assert pointers(body) == ["/name"]
    patch = readable_as(TaskPatch, msgspec.json.encode({"priority": 7.0, "name": 5}))
    assert patch is not None
    assert patch.priority == 7


def test_a_name_given_twice_stays_a_mistake() -> None:
    with pytest.raises(InvalidRequest, match="ambiguous"):
        decode_patch(b'{"priority": 5.0, "priority": 6.0}')


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
        for _ in range(300):
            for body in bodies:
                with pytest.raises(RequestError):
                    decode_as(kind, msgspec.json.encode(body))
    gc.collect()
