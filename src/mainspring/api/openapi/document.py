"""The OpenAPI 3.1 document, made from the routes and from the very types that check requests.

What an operation says itself is in its `Doc`; here is added what follows from where it stands:
the key it needs, the ids in its path, and the problems that any key, body or parameter can cause.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Annotated
from uuid import UUID

from msgspec import Meta

from mainspring import errors
from mainspring.api.http.operations import OpenOperation, Operation, TenantOperation
from mainspring.api.http.problems import MEDIA_TYPE, TYPE_PREFIX, UNAVAILABLE, ProblemDocument
from mainspring.api.openapi.components import Components, Json
from mainspring.api.openapi.operation import JSON, Body, Doc, Header, Param, ResponseDoc

Paths = Mapping[str, Mapping[str, Operation]]
Error = type[errors.MainspringError]

_IN_PATH = re.compile(r"\{(\w+)\}")
_INTRODUCTION = """\
Runs any piece of work once, later, or again and again, at the right moment, and loses nothing.

* Send `Authorization: Bearer <key>`. A tenant's key sees that tenant only.
* Errors are problem documents (RFC 9457): `type` is stable, `errors` lists everything that is
  wrong, each with a JSON pointer (`/query/…` and `/headers/…` for what is not in the body).
* `Idempotency-Key` on any POST makes it safe to send again.
* Times are ISO 8601 with an offset in and UTC out; durations are seconds or ISO 8601.
* Unknown fields and unknown query parameters are refused, not ignored. So is a body where none
  is described, unless it is `{}`.
"""
_IDEMPOTENCY_KEY = Param(
    "Idempotency-Key",
    Annotated[str, Meta(min_length=1, max_length=255, pattern=r"^[\x20-\x7e]*$")],
    "The same key and body get the first answer again, for a day at least; the same key with "
    "another body is refused.",
    where="header",
)
_RETRY_AFTER = Header("Retry-After", "Seconds to wait before asking again.", int)
_REQUEST_ID = Header("X-Request-Id", "The id of this request: the caller's own, or a new one.")
_RATE = (
    Header("RateLimit-Limit", "Requests a second the tenant may make, if limited.", int),
    Header("RateLimit-Remaining", "How many it may make right now.", int),
    Header("RateLimit-Reset", "Seconds until it may make all of them again.", int),
)
_X_REQUEST_ID = Param(
    "X-Request-Id",
    str,
    "An id to find this request by: up to 128 plain characters are echoed, others replaced.",
    where="header",
)


def describe(paths: Paths, version: str) -> Json:
    """Return the whole document."""
    docs = [op.doc for known in paths.values() for op in known.values() if op.doc is not None]
    schemas = _components(docs)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Mainspring",
            "version": version,
            "summary": "A distributed task scheduler.",
            "description": _INTRODUCTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "jsonSchemaDialect": "https://json-schema.org/draft/2020-12/schema",
        "servers": [{"url": "/"}],
        "tags": [{"name": tag} for tag in dict.fromkeys(doc.tag for doc in docs)],
        "paths": {
            path: {
                method.lower(): _operation(path, method, operation, operation.doc, schemas)
                for method, operation in known.items()
                if operation.doc is not None
            }
            for path, known in paths.items()
        },
        "components": {
            "schemas": schemas.by_name,
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "description": "An API key."}
            },
        },
    }


def _components(docs: Sequence[Doc]) -> Components:
    """Return the schemas of every type that the docs name."""
    bodies = [doc.body for doc in docs if doc.body is not None]
    rules = {name: rule for body in bodies for name, rule in body.rules.items()}
    others: list[object] = [ProblemDocument, UUID, _IDEMPOTENCY_KEY.type, _X_REQUEST_ID.type]
    others += (header.type for header in (_RETRY_AFTER, _REQUEST_ID, *_RATE))
    for doc in docs:
        others += _other_types_of(doc)
    return Components([body.type for body in bodies], others, rules)


def _other_types_of(doc: Doc) -> Iterator[object]:
    yield from (param.type for param in doc.params)
    for reply in doc.replies:
        yield from (header.type for header in reply.headers)
        yield from (kind for kind in (reply.type, reply.or_type) if kind is not None)


def _operation(path: str, method: str, operation: Operation, doc: Doc, schemas: Components) -> Json:
    open_to_all = isinstance(operation, OpenOperation)
    scopes = _scopes(operation)
    params = [
        *(Param(name, UUID, "The id.", "path") for name in _IN_PATH.findall(path)),
        *doc.params,
        *((_IDEMPOTENCY_KEY,) if method == "POST" and not open_to_all else ()),
        _X_REQUEST_ID,
    ]
    described: Json = {
        "operationId": doc.id,
        "tags": [doc.tag],
        "summary": doc.summary,
        "description": _description(operation, doc),
        # The last of a name wins: a doc may describe the id in its path in its own words.
        "parameters": [
            _parameter(param, schemas)
            for param in {(param.where, param.name): param for param in params}.values()
        ],
        "responses": {
            **_replies(doc.replies, _RATE if scopes else (), schemas),
            **_problems(_causes(path, method, operation, doc), schemas),
        },
        "security": [] if open_to_all else [{"key": []}],
    }
    if doc.body is not None:
        described["requestBody"] = _request_body(doc.body, schemas)
    if scopes:
        described["x-scopes"] = scopes
    return described


def _description(operation: Operation, doc: Doc) -> str:
    if isinstance(operation, OpenOperation):
        needed = "No key is needed."
    elif isinstance(operation, TenantOperation):
        needed = f"Needs the scope {' or '.join(f'`{scope}`' for scope in _scopes(operation))}"
        needed += ", or an operator's key." if operation.or_operators else "."
    else:
        needed = "Needs an operator's key."
    return f"{doc.description}\n\n{needed}".strip()


def _scopes(operation: Operation) -> list[str]:
    if not isinstance(operation, TenantOperation):
        return []
    return [scope for scope in (operation.scope, operation.or_scope) if scope is not None]


def _parameter(param: Param, schemas: Components) -> Json:
    described: Json = {
        "name": param.name,
        "in": param.where,
        "description": param.description,
        "required": param.where == "path",
        "schema": schemas.of(param.type),
    }
    if param.example is not None:
        described["example"] = param.example
    return described


def _request_body(body: Body, schemas: Components) -> Json:
    examples = {name: {"value": value} for name, value in body.examples.items()}
    content = {"schema": schemas.of(body.type), "examples": examples}
    return {"required": body.required, "content": {JSON: content}}


def _replies(replies: Sequence[ResponseDoc], more: Sequence[Header], schemas: Components) -> Json:
    described: Json = {}
    for reply in replies:
        made = _reply(reply, more, schemas)
        first = described.setdefault(str(reply.status), made)
        if first is not made:  # the same in another form
            first["content"].update(made["content"])
    return described


def _reply(reply: ResponseDoc, more: Sequence[Header], schemas: Components) -> Json:
    described: Json = {
        "description": reply.description,
        "headers": _headers([*reply.headers, _REQUEST_ID, *more], schemas),
    }
    if reply.type is not None:
        content: Json = {"schema": schemas.of(reply.type)}
        if reply.or_type is not None:
            content["schema"] = {"anyOf": [content["schema"], schemas.of(reply.or_type)]}
        described["content"] = {reply.media_type: content}
    if reply.links:
        described["links"] = {
            name: {
                "operationId": link.operation,
                "parameters": dict(link.parameters),
                "description": link.description,
            }
            for name, link in reply.links.items()
        }
    return described


def _headers(headers: Iterable[Header], schemas: Components) -> Json:
    return {
        header.name: {"description": header.description, "schema": schemas.of(header.type)}
        for header in headers
    }


def _causes(path: str, method: str, operation: Operation, doc: Doc) -> Iterator[Error]:
    """Yield every problem the operation can answer with, its own and those of its kind."""
    yield from doc.problems
    if not isinstance(operation, OpenOperation):
        yield from (errors.Unauthenticated, errors.Forbidden)
        yield from (errors.NotAcceptable, errors.StoreUnavailable)
    if isinstance(operation, TenantOperation):
        yield errors.TooManyRequests
    if _IN_PATH.search(path):
        yield errors.NotFound
    if method != "GET":
        # A body that is not described is looked at, too: it must be empty.
        yield from (errors.MalformedRequest, errors.TooLarge)
    if doc.body is not None:
        yield errors.UnsupportedMediaType
    # Any operation refuses query parameters that it does not know.
    yield errors.InvalidRequest
    if method == "POST":
        yield from (errors.KeyReused, errors.Busy)


def _problems(causes: Iterable[Error], schemas: Components) -> Json:
    by_status: dict[int, list[Error]] = {}
    for cause in dict.fromkeys(causes):
        status = cause.status if issubclass(cause, errors.RequestError) else 503
        by_status.setdefault(status, []).append(cause)
    return {
        str(status): _problem_reply(status, found, schemas)
        for status, found in sorted(by_status.items())
    }


def _problem_reply(status: int, causes: Sequence[Error], schemas: Components) -> Json:
    types = [TYPE_PREFIX + cause.code for cause in causes]
    return {
        "description": f"{HTTPStatus(status).phrase}: {', '.join(c.code for c in causes)}.",
        "headers": _headers([_REQUEST_ID, *_extra_headers(status, causes)], schemas),
        "content": {
            MEDIA_TYPE: {
                # Beside the reference, not around it: generators make one class of all problems.
                "schema": {
                    **schemas.of(ProblemDocument),
                    "properties": {"type": {"enum": types}, "status": {"const": status}},
                },
                "example": _example(status, causes[0]),
            }
        },
    }


def _extra_headers(status: int, causes: Sequence[Error]) -> Iterator[Header]:
    if status in (429, 503) or list(causes) == [errors.Busy]:
        yield _RETRY_AFTER
    elif errors.Busy in causes:
        only = f"Only with `{errors.Busy.code}`: {_RETRY_AFTER.description}"
        yield Header(_RETRY_AFTER.name, only, _RETRY_AFTER.type)


def _example(status: int, cause: Error) -> Json:
    example: Json = {
        "type": TYPE_PREFIX + cause.code,
        "title": cause.title if issubclass(cause, errors.RequestError) else UNAVAILABLE,
        "status": status,
        "detail": (cause.__doc__ or "").splitlines()[0],
        "instance": "/v1/tasks",
        "request_id": "5f0c8a1e9d3b47c2a6e4f8b0d1c2a3e4",
    }
    if cause is errors.InvalidRequest:
        example["errors"] = [{"pointer": "/priority", "detail": "Expected `int` <= 9"}]
    return example
