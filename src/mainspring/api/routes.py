"""Routes: operations by method and path, each with its documentation beside it.

`routes.py` of a resource lists them, with these helpers for what routes have in common:

    _KEYS = Tag("Keys")

    def key_routes(keys: KeyResource) -> Routes:
        return {
            "GET /v1/keys/{id}": _KEYS.tenant(
                "admin", keys.one, "getKey", "Read a key", "", ok("The key.", KeyOut)
            ),
        }
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypedDict, Unpack

from mainspring.api.http.operations import (
    Operation,
    OperatorHandler,
    OperatorOperation,
    TenantHandler,
    TenantOperation,
)
from mainspring.api.openapi import operation as docs
from mainspring.errors import Conflict, MainspringError, PreconditionFailed

Routes = Mapping[str, Operation]
"""Operations by method and path: `GET /v1/tasks/{id}`."""
Links = Mapping[str, docs.Link]
NO_LINKS: Links = MappingProxyType({})
Verb = tuple[TenantHandler, str, str]
"""The handler of a change of state, its title and its description."""


class DocParts(TypedDict, total=False):
    """Optional parts of the documentation of an operation."""

    params: Sequence[docs.Param]
    body: docs.Body
    also_consumes: Sequence[str]
    problems: Sequence[type[MainspringError]]


@dataclass(frozen=True, slots=True)
class Tag:
    """A group of operations in the document."""

    name: str

    def doc(
        self,
        id: str,
        summary: str,
        description: str,
        *replies: docs.ResponseDoc,
        **more: Unpack[DocParts],
    ) -> docs.Doc:
        """Documentation of an operation of this group."""
        return docs.Doc(
            id=id, tag=self.name, summary=summary, description=description, replies=replies, **more
        )

    def tenant(
        self,
        scope: str,
        handler: TenantHandler,
        id: str,
        summary: str,
        description: str,
        *replies: docs.ResponseDoc,
        or_scope: str | None = None,
        secret: bool = False,
        if_match: bool = False,
        **more: Unpack[DocParts],
    ) -> TenantOperation:
        """An operation for a tenant's key with this scope; `if_match` adds the header of that name
        and the refusal of another revision."""
        if if_match:
            more["params"] = [*more.get("params", ()), docs.IF_MATCH]
            more["problems"] = [*more.get("problems", ()), PreconditionFailed]
        doc = self.doc(id, summary, description, *replies, **more)
        return TenantOperation(scope, handler, doc, or_scope, secret=secret)

    def operator(
        self,
        handler: OperatorHandler,
        id: str,
        summary: str,
        description: str,
        *replies: docs.ResponseDoc,
        secret: bool = False,
        **more: Unpack[DocParts],
    ) -> OperatorOperation:
        """An operation for an operator's key."""
        return OperatorOperation(
            handler, self.doc(id, summary, description, *replies, **more), secret
        )

    def verbs(
        self,
        item: str,
        noun: str,
        reply: docs.ResponseDoc,
        params: Sequence[docs.Param] = (),
        if_match: bool = False,
        **verbs: Verb,
    ) -> Routes:
        """POSTs under the path of an item that change its state, by the last word of their path."""
        return {
            f"POST {item}/{verb}": self.tenant(
                "write", handler, verb + noun, summary, description, reply,
                params=params, problems=[Conflict], if_match=if_match,
            )
            for verb, (handler, summary, description) in verbs.items()
        }  # fmt: skip


def ok(
    description: str, type: object, *headers: docs.Header, links: Links = NO_LINKS
) -> docs.ResponseDoc:
    """The answer 200 with a body of this type."""
    return docs.ResponseDoc(200, description, type, headers, links=links)


def created(
    description: str, type: object, *headers: docs.Header, links: Links = NO_LINKS
) -> docs.ResponseDoc:
    """The answer 201 with the path of what was created."""
    return docs.ResponseDoc(
        201, description, type, [docs.LOCATION, *headers, docs.REPLAYED], links=links
    )


def created_without_path(
    description: str, type: object, links: Links = NO_LINKS
) -> docs.ResponseDoc:
    """The answer 201 for what has no path of its own."""
    return docs.ResponseDoc(201, description, type, [docs.REPLAYED], links=links)


def links_by(field: str, **operations: tuple[str, str]) -> dict[str, docs.Link]:
    """Return the operations that may follow on an item, named by this field of the answer, by link,
    each with its description."""
    where = {"id": f"$response.body#/{field}"}
    return {name: docs.Link(id, where, words) for name, (id, words) in operations.items()}


def by_path(routes: Iterable[Routes]) -> dict[str, dict[str, Operation]]:
    """The operations of all routes by path, then by method."""
    paths: dict[str, dict[str, Operation]] = {}
    for some in routes:
        for route, operation in some.items():
            method, path = route.split(" ")
            paths.setdefault(path, {})[method] = operation
    return paths
