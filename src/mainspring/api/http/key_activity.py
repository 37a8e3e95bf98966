"""Activity of keys in this process: when each was used last, and which have just ended."""

import asyncio
from collections.abc import Callable

import structlog

from mainspring.clock import monotonic
from mainspring.errors import StoreUnavailable
from mainspring.store.keys import KeyStore

log = structlog.get_logger()

_WRITE_EVERY = 60.0


class KeyActivity:
    """Last uses in memory, which a loop in the background writes to the database."""

    def __init__(self) -> None:
        self._used: dict[str, float] = {}
        self._listeners: list[Callable[[str], None]] = []

    def note(self, key_id: str, now: float) -> None:
        """Remember that a key was used."""
        self._used[key_id] = now

    def when_ended(self, listener: Callable[[str], None]) -> None:
        """Call this with the id of every key that is revoked through this node."""
        self._listeners.append(listener)

    def ended(self, key_id: str) -> None:
        """Forget a key that was revoked through this node; other nodes do so within seconds."""
        for listener in self._listeners:
            listener(key_id)

    async def write(self, keys: KeyStore) -> None:
        """Write the last uses; what cannot be written now is kept for the next time."""
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
        """Write once a minute, so that no key's row is rewritten more often than that."""
        while True:
            await asyncio.sleep(_WRITE_EVERY)
            await self.write(keys)
