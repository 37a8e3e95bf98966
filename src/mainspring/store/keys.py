"""API keys and tenants: who may call, kept as hashes only."""

import hmac
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import asyncpg

from mainspring.domain.tenant import ApiKey, TenantLimits
from mainspring.postgres import named_sql as queries
from mainspring.postgres.database import Database
from mainspring.store.audit import INSTALLATION, write_entry

SQL = queries.load("keys")


def hash_secret(secret: str) -> bytes:
    """Keys are long and random, so one round of SHA-256 is enough; looking a key up by its hash
    leaks nothing through timing."""
    return sha256(secret.encode("utf-8", "surrogatepass")).digest()


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key to store: everything but the secret, which only its hash represents."""

    id: str
    secret: str
    tenant_id: int | None
    scopes: frozenset[str]
    operator: bool = False
    name: str | None = None
    prefix: str | None = None


class KeyStore:
    """The store's face for authentication and tenants."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, secret: str) -> ApiKey | None:
        """Whose key this is; None when it is unknown, expired or revoked."""
        digest = hash_secret(secret)
        row = await self._database.fetch_row(*SQL["find_key"](secret_hash=digest))
        # The index finds by the hash, of which nobody can choose the bytes; the last word has a
        # comparison whose time tells nothing.
        if row is None or not hmac.compare_digest(row["secret_hash"], digest):
            return None
        return ApiKey(
            row["id"],
            row["tenant_id"],
            frozenset(row["scopes"]),
            row["operator"],
            row["expires_in"],
        )

    async def touch(self, used: Mapping[str, float]) -> None:
        """These keys were used so many seconds ago."""
        await self._database.fetch(*SQL["touch_keys"](ids=list(used), ago=list(used.values())))

    async def add(self, key: NewKey) -> None:
        await self._database.fetch(*_added(key))

    async def add_operator(self, key: NewKey, actor: str) -> None:
        """An operator's key, with a note of it."""

        async def work(connection: asyncpg.Connection) -> None:
            await connection.execute(*_added(key))
            await write_entry(connection, INSTALLATION, actor, "key.created", key.id, name=key.name)

        await self._database.transact(work)

    async def revoke_operator(self, key: str, actor: str) -> bool:
        """End an operator's key, named by its id or by its secret."""

        async def work(connection: asyncpg.Connection) -> bool:
            ended = await connection.fetchval(
                *SQL["revoke_operator"](key=key, secret_hash=hash_secret(key))
            )
            if ended is not None:
                await write_entry(connection, INSTALLATION, actor, "key.revoked", ended)
            return ended is not None

        return await self._database.transact(work)

    async def ensure_tenant(self, name: str) -> int:
        """The tenant of that name, made where it is missing."""
        row = await self._database.fetch_row(*SQL["ensure_tenant"](name=name))
        assert row is not None
        return int(row["id"])

    async def limits(self, tenants: Collection[int] | None = None) -> dict[int, TenantLimits]:
        """What tenants may use: these, or all."""
        if tenants is None:
            rows = await self._database.fetch(*SQL["all_limits"]())
        else:
            rows = await self._database.fetch(*SQL["limits_of"](ids=list(tenants)))
        return {
            row["id"]: TenantLimits(row["weight"], row["max_running"], row["spread"])
            for row in rows
        }


def _added(key: NewKey) -> tuple[Any, ...]:
    return SQL["add_key"](
        id=key.id, tenant_id=key.tenant_id, secret_hash=hash_secret(key.secret), name=key.name,
        scopes=sorted(key.scopes), operator=key.operator, prefix=key.prefix,
    )  # fmt: skip
