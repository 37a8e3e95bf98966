"""Workflows: named definitions, of which every version is kept for the runs made by it."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple

import asyncpg
import msgspec

from mainspring.domain.workflows.definition import OnFailure, WorkflowDefinition
from mainspring.postgres import named_sql as queries
from mainspring.postgres.database import Database, Store, transaction
from mainspring.store.answers import BeforeCommit
from mainspring.store.audit import write_entry
from mainspring.store.workflows.definitions import RecentDefinitions, decode_definition

SQL = queries.load("workflows")

_encode = msgspec.json.Encoder().encode


class StoredWorkflow(NamedTuple):
    """One version of a workflow as it was found."""

    name: str
    version: int
    definition: WorkflowDefinition
    created_at: datetime


class WorkflowLine(NamedTuple):
    """A workflow in a list: its latest version, without the steps."""

    name: str
    version: int
    step_count: int
    on_failure: OnFailure
    created_at: datetime
    updated_at: datetime


class VersionLine(NamedTuple):
    """A version in a list."""

    version: int
    step_count: int
    created_at: datetime


class WorkflowStore(Store):
    """Definitions of workflows of every tenant."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._known = RecentDefinitions[bytes]()

    @transaction
    async def put(
        self,
        connection: asyncpg.Connection,
        tenant_id: int,
        definition: WorkflowDefinition,
        actor: str,
        check: Callable[[int], None] | None = None,
        conclude: BeforeCommit[StoredWorkflow] | None = None,
    ) -> StoredWorkflow | None:
        """Write the next version of a workflow, or its first. With `check`, which gets the latest
        version and may raise, there must be one already. None when there is none, or no such
        tenant."""
        if check is not None:
            latest = await SQL["lock_workflow"].value_or_none(
                connection, int, tenant_id=tenant_id, name=definition.name
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

    async def get(
        self, tenant_id: int, name: str, version: int | None = None
    ) -> StoredWorkflow | None:
        """Return a version, by default the latest; None when it does not exist or is archived."""
        row = await SQL["get_workflow"].record(
            self._database, tenant_id=tenant_id, name=name, version=version
        )
        if row is None:
            return None
        definition = self._definition(row["definition"])
        return StoredWorkflow(name, row["version"], definition, row["created_at"])

    async def has(self, tenant_id: int, name: str) -> bool:
        """Whether runs of a workflow can begin."""
        return await SQL["has_workflow"].found(self._database, tenant_id=tenant_id, name=name)

    async def page(self, tenant_id: int, *, after: str, limit: int) -> Sequence[WorkflowLine]:
        """Return workflows in the order of their names."""
        return await SQL["list_workflows"].rows(
            self._database, WorkflowLine, tenant_id=tenant_id, after=after, limit=limit
        )

    async def versions(
        self, tenant_id: int, name: str, *, before: int, limit: int
    ) -> Sequence[VersionLine]:
        """Return versions, newest first."""
        return await SQL["list_versions"].rows(
            self._database, VersionLine, tenant_id=tenant_id, name=name, before=before, limit=limit
        )

    @transaction
    async def archive(
        self,
        connection: asyncpg.Connection,
        tenant_id: int,
        name: str,
        actor: str,
        check: Callable[[int], None],
    ) -> bool:
        """Take a workflow out of use; its versions stay for their runs. False: there is none."""
        latest = await SQL["lock_workflow"].value_or_none(
            connection, int, tenant_id=tenant_id, name=name
        )
        if latest is None:
            return False
        check(latest)
        await SQL["archive_workflow"].run(connection, tenant_id=tenant_id, name=name)
        await write_entry(connection, tenant_id, actor, "workflow.archived", name, version=latest)
        return True

    def _definition(self, encoded: bytes) -> WorkflowDefinition:
        """Decode a definition, or take it from the cache: a run may need it thousands of times."""
        known = self._known.get(encoded)
        return known or self._known.keep(encoded, decode_definition(encoded))


async def _put(
    connection: asyncpg.Connection, tenant_id: int, definition: WorkflowDefinition
) -> StoredWorkflow | None:
    """Write the next version of a workflow; None: there is no such tenant."""
    name, size = definition.name, len(definition.steps)
    about = {"tenant_id": tenant_id, "name": name, "step_count": size}
    row = await SQL["put_workflow"].record(connection, **about, on_failure=definition.on_failure)
    if row is None:
        return None
    version, at = row["version"], row["updated_at"]
    await SQL["put_version"].run(
        connection, **about, version=version, definition=_encode(definition), created_at=at
    )
    return StoredWorkflow(name, version, definition, at)
