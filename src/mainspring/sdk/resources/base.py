"""What all resources share: a caller, and lists that go on page after page."""

from collections.abc import AsyncIterator, Mapping
from typing import Any, Generic, TypeVar

from msgspec import Struct

from mainspring.sdk.calling import Caller
from mainspring.sdk.faces import F, Faced

T = TypeVar("T")

_PAGE = 500


class Page(Struct, Generic[T]):
    """Some items, and where the list goes on."""

    items: list[T]
    next_cursor: str | None = None


class Resource(Faced[F]):
    """Some paths of the API."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self.blocking = caller.transport.blocking

    async def _every(self, path: str, page: Any, query: Mapping[str, Any]) -> AsyncIterator[Any]:
        """All items of a list, page after page; `limit` in the query is the size of a page."""
        cursor: str | None = None
        wanted = {"limit": _PAGE, **{k: v for k, v in query.items() if v is not None}}
        while True:
            found = await self._caller.call(
                "GET", path, answer=page, query={**wanted, "cursor": cursor}
            )
            for item in found.items:
                yield item
            cursor = found.next_cursor
            if cursor is None:
                return
