"""A tenant's keys: made, listed, replaced and revoked, each with an entry in the audit log."""

from dataclasses import dataclass
from datetime import datetime

import asyncpg

from mainspring.domain.apikey import KeyText
from mainspring.errors import Conflict
from mainspring.postgres import named_sql as queries
from mainspring.postgres.database import Database
from mainspring.postgres.rows import read_row, read_rows
from mainspring.store.answers import BeforeCommit
from mainspring.store.audit import END_OF_IDS, write_entry
from mainspring.store.keys import hash_secret

SQL = queries.load("keys")

MOST_LIVE_KEYS = 1000
"""Of one tenant: a program that makes keys in a loop is stopped here."""


@dataclass(frozen=True, slots=True)
class StoredKey:
    """A key as it may be shown: everything but the secret, which nobody has any more."""

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


@dataclass(frozen=True, slots=True)
class Expiry:
    """When a key ends: at a time, after so many seconds, or (neither) when it is revoked."""

    at: datetime | None = None
    after: float | None = None


NEVER = Expiry()


class KeyRing:
    """The store's face for a tenant that looks after its keys."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(
        self,
        tenant_id: int,
        text: KeyText,
        *,
        name: str | None,
        scopes: frozenset[str],
        expiry: Expiry,
        actor: str,
        conclude: BeforeCommit[StoredKey],
    ) -> StoredKey | None:
        """A new key; None when the tenant is gone."""

        async def work(connection: asyncpg.Connection) -> StoredKey | None:
            if not await _take_turn(connection, tenant_id):
                return None
            made = await insert_key(connection, tenant_id, text, name, scopes, expiry)
            await write_entry(
                connection, tenant_id, actor, "key.created", made.id, scopes=made.scopes, name=name
            )
            await conclude(connection, made)
            return made

        return await self._database.transact(work)

    async def get(self, tenant_id: int, key_id: str) -> StoredKey | None:
        row = await self._database.fetch_row(*SQL["get_key"](tenant_id=tenant_id, key_id=key_id))
        return None if row is None else read_row(StoredKey, row)

    async def list(self, tenant_id: int, *, before: int | None, limit: int) -> list[StoredKey]:
        """Newest first, those that have ended too."""
        start = END_OF_IDS if before is None else before
        rows = await self._database.fetch(
            *SQL["list_keys"](tenant_id=tenant_id, before=start, limit=limit)
        )
        return read_rows(StoredKey, rows)

    async def revoke(self, tenant_id: int, key_id: str, actor: str) -> bool:
        """End a key now. True also when it was revoked before; False: there is no such key."""

        async def work(connection: asyncpg.Connection) -> bool:
            if (
                await connection.fetchrow(*SQL["revoke_key"](tenant_id=tenant_id, key_id=key_id))
                is None
            ):
                return (
                    await connection.fetchrow(*SQL["get_key"](tenant_id=tenant_id, key_id=key_id))
                    is not None
                )
            await write_entry(connection, tenant_id, actor, "key.revoked", key_id)
            return True

        return await self._database.transact(work)

    async def rotate(
        self,
        tenant_id: int,
        key_id: str,
        text: KeyText,
        *,
        grace: float,
        expiry: Expiry | None,
        actor: str,
        conclude: BeforeCommit[StoredKey],
    ) -> StoredKey | None:
        """A key in place of another, which ends after `grace` seconds; None: no such live key.

        Without an expiry of its own the new key gets the lifetime the old one was made for.
        """

        async def work(connection: asyncpg.Connection) -> StoredKey | None:
            if not await _take_turn(connection, tenant_id):
                return None
            old = await connection.fetchrow(
                *SQL["lock_live_key"](tenant_id=tenant_id, key_id=key_id)
            )
            if old is None:
                return None
            if old["operator"]:
                # Whoever is admin of a tenant must not come by an operator's rights this way.
                raise Conflict("an operator's key is replaced on the command line only")
            scopes = frozenset(old["scopes"])
            ends = expiry or Expiry(after=old["lifetime"])
            made = await insert_key(connection, tenant_id, text, old["name"], scopes, ends)
            await connection.execute(
                *SQL["let_key_end"](tenant_id=tenant_id, key_id=key_id, grace=grace)
            )
            await write_entry(
                connection, tenant_id, actor, "key.rotated", key_id, to=made.id, grace=grace
            )
            await conclude(connection, made)
            return made

        return await self._database.transact(work)


async def insert_key(
    connection: asyncpg.Connection,
    tenant_id: int,
    text: KeyText,
    name: str | None,
    scopes: frozenset[str],
    expiry: Expiry,
) -> StoredKey:
    """Keep a tenant's new key, of which only the hash is stored."""
    if await connection.fetchval(*SQL["count_live_keys"](tenant_id=tenant_id)) >= MOST_LIVE_KEYS:
        raise Conflict(f"there are {MOST_LIVE_KEYS} live keys already: revoke some first")
    row = await connection.fetchrow(
        *SQL["create_key"](
            tenant_id=tenant_id,
            id=text.id,
            secret_hash=hash_secret(text.secret),
            name=name,
            scopes=sorted(scopes),
            prefix=text.prefix,
            expires_at=expiry.at,
            expires_after=expiry.after,
        ),
    )
    assert row is not None
    return read_row(StoredKey, row)


async def _take_turn(connection: asyncpg.Connection, tenant_id: int) -> bool:
    return await connection.fetchval(*SQL["take_turn"](tenant_id=tenant_id)) is not None
