"""Tenants, as operators see them: made, listed, limited, and let go."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Self

import asyncpg

from mainspring.domain.apikey import KeyText
from mainspring.domain.tenant import TenantLimits
from mainspring.errors import Conflict
from mainspring.postgres import named_sql as queries
from mainspring.postgres.database import Database
from mainspring.postgres.rows import read_row, read_rows
from mainspring.store.answers import BeforeCommit
from mainspring.store.audit import INSTALLATION, AuditStore, write_entry
from mainspring.store.cluster import Topology
from mainspring.store.keys import NEVER, KeyRing, insert_key

SQL = queries.load("tenants")

END_OF_TENANTS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class StoredTenant:
    """A tenant and what it may use."""

    id: int
    name: str
    weight: int
    max_running: int | None
    spread: int
    created_at: datetime

    @property
    def limits(self) -> TenantLimits:
        return TenantLimits(self.weight, self.max_running, self.spread)


@dataclass(frozen=True, slots=True)
class Usage:
    """What a tenant may use and what it uses now."""

    weight: int
    max_running: int | None
    spread: int
    running: int
    keys: int
    running_at_least: bool
    """Not all tasks were looked at: more of them may be running."""


class TenantStore:
    """All tenants, as operators see them."""

    def __init__(self, database: Database, scan: int = 50_000) -> None:
        self._database = database
        self._scan = scan

    async def create(
        self,
        name: str,
        limits: TenantLimits,
        key: KeyText,
        scopes: frozenset[str],
        actor: str,
        conclude: BeforeCommit[StoredTenant],
    ) -> StoredTenant | None:
        """A new tenant with its first key; None when the name is taken."""

        async def work(connection: asyncpg.Connection) -> StoredTenant | None:
            row = await connection.fetchrow(
                *SQL["create_tenant"](
                    name=name,
                    weight=limits.weight,
                    max_running=limits.max_running,
                    spread=limits.spread,
                )
            )
            if row is None:
                return None
            tenant = read_row(StoredTenant, row)
            await insert_key(connection, tenant.id, key, "first", scopes, NEVER)
            await write_entry(
                connection, tenant.id, actor, "tenant.created", str(tenant.id), name=name
            )
            await write_entry(
                connection, tenant.id, actor, "key.created", key.id, scopes=sorted(scopes)
            )
            await conclude(connection, tenant)
            return tenant

        return await self._database.transact(work)

    async def get(self, tenant_id: int) -> StoredTenant | None:
        row = await self._database.fetch_row(*SQL["get_tenant"](tenant_id=tenant_id))
        return None if row is None else read_row(StoredTenant, row)

    async def list(self, *, before: int | None, limit: int) -> list[StoredTenant]:
        start = END_OF_TENANTS if before is None else before
        return read_rows(
            StoredTenant,
            await self._database.fetch(*SQL["list_tenants"](before=start, limit=limit)),
        )

    async def change(
        self, tenant_id: int, decide: Callable[[TenantLimits], TenantLimits], actor: str
    ) -> StoredTenant | None:
        """Change limits, decided on the locked row, and move tasks to the places that follow."""

        async def work(connection: asyncpg.Connection) -> StoredTenant | None:
            row = await connection.fetchrow(*SQL["lock_tenant"](tenant_id=tenant_id))
            if row is None:
                return None
            tenant = read_row(StoredTenant, row)
            limits = decide(tenant.limits)
            if limits != tenant.limits:
                values = asdict(limits)
                await connection.execute(*SQL["set_limits"](tenant_id=tenant_id, **values))
                if limits.spread != tenant.spread:
                    await connection.execute(
                        *SQL["move_tasks"](tenant_id=tenant_id, spread=limits.spread)
                    )
                await write_entry(
                    connection, tenant_id, actor, "tenant.changed", str(tenant_id), **values
                )
            return replace(tenant, **asdict(limits))

        return await self._database.transact(work)

    async def delete(self, tenant_id: int, actor: str) -> Sequence[str] | None:
        """Let a tenant go: its keys, whose ids are the answer, end with it, its rows are cleared
        afterwards (`clear`).

        Conflict while it has unfinished tasks; None when there is no such tenant.
        """

        async def work(connection: asyncpg.Connection) -> Sequence[str] | None:
            row = await connection.fetchrow(*SQL["lock_tenant"](tenant_id=tenant_id))
            if row is None:
                return None
            if await connection.fetchval(*SQL["has_unfinished"](tenant_id=tenant_id)):
                raise Conflict("the tenant has unfinished tasks: cancel them or let them finish")
            keys = await connection.fetch(*SQL["delete_tenant"](tenant_id=tenant_id))
            await write_entry(
                connection, INSTALLATION, actor, "tenant.deleted", str(tenant_id), name=row["name"]
            )
            return [key["id"] for key in keys]

        return await self._database.transact(work)

    async def usage(self, tenant_id: int) -> Usage | None:
        row = await self._database.fetch_row(*SQL["usage"](tenant_id=tenant_id, scan=self._scan))
        return None if row is None else read_row(Usage, row)

    async def clear(self, batch: int = 10_000) -> int:
        """Remove some of what departed tenants left behind; return how many rows that were."""
        cleared = 0
        for departed in await self._database.fetch(*SQL["departed_tenants"](limit=10)):
            gone = await self._clear_tables(departed["tenant_id"], batch)
            if not gone:
                await self._database.fetch(*SQL["forget_tenant"](tenant_id=departed["tenant_id"]))
            cleared += gone
        return cleared

    async def _clear_tables(self, tenant_id: int, batch: int) -> int:
        async def work(connection: asyncpg.Connection) -> int:
            await connection.execute(*SQL["allow_purge"]())
            gone = 0
            for table in await connection.fetch(*SQL["tables_of_tenants"]()):
                status = await connection.execute(_clear_statement(table["name"]), tenant_id, batch)
                gone += int(status.rpartition(" ")[2])
            return gone

        return await self._database.transact(work)


def _clear_statement(table: str) -> str:
    """The table's name is the catalogue's own word. Its rows may lie in several partitions."""
    return f"""
        DELETE FROM {table} WHERE tenant_id = $1 AND (tableoid, ctid) IN (
            SELECT tableoid, ctid FROM {table} WHERE tenant_id = $1 LIMIT $2)
    """


@dataclass(frozen=True, slots=True)
class Administration:
    """What admins of tenants and operators ask the store for."""

    key_ring: KeyRing
    tenants: TenantStore
    audit: AuditStore
    topology: Topology

    @classmethod
    def over(cls, database: Database) -> Self:
        return cls(
            KeyRing(database), TenantStore(database), AuditStore(database), Topology(database)
        )
