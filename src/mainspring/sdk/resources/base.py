"""The base of all resources: paths, lists page after page, and waiting for an end."""

from collections.abc import AsyncIterator, Mapping
from typing import Any, Generic, Protocol, TypeVar
from uuid import UUID

from msgspec import Struct

from mainspring.clock import monotonic
from mainspring.errors import TaskUnfinished
from mainspring.sdk.calling import ApiCaller, part
from mainspring.sdk.encoding import present
from mainspring.sdk.sync_async import Dual, F

T = TypeVar("T")

_PAGE = 500
_SOON = 0.05
_LONGEST_PAUSE = 1.0


class Finishing(Protocol):
    """Something that ends at some time."""

    id: UUID
    state: str

    @property
    def finished(self) -> bool: ...


Ending = TypeVar("Ending", bound=Finishing)


class Page(Struct, Generic[T]):
    """A page of a list, and the cursor of the next one."""

    items: list[T]
    next_cursor: str | None = None


class ApiResource(Dual[F]):
    """The paths of the API that begin with `_path`."""

    _path: str

    def __init__(self, caller: ApiCaller) -> None:
        self._caller = caller
        self._call = caller.call
        self.blocking = caller.transport.blocking

    def _at(self, *parts: object) -> str:
        """Return the path of something, whatever its id holds."""
        return "/".join([self._path, *map(part, parts)])

    async def _post(self, kind: type[T], *parts: object) -> T:
        return await self._call("POST", self._at(*parts), answer=kind)

    async def _every(self, path: str, page: Any, query: Mapping[str, Any]) -> AsyncIterator[Any]:
        """Yield all items of a list, page after page; `limit` is the size of a page."""
        cursor: str | None = None
        wanted = {"limit": _PAGE, **present(**query)}
        while True:
            found = await self._call("GET", path, answer=page, query={**wanted, "cursor": cursor})
            for item in found.items:
                yield item
            cursor = found.next_cursor
            if cursor is None:
                return

    async def _until_finished(self, path: str, kind: type[Ending], within: float | None) -> Ending:
        """Read it until it has ended, however it did."""
        deadline = None if within is None else monotonic() + within
        pause = _SOON
        while True:
            found = await self._call("GET", path, answer=kind)
            if found.finished:
                return found
            left = pause if deadline is None else min(pause, deadline - monotonic())
            if left <= 0:
                raise TaskUnfinished(f"{found.id} is still {found.state} after {within:g} s")
            await self._caller.transport.sleep(left)
            pause = min(pause * 1.5, _LONGEST_PAUSE)
