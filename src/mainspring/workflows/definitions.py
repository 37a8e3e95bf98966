"""Definitions as runs need them: by version, the archived ones too, and mostly from memory."""

from collections import OrderedDict

import asyncpg
import msgspec

from mainspring.domain.workflow.definition import WorkflowDefinition
from mainspring.store.workflow.step_rows import RunHead
from mainspring.store.workflow.steps import SQL

_definition = msgspec.json.Decoder(WorkflowDefinition)
_MOST_STEPS_KEPT = 50_000


class Definitions:
    """A version does not change, unless the database is set back: so those that were read lately
    are kept. A run of thousands of steps would read its own thousands of times."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[int, str, int], WorkflowDefinition] = OrderedDict()
        self._steps_known = 0

    def forget(self) -> None:
        """Read them anew."""
        self._known.clear()
        self._steps_known = 0

    async def get(self, connection: asyncpg.Connection, run: RunHead) -> WorkflowDefinition:
        """The definition that a run was made by."""
        key = (run.tenant_id, run.workflow, run.version)
        known = self._known.get(key)
        if known is not None:
            self._known.move_to_end(key)
            return known
        encoded = await connection.fetchval(
            *SQL["definition_of"](
                tenant_id=run.tenant_id, workflow=run.workflow, version=run.version
            )
        )
        assert encoded is not None, "versions are kept as long as their runs"
        return self._keep(key, _definition.decode(encoded))

    def _keep(
        self, key: tuple[int, str, int], definition: WorkflowDefinition
    ) -> WorkflowDefinition:
        self._known[key] = definition
        self._steps_known += len(definition.steps)
        while self._steps_known > _MOST_STEPS_KEPT and len(self._known) > 1:
            _, dropped = self._known.popitem(last=False)
            self._steps_known -= len(dropped.steps)
        return definition
