"""Definitions of workflows, decoded, and cached in memory."""

from collections import OrderedDict
from typing import Generic, TypeVar

import msgspec

from mainspring.domain.workflows.definition import WorkflowDefinition
from mainspring.postgres.named_sql import Queryable
from mainspring.store.workflows.step_rows import RunHead
from mainspring.store.workflows.steps import SQL

decode_definition = msgspec.json.Decoder(WorkflowDefinition).decode
_MOST_STEPS_KEPT = 50_000

Key = TypeVar("Key")


class RecentDefinitions(Generic[Key]):
    """Definitions that were used lately, up to a total number of steps."""

    def __init__(self) -> None:
        self._known: OrderedDict[Key, WorkflowDefinition] = OrderedDict()
        self._steps = 0

    def get(self, key: Key) -> WorkflowDefinition | None:
        """Return a cached definition, and mark it as used."""
        if key in self._known:
            self._known.move_to_end(key)
        return self._known.get(key)

    def keep(self, key: Key, definition: WorkflowDefinition) -> WorkflowDefinition:
        """Cache a definition, and drop those that were not used lately."""
        self._known[key] = definition
        self._steps += len(definition.steps)
        while self._steps > _MOST_STEPS_KEPT and len(self._known) > 1:
            _, dropped = self._known.popitem(last=False)
            self._steps -= len(dropped.steps)
        return definition


class Definitions:
    """Definitions of runs by version, cached: a run of thousands of steps needs its own thousands
    of times, and a version changes only if the database is set back."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Drop all, so that they are read anew."""
        self._known = RecentDefinitions[tuple[int, str, int]]()

    async def get(self, on: Queryable, run: RunHead) -> WorkflowDefinition:
        """Return the definition of a run."""
        key = (run.tenant_id, run.workflow, run.version)
        known = self._known.get(key)
        if known is not None:
            return known
        # There always is one: versions are kept as long as their runs.
        encoded = await SQL["definition_of"].value(
            on, bytes, tenant_id=run.tenant_id, workflow=run.workflow, version=run.version
        )
        return self._known.keep(key, decode_definition(encoded))
