"""Endpoints (a path, its operations and who may call them) and the router that finds them."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from msgspec import Struct
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from mainspring.api.http.auth import Authenticator, check_scope, digest_of
from mainspring.api.http.decoding import decode_as
from mainspring.api.http.fast_path import FastHandler, Headers, PendingResponse
from mainspring.api.http.idempotency import Idempotency, KeyOwner
from mainspring.api.http.middleware import EXCHANGE, FIELDS, HEADERS, ROUTE
from mainspring.api.http.negotiation import RequestRules
from mainspring.api.http.operations import (
    OpenOperation,
    Operation,
    OperatorCall,
    OperatorOperation,
    TenantCall,
    TenantOperation,
)
from mainspring.api.http.rate_limits import RateLimits
from mainspring.api.openapi.operation import Doc
from mainspring.errors import Forbidden, TooManyRequests
from mainspring.store.audit import INSTALLATION

SomeCall = TypeVar("SomeCall", "TenantCall", "OperatorCall")


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
        self._rules = {
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
        if scope["method"] in self._rules:
            self._rules[scope["method"]].check(scope[FIELDS], scope["query_string"])
        response = await self._serve(operation, Request(scope, receive, send))
        if isinstance(response, StreamingResponse) or response.background is not None:
            await response(scope, receive, send)
        else:
            await scope[EXCHANGE].answer(response)

    def compile_fast_path(self, fields: Mapping[bytes, bytes]) -> FastHandler | None:
        """Return the handler on the fast path of a POST with these headers and no query."""
        operation = self._operations.get("POST")
        if not isinstance(operation, TenantOperation) or operation.fast is None:
            return None
        self._rules["POST"].check(dict(fields), b"")
        digest = digest_of(_text(fields.get(b"authorization")))
        if self._authenticator.remembered(digest) is None:
            return None  # without a key nobody may fill the cache of heads
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
            if not key.operator:
                raise Forbidden("this needs an operator's key")
            serve = operation.handler
            if request.method != "POST":
                return await serve(OperatorCall(request, actor))
            caller = KeyOwner(INSTALLATION, authorization if operation.secret else None)
            return await self._idempotency.serve(
                caller, request, lambda same, recorder: serve(OperatorCall(same, actor, recorder))
            )
        if key.tenant_id is not None:
            self._check_rate(request, key.tenant_id)
        elif key.operator and operation.or_operators is not None:
            return await operation.or_operators(OperatorCall(request, actor))
        tenant_id = check_scope(key, operation.scope, operation.or_scope)
        handle = operation.handler
        if operation.remembers_answers or request.method != "POST":
            return await handle(TenantCall(request, actor, tenant_id=tenant_id))
        secret = authorization if operation.secret else None
        caller = KeyOwner(tenant_id, secret, operation.waits)
        return await self._idempotency.serve(
            caller,
            request,
            lambda same, recorder: handle(TenantCall(same, actor, recorder, tenant_id=tenant_id)),
        )

    def _check_rate(self, request: Request, tenant_id: int) -> None:
        try:
            request.scope[HEADERS] = self._limits.admit(tenant_id)
        except TooManyRequests as refused:
            request.scope[HEADERS] = refused.headers
            raise


class _NoBody(Struct, forbid_unknown_fields=True):
    """The only body that an operation without one accepts: `{}`."""


def _strict(operation: Operation) -> Operation:
    """Make an operation without a body refuse any but `{}`, whose fields would have no effect."""
    match operation:
        case TenantOperation(doc=Doc(body=None)):
            return replace(operation, handler=_without_body(operation.handler))
        case OperatorOperation(doc=Doc(body=None)):
            return replace(operation, handler=_without_body(operation.handler))
        case _:
            return operation


def _without_body(
    handler: Callable[[SomeCall], Awaitable[Response]],
) -> Callable[[SomeCall], Awaitable[Response]]:
    async def handle(call: SomeCall) -> Response:
        decode_as(_NoBody, await call.body() or b"{}")
        return await handler(call)

    return handle


def _text(header: bytes | None) -> str | None:
    return None if header is None else header.decode("latin-1")


class Router:
    """The resources by path template (`/v1/tasks/{id}`); fixed names go before ids.

    The search takes only templates with as many steps and the same second step as the path: with
    `/v1/tasks/…` those of tasks, whatever else there is.
    """

    def __init__(self, resources: Mapping[str, ASGIApp]) -> None:
        self._fixed = {path: app for path, app in resources.items() if "{" not in path}
        self._shaped: dict[tuple[int, str], list[_Template]] = {}
        for path, app in resources.items():
            if path not in self._fixed:
                template = _Template(path, app)
                self._shaped.setdefault(template.group, []).append(template)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._fixed.get(scope["path"]) or self._find(scope)
        if app is None:
            raise HTTPException(404, "there is nothing under this path")
        await app(scope, receive, send)

    def _find(self, scope: Scope) -> ASGIApp | None:
        steps = scope["path"].split("/")
        if len(steps) < 3:
            return None
        for template in self._shaped.get((len(steps), steps[2]), ()):
            params = template.match(steps)
            if params is not None:
                scope["path_params"] = params
                return template.app
        return None


class _Template:
    def __init__(self, path: str, app: ASGIApp) -> None:
        self.app = app
        steps = path.split("/")
        self.group = (len(steps), steps[2])
        self._fixed = [(n, step) for n, step in enumerate(steps) if not step.startswith("{")]
        self._named = [(n, step[1:-1]) for n, step in enumerate(steps) if step.startswith("{")]

    def match(self, steps: list[str]) -> dict[str, str] | None:
        """Return the values of the named steps; None for another path, or if a value is empty."""
        for at, step in self._fixed:
            if steps[at] != step:
                return None
        params = {name: steps[at] for at, name in self._named}
        return params if all(params.values()) else None
