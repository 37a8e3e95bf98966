"""The audit log: who changed what, and when. Entries are written with the change they describe."""

from datetime import datetime
from typing import Any, NamedTuple

import asyncpg

from mainspring.postgres import named_sql as queries
from mainspring.postgres.database import Database
from mainspring.postgres.rows import read_rows
from mainspring.store.lists.paging import RowPage, fill, next_mark

SQL = queries.load("audit")

INSTALLATION = 0
"""The tenant id of entries about the whole installation: no tenant has this number."""

END_OF_IDS = 2**63 - 1


class StoredAuditEntry(NamedTuple):
    """One change."""

    id: int
    tenant_id: int
    at: datetime
    actor: str
    action: str
    subject: str
    detail: dict[str, Any] | None


class AuditFilter(NamedTuple):
    """Which entries to list; None means all, of all tenants too: then an operator asks."""

    tenant_id: int | None
    action: str | None = None
    actor: str | None = None
    subject: str | None = None


class AuditStore:
    """The entries of one tenant, or of the whole installation, newest first."""

    def __init__(self, database: Database, scan: int = 10_000) -> None:
        self._database = database
        self._scan = scan

    async def list(
        self, where: AuditFilter, *, before: int | None, limit: int
    ) -> RowPage[StoredAuditEntry, int]:
        """Return entries older than `before`; a page may be short and still have a next one."""
        texts = {"action": where.action, "actor": where.actor, "subject": where.subject}
        statement, tenant = SQL["list_all"], {}
        if where.tenant_id is not None:
            statement, tenant = SQL["list_of_tenant"], {"tenant_id": where.tenant_id}

        async def look(before: int | None, limit: int) -> RowPage[StoredAuditEntry, int]:
            scan = self._scan if any(texts.values()) else limit
            start = END_OF_IDS if before is None else before
            rows = await statement.fetch(
                self._database, before=start, limit=limit, scan=scan, **tenant, **texts
            )
            entries = read_rows(StoredAuditEntry, [row for row in rows if row["id"] is not None])
            return RowPage(entries, next_mark(int, rows, limit, scan))

        return await fill(look, before, limit)


async def write_entry(
    connection: asyncpg.Connection,
    tenant_id: int,
    actor: str,
    action: str,
    subject: str,
    **detail: Any,
) -> None:
    """Note a change, within its transaction."""
    await SQL["write_entry"].run(
        connection,
        tenant_id=tenant_id,
        actor=actor,
        action=action,
        subject=subject,
        detail=detail or None,
    )
