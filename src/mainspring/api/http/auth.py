"""Authentication by bearer keys, cached for seconds so that not every request asks the store."""

import asyncio
from typing import NamedTuple

import structlog

from mainspring.clock import monotonic
from mainspring.domain.apikey import is_mistyped
from mainspring.domain.tenant import ApiKey
from mainspring.errors import Forbidden, StoreUnavailable, Unauthenticated
from mainspring.store.keys import KeyStore, hash_secret

_KNOWN_FOR = 4.0
"""Open requests are checked once a second: five seconds after a key was revoked nobody is served
under it."""
_UNKNOWN_FOR = 1.0
_MOST_REMEMBERED = 10_000
_LONGEST_SECRET = 512
_WRITE_EVERY = 60.0

_log = structlog.get_logger()


class _Remembered(NamedTuple):
    key: ApiKey | None
    until: float


class Authenticator:
    """Finds the key that an Authorization header names.

    A revoked key is refused within seconds, because that is how long an answer is remembered. Only
    hashes are kept, never secrets.
    """

    def __init__(self, keys: KeyStore) -> None:
        self._keys = keys
        self._remembered: dict[bytes, _Remembered] = {}
        self._used: dict[str, float] = {}
        """The last uses of keys that are still to be written to the database."""

    async def identify(self, authorization: str | None) -> ApiKey:
        """Return the caller's key; raise Unauthenticated when there is none or it is unknown."""
        secret = _secret_in(authorization)
        digest, now = hash_secret(secret), monotonic()
        found = self._recall(digest, now) or await self._look_up(secret, digest)
        if found.key is None:
            raise Unauthenticated("the API key is not known, or it has ended")
        self._used[found.key.id] = now
        return found.key

    def remembered(self, digest: bytes) -> ApiKey | None:
        """Return the key whose secret has this digest, if it is in the cache."""
        now = monotonic()
        found = self._recall(digest, now)
        if found is None or found.key is None:
            return None
        self._used[found.key.id] = now
        return found.key

    def _recall(self, digest: bytes, now: float) -> _Remembered | None:
        found = self._remembered.get(digest)
        return found if found is not None and found.until > now else None

    async def _look_up(self, secret: str, digest: bytes) -> _Remembered:
        if is_mistyped(secret):
            raise Unauthenticated("the API key is mistyped: its checksum is wrong")
        asked = monotonic()
        key = await self._keys.find(secret)
        found = _Remembered(key, asked + _good_for(key))
        self._remembered.pop(digest, None)
        if len(self._remembered) >= _MOST_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]
        self._remembered[digest] = found
        return found

    def forget_all(self) -> None:
        """Forget every key: after a restore of the database a cached key may be unknown to it, and
        its tenant's number may belong to another tenant."""
        self._remembered = {}

    def forget(self, key_id: str) -> None:
        """Forget a key that was revoked through this node; other nodes do so within seconds."""
        self._remembered = {
            digest: found
            for digest, found in self._remembered.items()
            if found.key is None or found.key.id != key_id
        }

    async def write_uses(self) -> None:
        """Write the last uses; what cannot be written now is kept for the next time."""
        used, self._used = self._used, {}
        if not used:
            return
        now = monotonic()
        try:
            await self._keys.touch({key_id: max(0.0, now - at) for key_id, at in used.items()})
        except StoreUnavailable as problem:
            self._used = used | self._used
            log = _log.bind(problem=str(problem))
            log.warning("last uses of keys were not written", action="keys.uses_not_written")

    async def keep_writing_uses(self) -> None:
        """Write once a minute, so that no key's row is rewritten more often than that."""
        while True:
            await asyncio.sleep(_WRITE_EVERY)
            await self.write_uses()


def digest_of(authorization: str | None) -> bytes:
    """Return the digest of the secret in an Authorization header."""
    return hash_secret(_secret_in(authorization))


def _good_for(key: ApiKey | None) -> float:
    if key is None:
        return _UNKNOWN_FOR
    return _KNOWN_FOR if key.expires_in is None else min(_KNOWN_FOR, key.expires_in)


def check_scope(key: ApiKey, scope: str, other: str | None = None) -> int:
    """Return the key's tenant; raise Forbidden without this scope or the other one."""
    if key.tenant_id is None:
        raise Forbidden("this needs a tenant's key; an operator's key belongs to none")
    if scope not in key.scopes and other not in key.scopes:
        either = repr(scope) if other is None else f"{scope!r} or {other!r}"
        raise Forbidden(f"this needs a key with the scope {either}")
    return key.tenant_id


def tenant_gone() -> Forbidden:
    """The error for a tenant that was deleted while its key was still cached."""
    return Forbidden("the tenant of this key no longer exists")


def _secret_in(authorization: str | None) -> str:
    if authorization is None:
        raise Unauthenticated("send the header `Authorization: Bearer <key>`")
    scheme, _, secret = authorization.partition(" ")
    secret = secret.strip()
    if scheme.lower() != "bearer" or not secret or len(secret) > _LONGEST_SECRET:
        raise Unauthenticated("send the header `Authorization: Bearer <key>`")
    return secret
