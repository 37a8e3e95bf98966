"""Periodic tasks: the schedules that an app declares, brought in line with those on the server.

Many workers may start at once: a name is unique, a definition has its digest as a label, and the
second worker finds nothing to change. An app changes only schedules that are labelled with its own
name; and of two versions of it the newer one decides, whichever starts last.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from msgspec import Raw

from mainspring.errors import NotFound, PreconditionFailed
from mainspring.sdk.targets import OWNER, VERSION, handler, labels_of, version_in

if TYPE_CHECKING:
    from mainspring.sdk.client import AsyncClient
    from mainspring.sdk.resources.schedules import Schedule


@dataclass(frozen=True, slots=True)
class Owner:
    """The app that declares schedules, and its version; 0 where it has none."""

    name: str
    version: int = 0

    @property
    def labels(self) -> dict[str, str]:
        version = {VERSION: str(self.version)} if self.version else {}
        return {OWNER: self.name, **version}

    def has(self, schedule: "Schedule") -> bool:
        return labels_of(schedule.task).get(OWNER) == self.name


@dataclass(frozen=True, slots=True)
class Synced:
    """The result of `sync`: schedules in place and removed, or the newer version that decides."""

    names: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    newer: int | None = None


@dataclass(frozen=True, slots=True)
class Periodic:
    """A schedule that is declared in code."""

    name: str
    handler: str
    fields: Mapping[str, Any]
    """The fields of the tasks it makes."""
    payload: bytes
    timing: Mapping[str, Any]

    def template(self, owner: Owner | None = None) -> dict[str, Any]:
        """Return the task to make at each occurrence."""
        labels = dict(self.fields.get("labels", {}))
        if owner is not None:
            labels |= owner.labels
        fields = {name: value for name, value in self.fields.items() if name != "expires_at"}
        target = handler(self.handler)
        return {**fields, "target": target, "labels": labels, "payload": Raw(self.payload)}


async def sync(client: "AsyncClient", owner: Owner, declared: list[Periodic]) -> Synced:
    """Create, change and remove the schedules of an app, unless a newer version of it did."""
    own = [found async for found in client.schedules.list(limit=1000) if owner.has(found)]
    newest = max((version_in(labels_of(found.task)) for found in own), default=0)
    if newest > owner.version:
        return Synced(newer=newest)
    for wanted in declared:
        await client.schedules.put(wanted.name, wanted.template(owner), **wanted.timing)
    names = {wanted.name for wanted in declared}
    gone = [found for found in own if found.name not in names]
    removed = [found.name for found in gone if await _removed(client, owner, found)]
    return Synced(sorted(names), sorted(removed))


async def _removed(client: "AsyncClient", owner: Owner, found: "Schedule") -> bool:
    """Remove a schedule. Return False where another worker was first, or it has changed."""
    try:
        present = await client.schedules.get(found.id)
        if not owner.has(present) or version_in(labels_of(present.task)) > owner.version:
            return False
        await client.schedules.delete(found.id, if_match=present.etag)
    except (NotFound, PreconditionFailed):
        return False
    return True
