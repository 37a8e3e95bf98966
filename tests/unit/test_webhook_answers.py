"""What an answer means: Retry-After in all its forms, and who is tried again."""

from datetime import UTC, datetime
from email.utils import format_datetime
from uuid import UUID

import msgspec
import pytest

from mainspring.domain.execution import Outcome
from mainspring.execution.responses import (
    LONGEST_WAIT,
    completes_later,
    headers_of_interest,
    judge,
    result_of,
    retry_after,
)
from mainspring.execution.transfers import TransferReply, Trouble

NOW = 1_800_000_000.0
KEY = (UUID(int=1), 1)


def reply(status: int, body: bytes = b"", *, truncated: bool = False) -> TransferReply:
    return TransferReply(KEY, status, [], body, truncated)


def troubled(trouble: Trouble) -> TransferReply:
    return TransferReply(KEY, 0, [], b"", False, trouble, "because")


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("", None),
        ("120", 120.0),
        (" 7 ", 7.0),
        ("0", 0.0),
        ("999999999999999999999999999999999999", LONGEST_WAIT),
        ("9" * 5000, LONGEST_WAIT),
        ("-5", None),
        ("1.5", None),
        ("1e9", None),
        ("soon", None),
        ("٣", None),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", LONGEST_WAIT),
        ("Mon, 99 Foo 2027 99:99:99 GMT", None),
        ("\x00", None),
    ],
)
def test_retry_after_in_every_form(value: str | None, seconds: float | None) -> None:
    assert retry_after(value, NOW) == seconds


def test_retry_after_as_a_date() -> None:
    when = datetime.fromtimestamp(NOW + 90, UTC)
    assert retry_after(format_datetime(when, usegmt=True), NOW) == 90.0
    assert retry_after(format_datetime(when.replace(tzinfo=None)), NOW) == 90.0


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_2xx_is_success(status: int) -> None:
    assert judge(reply(status), {}, None, NOW).outcome is Outcome.SUCCEEDED


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 599])
def test_these_statuses_are_retried(status: int) -> None:
    verdict = judge(reply(status), {"retry-after": "3"}, None, NOW)
    assert (verdict.outcome, verdict.retryable) == (Outcome.FAILED, True)
    assert verdict.retry_after == 3.0
    assert verdict.error is not None
    assert verdict.error.code == f"http-{status}"


@pytest.mark.parametrize("status", [300, 301, 302, 307, 308, 400, 401, 403, 404, 409, 410, 422])
def test_these_are_not(status: int) -> None:
    assert not judge(reply(status), {}, None, NOW).retryable


def test_a_list_of_the_tasks_own_replaces_the_usual_one() -> None:
    on: list[int | str] = [404, "timeout"]
    assert judge(reply(404), {}, on, NOW).retryable
    assert not judge(reply(503), {}, on, NOW).retryable
    assert judge(troubled("timeout"), {}, on, NOW).retryable
    assert not judge(troubled("connection"), {}, on, NOW).retryable


def test_troubles_have_outcomes_of_their_own() -> None:
    late = judge(troubled("timeout"), {}, None, NOW)
    assert (late.outcome, late.retryable) == (Outcome.TIMED_OUT, True)
    cut = judge(troubled("connection"), {}, None, NOW)
    assert (cut.outcome, cut.retryable) == (Outcome.FAILED, True)
    blocked = judge(troubled("blocked"), {}, [500], NOW)
    assert (blocked.outcome, blocked.retryable) == (Outcome.FAILED, False)


def test_only_headers_of_interest_are_kept() -> None:
    lines = [b"Content-Type: text/plain\r\n", b"Set-Cookie: secret\r\n", b"RETRY-AFTER:  5 \r\n"]
    lines += [b"garbage\r\n", b"X-Request-Id: " + b"x" * 2000 + b"\r\n", b"\r\n"]
    kept = headers_of_interest(lines)
    assert kept["content-type"] == "text/plain"
    assert kept["retry-after"] == "5"
    assert len(kept["x-request-id"]) == 512
    assert len(kept) == 3


def test_later_is_asked_for_by_202_and_a_header() -> None:
    asked = {"mainspring-complete": "Later"}
    assert completes_later(reply(202), asked)
    assert not completes_later(reply(200), asked)
    assert not completes_later(reply(202), {})


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b'{"a": [1, 2.5]}', {"a": [1, 2.5]}),
        (b"plain", "plain"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"", None),
        (b"[" * 100_000, "[" * 100_000),
        (b'"\\ud800"', '"\\ud800"'),
    ],
)
def test_a_body_is_kept_as_json_or_as_text(body: bytes, shown: object) -> None:
    result = result_of(reply(200, body), {})
    assert result is not None
    assert msgspec.json.decode(result) == {"status_code": 200, "body": shown}


def test_a_truncated_body_is_text_and_says_so() -> None:
    result = result_of(reply(200, b"[1]", truncated=True), {"content-type": "x/y"})
    assert result is not None
    assert msgspec.json.decode(result) == {
        "status_code": 200,
        "body": "[1]",
        "headers": {"content-type": "x/y"},
        "truncated": True,
    }
