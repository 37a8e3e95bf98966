"""A call of the API: encode it, send it, retry where that is safe, read the answer or the problem.

Every POST has an idempotency key: it takes effect once, also when it is sent again.
"""

from collections.abc import Mapping
from random import random
from typing import Any, TypeVar
from urllib.parse import quote, urlencode
from uuid import uuid4

import msgspec

from mainspring import errors
from mainspring.clock import monotonic
from mainspring.errors import (
    CallFailed,
    Distrusted,
    Problem,
    RequestError,
    Unavailable,
    Unreachable,
)
from mainspring.sdk.encoding import encode
from mainspring.sdk.http1 import Request, Response
from mainspring.sdk.transport import Transport

T = TypeVar("T")

DEFAULT_TIMEOUT = 30.0
"""Default seconds for a call, with all its retries."""

_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0
_RETRY_STATUSES = frozenset({429, 502, 503, 504})
_BY_CODE: dict[str, type[RequestError]] = {
    kind.code: kind for kind in (errors.Busy, errors.KeyReused)
}
_BY_STATUS: dict[int, type[RequestError]] = {
    kind.status: kind
    for kind in (
        errors.MalformedRequest,
        errors.Unauthenticated,
        errors.Forbidden,
        errors.NotFound,
        errors.NotAcceptable,
        errors.Conflict,
        errors.PreconditionFailed,
        errors.TooLarge,
        errors.UnsupportedMediaType,
        errors.InvalidRequest,
    )
}


class _ProblemDocument(msgspec.Struct):
    type: str = ""
    title: str = ""
    detail: str = ""
    request_id: str | None = None
    errors: list[dict[str, str]] = []

    @property
    def code(self) -> str:
        return self.type.rpartition(":")[2]


class ApiCaller:
    """Caller of one API with one key, over one transport."""

    def __init__(
        self, transport: Transport, api_key: str, timeout: float = DEFAULT_TIMEOUT
    ) -> None:
        self.transport = transport
        self._timeout = timeout
        self._headers = {"Authorization": f"Bearer {api_key}", "User-Agent": "mainspring-python"}

    async def call(
        self,
        method: str,
        path: str,
        body: object = msgspec.UNSET,
        *,
        answer: type[T] | None = None,
        query: Mapping[str, Any] | None = None,
        key: str | None = None,
        if_match: str | None = None,
    ) -> T:
        """Return the answer as a value of this type; None for an empty one."""
        headers = dict(self._headers)
        if method == "POST":
            headers["Idempotency-Key"] = key or uuid4().hex
        if if_match is not None:
            headers["If-Match"] = if_match
        data = b""
        if body is not msgspec.UNSET:
            data = encode(body)
            headers["Content-Type"] = "application/json"
        request = Request(method, path + _query(query), headers, data)
        response = await self._send(request)
        return read(response, answer)

    async def _send(self, request: Request) -> Response:
        """Send a request, again and again until an answer is final or the time is over."""
        deadline, attempts = monotonic() + self._timeout, 0
        while True:
            attempts += 1
            problem: CallFailed
            left = max(deadline - monotonic(), 0.05)
            try:
                response = await self.transport.send(request, left)
            except Distrusted:
                raise
            except Unreachable as lost:
                problem, wait = lost, None
            else:
                if response.status == 404 and request.method == "DELETE" and attempts > 1:
                    return Response(204, {}, b"")  # an earlier attempt deleted it
                # A 409 that names a time: an earlier attempt of this call is still being served.
                busy = response.status == 409 and "retry-after" in response.headers
                if response.status not in _RETRY_STATUSES and not busy:
                    return response
                problem = _unavailable(response)
                wait = problem.retry_after
            pause = min(_FIRST_PAUSE * 2 ** (attempts - 1), _LONGEST_PAUSE) * (0.5 + random() / 2)
            pause = max(pause, wait or 0.0)
            if monotonic() + pause >= deadline:
                raise problem
            await self.transport.sleep(pause)


def part(value: object) -> str:
    """Return a value quoted as one segment of a path."""
    return quote(str(value), safe="")


def read(response: Response, answer: type[T] | None) -> T:
    """Return the answer, or raise the error that its problem document describes."""
    if response.status >= 400:
        raise problem_of(response)
    if response.status >= 300:
        where = response.headers.get("location", "nowhere")
        raise _unexpected(response, f"it points to {where}, and no redirect is followed")
    if answer is None or (answer is object and not response.body):
        return None  # type: ignore[return-value]
    try:
        found = msgspec.json.decode(response.body, type=answer)
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        # A page of something between us and the server: the call may work in a moment.
        raise _unexpected(response, f"that is no answer of Mainspring's: {problem}") from problem
    etag = response.headers.get("etag")
    if etag is not None and "etag" in getattr(found, "__struct_fields__", ()):
        found.etag = etag  # type: ignore[attr-defined]
    return found


def problem_of(response: Response) -> RequestError | CallFailed:
    """Return the error for a response with status 400 or more."""
    document = _document(response)
    if response.status >= 500 or response.status == 429:
        return _unavailable(response)
    kind = _BY_CODE.get(document.code) or _BY_STATUS.get(response.status, RequestError)
    problems = [Problem(e.get("pointer", ""), e.get("detail", "")) for e in document.errors]
    detail = document.detail or document.title or f"the server answered {response.status}"
    error = kind(detail, problems)
    error.request_id = document.request_id
    return error


def _unexpected(response: Response, why: str) -> Unavailable:
    return Unavailable(f"the server answered {response.status}, but {why}", response.status)


def _unavailable(response: Response) -> Unavailable:
    document = _document(response)
    said = document.detail or document.title
    message = f"the server answered {response.status}" + (f": {said}" if said else "")
    error = Unavailable(message, response.status, _seconds(response.headers.get("retry-after")))
    error.reason = document.code
    error.request_id = document.request_id
    return error


def _document(response: Response) -> _ProblemDocument:
    try:
        return msgspec.json.decode(response.body, type=_ProblemDocument)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _ProblemDocument()


def _seconds(text: str | None) -> float | None:
    return float(text) if text is not None and text.isascii() and text.isdigit() else None


def _query(query: Mapping[str, Any] | None) -> str:
    pairs: list[tuple[str, str]] = []
    for name, value in (query or {}).items():
        if value is None:
            continue
        if isinstance(value, Mapping):
            pairs += [(name, f"{key}:{item}") for key, item in value.items()]
        else:
            pairs.append((name, _word(value)))
    return f"?{urlencode(pairs)}" if pairs else ""


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
