"""Changes of many tasks at once, in transactions small enough to disturb nobody."""

from collections.abc import AsyncIterator, Collection
from dataclasses import asdict, dataclass
from uuid import UUID

import asyncpg

from mainspring.domain.task import TaskState
from mainspring.postgres.database import Database, transaction
from mainspring.store.audit import write_entry
from mainspring.store.bulk import SQL
from mainspring.store.lists.index_paths import TaskFilter
from mainspring.store.lists.paging import next_mark
from mainspring.workflows.advancing import Steps

CHUNK = 1000
"""Most tasks that one transaction changes."""

_SCAN = 10_000


@dataclass(frozen=True, slots=True)
class CancelCounts:
    """How many tasks ended, how many were asked to stop, and whose owners must know."""

    ended: int = 0
    asked: int = 0
    partitions: Collection[int] = ()

    def __add__(self, other: "CancelCounts") -> "CancelCounts":
        return CancelCounts(
            self.ended + other.ended,
            self.asked + other.asked,
            {*self.partitions, *other.partitions},
        )


class BulkChanges:
    """Changes of many tasks. Each may be repeated without harm."""

    def __init__(self, database: Database, steps: Steps, *, scan: int = _SCAN) -> None:
        self._database = database
        self._scan = scan
        self._steps = steps

    async def count_cancellable(self, tenant_id: int, where: TaskFilter) -> CancelCounts:
        """What `cancel` would do now."""
        total = CancelCounts()
        async for page in self._pages(tenant_id, where):
            asked = sum(state == TaskState.RUNNING for state in page.values())
            total += CancelCounts(len(page) - asked, asked)
        return total

    async def cancel(
        self, tenant_id: int, where: TaskFilter, actor: str
    ) -> AsyncIterator[CancelCounts]:
        """Cancel all that match and exist now; yields what each transaction did."""
        async for page in self._pages(tenant_id, where):
            if page:
                yield await self._cancel(tenant_id, list(page), where, actor)

    async def _pages(self, tenant_id: int, where: TaskFilter) -> AsyncIterator[dict[UUID, str]]:
        """All that match, oldest first, each with its state."""
        newest = await SQL["newest_task"].record(self._database, tenant_id=tenant_id)
        after: UUID | None = UUID(int=0) if newest else None
        while after is not None and newest is not None:
            rows = await SQL["find_cancellable"].fetch(
                self._database,
                tenant_id=tenant_id,
                after=after,
                newest=newest["id"],
                scan=self._scan,
                limit=CHUNK,
                **asdict(where),
            )
            page = {row["id"]: row["state"] for row in rows if row["id"] is not None}
            after = next_mark(UUID, rows, CHUNK, self._scan)
            yield page

    @transaction
    async def _cancel(
        self,
        connection: asyncpg.Connection,
        tenant_id: int,
        ids: list[UUID],
        where: TaskFilter,
        actor: str,
    ) -> CancelCounts:
        await self._steps.lock_runs_of(connection, tenant_id, ids)
        locked = await SQL["lock_cancellable"].fetch(
            connection, tenant_id=tenant_id, ids=ids, **asdict(where)
        )
        counts = await SQL["cancel_locked"].one(
            connection,
            CancelCounts,
            tenant_id=tenant_id,
            ids=[task["id"] for task in locked],
            revs=[task["rev"] for task in locked],
        )
        over = [task for task in locked if task["state"] != TaskState.RUNNING]
        await self._steps.count_cancelled(
            connection, tenant_id, [(task["workflow_run_id"], task["step"]) for task in over]
        )
        if counts.ended or counts.asked:
            await write_entry(
                connection, tenant_id, actor, "tasks.cancelled", f"{ids[0]}/{ids[-1]}",
                cancelled=counts.ended, cancel_requested=counts.asked,
            )  # fmt: skip
        return counts
