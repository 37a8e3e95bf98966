"""The end of a key while requests under it are open, as polls of workers are."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from mainspring.api.http.auth import Authenticator, digest_of
from mainspring.errors import StoreUnavailable, Unauthenticated

_LOOK_EVERY = 1.0


@dataclass(slots=True)
class _Watched:
    """A key, and how many requests are open under it."""

    ended: "asyncio.Future[None]"
    open: int = 0
    looking: "asyncio.Task[None] | None" = field(default=None)


class KeyWatch:
    """One look-up a second of each key that has open requests."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator
        self._watched: dict[bytes, _Watched] = {}

    @contextmanager
    def over(self, authorization: str | None) -> "Iterator[asyncio.Future[None]]":
        """Yield a future that is done when the key has ended."""
        digest = digest_of(authorization)
        watched = self._watched.get(digest)
        if watched is None:
            watched = _Watched(asyncio.get_running_loop().create_future())
            self._watched[digest] = watched
            watched.looking = asyncio.create_task(self._look(digest, watched, authorization))
        watched.open += 1
        try:
            yield watched.ended
        finally:
            watched.open -= 1

    async def _look(self, digest: bytes, watched: _Watched, authorization: str | None) -> None:
        # Not stopped with the last request: workers ask again at once.
        try:
            while watched.open and not watched.ended.done():
                await asyncio.sleep(_LOOK_EVERY)
                try:
                    await self._authenticator.identify(authorization)
                except Unauthenticated:
                    watched.ended.set_result(None)
                except StoreUnavailable:
                    pass  # nobody can say so now
        finally:
            del self._watched[digest]
