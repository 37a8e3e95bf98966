"""API keys: who may call. Kept as hashes only; changes leave entries in the audit log."""

import hmac
from collections.abc import Collection, Mapping
from datetime import datetime
from hashlib import sha256
from typing import NamedTuple

import asyncpg

from mainspring.domain.apikey import KeyText
from mainspring.domain.tenant import ApiKey, TenantLimits
from mainspring.errors import Conflict
from mainspring.postgres import named_sql as queries
from mainspring.postgres.database import Store, transaction
from mainspring.postgres.named_sql import Queryable
from mainspring.postgres.rows import read_row
from mainspring.store.answers import BeforeCommit
from mainspring.store.audit import END_OF_IDS, INSTALLATION, write_entry

SQL = queries.load("keys")


def hash_secret(secret: str) -> bytes:
    """Return the SHA-256 of a key: one round is enough, for keys are long and random."""
    return sha256(secret.encode("utf-8", "surrogatepass")).digest()


class NewKey(NamedTuple):
    """A key to store: everything but the secret, which only its hash represents."""

    id: str
    secret: str
    tenant_id: int | None
    scopes: frozenset[str]
    operator: bool = False
    name: str | None = None
    prefix: str | None = None


class KeyStore(Store):
    """Keys as authentication uses them, and limits of tenants."""

    async def find(self, secret: str) -> ApiKey | None:
        """Return the key with this secret; None when it is unknown, expired or revoked."""
        digest = hash_secret(secret)
        row = await SQL["find_key"].record(self._database, secret_hash=digest)
        # The index finds by the hash, of which nobody can choose the bytes; the last word has a
        # comparison whose time tells nothing.
        if row is None or not hmac.compare_digest(row["secret_hash"], digest):
            return None
        scopes = frozenset(row["scopes"])
        return ApiKey(row["id"], row["tenant_id"], scopes, row["operator"], row["expires_in"])

    async def touch(self, used: Mapping[str, float]) -> None:
        """Note that these keys were used so many seconds ago."""
        await SQL["touch_keys"].run(self._database, ids=list(used), ago=list(used.values()))

    async def add(self, key: NewKey) -> None:
        await _add(self._database, key)

    @transaction
    async def add_operator(self, connection: asyncpg.Connection, key: NewKey, actor: str) -> None:
        """Add an operator's key, with a note of it in the audit log."""
        await _add(connection, key)
        await write_entry(connection, INSTALLATION, actor, "key.created", key.id, name=key.name)

    @transaction
    async def revoke_operator(self, connection: asyncpg.Connection, key: str, actor: str) -> bool:
        """End an operator's key, named by its id or by its secret."""
        ended = await SQL["revoke_operator"].value_or_none(
            connection, str, key=key, secret_hash=hash_secret(key)
        )
        if ended is not None:
            await write_entry(connection, INSTALLATION, actor, "key.revoked", ended)
        return ended is not None

    async def ensure_tenant(self, name: str) -> int:
        """Return the tenant of that name, made where it is missing."""
        return await SQL["ensure_tenant"].value(self._database, int, name=name)

    async def limits(self, tenants: Collection[int] | None = None) -> dict[int, TenantLimits]:
        """Return what tenants may use: these, or all."""
        if tenants is None:
            rows = await SQL["all_limits"].fetch(self._database)
        else:
            rows = await SQL["limits_of"].fetch(self._database, ids=list(tenants))
        return {row["id"]: read_row(TenantLimits, row) for row in rows}


async def _add(on: Queryable, key: NewKey) -> None:
    await SQL["add_key"].run(
        on, id=key.id, tenant_id=key.tenant_id, secret_hash=hash_secret(key.secret), name=key.name,
        scopes=sorted(key.scopes), operator=key.operator, prefix=key.prefix,
    )  # fmt: skip


MOST_LIVE_KEYS = 1000
"""Maximum number of live keys of a tenant."""


class StoredKey(NamedTuple):
    """A key as it may be shown: everything but the secret, which is not stored."""

    seq: int
    id: str
    prefix: str | None
    name: str | None
    scopes: list[str]
    operator: bool
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None


class Expiry(NamedTuple):
    """When a key ends: at a time, after so many seconds, or (neither) when it is revoked."""

    at: datetime | None = None
    after: float | None = None


NEVER = Expiry()


class KeyRing(Store):
    """Keys as a tenant manages them."""

    @transaction
    async def create(
        self,
        connection: asyncpg.Connection,
        tenant_id: int,
        text: KeyText,
        *,
        name: str | None,
        scopes: frozenset[str],
        expiry: Expiry,
        actor: str,
        conclude: BeforeCommit[StoredKey],
    ) -> StoredKey | None:
        """Make a new key; None when the tenant is gone."""
        if not await SQL["take_turn"].found(connection, tenant_id=tenant_id):
            return None
        made = await insert_key(connection, tenant_id, text, name, scopes, expiry)
        await write_entry(
            connection, tenant_id, actor, "key.created", made.id, scopes=made.scopes, name=name
        )
        await conclude(connection, made)
        return made

    async def get(self, tenant_id: int, key_id: str) -> StoredKey | None:
        return await SQL["get_key"].row(
            self._database, StoredKey, tenant_id=tenant_id, key_id=key_id
        )

    async def list(self, tenant_id: int, *, before: int | None, limit: int) -> list[StoredKey]:
        """Return keys, newest first, those that have ended too."""
        start = END_OF_IDS if before is None else before
        return await SQL["list_keys"].rows(
            self._database, StoredKey, tenant_id=tenant_id, before=start, limit=limit
        )

    @transaction
    async def revoke(
        self, connection: asyncpg.Connection, tenant_id: int, key_id: str, actor: str
    ) -> bool:
        """Revoke a key. True also when it was revoked before; False: there is no such key."""
        if not await SQL["revoke_key"].found(connection, tenant_id=tenant_id, key_id=key_id):
            return await SQL["get_key"].found(connection, tenant_id=tenant_id, key_id=key_id)
        await write_entry(connection, tenant_id, actor, "key.revoked", key_id)
        return True

    @transaction
    async def rotate(
        self,
        connection: asyncpg.Connection,
        tenant_id: int,
        key_id: str,
        text: KeyText,
        *,
        grace: float,
        expiry: Expiry | None,
        actor: str,
        conclude: BeforeCommit[StoredKey],
    ) -> StoredKey | None:
        """Replace a key, which ends after `grace` seconds; None if it is not live. The new key gets
        the lifetime that the old one was made for, unless `expiry` says otherwise."""
        if not await SQL["take_turn"].found(connection, tenant_id=tenant_id):
            return None
        old = await SQL["lock_live_key"].record(connection, tenant_id=tenant_id, key_id=key_id)
        if old is None:
            return None
        if old["operator"]:
            # Whoever is admin of a tenant must not come by an operator's rights this way.
            raise Conflict("an operator's key is replaced on the command line only")
        scopes = frozenset(old["scopes"])
        ends = expiry or Expiry(after=old["lifetime"])
        made = await insert_key(connection, tenant_id, text, old["name"], scopes, ends)
        await SQL["let_key_end"].run(connection, tenant_id=tenant_id, key_id=key_id, grace=grace)
        await write_entry(
            connection, tenant_id, actor, "key.rotated", key_id, to=made.id, grace=grace
        )
        await conclude(connection, made)
        return made


async def insert_key(
    connection: asyncpg.Connection,
    tenant_id: int,
    text: KeyText,
    name: str | None,
    scopes: frozenset[str],
    expiry: Expiry,
) -> StoredKey:
    """Keep a tenant's new key, of which only the hash is stored."""
    live = await SQL["count_live_keys"].value(connection, int, tenant_id=tenant_id)
    if live >= MOST_LIVE_KEYS:
        raise Conflict(f"there are {MOST_LIVE_KEYS} live keys already: revoke some first")
    return await SQL["create_key"].one(
        connection,
        StoredKey,
        tenant_id=tenant_id,
        id=text.id,
        secret_hash=hash_secret(text.secret),
        name=name,
        scopes=sorted(scopes),
        prefix=text.prefix,
        expires_at=expiry.at,
        expires_after=expiry.after,
    )
