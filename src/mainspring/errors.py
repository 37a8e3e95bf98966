"""Every error Mainspring raises, in one tree.

    MainspringError
    ├── ConfigError          the settings do not make sense; lists all problems together
    ├── ServerError          the private PostgreSQL, or the API, could not be started or kept
    ├── StoreError
    │   ├── StoreUnavailable the database cannot be reached, or was lost in mid-call
    │   │   └── NothingSent      it was not even asked: no connection was to be had
    │   └── MigrationError   the schema is not the one this version works with
    ├── CallFailed           what a client meets when the API does not serve it
    │   ├── Unreachable          nothing answered: whether the call took effect is not known
    │   │   └── Distrusted           the other side cannot prove that it is the API
    │   └── Unavailable          it answered 429 or 5xx, again and again
    ├── TaskUnfinished       somebody waited for a task, and it did not end in time
    ├── TaskNotCompleted     somebody waited for a task, and it failed, expired or was cancelled
    ├── InvalidArguments     arguments do not fit the signature of a task's function
    ├── NonRetryable         raised by a handler: trying again is of no use
    ├── RetryAfter           raised by a handler: try again, but not before
    └── RequestError         a request cannot be served: an answer that says why
        ├── InvalidRequest       422  what was sent does not make sense; lists every problem
        ├── MalformedRequest     400  what was sent cannot be read at all
        ├── Unauthenticated      401  no key, or one that is not known
        ├── Forbidden            403  the key lacks the scope
        ├── NotFound             404  no such thing, or not yours: the same answer
        ├── NotAcceptable        406  the caller takes none of the forms we can answer in
        ├── TooSlow              408  the request did not arrive in time
        ├── Conflict             409  the thing's state does not allow it
        ├── Busy                 409  the first request under this key is still being served
        ├── PreconditionFailed   412  the thing changed since it was read
        ├── TooLarge             413  more bytes than the limit
        ├── UnsupportedMediaType 415  the body comes in a form we cannot read
        ├── KeyReused            422  an idempotency key was used for something else before
        ├── TooManyRequests      429  the tenant calls more often than it may
        ├── HeadTooLarge         431  more headers, or longer ones, than the limit
        ├── Crowded              503  too many connections are open
        └── NotReady             503  this node cannot serve yet, or no longer

Each class has a stable `code`: it names the problem's type in API answers and log records.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self


class MainspringError(Exception):
    """The root of the tree: catch this to catch everything of ours."""

    code: ClassVar[str] = "internal"

    def __init_subclass__(
        cls, *, code: str | None = None, status: int | None = None, title: str | None = None
    ) -> None:
        """Set what is given; the rest is as in the class above."""
        super().__init_subclass__()
        for name, value in (("code", code), ("status", status), ("title", title)):
            if value is not None:
                setattr(cls, name, value)


class ConfigError(MainspringError, code="config"):
    """The settings do not make sense. `problems` holds one sentence each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class ServerError(MainspringError, code="server"):
    """The private PostgreSQL, or the API, could not be started or kept."""


class StoreError(MainspringError, code="store"):
    """The store could not do what was asked."""


class StoreUnavailable(StoreError, code="store-unavailable"):
    """The database is away, or has a fault. Whether the call took effect is not known."""


class NothingSent(StoreUnavailable):
    """No connection was to be had: the call took no effect, and there is nothing to look up."""


class MigrationError(StoreError, code="migration"):
    """The schema is not one this version of Mainspring works with."""


class CallFailed(MainspringError, code="call-failed"):
    """The API did not serve a call. `request_id` finds the call in the server's log."""

    request_id: str | None = None


class Unreachable(CallFailed, code="unreachable"):
    """Nothing answered. Whether the call took effect is not known."""


class Distrusted(Unreachable, code="distrusted"):
    """The other side cannot prove that it is the API, and will not when asked again."""


class Unavailable(CallFailed, code="unavailable"):
    """The API answered that it cannot serve the call now, as often as it was asked."""

    def __init__(self, message: str, status: int, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after
        self.reason = ""
        """What the server calls it (`not-ready`, say), if it was the server that answered."""


class TaskUnfinished(MainspringError, code="task-unfinished"):
    """A task did not end while somebody waited for it. It may still do so."""


class TaskNotCompleted(MainspringError, code="task-not-completed"):
    """A task ended, but has no result. `state` says how, `error` why."""

    def __init__(self, message: str, state: str, error: Mapping[str, str] | None) -> None:
        super().__init__(message)
        self.state = state
        self.error = error


class InvalidArguments(MainspringError, code="invalid-arguments"):
    """Arguments do not fit the signature of a task's function."""


class NonRetryable(MainspringError, code="failed"):
    """Raised by a handler: the task has failed for good, running it again would not help."""


class RetryAfter(MainspringError, code="failed"):
    """Raised by a handler: it failed; the next execution begins after `delay` seconds or later."""

    def __init__(self, delay: float, message: str = "") -> None:
        super().__init__(message or f"try again in {delay:g} s")
        self.delay = delay


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a request: where (a JSON pointer) and what."""

    pointer: str
    detail: str

    def __str__(self) -> str:
        return f"{self.pointer}: {self.detail}" if self.pointer else self.detail

    def at(self, pointer: str) -> Self:
        """Return the same problem in another place."""
        return replace(self, pointer=pointer)


class Oversize(Problem):
    """Something that has more bytes than the limit."""

    __slots__ = ()


_PROBLEMS_TOLD = 3


class RequestError(MainspringError):
    """A request cannot be served. Its text is one line, with the first few of its `problems`."""

    code = "request"
    status: ClassVar[int] = 400
    title: ClassVar[str] = "The request cannot be served"

    def __init__(self, detail: str, problems: Sequence[Problem] = ()) -> None:
        super().__init__(detail)
        self.detail = detail
        self.problems = tuple(problems)
        self.request_id: str | None = None

    def __str__(self) -> str:
        if not self.problems:
            return " ".join(self.detail.split())
        told = "; ".join(str(problem) for problem in self.problems[:_PROBLEMS_TOLD])
        more = len(self.problems) - _PROBLEMS_TOLD
        rest = f"; … and {more} more" if more > 0 else ""
        return " ".join(f"{self.detail}: {told}{rest}".split())


class InvalidRequest(
    RequestError, code="invalid-request", status=422, title="The request is not valid"
):
    """What was sent can be read, but does not make sense."""


class MalformedRequest(
    RequestError, code="malformed-request", status=400, title="The request cannot be read"
):
    """What was sent cannot be read at all."""


class Unauthenticated(
    RequestError, code="unauthenticated", status=401, title="A valid API key is needed"
):
    """No key, or one that is not known."""


class Forbidden(RequestError, code="forbidden", status=403, title="The API key may not do this"):
    """The key is known but lacks the scope."""


class NotFound(RequestError, code="not-found", status=404, title="Not found"):
    """No such thing, or somebody else's: the two look the same from outside."""


class NotAcceptable(
    RequestError, code="not-acceptable", status=406, title="There is no answer in a form you accept"
):
    """The caller takes none of the forms in which this can be answered."""


class Conflict(
    RequestError, code="conflict", status=409, title="The present state does not allow this"
):
    """The thing's present state does not allow it."""


class PreconditionFailed(
    RequestError, code="precondition-failed", status=412, title="It changed since it was read"
):
    """The thing changed since the caller read it."""


class TooLarge(RequestError, code="too-large", status=413, title="The request is too large"):
    """More bytes than the limit."""


def refusal(detail: str, problems: Sequence[Problem]) -> RequestError:
    """Return the error for problems that were found together: TooLarge if one is about size."""
    large = any(isinstance(problem, Oversize) for problem in problems)
    return (TooLarge if large else InvalidRequest)(detail, problems)


class UnsupportedMediaType(
    RequestError,
    code="unsupported-media-type",
    status=415,
    title="The body's form is not supported",
):
    """The body comes in a form that cannot be read here."""


class Busy(
    RequestError,
    code="still-in-progress",
    status=409,
    title="The first request under this key is still in progress",
):
    """Another request under the same idempotency key is still being served."""


class KeyReused(
    RequestError,
    code="idempotency-key-reused",
    status=422,
    title="The idempotency key belongs to another request",
):
    """An idempotency key was used again for something else."""


class TooManyRequests(
    RequestError, code="too-many-requests", status=429, title="Too many requests"
):
    """A tenant calls more often than it may; the headers tell where it stands."""

    def __init__(self, retry_after: int, headers: list[tuple[bytes, bytes]]) -> None:
        super().__init__(f"this tenant may call again in {retry_after} s")
        self.retry_after = retry_after
        self.headers = headers


class HeadTooLarge(
    RequestError, code="head-too-large", status=431, title="The request's headers are too large"
):
    """More headers, or longer ones, than the limit."""


class TooSlow(
    RequestError, code="too-slow", status=408, title="The request did not arrive in time"
):
    """The request did not arrive in time."""


class Crowded(RequestError, code="crowded", status=503, title="Too many connections are open"):
    """Too many connections are open."""


class NotReady(RequestError, code="not-ready", status=503, title="This node is not ready"):
    """This node cannot serve yet, or no longer."""
