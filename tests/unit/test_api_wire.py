"""From bytes to tasks: the defaults, the rules, and a list of hostile bodies."""

import json
from random import Random
from typing import Any

import msgspec
import pytest

from mainspring.api.http.decoding import decode_batch, decode_lines, decode_task
from mainspring.api.http.payloads import nested_too_deeply
from mainspring.api.tasks.validation import TaskValidator
from mainspring.config import Config
from mainspring.domain.ids import TaskIds
from mainspring.domain.retry import RetryPolicy
from mainspring.domain.task import Requirements, Target, TaskSpec
from mainspring.errors import InvalidRequest, MalformedRequest, RequestError, TooLarge
from mainspring.store.creation import NewTask
from support.manual_clock import ManualClock

NOW = 1_800_000_000.0
NOOP = {"type": "handler", "name": "mainspring.noop"}


@pytest.fixture
def validator() -> TaskValidator:
    config = Config(max_payload=1000, max_batch=200)
    return TaskValidator(config, ManualClock(NOW), TaskIds(Random(1)), Random(2))


def make(validator: TaskValidator, **fields: object) -> NewTask:
    body = json.dumps({"target": NOOP, **fields}).encode()
    return validator.one(7, decode_task(body))


def refusal(validator: TaskValidator, body: bytes) -> RequestError:
    with pytest.raises(RequestError) as caught:
        validator.one(7, decode_task(body))
    return caught.value


def test_only_the_target_is_required(validator: TaskValidator) -> None:
    task = make(validator)
    assert (task.tenant_id, task.queue, task.priority, task.name) == (7, "default", 5, None)
    assert (task.created, task.run, task.due, task.expires) == (NOW, NOW, NOW, None)
    assert task.payload == b"{}"
    assert task.capability == "handler:mainspring.noop"
    spec = msgspec.json.decode(task.spec, type=TaskSpec)
    assert spec == TaskSpec(Target("handler", name="mainspring.noop"))


def test_every_field_is_kept(validator: TaskValidator) -> None:
    task = make(
        validator,
        target={"type": "http", "url": "https://a.example/x?y=1", "headers": {"X-A": "1"}},
        timeout=5,
        sla=0,
        retry={"max_attempts": 2, "jitter": 0},
        requires={"tags": ["gpu"], "cpu": 0.5},
        concurrency={"key": "k", "limit": 3},
        labels={"team": "growth"},
        name="Grüße",
    )
    spec = msgspec.json.decode(task.spec, type=TaskSpec)
    assert spec.target == Target("http", "https://a.example/x?y=1", "POST", {"X-A": "1"})
    assert (spec.timeout, spec.sla) == (5.0, 0.0)
    assert spec.retry == RetryPolicy(max_attempts=2, jitter=0)
    assert spec.requires == Requirements(["gpu"], None, 0.5)
    assert (task.concurrency_key, task.concurrency_limit) == ("k", 3)
    assert (task.labels, task.name, task.capability) == ({"team": "growth"}, "Grüße", "http")


def test_the_payload_is_kept_byte_for_byte(validator: TaskValidator) -> None:
    payload = b'{"b":1,  "a":"\\u0001\\ud83d\\ude00", "n": 1E5, "c": {"b": 2}}'
    body = b'{"target":{"type":"handler","name":"x"},"payload":  ' + payload + b" }"
    assert validator.one(1, decode_task(body)).payload == payload


@pytest.mark.parametrize(
    ("when", "run"),
    [
        ({"delay": 90}, NOW + 90),
        ({"delay": 0.25}, NOW + 0.25),
        ({"delay": "PT1M30S"}, NOW + 90),
        ({"run_at": "2027-01-15T09:00:01+01:00"}, NOW + 1),
    ],
)
def test_when_it_runs(validator: TaskValidator, when: dict[str, Any], run: float) -> None:
    task = make(validator, **when)
    assert (task.run, task.due) == (run, run)


def test_what_was_asked_for_too_late_is_due_now(validator: TaskValidator) -> None:
    """Else all the time since would be held against the scheduler."""
    task = make(validator, run_at="2020-01-01T00:00:00Z")
    assert (task.run, task.due) == (1577836800.0, NOW)
    assert NOW <= make(validator, run_at="2020-01-01T00:00:00Z", jitter=60).due <= NOW + 60


def test_jitter_delays_within_its_bounds(validator: TaskValidator) -> None:
    dues = [make(validator, jitter=60).due for _ in range(50)]
    assert all(NOW <= due <= NOW + 60 for due in dues)
    assert len(set(dues)) > 40


def test_durations_may_be_written_in_two_ways(validator: TaskValidator) -> None:
    numbers = make(
        validator, timeout=90, sla=3600, jitter=0.5, retry={"initial": 60, "max_delay": 86400}
    )
    texts = make(
        validator,
        timeout="PT1M30S",
        sla="PT1H",
        jitter="PT0.5S",
        retry={"initial": "PT1M", "max_delay": "P1D"},
    )
    decode = msgspec.json.Decoder(TaskSpec).decode
    assert decode(texts.spec) == decode(numbers.spec)
    assert decode(texts.spec).retry == RetryPolicy(initial=60, max_delay=86400)
    assert NOW <= texts.due <= NOW + 0.5


def test_equal_specs_are_encoded_once(validator: TaskValidator) -> None:
    assert make(validator, payload=1).spec is make(validator, payload=2, name="other").spec


@pytest.mark.parametrize(
    ("fields", "pointers"),
    [
        ({"run_at": "2027-01-01T00:00:00Z", "delay": 1}, ["/delay"]),
        ({"delay": "P1Y"}, ["/delay"]),
        ({"delay": -1}, ["/delay"]),
        ({"delay": 1e300}, ["/delay"]),
        ({"run_at": "2027-01-01T00:00:00"}, ["/run_at"]),
        ({"run_at": "9999-12-31T23:59:59-23:59"}, ["/run_at"]),
        ({"run_at": "0001-01-01T00:00:00+23:59"}, ["/run_at"]),
        ({"run_at": 5}, ["/run_at"]),
        ({"delay": 60, "expires_at": "2027-01-15T08:00:59Z"}, ["/expires_at"]),
        ({"jitter": 60, "expires_at": "2027-01-15T08:00:59Z"}, ["/expires_at"]),
        ({"expires_at": "9999-12-31T23:59:59-23:59"}, ["/expires_at"]),
        # What is asked for too late is due when it is created, and its jitter begins then.
        ({"run_at": "2027-01-15T07:00:00Z", "expires_at": "2027-01-15T07:59:59Z"}, ["/expires_at"]),
        (
            {"run_at": "2027-01-15T07:00:00Z", "jitter": 60, "expires_at": "2027-01-15T08:00:59Z"},
            ["/expires_at"],
        ),
        ({"priority": 10}, ["/priority"]),
        ({"priority": True}, ["/priority"]),
        ({"priority": 10**400}, ["/priority"]),
        ({"queue": ""}, ["/queue"]),
        ({"queue": "a b"}, ["/queue"]),
        ({"queue": "abc\n"}, ["/queue"]),
        ({"name": "a\u0000b"}, ["/name"]),
        ({"name": "a\nb"}, ["/name"]),
        ({"name": "a\n"}, ["/name"]),
        ({"name": "x" * 201}, ["/name"]),
        ({"timeout": 0}, ["/timeout"]),
        ({"timeout": 86401}, ["/timeout"]),
        ({"sla": -1}, ["/sla"]),
        ({"jitter": 86401}, ["/jitter"]),
        ({"timeout": "PT0S"}, ["/timeout"]),
        ({"timeout": "PT24H0.1S"}, ["/timeout"]),
        ({"timeout": "P1Y"}, ["/timeout"]),
        ({"timeout": True}, ["/timeout"]),
        ({"sla": "P366D"}, ["/sla"]),
        ({"sla": "PT9" + "9" * 99 + "S"}, ["/sla"]),
        ({"jitter": "P2D", "expires_at": "2027-01-15T08:00:01Z"}, ["/jitter"]),
        ({"jitter": "soon", "delay": "later"}, ["/jitter", "/delay"]),
        (
            {"retry": {"initial": "P31D", "max_delay": "-PT1S"}},
            ["/retry/initial", "/retry/max_delay"],
        ),
        ({"labels": {"a": 1}}, ["/labels/a"]),
        ({"labels": {"a": "\u0000"}}, ["/labels/a"]),
        ({"labels": {"a:b": "c"}}, ["/labels/a:b"]),
        ({"labels": {str(n): "" for n in range(65)}}, ["/labels"]),
        ({"concurrency": {"key": "k\u0000"}}, ["/concurrency/key"]),
        ({"concurrency": {"key": "k", "limit": 0}}, ["/concurrency/limit"]),
        ({"concurrency": {"limit": 1}}, ["/concurrency"]),
        ({"retry": {"max_attempts": 0}}, ["/retry/max_attempts"]),
        ({"requires": {"tags": ["\u0000"]}}, ["/requires/tags/0"]),
        ({"nonsense": 1}, ["/nonsense"]),
        ({"target": {"type": "nonsense"}}, ["/target/type"]),
        ({"target": {"type": "handler"}}, ["/target"]),
        ({"target": {"type": "handler", "name": "x", "url": "http://x"}}, ["/target/url"]),
        ({"target": {"type": "handler", "name": "a b"}}, ["/target/name"]),
        ({"target": {"type": "command", "argv": []}}, ["/target/argv"]),
        ({"target": {"type": "command", "argv": "ls"}}, ["/target/argv"]),
        ({"target": {"type": "command", "argv": ["a\u0000"]}}, ["/target/argv/0"]),
        ({"target": None}, ["/target"]),
        ({"payload": "x" * 1001}, ["/payload"]),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_place(
    validator: TaskValidator, fields: dict[str, Any], pointers: list[str]
) -> None:
    error = refusal(validator, json.dumps({"target": NOOP, **fields}).encode())
    assert [problem.pointer for problem in error.problems] == pointers
    assert isinstance(error, InvalidRequest | TooLarge)


@pytest.mark.parametrize(
    ("fields", "detail"),
    [
        (
            {"target": {"type": "nope"}},
            "Invalid value 'nope': it is one of http, handler, command",
        ),
        (
            {"target": {"type": "http", "url": "https://a.example", "method": "post"}},
            "Invalid enum value 'post': it is one of DELETE, GET, HEAD, PATCH, POST, PUT",
        ),
        (
            {"retry": {"on": ["nope"]}},
            "Invalid enum value 'nope': it is one of connection, timeout"
            ", or a whole number from 300 to 599",
        ),
        ({"target": {"type": "http", "url": "https://e.com:0/"}}, "has port 0, which is none"),
        (
            {"run_at": "2027-01-01T08:00Z"},
            "Invalid RFC3339 encoded datetime: write it with seconds and an offset"
            ", like 2027-01-01T08:00:00Z",
        ),
        (
            {"run_at": "2027-01-01T08:00:00"},
            "Expected `datetime` with a timezone component: write it with seconds and an offset"
            ", like 2027-01-01T08:00:00Z",
        ),
        ({"delay": 1e10}, "is too far ahead: at most 3660 days are allowed"),
        ({"delay": 1e300}, "is too far ahead: at most 3660 days are allowed"),
        (
            {"expires_at": "9000-01-01T00:00:00Z"},
            "is too far ahead: at most 7320 days are allowed",
        ),
        ({"timeout": "P2D"}, "is 172800 seconds; the most is 86400"),
    ],
)
def test_the_allowed_values_are_listed(
    validator: TaskValidator, fields: dict[str, Any], detail: str
) -> None:
    (problem,) = refusal(validator, json.dumps({"target": NOOP, **fields}).encode()).problems
    assert problem.detail == detail


def test_an_empty_body_is_called_so(validator: TaskValidator) -> None:
    for body in (b"", b" \n"):
        (problem,) = refusal(validator, body).problems
        assert problem.detail == "the body is empty"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "/path",
        "ftp://a.example/",
        "http://",
        "http:///path",
        "http://user:secret@a.example/",
        "http://a.example/ x",
        "http://a.example/\r\nX: 1",
        "http://a.example:99999/",
        "http://a.example:0/",
        "http://[::1/",
        "http://a\\b/",
        "http://ä.example/",
        "javascript:alert(1)",
        "http://a.example/" + "x" * 2048,
    ],
)
def test_urls_that_cannot_be_called(validator: TaskValidator, url: str) -> None:
    body = json.dumps({"target": {"type": "http", "url": url}}).encode()
    error = refusal(validator, body)
    assert [problem.pointer for problem in error.problems] == ["/target/url"]
    assert "secret" not in error.problems[0].detail


@pytest.mark.parametrize(
    "headers",
    [{"X-A": "1\r\nX-B: 2"}, {"X A": "1"}, {"": "1"}, {"X": "\u0000"}, {"X": "😀"}, {"X": "a\n"}],
)
def test_headers_that_would_break_the_request(
    validator: TaskValidator, headers: dict[str, str]
) -> None:
    target = {"type": "http", "url": "http://a.example/", "headers": headers}
    error = refusal(validator, json.dumps({"target": target}).encode())
    (name,) = headers
    assert [problem.pointer for problem in error.problems] == [f"/target/headers/{name}"]


def test_all_problems_are_reported_together(validator: TaskValidator) -> None:
    fields = {
        "target": {"type": "http", "url": "nowhere"},
        "payload": [0] * 999,
        "delay": "soon",
        "expires_at": "2020-01-01T00:00:00Z",
    }
    error = refusal(validator, json.dumps(fields).encode())
    pointers = [problem.pointer for problem in error.problems]
    assert pointers == ["/target/url", "/payload", "/delay", "/expires_at"]


def with_payload(payload: bytes) -> bytes:
    return b'{"target":{"type":"handler","name":"x"},"payload":' + payload + b"}"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'"x"',
        b"{",
        b"{}",
        b"{} {}",
        b"\xef\xbb\xbf{}",
        b"\xff\xfe{\x00}\x00",
        with_payload(b"NaN"),
        with_payload(b"[Infinity]"),
        with_payload(b"-"),
        with_payload(b"01"),
        with_payload(b'"\xff"'),
        with_payload(b'"\xed\xa0\x80"'),
        with_payload(b'"\\ud800"'),
        with_payload(b'"\\ud800 and more"'),
        with_payload(b'"\\x41"'),
        with_payload(b'"a\x00b"'),
        with_payload(b'"a\nb"'),
        with_payload(b"[" * 100 + b"]" * 100),
        with_payload(b'{"a":' * 65 + b"1" + b"}" * 65),
        with_payload(b"[" * 100_000 + b"]" * 100_000),
        with_payload(b"[" * 100_000),
        b'{"a":' * 100_000,
        b'{"target":{"type":"handler","name":"\\ud800"}}',
        b'{"target":{"type":"handler","name":"x"},"name":"\xff"}',
    ],
)
def test_hostile_bodies_are_refused_and_never_crash(validator: TaskValidator, body: bytes) -> None:
    assert 400 <= refusal(validator, body).status < 500


@pytest.mark.parametrize(
    "body",
    [
        b'{"target":{"type":"handler","name":"x"},"priority":1,"priority":2}',
        b'{"target":{"type":"handler","name":"x"},"priority":1,"\\u0070riority":2}',
        b'{"target":{"type":"handler","name":"x","name":"y"}}',
        b'{"payload":{"a":1},"target":{"type":"handler","name":"x"},"payload":{"b":1}}',
        b'{"payload":{"a":1},"target":{"type":"handler","name":"x"},"payload":{"a":1}}',
        b'{"target":{"type":"handler","name":"x"},"labels":{"a":"1","a":"2"},"payload":[1]}',
    ],
)
def test_a_name_given_twice_is_refused(validator: TaskValidator, body: bytes) -> None:
    (problem,) = refusal(validator, body).problems
    assert "twice" in problem.detail
    good = b'{"target":{"type":"handler","name":"x"},"payload":{"a":1,"a":2}}'
    with pytest.raises(InvalidRequest) as caught:
        decode_batch(b'{"tasks":[' + good + b"," + body + b"]}", most=10)
    assert [p.pointer for p in caught.value.problems] == ["/tasks/1"]
    with pytest.raises(InvalidRequest) as caught:
        decode_lines(good + b"\n" + good + b"\n" + body, most=10)
    assert [p.pointer for p in caught.value.problems] == ["/tasks/2"]


def test_names_are_looked_at_outside_of_payloads_only() -> None:
    good = b'{"target":{"type":"handler","name":"x"},"payload":{"a":1,"a":2},"priority":1}'
    plain = b'{"target":{"type":"handler","name":"x"},"payload":1,"priority":1}'
    body = b'{"tasks":[' + b",".join([good, plain, good]) + b"]}"
    assert len(decode_batch(body, most=10)) == 3
    with pytest.raises(InvalidRequest) as caught:
        decode_batch(b'{"tasks":[' + good + b'],"tasks":[' + good + b"]}", most=10)
    assert "twice" in caught.value.problems[0].detail


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        # Less than six bytes may follow, or more; it may be a name, or the second half alone.
        (r'"\ud800"', r"\ud800 is half of a surrogate pair"),
        (r'"\ud800" ' + " " * 20, r"\ud800 is half of a surrogate pair"),
        (r'{"\uD8aBx": 1}', r"\uD8aB is half of a surrogate pair"),
        (r'"\udc00"', r"\udc00 is half of a surrogate pair"),
        (r'"\ud83d\ude00 \\\\ud800 \ud801\u0041"', r"\ud801 is half of a surrogate pair"),
        # These are other mistakes.
        (r'"\\ud800', "truncated"),
        (r'"\ud83d\ude', "truncated"),
        (r'[x, "\ud800"]', "malformed"),
    ],
)
def test_half_a_character(validator: TaskValidator, payload: str, message: str) -> None:
    body = json.dumps({"target": NOOP})[:-1] + ', "payload": ' + payload + "}"
    found = refusal(validator, body.encode())
    assert isinstance(found, MalformedRequest)
    (problem,) = found.problems
    assert message in problem.detail
    if message[0] == "\\":
        assert f"(byte {body.index(message[:6])})" in problem.detail


def test_what_was_sent_is_not_sent_back_at_length(validator: TaskValidator) -> None:
    for field in ("x" * 100_000, "delay", "queue"):
        body = json.dumps({"target": NOOP, field: "y" * 100_000}).encode()
        (problem,) = refusal(validator, body).problems
        assert len(problem.detail) <= 300


def test_nesting_is_counted_outside_of_strings() -> None:
    assert not nested_too_deeply(b"[" * 64 + b"]" * 64)
    assert nested_too_deeply(b"[" * 65 + b"]" * 65)
    assert not nested_too_deeply(b"[" + b"[],{}," * 999 + b"[]]")
    assert not nested_too_deeply(b'["' + b"[" * 999 + b'\\"' + b"{" * 999 + b'"]')


async def test_a_batch_names_each_bad_task(validator: TaskValidator) -> None:
    good: dict[str, Any] = {"target": NOOP}
    bad_shape = {"target": NOOP, "priority": "high"}
    bad_values = {"target": {"type": "http", "url": "x"}, "delay": "soon"}
    with pytest.raises(InvalidRequest) as shape:
        decode_batch(json.dumps({"tasks": [good, bad_shape, {}, good]}).encode(), most=10)
    assert [p.pointer for p in shape.value.problems] == ["/tasks/1/priority", "/tasks/2"]
    tasks = decode_batch(json.dumps({"tasks": [good, bad_values]}).encode(), most=10)
    with pytest.raises(InvalidRequest) as values:
        await validator.many(7, tasks)
    assert [p.pointer for p in values.value.problems] == ["/tasks/1/target/url", "/tasks/1/delay"]


def test_a_batch_reports_at_most_a_hundred_problems() -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_batch(json.dumps({"tasks": [{}] * 500}).encode(), most=1000)
    assert len(caught.value.problems) == 100


@pytest.mark.parametrize("count", [0, 11])
def test_a_batch_has_bounds(count: int) -> None:
    with pytest.raises(InvalidRequest):
        decode_batch(json.dumps({"tasks": [{"target": NOOP}] * count}).encode(), most=10)
    with pytest.raises(InvalidRequest):
        decode_lines(b"\n".join([json.dumps({"target": NOOP}).encode()] * count), most=10)


def test_lines_are_tasks() -> None:
    line = json.dumps({"target": NOOP}).encode()
    assert len(decode_lines(line + b"\r\n\n" + line + b"\n", most=10)) == 2
    with pytest.raises(MalformedRequest) as caught:
        decode_lines(line + b"\n{nonsense\n", most=10)
    assert [p.pointer for p in caught.value.problems] == ["/tasks/1"]


async def test_ids_of_a_batch_rise(validator: TaskValidator) -> None:
    body = json.dumps({"tasks": [{"target": NOOP}] * 100}).encode()
    ids = [task.id for task in await validator.many(7, decode_batch(body, most=100))]
    assert ids == sorted(set(ids))


@pytest.mark.parametrize(
    "body",
    [
        b'{"target":{"type":"handler","name":"x"},"name":"x"\n}\n%b%b',
        b'%b%b\n{"target":{"type":"handler","name":"x"}\n}',
        b"%b%b",
    ],
    ids=["one over two lines, two on one", "the other way round", "two on one"],
)
def test_a_line_holds_one_task_whole(body: bytes) -> None:
    task = json.dumps({"target": NOOP}).encode()
    with pytest.raises(RequestError):
        decode_lines(body.replace(b"%b", task), most=10)
