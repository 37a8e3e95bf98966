"""Workflows: named definitions, of which every version is kept for the runs made by it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

import asyncpg
import msgspec

from mainspring.domain.workflow.definition import OnFailure, WorkflowDefinition
from mainspring.postgres import named_sql as queries
from mainspring.postgres.database import Database
from mainspring.postgres.rows import read_rows
from mainspring.store.answers import BeforeCommit
from mainspring.store.audit import write_entry
from mainspring.store.workflow.definitions import RecentDefinitions, decode_definition

SQL = queries.load("workflows")

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class StoredWorkflow:
    """One version of a workflow as it was found."""

    name: str
    version: int
    definition: WorkflowDefinition
    created_at: datetime


@dataclass(frozen=True, slots=True)
class WorkflowLine:
    """A workflow in a list: its latest version, without the steps."""

    name: str
    version: int
    step_count: int
    on_failure: OnFailure
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class VersionLine:
    """A version in a list."""

    version: int
    step_count: int
    created_at: datetime


class WorkflowStore:
    """Definitions of workflows of every tenant."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known = RecentDefinitions[bytes]()

    async def put(
        self,
        tenant_id: int,
        definition: WorkflowDefinition,
        actor: str,
        check: Callable[[int], None] | None = None,
        conclude: BeforeCommit[StoredWorkflow] | None = None,
    ) -> StoredWorkflow | None:
        """The next version of a workflow, or its first. With `check` there must be one already, to
        whose version it has nothing to object; None when there is none (or no such tenant)."""

        async def work(connection: asyncpg.Connection) -> StoredWorkflow | None:
            if check is not None:
                latest = await connection.fetchval(
                    *SQL["lock_workflow"](tenant_id=tenant_id, name=definition.name)
                )
                if latest is None:
                    return None
                check(latest)
            made = await _put(connection, tenant_id, definition)
            if made is None:
                return None
            await write_entry(
                connection, tenant_id, actor, "workflow.put", made.name, version=made.version
            )
            if conclude is not None:
                await conclude(connection, made)
            return made

        return await self._database.transact(work)

    async def get(
        self, tenant_id: int, name: str, version: int | None = None
    ) -> StoredWorkflow | None:
        """A version, the latest where none is named; None when it is not there, or archived."""
        row = await self._database.fetch_row(
            *SQL["get_workflow"](tenant_id=tenant_id, name=name, version=version)
        )
        if row is None:
            return None
        definition = self._definition(row["definition"])
        return StoredWorkflow(name, row["version"], definition, row["created_at"])

    async def has(self, tenant_id: int, name: str) -> bool:
        """Whether runs of a workflow can begin."""
        return (
            await self._database.fetch_row(*SQL["has_workflow"](tenant_id=tenant_id, name=name))
            is not None
        )

    async def page(self, tenant_id: int, *, after: str, limit: int) -> Sequence[WorkflowLine]:
        """In the order of their names."""
        rows = await self._database.fetch(
            *SQL["list_workflows"](tenant_id=tenant_id, after=after, limit=limit)
        )
        return read_rows(WorkflowLine, rows)

    async def versions(
        self, tenant_id: int, name: str, *, before: int, limit: int
    ) -> Sequence[VersionLine]:
        """Newest first."""
        rows = await self._database.fetch(
            *SQL["list_versions"](tenant_id=tenant_id, name=name, before=before, limit=limit)
        )
        return read_rows(VersionLine, rows)

    async def archive(
        self, tenant_id: int, name: str, actor: str, check: Callable[[int], None]
    ) -> bool:
        """Take a workflow out of use; its versions stay for their runs. False: there is none."""

        async def work(connection: asyncpg.Connection) -> bool:
            latest = await connection.fetchval(
                *SQL["lock_workflow"](tenant_id=tenant_id, name=name)
            )
            if latest is None:
                return False
            check(latest)
            await connection.execute(*SQL["archive_workflow"](tenant_id=tenant_id, name=name))
            await write_entry(
                connection, tenant_id, actor, "workflow.archived", name, version=latest
            )
            return True

        return await self._database.transact(work)

    def _definition(self, encoded: bytes) -> WorkflowDefinition:
        """A definition from its bytes. Those that were read lately are kept: a run of thousands of
        steps would decode it thousands of times."""
        known = self._known.get(encoded)
        return known or self._known.keep(encoded, decode_definition(encoded))


async def _put(
    connection: asyncpg.Connection, tenant_id: int, definition: WorkflowDefinition
) -> StoredWorkflow | None:
    """Write the next version of a workflow; None: there is no such tenant."""
    about = {
        "tenant_id": tenant_id,
        "name": definition.name,
        "step_count": len(definition.steps),
    }
    row = await connection.fetchrow(*SQL["put_workflow"](**about, on_failure=definition.on_failure))
    if row is None:
        return None
    version, at = row["version"], row["updated_at"]
    await connection.execute(
        *SQL["put_version"](**about, version=version, definition=_encode(definition), created_at=at)
    )
    return StoredWorkflow(definition.name, version, definition, at)
