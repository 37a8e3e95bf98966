"""How an execution ended, as it is reported."""

from typing import Any, Literal, NamedTuple

from mainspring.errors import InvalidArguments, NonRetryable, RetryAfter
from mainspring.sdk.encoding import encode, sendable

LONGEST_MESSAGE = 4000

Ending = Literal["timeout", "cancelled", "lost", "released", "memory"]
"""Why an execution is ended from outside."""


class ReportedOutcome(NamedTuple):
    """The outcome of an execution, as it is reported."""

    status: Literal["succeeded", "failed", "released"]
    result: bytes | None = None
    code: str | None = None
    message: str = ""
    retryable: bool = True
    retry_after: float | None = None


DONE = ReportedOutcome("succeeded", b"null")
RELEASED = ReportedOutcome("released")


def success(value: Any) -> ReportedOutcome:
    """Return the outcome of a handler that returned."""
    if value is None:
        return DONE
    try:
        return ReportedOutcome("succeeded", encode(value))
    except InvalidArguments as problem:
        message = _short(f"it returned {type(value).__name__}: {problem}")
        return ReportedOutcome("failed", None, "bad-result", message, retryable=False)


def failure(problem: BaseException) -> ReportedOutcome:
    """Return the outcome of a handler that raised."""
    try:
        message = _short(str(problem))
    except Exception:
        message = "it cannot be told"
    match problem:
        case NonRetryable():
            return ReportedOutcome(
                "failed", None, "failed", message or "it said so", retryable=False
            )
        case RetryAfter():
            return ReportedOutcome("failed", None, "failed", message, retry_after=problem.delay)
        case InvalidArguments():
            return ReportedOutcome("failed", None, "bad-payload", message, retryable=False)
    name = type(problem).__name__
    return ReportedOutcome("failed", None, "failed", f"{name}: {message}" if message else name)


def _short(text: str) -> str:
    return sendable(text[:LONGEST_MESSAGE])


def ended(why: Ending, timeout: float) -> ReportedOutcome | None:
    """Return the outcome of an execution that was ended from outside; None where none counts."""
    match why:
        case "timeout":
            return ReportedOutcome("failed", None, "timeout", f"not done within {timeout:g} s")
        case "cancelled":
            return ReportedOutcome(
                "failed", None, "cancelled", "it was asked to stop", retryable=False
            )
        case "memory":
            return ReportedOutcome("failed", None, "memory", "it used more memory than it may")
        case "released":
            return RELEASED
        case "lost":
            return None
