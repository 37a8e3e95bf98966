"""Operations: the handlers behind endpoints, and the calls that they get."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from msgspec import Struct
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from mainspring.api.http.bodies import read_body
from mainspring.api.http.fast_path import PendingResponse
from mainspring.api.http.idempotency import ResponseRecorder, recording
from mainspring.api.http.parameters import flag
from mainspring.api.openapi.operation import Doc
from mainspring.errors import NotFound, PreconditionFailed
from mainspring.store.answers import BeforeCommit

T = TypeVar("T")
Missing = Callable[[object], NotFound]
"""Makes the error for an item that is not there, from its id."""


def missing(kind: str) -> Missing:
    """Return the error for an item that is not there: the same for those of other tenants, and for
    what is not an id at all."""
    return lambda text: NotFound(f"there is no {kind} {str(text)[:64]!r}")


no_such_task = missing("task")
_no_such_tenant = missing("tenant")


class Call(Struct, frozen=True):
    """One authorised request."""

    request: Request
    actor: str
    recorder: ResponseRecorder | None = None
    """There is one if the request has an Idempotency-Key."""

    async def body(self) -> bytes:
        return await read_body(self.request)

    @property
    def query(self) -> QueryParams:
        return self.request.query_params

    @property
    def dry_run(self) -> bool:
        """Whether the caller only wants to see what would happen."""
        return flag(self.query, "dry_run")

    def check_rev(self, rev: int) -> None:
        """Raise PreconditionFailed unless If-Match allows a change at this revision."""
        wanted = self.request.headers.get("if-match", "*").strip()
        if wanted != "*" and f'"{rev}"' not in (tag.strip() for tag in wanted.split(",")):
            raise PreconditionFailed(f'it is at revision "{rev}" now')

    def remember(self, answer: Callable[[T], Response]) -> BeforeCommit[T]:
        """Return a step that stores the answer for a repeated request, in the same transaction."""
        return recording(self.recorder, answer)


class TenantCall(Call, frozen=True, kw_only=True):
    """One authorised request of a tenant."""

    tenant_id: int

    @property
    def task_id(self) -> UUID:
        """The id of a task in the path."""
        return self.id_or(no_such_task)

    def id_or(self, missing: Missing, name: str = "id") -> UUID:
        """Return the id in the path; raise NotFound for what is not an id."""
        text: str = self.request.path_params[name]
        try:
            found = UUID(text)
        except ValueError:
            raise missing(text) from None
        if str(found) != text.lower():
            raise missing(text)
        return found


class OperatorCall(Call, frozen=True):
    """One authorised request of an operator."""

    @property
    def tenant_id(self) -> int:
        """The id of a tenant in the path."""
        text: str = self.request.path_params["id"]
        if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) < 2**31):
            raise self.no_such_tenant()
        return int(text)

    def found(self, item: T | None) -> T:
        """Return the item of the tenant in the path; raise NotFound if there is none."""
        if item is None:
            raise self.no_such_tenant()
        return item

    def no_such_tenant(self) -> NotFound:
        return _no_such_tenant(self.request.path_params["id"])


TenantHandler = Callable[[TenantCall], Awaitable[Response]]
OperatorHandler = Callable[[OperatorCall], Awaitable[Response]]


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
    fast: Callable[[int, bytes], PendingResponse] | None = None
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

    handler: Callable[[Request], Awaitable[Response]]
    doc: Doc | None = None


Operation = TenantOperation | OperatorOperation | OpenOperation
