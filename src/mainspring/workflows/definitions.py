"""Definitions as runs need them: by version, the archived ones too, and mostly from memory."""

import asyncpg

from mainspring.domain.workflows.definition import WorkflowDefinition
from mainspring.store.workflows.definitions import RecentDefinitions, decode_definition
from mainspring.store.workflows.step_rows import RunHead
from mainspring.store.workflows.steps import SQL


class Definitions:
    """A version does not change, unless the database is set back: so those that were read lately
    are kept. A run of thousands of steps would read its own thousands of times."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Read them anew."""
        self._known = RecentDefinitions[tuple[int, str, int]]()

    async def get(self, connection: asyncpg.Connection, run: RunHead) -> WorkflowDefinition:
        """Return the definition that a run was made by."""
        key = (run.tenant_id, run.workflow, run.version)
        known = self._known.get(key)
        if known is not None:
            return known
        # There always is one: versions are kept as long as their runs.
        encoded = await SQL["definition_of"].value(
            connection, bytes, tenant_id=run.tenant_id, workflow=run.workflow, version=run.version
        )
        return self._known.keep(key, decode_definition(encoded))
