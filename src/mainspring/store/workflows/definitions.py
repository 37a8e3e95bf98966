"""Definitions of workflows, decoded, and mostly from memory."""

from collections import OrderedDict
from typing import Generic, TypeVar

import msgspec

from mainspring.domain.workflows.definition import WorkflowDefinition

decode_definition = msgspec.json.Decoder(WorkflowDefinition).decode
_MOST_STEPS_KEPT = 50_000

Key = TypeVar("Key")


class RecentDefinitions(Generic[Key]):
    """Definitions that were read lately: as many as have fewer than so many steps together."""

    def __init__(self) -> None:
        self._known: OrderedDict[Key, WorkflowDefinition] = OrderedDict()
        self._steps = 0

    def get(self, key: Key) -> WorkflowDefinition | None:
        """Return a definition that is known, and know it for longer."""
        if key in self._known:
            self._known.move_to_end(key)
        return self._known.get(key)

    def keep(self, key: Key, definition: WorkflowDefinition) -> WorkflowDefinition:
        """Know a definition from now on, and forget those that were not asked for lately."""
        self._known[key] = definition
        self._steps += len(definition.steps)
        while self._steps > _MOST_STEPS_KEPT and len(self._known) > 1:
            _, dropped = self._known.popitem(last=False)
            self._steps -= len(dropped.steps)
        return definition
