"""Periodic tasks: the schedules that an app declares, brought in line with those on the server.

Many workers may start at once: a name is unique, a definition carries its digest, and whoever comes
second finds it as it should be.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec import Raw

from mainspring.errors import NotFound
from mainspring.sdk.targets import handler

if TYPE_CHECKING:
    from mainspring.sdk.client import AsyncClient

OWNER = "mainspring-app"
"""The label that says which app a schedule belongs to."""


@dataclass(frozen=True, slots=True)
class Periodic:
    """A schedule that somebody declared in code."""

    name: str
    handler: str
    fields: Mapping[str, Any]
    """The fields of the tasks it makes."""
    payload: bytes
    timing: Mapping[str, Any]

    def template(self, owner: str | None = None) -> dict[str, Any]:
        """The task to make at each occurrence."""
        labels = dict(self.fields.get("labels", {}))
        if owner is not None:
            labels[OWNER] = owner
        fields = {name: value for name, value in self.fields.items() if name != "expires_at"}
        target = handler(self.handler)
        return {**fields, "target": target, "labels": labels, "payload": Raw(self.payload)}


async def sync(client: "AsyncClient", owner: str, declared: list[Periodic]) -> list[str]:
    """Create, change and remove the schedules of an app; answers the names of what is declared."""
    for wanted in declared:
        await client.schedules.put(wanted.name, wanted.template(owner), **wanted.timing)
    names = {wanted.name for wanted in declared}
    async for found in client.schedules.list():
        labels = (found.task or {}).get("labels") or {}
        if labels.get(OWNER) == owner and found.name not in names:
            try:
                await client.schedules.delete(found.id)
            except NotFound:
                continue  # another worker was quicker
    return sorted(names)
