"""Calling a handler, and how an execution ended, as it is reported."""

import asyncio
import traceback
from typing import Any, Literal, NamedTuple

from mainspring.errors import InvalidArguments, MainspringError, NonRetryable, RetryAfter
from mainspring.sdk.context import Context, variables_with
from mainspring.sdk.encoding import encode, sendable
from mainspring.sdk.functions import TaskFunction

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


class HandlerInterrupt(BaseException):
    """Raised inside a handler that blocks, to end it. No `except Exception` stops it."""


DONE = ReportedOutcome("succeeded", b"null")
RELEASED = ReportedOutcome("released")


def failed(
    code: str, message: str, *, retryable: bool = True, retry_after: float | None = None
) -> ReportedOutcome:
    """Return the outcome of an execution that failed."""
    return ReportedOutcome("failed", None, code, message, retryable, retry_after)


def success(value: Any) -> ReportedOutcome:
    """Return the outcome of a handler that returned."""
    if value is None:
        return DONE
    try:
        return ReportedOutcome("succeeded", encode(value))
    except InvalidArguments as problem:
        message = _short(f"it returned {type(value).__name__}: {problem}")
        return failed("bad-result", message, retryable=False)


def failure(problem: BaseException) -> ReportedOutcome:
    """Return the outcome of a handler that raised."""
    try:
        message = _short(str(problem))
    except Exception:
        message = "it cannot be told"
    match problem:
        case NonRetryable():
            return failed("failed", message or "it said so", retryable=False)
        case RetryAfter():
            return failed("failed", message, retry_after=problem.delay)
        case InvalidArguments():
            return failed("bad-payload", message, retryable=False)
    name = type(problem).__name__
    return failed("failed", f"{name}: {message}" if message else name)


def _short(text: str) -> str:
    return sendable(text[:LONGEST_MESSAGE])


def ended(why: Ending, timeout: float) -> ReportedOutcome | None:
    """Return the outcome of an execution that was ended from outside; None where none counts."""
    match why:
        case "timeout":
            return failed("timeout", f"not done within {timeout:g} s")
        case "cancelled":
            return failed("cancelled", "it was asked to stop", retryable=False)
        case "memory":
            return failed("memory", "it used more memory than it may")
        case "released":
            return RELEASED
        case "lost":
            return None


def call_handler(
    function: TaskFunction[..., Any], payload: bytes, context: Context
) -> ReportedOutcome:
    """Call a handler in this thread, an async one on an event loop of its own."""
    try:
        call = function.signature.unpack(payload, context)
        variables = variables_with(context)
        value: Any = variables.run(function.function, *call.args, **call.kwargs)
        if function.is_async:
            value = variables.run(asyncio.run, value)
        return success(value)
    except BaseException as problem:
        log_traceback(context, problem)
        return failure(problem)


def log_traceback(context: Context, problem: BaseException) -> None:
    """Write the traceback to the task's log, but not of deliberate errors and our interrupts."""
    if not isinstance(problem, MainspringError | HandlerInterrupt):
        text = "".join(traceback.format_exception(problem)).rstrip()
        if len(text) > LONGEST_MESSAGE:  # where it began and what it was say the most
            text = f"{text[: LONGEST_MESSAGE // 4]}\n…\n{text[3 - LONGEST_MESSAGE * 3 // 4 :]}"
        context.log(text, "error")
