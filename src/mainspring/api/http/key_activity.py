"""What this process knows about keys in use: when each was used last, and which have just ended."""

import asyncio
from collections.abc import Callable

import structlog

from mainspring.clock import monotonic
from mainspring.errors import StoreUnavailable
from mainspring.store.keys import KeyStore

log = structlog.get_logger()

_WRITE_EVERY = 60.0


class KeyActivity:
    """Requests only make a note here: writing it down is left to a loop in the background."""

    def __init__(self) -> None:
        self._used: dict[str, float] = {}
        self._listeners: list[Callable[[str], None]] = []

    def note(self, key_id: str, now: float) -> None:
        """A key was used."""
        self._used[key_id] = now

    def when_ended(self, listener: Callable[[str], None]) -> None:
        """Call this with the id of every key that is revoked through this node."""
        self._listeners.append(listener)

    def ended(self, key_id: str) -> None:
        """A key was revoked here: what this process remembers of it must go at once. Other nodes
        find out within seconds by themselves."""
        for listener in self._listeners:
            listener(key_id)

    async def write(self, keys: KeyStore) -> None:
        """Hand the notes to the store; what it could not take is kept for the next time."""
        used, self._used = self._used, {}
        if not used:
            return
        now = monotonic()
        try:
            await keys.touch({key_id: max(0.0, now - at) for key_id, at in used.items()})
        except StoreUnavailable as problem:
            self._used = used | self._used
            log.warning("last uses of keys wait", action="keys.untouched", problem=str(problem))

    async def keep_writing(self, keys: KeyStore) -> None:
        """The loop: once a minute, so that no key's row is rewritten more often than that."""
        while True:
            await asyncio.sleep(_WRITE_EVERY)
            await self.write(keys)
