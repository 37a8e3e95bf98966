"""Tenants, as operators see them: made, listed, limited, and deleted."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import NamedTuple

import asyncpg

from mainspring.domain.apikey import KeyText
from mainspring.domain.tenant import TenantLimits
from mainspring.errors import Conflict
from mainspring.postgres import named_sql as queries
from mainspring.postgres.database import Database, transaction
from mainspring.store.answers import BeforeCommit
from mainspring.store.audit import INSTALLATION, write_entry
from mainspring.store.keys import NEVER, insert_key
from mainspring.store.upkeep.table_changes import SQL as TABLES

SQL = queries.load("tenants")

END_OF_TENANTS = 2**31 - 1


class StoredTenant(NamedTuple):
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


class Usage(NamedTuple):
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

    @transaction
    async def create(
        self,
        connection: asyncpg.Connection,
        name: str,
        limits: TenantLimits,
        key: KeyText,
        scopes: frozenset[str],
        actor: str,
        conclude: BeforeCommit[StoredTenant],
    ) -> StoredTenant | None:
        """Make a tenant with its first key; None when the name is taken."""
        tenant = await SQL["create_tenant"].row(
            connection, StoredTenant, name=name, **asdict(limits)
        )
        if tenant is None:
            return None
        await insert_key(connection, tenant.id, key, "first", scopes, NEVER)
        await write_entry(connection, tenant.id, actor, "tenant.created", str(tenant.id), name=name)
        await write_entry(
            connection, tenant.id, actor, "key.created", key.id, scopes=sorted(scopes)
        )
        await conclude(connection, tenant)
        return tenant

    async def get(self, tenant_id: int) -> StoredTenant | None:
        return await SQL["get_tenant"].row(self._database, StoredTenant, tenant_id=tenant_id)

    async def list(self, *, before: int | None, limit: int) -> list[StoredTenant]:
        start = END_OF_TENANTS if before is None else before
        return await SQL["list_tenants"].rows(
            self._database, StoredTenant, before=start, limit=limit
        )

    @transaction
    async def change(
        self,
        connection: asyncpg.Connection,
        tenant_id: int,
        decide: Callable[[TenantLimits], TenantLimits],
        actor: str,
    ) -> StoredTenant | None:
        """Change limits, decided on the locked row, and move tasks to the places that follow."""
        tenant = await SQL["lock_tenant"].row(connection, StoredTenant, tenant_id=tenant_id)
        if tenant is None:
            return None
        limits = decide(tenant.limits)
        if limits != tenant.limits:
            values = asdict(limits)
            await SQL["set_limits"].run(connection, tenant_id=tenant_id, **values)
            if limits.spread != tenant.spread:
                await SQL["move_tasks"].run(connection, tenant_id=tenant_id, spread=limits.spread)
            await write_entry(
                connection, tenant_id, actor, "tenant.changed", str(tenant_id), **values
            )
        return tenant._replace(**asdict(limits))

    @transaction
    async def delete(
        self, connection: asyncpg.Connection, tenant_id: int, actor: str
    ) -> Sequence[str] | None:
        """Delete a tenant and its keys, whose ids are returned; `clear` removes its other rows
        later. Conflict while it has unfinished tasks; None when there is no such tenant."""
        tenant = await SQL["lock_tenant"].row(connection, StoredTenant, tenant_id=tenant_id)
        if tenant is None:
            return None
        if await SQL["has_unfinished"].value(connection, bool, tenant_id=tenant_id):
            raise Conflict("the tenant has unfinished tasks: cancel them or let them finish")
        keys = await SQL["delete_tenant"].fetch(connection, tenant_id=tenant_id)
        await write_entry(
            connection, INSTALLATION, actor, "tenant.deleted", str(tenant_id), name=tenant.name
        )
        return [key["id"] for key in keys]

    async def usage(self, tenant_id: int) -> Usage | None:
        return await SQL["usage"].row(self._database, Usage, tenant_id=tenant_id, scan=self._scan)

    async def clear(self, batch: int = 10_000) -> int:
        """Remove some rows of deleted tenants; return how many."""
        cleared = 0
        for departed in await SQL["departed_tenants"].fetch(self._database, limit=10):
            gone = await self._clear_tables(departed["tenant_id"], batch)
            if not gone:
                await SQL["forget_tenant"].run(self._database, tenant_id=departed["tenant_id"])
            cleared += gone
        return cleared

    @transaction
    async def _clear_tables(
        self, connection: asyncpg.Connection, tenant_id: int, batch: int
    ) -> int:
        await TABLES["allow_purge"].run(connection)
        gone = 0
        for table in await SQL["tables_of_tenants"].fetch(connection):
            clear = SQL["clear_table"].filled(table=table["name"])
            gone += await clear.value(connection, int, tenant_id=tenant_id, limit=batch)
        return gone
