"""API keys and tenants: who may call, kept as hashes only."""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from mainspring.domain.tenant import ApiKey, TenantLimits
from mainspring.store import queries
from mainspring.store.database import Database

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


class Keys:
    """The store's face for authentication and tenants."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, secret: str) -> ApiKey | None:
        """Whose key this is; None when it is unknown, expired or revoked."""
        digest = hash_secret(secret)
        row = await self._database.fetch_row(SQL["find_key"], digest)
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
        await self._database.fetch(SQL["touch_keys"], list(used), list(used.values()))

    async def add(self, key: NewKey) -> None:
        await self._database.fetch(
            SQL["add_key"],
            key.id,
            key.tenant_id,
            hash_secret(key.secret),
            key.name,
            sorted(key.scopes),
            key.operator,
            key.prefix,
        )

    async def ensure_tenant(self, name: str) -> int:
        """The tenant of that name, made where it is missing."""
        row = await self._database.fetch_row(SQL["ensure_tenant"], name)
        assert row is not None
        return int(row["id"])

    async def set_limits(self, tenant_id: int, limits: TenantLimits) -> None:
        """Change a tenant's weight and limits and move its tasks to the partitions that follow."""
        await self._database.fetch(
            SQL["set_limits"], tenant_id, limits.weight, limits.max_running, limits.spread
        )

    async def limits(self) -> dict[int, TenantLimits]:
        rows = await self._database.fetch(SQL["all_limits"])
        return {
            row["id"]: TenantLimits(row["weight"], row["max_running"], row["spread"])
            for row in rows
        }
