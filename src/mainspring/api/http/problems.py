"""Problem documents (RFC 9457): the form of all errors."""

from collections.abc import Mapping, Sequence

import msgspec
import structlog
from starlette.exceptions import HTTPException
from starlette.responses import Response

from mainspring.api.http.bodies import encode_json
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
    refusal,
)

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:mainspring:problem:"

_log = structlog.get_logger()
_HTTP_CODES = {404: "not-found", 405: "method-not-allowed"}
_HTTP_TITLES = {404: "Not found", 405: "This resource does not know the method"}
UNAVAILABLE = "The database cannot be reached"
_UNKNOWN_EFFECT = (
    "The database cannot be reached at the moment. Whether a change took effect is not known; "
    "it is safe to retry with the same Idempotency-Key."
)


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
    """Return the answer to a request that failed; log what is not the caller's fault."""

    def respond(
        code: str,
        title: str,
        status: int,
        detail: str,
        headers: Mapping[str, str] | None = None,
        errors: Sequence[Problem] = (),
    ) -> Response:
        kind = TYPE_PREFIX + code
        document = ProblemDocument(kind, title, status, detail, path, request_id, errors)
        return Response(encode_json(document), status, dict(headers or {}), MEDIA_TYPE)

    match error:
        case RequestError(code=code, title=title, status=status, detail=detail):
            return respond(code, title, status, detail, _headers_for(error), error.problems)
        case StoreUnavailable():
            log = _log.bind(request_id=request_id, path=path, cause=str(error))
            log.warning("the database cannot be reached", action="request.store_unavailable")
            return respond(error.code, UNAVAILABLE, 503, _UNKNOWN_EFFECT, {"Retry-After": "1"})
        case HTTPException(status_code=status):
            code = _HTTP_CODES.get(status, "http-error")
            title = _HTTP_TITLES.get(status, "The request cannot be served")
            detail = f"there is no {path}" if status == 404 else error.detail
            return respond(code, title, status, detail, error.headers)
        case _:
            log = _log.bind(request_id=request_id, path=path)
            log.error("a request failed", action="request.failed", exc_info=error)
            detail = "The log has the details under this request_id."
            return respond("internal", "Something went wrong on our side", 500, detail)


def below(pointer: str, name: str) -> str:
    """Return the JSON pointer of the member with this name."""
    return f"{pointer}/{name.replace('~', '~0').replace('/', '~1')}"


def raise_if(problems: Sequence[Problem], detail: str = "some values do not make sense") -> None:
    """Refuse a request in which something is wrong."""
    if problems:
        raise refusal(detail, problems)


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
