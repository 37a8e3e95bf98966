"""What an answer means: success, failure, and whether to retry. Pure.

2xx is success. 3xx is a failure and never followed. 408, 425, 429, 5xx, timeouts and connection
errors are tried again, other answers are not; a task's `retry.on` replaces that list by its own.
"""

from collections.abc import Iterable
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import NamedTuple

import msgspec

from mainspring.domain.execution import Outcome, TaskError
from mainspring.execution.transfers import TransferReply

LONGEST_WAIT = 30 * 86400.0
"""The longest delay that a receiver may ask for."""

_RETRIED = frozenset({408, 425, 429})
_OF_INTEREST = {
    name.encode(): name
    for name in (
        *("content-type", "content-encoding", "content-length", "date", "location", "server"),
        *("etag", "retry-after", "mainspring-complete", "x-request-id", "request-id"),
    )
}
_LONGEST_VALUE = 512
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class ResponseVerdict(NamedTuple):
    """The outcome that a reply means."""

    outcome: Outcome
    error: TaskError | None
    retryable: bool
    retry_after: float | None


class HttpResult(msgspec.Struct, omit_defaults=True):
    """The result of the task, as it is stored."""

    status_code: int
    body: object
    headers: dict[str, str] = {}
    truncated: bool = False


def judge(
    reply: TransferReply, headers: dict[str, str], on: Iterable[int | str] | None, now: float
) -> ResponseVerdict:
    """Decide about a reply, at a moment given in seconds since the epoch."""
    if reply.trouble is not None:
        return _troubled(reply, on)
    status = reply.status
    if 200 <= status < 300:
        return ResponseVerdict(Outcome.SUCCEEDED, None, True, None)
    retried_by_default = status in _RETRIED or status >= 500
    retryable = retried_by_default if on is None else status in on
    wait = retry_after(headers.get("retry-after"), now)
    return ResponseVerdict(Outcome.FAILED, _status_error(status, wait), retryable, wait)


def headers_of_interest(lines: Iterable[bytes]) -> dict[str, str]:
    """Return the few headers that are kept, by their lower-case names; of several the last."""
    kept: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        known = _OF_INTEREST.get(name.strip().lower()) if colon else None
        if known is not None:
            kept[known] = value.decode("latin-1").strip()[:_LONGEST_VALUE]
    return kept


def completes_later(reply: TransferReply, headers: dict[str, str]) -> bool:
    """Whether the receiver took the work and will report its outcome through the API."""
    return reply.status == 202 and headers.get("mainspring-complete", "").lower() == "later"


def result_of(reply: TransferReply, headers: dict[str, str]) -> bytes | None:
    """Return the result to store: a body that is JSON as its value, any other as text."""
    if reply.trouble is not None:
        return None
    return _encode(HttpResult(reply.status, _body(reply), headers, reply.truncated))


def retry_after(value: str | None, now: float) -> float | None:
    """Return the wait a receiver asks for, in seconds or as a date; None when it makes no sense."""
    if not value:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        # Sixteen digits are half a billion years: no need to make a number of more.
        return min(float(text[:16]), LONGEST_WAIT)
    try:
        moment = parsedate_to_datetime(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        wait = moment.timestamp() - now
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return min(max(0.0, wait), LONGEST_WAIT)


def _troubled(reply: TransferReply, on: Iterable[int | str] | None) -> ResponseVerdict:
    if reply.trouble == "blocked":
        error = TaskError("egress-blocked", reply.message)
        return ResponseVerdict(Outcome.FAILED, error, False, None)
    timed_out = reply.trouble == "timeout"
    outcome = Outcome.TIMED_OUT if timed_out else Outcome.FAILED
    retryable = on is None or ("timeout" if timed_out else "connection") in on
    error = TaskError(reply.trouble or "connection", reply.message)
    return ResponseVerdict(outcome, error, retryable, None)


def _status_error(status: int, wait: float | None) -> TaskError:
    note = "" if wait is None else f" and asked to wait {wait:.0f} s"
    if 300 <= status < 400:
        note = ": redirects are not followed"
    return TaskError(f"http-{status}", f"the receiver answered {status}{note}")


def _body(reply: TransferReply) -> object:
    if not reply.body:
        return None
    if not reply.truncated:
        try:
            _decode(reply.body)
            return msgspec.Raw(reply.body)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            pass
    return reply.body.decode("utf-8", "replace")
