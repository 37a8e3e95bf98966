"""The headers of an outgoing webhook: ours, the user's, and which of these are refused. Pure."""

from collections.abc import Mapping
from functools import lru_cache

from mainspring.clock import utc
from mainspring.domain.execution import Execution
from mainspring.domain.webhook import WebhookProfile
from mainspring.execution.signing import signature

# They steer the connection, not the message: two parties that read them differently can be made
# to disagree about where one request ends and the next begins.
_OF_THE_CONNECTION = frozenset(
    {
        *("connection", "content-length", "expect", "host", "http2-settings", "keep-alive"),
        *("te", "trailer", "transfer-encoding", "upgrade"),
    }
)
_OURS = frozenset({"traceparent", "x-idempotency-key"})
_OUR_PREFIXES = ("webhook-", "x-mainspring-", "proxy-")


def name_problem(name: str) -> str | None:
    """Return why a user may not set this header; None when it may be set."""
    lower = name.lower()
    if lower in _OF_THE_CONNECTION:
        return "belongs to the connection and cannot be set"
    if lower in _OURS or lower.startswith(_OUR_PREFIXES):
        return "is set by Mainspring itself"
    return None


def build(
    execution: Execution,
    profile: WebhookProfile,
    secret: Mapping[str, str],
    now: float,
    user_agent: str,
) -> list[bytes]:
    """Return all header lines of one execution. Secret headers win over plain ones."""
    headers = execution.spec.target.headers
    if headers or secret:
        lines = _theirs({**(headers or {}), **secret}, user_agent)
    else:
        lines = list(_without_theirs(user_agent))
    lines += _own(execution, profile, int(now))
    return lines


def _theirs(theirs: Mapping[str, str], user_agent: str) -> list[bytes]:
    """Return the user's headers, and the defaults of those that are missing."""
    given = {name.lower() for name in theirs}
    lines = [_line(name, value) for name, value in theirs.items()]
    if "content-type" not in given:
        lines.append(b"Content-Type: application/json")
    if "user-agent" not in given:
        lines.append(f"User-Agent: {user_agent}".encode("ascii"))
    # Without a value libcurl leaves its own version of these out.
    lines.append(b"Expect:")
    if "accept" not in given:
        lines.append(b"Accept: */*")
    return lines


@lru_cache(16)
def _without_theirs(user_agent: str) -> list[bytes]:
    return _theirs({}, user_agent)


def _own(execution: Execution, profile: WebhookProfile, timestamp: int) -> list[bytes]:
    message_id, fence = str(execution.id), execution.fence
    digits, run = message_id.replace("-", ""), _moment(execution.run)
    # One trace per task, one span per execution: both follow from the other headers.
    text = (
        f"webhook-id: {message_id}\n"
        f"webhook-timestamp: {timestamp}\n"
        f"X-Idempotency-Key: {message_id}\n"
        f"X-Mainspring-Attempt: {execution.attempt}\n"
        f"X-Mainspring-Scheduled-At: {run}\n"
        f"X-Mainspring-Fence: {fence}\n"
        f"traceparent: 00-{digits}-{digits[24:]}{fence & 0xFFFFFFFF:08x}-01"
    )
    if profile.keys:
        signed = signature(profile.keys, message_id, timestamp, body_of(execution))
        text = f"{text}\nwebhook-signature: {signed}"
    return text.encode("ascii").split(b"\n")


@lru_cache(256)
def _moment(seconds: float) -> str:
    return utc(seconds).isoformat().replace("+00:00", "Z")


def body_of(execution: Execution) -> bytes:
    """Return the bytes that are sent, and signed: GET and HEAD have no body."""
    return b"" if execution.spec.target.method in ("GET", "HEAD") else execution.payload


def _line(name: str, value: str) -> bytes:
    # libcurl reads "Name:" as "leave this header out" and "Name;" as "send it without a value".
    text = f"{name}: {value}" if value.strip() else f"{name};"
    return text.encode("latin-1")
