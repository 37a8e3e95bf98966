"""Resources: a path, the operations on it, and who may do them."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from uuid import UUID

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from mainspring.api.auth import Authenticator, check_operator, check_scope
from mainspring.api.documentation import Doc
from mainspring.api.middleware import ROUTE
from mainspring.errors import NotFound

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Call:
    """One authorised request of a tenant."""

    request: Request
    tenant_id: int
    actor: str

    async def body(self) -> bytes:
        """The whole body: once, and with less ceremony than Starlette's own."""
        chunks: list[bytes] = []
        while True:
            message = await self.request.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            chunks.append(message.get("body", b""))
            if not message.get("more_body", False):
                return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    @property
    def task_id(self) -> UUID:
        """The id in the path. What is not an id cannot be found: the same answer as for others'."""
        text: str = self.request.path_params["id"]
        try:
            found = UUID(text)
        except ValueError:
            raise no_such_task(text) from None
        if str(found) != text.lower():
            raise no_such_task(text)
        return found


TenantHandler = Callable[[Call], Awaitable[Response]]
OpenHandler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class ForTenants:
    """An operation for a tenant's key with this scope."""

    scope: str
    handler: TenantHandler
    doc: Doc | None = None


@dataclass(frozen=True, slots=True)
class ForOperators:
    """An operation for an operator's key."""

    handler: OpenHandler
    doc: Doc | None = None


@dataclass(frozen=True, slots=True)
class ForAll:
    """An operation that needs no key."""

    handler: OpenHandler
    doc: Doc | None = None


Operation = ForTenants | ForOperators | ForAll


class Resource:
    """An ASGI endpoint: picks the operation by method, checks the caller, and answers."""

    def __init__(
        self, path: str, operations: Mapping[str, Operation], authenticator: Authenticator
    ) -> None:
        self._path = path
        self._operations = dict(operations)
        if "GET" in self._operations:
            self._operations["HEAD"] = self._operations["GET"]
        self._allow = ", ".join(sorted(self._operations))
        self._authenticator = authenticator

    def route(self) -> Route:
        return Route(self._path, self)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[ROUTE] = self._path
        operation = self._operations.get(scope["method"])
        if operation is None:
            raise HTTPException(405, f"allowed here: {self._allow}", {"Allow": self._allow})
        response = await self._serve(operation, Request(scope, receive, send))
        await response(scope, receive, send)

    async def _serve(self, operation: Operation, request: Request) -> Response:
        if isinstance(operation, ForAll):
            return await operation.handler(request)
        key = await self._authenticator.identify(request.headers.get("authorization"))
        if isinstance(operation, ForOperators):
            check_operator(key)
            return await operation.handler(request)
        tenant_id = check_scope(key, operation.scope)
        return await operation.handler(Call(request, tenant_id, f"key:{key.id}"))


def json_response(
    body: object, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    return raw_json(_encode(body), status, headers)


def raw_json(body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(body, status, headers, "application/json")


def no_such_task(task_id: UUID | str) -> NotFound:
    return NotFound(f"there is no task {str(task_id)[:64]!r}")
