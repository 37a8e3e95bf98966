"""The registry of workers, and the lines they log."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from mainspring.domain.capability import MOST_NAMES, Offer
from mainspring.postgres import named_sql as queries
from mainspring.postgres.database import Store, columns_of

SQL = queries.load("workers")


class WorkerRecord(NamedTuple):
    """A worker as people see it."""

    name: str
    incarnation: str
    offer: dict[str, object]
    about: dict[str, object]
    leased: int
    succeeded: int
    failed: int
    released: int
    started_at: datetime
    seen_at: datetime
    seq: int
    held: int


class Touch(NamedTuple):
    """A worker that was heard of, with what it offered and did since the last time."""

    tenant_id: int
    name: str
    incarnation: str
    offer: dict[str, object] | None
    about: Mapping[str, object] | None
    leased: int
    succeeded: int
    failed: int
    released: int


class StoredNodeAddress(NamedTuple):
    """A node that workers may ask."""

    id: UUID
    url: str | None
    partitions: int


class NewLogLine(NamedTuple):
    """A line that a worker logged about an execution."""

    task_id: UUID
    fence: int
    at: float
    level: str
    message: str


class LogLine(NamedTuple):
    """The same, as it is read."""

    seq: int
    fence: int
    at: datetime
    level: str
    message: str


class WorkerStore(Store):
    """Every call is one transaction."""

    async def register(
        self,
        tenant_id: int,
        name: str,
        incarnation: str,
        offer: Offer,
        about: Mapping[str, object] | None,
    ) -> bool:
        """Register a worker's process; False when another one has replaced it already."""
        return await SQL["register_worker"].found(
            self._database,
            tenant_id=tenant_id,
            name=name,
            incarnation=incarnation,
            offer=offer_shown(offer),
            about=about,
        )

    async def is_current(self, tenant_id: int, name: str, incarnation: str) -> bool:
        """Whether no other process has come under the same name."""
        row = await SQL["is_current"].record(
            self._database, tenant_id=tenant_id, name=name, incarnation=incarnation
        )
        return row is not None and row["current"]

    async def touch(self, touches: Sequence[Touch]) -> set[tuple[int, str]]:
        """Note workers that were heard of; return those that are still the current ones."""
        ordered = sorted(touches, key=lambda touch: touch[:2])
        rows = await SQL["touch_workers"].fetch(
            self._database, **columns_of(Touch._fields, ordered), most_names=MOST_NAMES
        )
        return {(row["tenant_id"], row["name"]) for row in rows}

    async def note_held(self, node_id: UUID, held: Mapping[tuple[int, str], int]) -> None:
        """Note how many tasks of the partitions of a node are leased to each worker."""
        await SQL["note_held"].run(
            self._database,
            node_id=node_id,
            tenant_ids=[tenant for tenant, _ in held],
            names=[name for _, name in held],
            held=list(held.values()),
        )

    async def list(
        self, tenant_id: int, *, before: int | None, limit: int
    ) -> Sequence[WorkerRecord]:
        """Return workers, the newest first."""
        return await SQL["list_workers"].rows(
            self._database,
            WorkerRecord,
            tenant_id=tenant_id,
            before=2**63 - 1 if before is None else before,
            limit=limit,
        )

    async def nodes(self, alive_within: float) -> Sequence[StoredNodeAddress]:
        """Return the nodes that were heard of within so many seconds."""
        return await SQL["worker_nodes"].rows(
            self._database, StoredNodeAddress, alive_within=alive_within
        )

    async def add_logs(
        self, tenant_id: int, lines: Sequence[NewLogLine], *, most: int, more_errors: int
    ) -> int:
        """Store lines, at most `most` of a task and `more_errors` errors beyond; return how
        many."""
        row = await SQL["add_logs"].record(
            self._database,
            tenant_id=tenant_id,
            **columns_of(NewLogLine._fields, lines),
            most=most,
            more_errors=more_errors,
        )
        return 0 if row is None else row["added"]

    async def logs(
        self, tenant_id: int, task_id: UUID, *, after: int, limit: int
    ) -> Sequence[LogLine]:
        """Return the lines of a task, in the order in which they came."""
        return await SQL["list_logs"].rows(
            self._database, LogLine, tenant_id=tenant_id, task_id=task_id, after=after, limit=limit
        )


def offer_shown(*offers: Offer) -> dict[str, object]:
    """Return what a worker offers in all its lanes, as people read it; the last one's resources."""
    return {
        "queues": sorted({queue for offer in offers for queue in offer.queues}),
        "handlers": sorted({handler for offer in offers for handler in offer.handlers}),
        "commands": any(offer.commands for offer in offers),
        "tags": sorted({tag for offer in offers for tag in offer.tags}),
        "memory_mb": offers[-1].memory_mb,
        "cpu": offers[-1].cpu,
    }
