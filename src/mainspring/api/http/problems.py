"""Problem documents (RFC 9457): the one form of every answer that says no."""

from collections.abc import Mapping, Sequence

import msgspec
import structlog
from starlette.exceptions import HTTPException
from starlette.responses import Response

from mainspring.errors import (
    Busy,
    Crowded,
    NotReady,
    Problem,
    RequestError,
    StoreUnavailable,
    TooLarge,
    TooManyRequests,
    Unauthenticated,
)

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:mainspring:problem:"

_log = structlog.get_logger()
_encode = msgspec.json.Encoder().encode
_HTTP_CODES = {404: "not-found", 405: "method-not-allowed"}
_HTTP_TITLES = {404: "Not found", 405: "This resource does not know the method"}


class ProblemDocument(msgspec.Struct, omit_defaults=True):
    """The document itself."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    request_id: str
    errors: Sequence[Problem] = ()


def answer_to(error: Exception, *, path: str, request_id: str) -> Response:
    """The answer that tells a caller about an error; what is our own fault is also logged."""
    match error:
        case RequestError():
            document = ProblemDocument(
                TYPE_PREFIX + error.code,
                error.title,
                error.status,
                error.detail,
                path,
                request_id,
                error.problems,
            )
            return _respond(document, _headers_for(error))
        case StoreUnavailable():
            return _unavailable(error, path, request_id)
        case HTTPException():
            code = _HTTP_CODES.get(error.status_code, "http-error")
            title = _HTTP_TITLES.get(error.status_code, "The request cannot be served")
            detail = f"there is no {path}" if error.status_code == 404 else error.detail
            document = ProblemDocument(
                TYPE_PREFIX + code, title, error.status_code, detail, path, request_id
            )
            return _respond(document, error.headers or {})
        case _:
            return _internal(error, path, request_id)


def _headers_for(error: RequestError) -> Mapping[str, str]:
    match error:
        case Unauthenticated():
            return {"WWW-Authenticate": 'Bearer realm="mainspring"'}
        case Busy() | NotReady() | Crowded():
            return {"Retry-After": "1"}
        case TooManyRequests():
            return {"Retry-After": str(error.retry_after)}
        case TooLarge():
            # The rest of the body was not read: the connection cannot carry another request.
            return {"Connection": "close"}
        case _:
            return {}


def _unavailable(error: StoreUnavailable, path: str, request_id: str) -> Response:
    _log.warning(
        "a request met no database",
        action="request.store_unavailable",
        request_id=request_id,
        path=path,
        cause=str(error),
    )
    document = ProblemDocument(
        TYPE_PREFIX + error.code,
        "The database cannot be reached",
        503,
        "The database cannot be reached at the moment. Whether a change took effect is not known; "
        "it is safe to retry with the same Idempotency-Key.",
        path,
        request_id,
    )
    return _respond(document, {"Retry-After": "1"})


def _internal(error: Exception, path: str, request_id: str) -> Response:
    _log.error(
        "a request failed",
        action="request.failed",
        request_id=request_id,
        path=path,
        exc_info=error,
    )
    document = ProblemDocument(
        TYPE_PREFIX + "internal",
        "Something went wrong on our side",
        500,
        "The log has the details under this request_id.",
        path,
        request_id,
    )
    return _respond(document, {})


def _respond(document: ProblemDocument, headers: Mapping[str, str]) -> Response:
    return Response(_encode(document), document.status, dict(headers), MEDIA_TYPE)
