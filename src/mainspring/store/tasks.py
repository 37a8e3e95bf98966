"""Tasks of the API: created, read and listed, and the records of their changes."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import NamedTuple, TypeVar
from uuid import UUID

import asyncpg

from mainspring.domain.execution import Execution
from mainspring.domain.partitions import Ownership
from mainspring.domain.task import TaskState
from mainspring.errors import StoreUnavailable
from mainspring.postgres import named_sql as queries
from mainspring.postgres.database import Database
from mainspring.postgres.rows import read_rows
from mainspring.store.claims import LeasedRow
from mainspring.store.creation import (
    NO_EAGER_LEASE,
    Creation,
    EagerLeaseOffer,
    Made,
    creation_arguments,
    started_task,
)
from mainspring.store.lists.index_paths import (
    INDEXES,
    LIST_PATHS,
    MOST,
    SHORTCUTS,
    ListPath,
    TaskFilter,
    paths_of,
    shortcuts_of,
)
from mainspring.store.lists.paging import LAST_ID, ListSearch, RowPage, fill
from mainspring.store.upkeep.statistics import BULK_ROWS, analyze_if_grown

SQL = queries.load("tasks")
_LISTS = {path: path.of(SQL["list_tasks"]) for path in LIST_PATHS + SHORTCUTS}
T = TypeVar("T")

_TELLING = 1.0
"""Maximum seconds to analyze after an insert; every node looks again soon."""


@dataclass(slots=True)
class _TaskColumns:
    """The columns that every reader of a task needs."""

    id: UUID
    created_at: datetime
    run_at: datetime
    due_at: datetime
    expires_at: datetime | None
    rev: int
    fence: int
    attempts: int
    concurrency_limit: int | None
    priority: int
    cancel_requested: bool
    state: str
    queue: str
    concurrency_key: str | None
    name: str | None
    labels: dict[str, str] | None
    spec: bytes
    payload: bytes


@dataclass(slots=True)
class StoredTask(_TaskColumns):
    """A task as it was found, unfinished or finished."""

    picked_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    sla_met: bool | None
    blame: str | None
    error: dict[str, str] | None
    lateness: dict[str, float] | None
    result: bytes | None
    replay_of: UUID | None = None
    schedule_id: UUID | None = None
    nominal_at: datetime | None = None
    workflow_run_id: UUID | None = None
    step: str | None = None
    progress: bytes | None = None
    """What its worker reported last; known while it runs, and only where one task is read."""


@dataclass(slots=True)
class LockedTask(_TaskColumns):
    """An unfinished task, as a change of it is decided on: while its row is locked."""

    partition: int
    capability: str
    workflow_run_id: UUID | None = None
    step: str | None = None
    expanded: bool = False
    """Whether it is a step that waits for its own items, and no longer for its turn."""


class StoredExecution(NamedTuple):
    """One finished execution."""

    attempt: int
    fence: int
    worker: str
    due_at: datetime
    picked_at: datetime
    started_at: datetime | None
    finished_at: datetime
    outcome: str
    status_code: int | None
    response: bytes | None
    error: dict[str, str] | None
    duration_ms: float
    lateness: dict[str, float] | None = None


_EVERYTHING = TaskFilter()


class TaskStore:
    """Tasks of every tenant, unfinished and finished."""

    def __init__(self, database: Database, *, near: float, scan: int = MOST) -> None:
        self._database = database
        self._near = near
        self._scan = scan
        self._indexes: frozenset[str] = frozenset()

    async def create(
        self,
        creations: Sequence[Creation],
        ownership: Ownership,
        offer: EagerLeaseOffer = NO_EAGER_LEASE,
    ) -> Made:
        """Insert in one transaction, and lease what may start at once. A creation whose idempotency
        key was taken already inserts nothing and is not returned."""
        rows = await SQL["create_tasks"].fetch(
            self._database, **creation_arguments(creations, ownership, self._near, offer)
        )
        if len(rows) >= BULK_ROWS:
            await self._analyze_if_grown(len(rows))
        made = Made({row["id"]: row["partition"] for row in rows}, [])
        if offer.tasks:
            made.leased.extend(
                started_task(
                    offer.tasks[row["id"]], row["partition"], row["picked"], row["lease_end"]
                )
                for row in rows
                if row["picked"] is not None
            )
        return made

    async def _analyze_if_grown(self, added: int) -> None:
        """Analyze before the engine claims the tasks: by a plan for an empty table that takes
        long."""
        # Whatever goes wrong here, they are written, and somebody waits to hear that.
        with suppress(StoreUnavailable, asyncpg.PostgresError, TimeoutError):
            async with asyncio.timeout(_TELLING):
                await analyze_if_grown(self._database, added)

    async def which_exist(self, tenant_id: int, ids: Sequence[UUID]) -> dict[UUID, int | None]:
        """Return partitions of those tasks that exist, None if finished, after an insert's answer
        was lost."""
        rows = await SQL["which_exist"].fetch(
            self._database, tenant_id=tenant_id, ids=list(ids), first=min(ids)
        )
        return {row["id"]: row["partition"] for row in rows}

    async def get(self, tenant_id: int, task_id: UUID) -> StoredTask | None:
        return await SQL["get_task"].row(
            self._database, StoredTask, tenant_id=tenant_id, task_id=task_id
        )

    async def list(
        self,
        tenant_id: int,
        where: TaskFilter,
        *,
        before: UUID | None,
        limit: int,
        payloads: bool = False,
    ) -> RowPage[StoredTask, UUID]:
        """Return tasks older than `before`; a short page may not be the last. No payloads by
        default."""
        ready = await self._ready()
        # Without a filter every row that is looked at is shown: no need to look at more.
        most = limit if where == _EVERYTHING else self._scan
        unfinished = where.state is None or not TaskState(where.state).final
        finished = where.state is None or TaskState(where.state).final

        async def read(
            path: ListPath, scan: int, before: UUID | None, limit: int
        ) -> RowPage[StoredTask, UUID]:
            """Return what one path finds among `scan` rows, and how far it got."""
            rows = await _LISTS[path].fetch(
                self._database,
                tenant_id=tenant_id,
                before=before or LAST_ID,
                scan=scan,
                unfinished=unfinished,
                finished=finished,
                limit=limit,
                payloads=payloads,
                **asdict(where),
            )
            tasks = read_rows(StoredTask, [row for row in rows if row["id"] is not None])
            return RowPage(tasks, rows[0]["edge"])

        search = ListSearch(read, paths_of(where, ready), shortcuts_of(where, ready), most)
        return await fill(search.look, before, limit)

    async def _ready(self) -> frozenset[str]:
        """The indexes of history that may be used. Once all are there, nobody asks again."""
        if not self._indexes >= INDEXES:
            rows = await SQL["ready_indexes"].fetch(self._database)
            self._indexes = frozenset(row["name"] for row in rows)
        return self._indexes

    async def executions(
        self, tenant_id: int, task_id: UUID, *, outcome: str | None
    ) -> Sequence[StoredExecution]:
        return await SQL["list_executions"].rows(
            self._database, StoredExecution, tenant_id=tenant_id, task_id=task_id, outcome=outcome
        )

    async def running(self, tenant_id: int, task_id: UUID) -> Execution | None:
        """The present execution of a task; None when it is not running."""
        leased = await SQL["running_task"].row(
            self._database, LeasedRow, tenant_id=tenant_id, task_id=task_id
        )
        return None if leased is None else leased.execution()

    async def see(self, tenant_id: int, task_id: UUID) -> LockedTask | None:
        """Return an unfinished task, without a lock."""
        return await SQL["see_task"].row(
            self._database, LockedTask, tenant_id=tenant_id, task_id=task_id
        )


@dataclass(frozen=True, slots=True)
class TaskChange:
    """What a locked task shall become. A final state moves it to history as it is."""

    state: str
    cancel_requested: bool
    run: float
    due: float
    expires: float | None
    priority: int
    queue: str
    capability: str
    name: str | None
    labels: dict[str, str] | None
    spec: bytes
    payload: bytes

    @classmethod
    def of(cls, task: LockedTask) -> "TaskChange":
        """The task as it is: use `dataclasses.replace` for what shall differ."""
        return cls(
            state=task.state,
            cancel_requested=task.cancel_requested,
            run=task.run_at.timestamp(),
            due=task.due_at.timestamp(),
            expires=task.expires_at.timestamp() if task.expires_at else None,
            priority=task.priority,
            queue=task.queue,
            capability=task.capability,
            name=task.name,
            labels=task.labels,
            spec=task.spec,
            payload=task.payload,
        )
