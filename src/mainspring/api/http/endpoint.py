"""Resources: a path, the operations on it, and who may do them."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar
from uuid import UUID

import msgspec
from msgspec import Struct
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from mainspring.api.http.auth import (
    Authenticator,
    check_operator,
    check_scope,
    digest_of,
)
from mainspring.api.http.bodies import read_body
from mainspring.api.http.decoding import decode_as
from mainspring.api.http.fast_path import FastHandler, Headers, PendingResponse
from mainspring.api.http.idempotency import (
    Idempotency,
    KeyOwner,
    ResponseRecorder,
    recording,
)
from mainspring.api.http.middleware import (
    EXCHANGE,
    FIELDS,
    HEADERS,
    ROUTE,
)
from mainspring.api.http.negotiation import RequestRules
from mainspring.api.http.rate_limits import RateLimits
from mainspring.api.openapi.operation import Doc
from mainspring.errors import NotFound, TooManyRequests
from mainspring.store.answers import BeforeCommit
from mainspring.store.audit import INSTALLATION

T = TypeVar("T")
SomeCall = TypeVar("SomeCall", "TenantCall", "OperatorCall")

_encode = msgspec.json.Encoder().encode


class TenantCall(Struct, frozen=True):
    """One authorised request of a tenant. The keeper is there if it has an Idempotency-Key."""

    request: Request
    tenant_id: int
    actor: str
    keeper: ResponseRecorder | None = None

    async def body(self) -> bytes:
        return await read_body(self.request)

    def remember(self, answer: Callable[[T], Response]) -> BeforeCommit[T]:
        """Keep the answer, for who asks again, in the transaction of what it tells of."""
        return recording(self.keeper, answer)

    @property
    def task_id(self) -> UUID:
        """The id of a task in the path."""
        return self.id_or(no_such_task)

    def id_or(self, missing: Callable[[str], NotFound]) -> UUID:
        """The id in the path. What is not an id cannot be found: the same answer as for others'."""
        text: str = self.request.path_params["id"]
        try:
            found = UUID(text)
        except ValueError:
            raise missing(text) from None
        if str(found) != text.lower():
            raise missing(text)
        return found


class OperatorCall(Struct, frozen=True):
    """One authorised request of an operator."""

    request: Request
    actor: str
    keeper: ResponseRecorder | None = None

    async def body(self) -> bytes:
        return await read_body(self.request)

    def remember(self, answer: Callable[[T], Response]) -> BeforeCommit[T]:
        """Keep the answer, for who asks again, in the transaction of what it tells of."""
        return recording(self.keeper, answer)

    @property
    def tenant_id(self) -> int:
        """The id of a tenant in the path."""
        text: str = self.request.path_params["id"]
        if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) < 2**31):
            raise self.no_such_tenant()
        return int(text)

    def no_such_tenant(self) -> NotFound:
        return NotFound(f"there is no tenant {self.request.path_params['id'][:64]!r}")


TenantHandler = Callable[[TenantCall], Awaitable[Response]]
OperatorHandler = Callable[[OperatorCall], Awaitable[Response]]
PromptHandler = Callable[[int, bytes], PendingResponse]
OpenHandler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class TenantOperation:
    """An operation for a tenant's key with this scope (or the other one).

    An answer under an Idempotency-Key is kept for every POST: `remembers_answers` says that the
    handler does so itself, `secret` that the answer shows a secret, which is kept sealed.
    `or_operators` answers an operator's key that belongs to no tenant, for the whole installation.
    `fast` serves a POST on the fast path; to raise is to decline it. `waits`: its longest wait, in
    seconds.
    """

    scope: str
    handler: TenantHandler
    doc: Doc | None = None
    or_scope: str | None = None
    remembers_answers: bool = False
    secret: bool = False
    or_operators: OperatorHandler | None = None
    fast: PromptHandler | None = None
    waits: float = 0.0


@dataclass(frozen=True, slots=True)
class OperatorOperation:
    """An operation for an operator's key."""

    handler: OperatorHandler
    doc: Doc | None = None
    secret: bool = False


@dataclass(frozen=True, slots=True)
class OpenOperation:
    """An operation that needs no key."""

    handler: OpenHandler
    doc: Doc | None = None


Operation = TenantOperation | OperatorOperation | OpenOperation


class Endpoint:
    """An ASGI endpoint: picks the operation by method, checks the caller, and answers."""

    def __init__(
        self,
        path: str,
        operations: Mapping[str, Operation],
        authenticator: Authenticator,
        limits: RateLimits,
        idempotency: Idempotency,
    ) -> None:
        self._path = path
        self._operations = {
            method: _strict(operation) if method != "GET" else operation
            for method, operation in operations.items()
        }
        if "GET" in self._operations:
            self._operations["HEAD"] = self._operations["GET"]
        self._allow = ", ".join(sorted(self._operations))
        self._manners = {
            method: RequestRules(operation.doc, in_any_case=isinstance(operation, OpenOperation))
            for method, operation in self._operations.items()
            if operation.doc is not None
        }
        self._authenticator = authenticator
        self._limits = limits
        self._idempotency = idempotency

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[ROUTE] = self._path
        operation = self._operations.get(scope["method"])
        if operation is None:
            raise HTTPException(405, f"allowed here: {self._allow}", {"Allow": self._allow})
        if scope["method"] in self._manners:
            self._manners[scope["method"]].check(scope[FIELDS], scope["query_string"])
        response = await self._serve(operation, Request(scope, receive, send))
        if isinstance(response, StreamingResponse) or response.background is not None:
            await response(scope, receive, send)
        else:
            await scope[EXCHANGE].answer(response)

    def compile_fast_path(self, fields: Mapping[bytes, bytes]) -> FastHandler | None:
        """How to serve a POST with these headers and no query on the spot, as in `fast.py`."""
        operation = self._operations.get("POST")
        if not isinstance(operation, TenantOperation) or operation.fast is None:
            return None
        self._manners["POST"].check(dict(fields), b"")
        digest = digest_of(_text(fields.get(b"authorization")))
        if self._authenticator.remembered(digest) is None:
            return None  # nobody shall crowd out what is known of others without a key
        handle = operation.fast

        def create_fast(body: bytes) -> tuple[PendingResponse, Headers] | None:
            key = self._authenticator.remembered(digest)
            if key is None:
                return None
            tenant_id = check_scope(key, operation.scope, operation.or_scope)
            headers = self._limits.admit(tenant_id)
            try:
                return handle(tenant_id, body), headers
            except Exception:
                self._limits.give_back(tenant_id)
                raise

        return create_fast

    async def _serve(self, operation: Operation, request: Request) -> Response:
        if isinstance(operation, OpenOperation):
            return await operation.handler(request)
        authorization = _text(request.scope[FIELDS].get(b"authorization"))
        key = await self._authenticator.identify(authorization)
        actor = f"key:{key.id}"
        if isinstance(operation, OperatorOperation):
            check_operator(key)
            serve = operation.handler
            if request.method != "POST":
                return await serve(OperatorCall(request, actor))
            caller = KeyOwner(INSTALLATION, authorization if operation.secret else None)
            return await self._idempotency.serve(
                caller, request, lambda same, keeper: serve(OperatorCall(same, actor, keeper))
            )
        if key.tenant_id is not None:
            self._check_rate(request, key.tenant_id)
        elif key.operator and operation.or_operators is not None:
            return await operation.or_operators(OperatorCall(request, actor))
        tenant_id = check_scope(key, operation.scope, operation.or_scope)
        handle = operation.handler
        if operation.remembers_answers or request.method != "POST":
            return await handle(TenantCall(request, tenant_id, actor))
        secret = authorization if operation.secret else None
        caller = KeyOwner(tenant_id, secret, operation.waits)
        return await self._idempotency.serve(
            caller, request, lambda same, keeper: handle(TenantCall(same, tenant_id, actor, keeper))
        )

    def _check_rate(self, request: Request, tenant_id: int) -> None:
        try:
            request.scope[HEADERS] = self._limits.admit(tenant_id)
        except TooManyRequests as refused:
            request.scope[HEADERS] = refused.headers
            raise


class _NoBody(Struct, forbid_unknown_fields=True):
    """What an operation without a body may be sent as one."""


_NOTHING = msgspec.json.Decoder(_NoBody)


def _strict(operation: Operation) -> Operation:
    """The operation; if it takes no body, it does nothing when there is one: who sends
    `{"dry_run": true}` means something by it."""
    match operation:
        case TenantOperation(doc=Doc(bodies=())):
            return replace(operation, handler=_without_body(operation.handler))
        case OperatorOperation(doc=Doc(bodies=())):
            return replace(operation, handler=_without_body(operation.handler))
        case _:
            return operation


def _without_body(
    handler: Callable[[SomeCall], Awaitable[Response]],
) -> Callable[[SomeCall], Awaitable[Response]]:
    async def handle(call: SomeCall) -> Response:
        decode_as(_NOTHING, await call.body() or b"{}")
        return await handler(call)

    return handle


def _text(header: bytes | None) -> str | None:
    return None if header is None else header.decode("latin-1")


def json_response(
    body: object, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    return raw_json(_encode(body), status, headers)


def raw_json(body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return RawJsonResponse(body, status, headers)


class RawJsonResponse(Response):
    """JSON that is encoded already: Starlette's own, without the steps it does not need."""

    def __init__(self, body: bytes, status: int, headers: Mapping[str, str] | None) -> None:
        self.status_code = status
        self.background = None
        self.body = body
        self.raw_headers = [
            (b"content-length", b"%d" % len(body)),
            (b"content-type", b"application/json"),
        ]
        if headers:
            self.raw_headers += [
                (name.lower().encode("latin-1"), value.encode("latin-1"))
                for name, value in headers.items()
            ]


def no_such_task(task_id: UUID | str) -> NotFound:
    return NotFound(f"there is no task {str(task_id)[:64]!r}")
