"""Dead letters: read, grouped by what went wrong, replayed, archived, purged."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg

from mainspring.domain.partitions import NO_OWNERSHIP
from mainspring.domain.task import Resolution
from mainspring.postgres import named_sql as queries
from mainspring.postgres.database import Database, transaction
from mainspring.postgres.rows import read_row
from mainspring.store.audit import write_entry
from mainspring.store.creation import Creation, NewTask, creation_arguments
from mainspring.store.lists.paging import LAST_ID, RowPage, fill, next_mark
from mainspring.store.tasks import SQL as TASKS
from mainspring.store.tasks import StoredTask

SQL = queries.load("dead_letters")

HEAVIEST_PAGE = 16 * 2**20
"""Bytes of payload after which a page ends."""


_MOST_GROUPED = 100_000
_SCAN = 1000


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """Which dead letters are meant; None means any."""

    name: str | None = None
    queue: str | None = None
    labels: dict[str, str] | None = None
    fingerprint: str | None = None
    died_after: datetime | None = None
    died_before: datetime | None = None
    resolved: bool | None = None

    @property
    def texts(self) -> dict[str, object]:
        """The values that letters are compared with."""
        names = ("name", "queue", "labels", "fingerprint", "died_after", "died_before")
        return {name: getattr(self, name) for name in names}

    @property
    def kinds(self) -> dict[str, object]:
        """Whether unresolved and resolved letters are wanted."""
        return {"unresolved": self.resolved is not True, "resolved": self.resolved is not False}


class StoredLetter(NamedTuple):
    """A dead letter as it was found."""

    task: StoredTask
    reason: str
    fingerprint: str
    attempts: list[dict[str, Any]]
    resolution: Resolution | None
    resolved_at: datetime | None
    replayed_as: UUID | None


@dataclass(frozen=True, slots=True)
class LetterGroup:
    """Letters of the same error."""

    fingerprint: str
    error: dict[str, str] | None
    count: int
    first_at: datetime
    last_at: datetime
    example_id: UUID


class Replay(NamedTuple):
    """The result of a replay: `task` is the new task, unless the letter had one before."""

    task_id: UUID
    task: NewTask | None = None
    partition: int | None = None


class Matches(NamedTuple):
    """Ids that match, oldest first, and where to go on (None at the end)."""

    ids: list[UUID]
    next_after: UUID | None


class Outcomes(NamedTuple):
    """How replayed tasks ended so far."""

    failed: int
    others: int


class DeadLetterStore:
    """Dead letters of every tenant."""

    def __init__(self, database: Database, *, near: float) -> None:
        self._database = database
        self._near = near

    async def get(self, tenant_id: int, letter_id: UUID) -> StoredLetter | None:
        found = await SQL["read_letters"].fetch(
            self._database, tenant_id=tenant_id, ids=[letter_id], payloads=True
        )
        return _letter(found[0]) if found else None

    async def list(
        self,
        tenant_id: int,
        where: LetterFilter,
        *,
        before: UUID | None,
        limit: int,
        payloads: bool,
    ) -> RowPage[StoredLetter, UUID]:
        """Return letters older than `before`; a page may be short and still have a next one."""
        heaviest = HEAVIEST_PAGE if payloads else 2**62
        wanted = {"tenant_id": tenant_id, "heaviest": heaviest, **where.kinds, **where.texts}

        async def look(before: UUID | None, limit: int) -> RowPage[StoredLetter, UUID]:
            marks = {"before": before or LAST_ID, "limit": limit, "scan": _SCAN}
            rows = await SQL["find_letters"].fetch(self._database, **wanted, **marks)
            ids = [row["id"] for row in rows if row["id"] is not None]
            scanned, edge, found = rows[0]["scanned"], rows[0]["edge"], rows[0]["found"]
            letters = await SQL["read_letters"].fetch(
                self._database, tenant_id=tenant_id, ids=ids, payloads=payloads
            )
            if ids and (len(ids) == limit or len(ids) < found):
                next_before = ids[-1]
            else:
                next_before = edge if scanned == _SCAN else None
            return RowPage([_letter(row) for row in letters], next_before)

        return await fill(look, before, limit, heavy=payloads)

    async def groups(
        self, tenant_id: int, where: LetterFilter, *, limit: int
    ) -> Sequence[LetterGroup]:
        """Return letters grouped by error, the most frequent first."""
        return await SQL["group_letters"].rows(
            self._database,
            LetterGroup,
            tenant_id=tenant_id,
            limit=limit,
            scan=_MOST_GROUPED,
            **where.kinds,
            **where.texts,
        )

    async def unresolved(
        self, tenant_id: int, where: LetterFilter, *, after: UUID | None, upto: UUID, limit: int
    ) -> Matches:
        """Return letters to replay, oldest first, up to id `upto`; none may come while more
        follow."""
        scan = max(_SCAN, limit)
        rows = await SQL["find_unresolved"].fetch(
            self._database,
            tenant_id=tenant_id,
            after=after or UUID(int=0),
            scan=scan,
            **where.texts,
            limit=limit,
            upto=upto,
        )
        ids = [row["id"] for row in rows if row["id"] is not None]
        return Matches(ids, next_mark(UUID, rows, limit, scan))

    @transaction
    async def replay(
        self,
        connection: asyncpg.Connection,
        tenant_id: int,
        ids: Sequence[UUID],
        make: Callable[[StoredLetter], NewTask],
        actor: str,
    ) -> dict[UUID, Replay]:
        """Make a task of each letter without one; return the replays of all letters that exist."""
        locked = await SQL["lock_letters"].fetch(connection, tenant_id=tenant_id, ids=list(ids))
        replays = {row["id"]: Replay(row["replayed_as"]) for row in locked if row["replayed_as"]}
        fresh = [row["id"] for row in locked if row["id"] not in replays]
        if not fresh:
            return replays
        rows = await SQL["read_letters"].fetch(
            connection, tenant_id=tenant_id, ids=fresh, payloads=True
        )
        made = {row["id"]: make(_letter(row)) for row in reversed(rows)}
        creation = Creation(tenant_id, list(made.values()))
        created = await TASKS["create_tasks"].fetch(
            connection, **creation_arguments([creation], NO_OWNERSHIP, self._near)
        )
        partitions = {row["id"]: row["partition"] for row in created}
        if len(partitions) < len(made):
            return replays  # the tenant is gone, and with it everything that it may do
        replayed_as = {letter_id: task.id for letter_id, task in made.items()}
        await _mark_replayed(connection, tenant_id, replayed_as, actor)
        return replays | {
            letter_id: Replay(task.id, task, partitions[task.id])
            for letter_id, task in made.items()
        }

    async def outcomes(self, tenant_id: int, task_ids: Sequence[UUID]) -> Outcomes:
        """Count how these tasks ended; one that failed and will be retried counts as failed."""
        return await SQL["count_outcomes"].one(
            self._database, Outcomes, tenant_id=tenant_id, ids=list(task_ids), first=min(task_ids)
        )

    async def archive(self, tenant_id: int, letter_id: UUID, actor: str) -> None:
        """Archive a letter; one that is resolved, or not there, stays as it is."""
        await SQL["archive_letters"].run(
            self._database, tenant_id=tenant_id, ids=[letter_id], actor=actor
        )

    @transaction
    async def purge(
        self, connection: asyncpg.Connection, tenant_id: int, letter_id: UUID, actor: str
    ) -> bool:
        """Remove a letter; its task stays in history. False: there is no such letter."""
        gone = await SQL["purge_letter"].found(connection, tenant_id=tenant_id, letter_id=letter_id)
        if gone:
            await write_entry(connection, tenant_id, actor, "dead_letter.purged", str(letter_id))
        return gone


async def mark_letters_replayed(
    connection: asyncpg.Connection, tenant_id: int, tasks: Mapping[UUID, UUID], actor: str
) -> None:
    """Mark these letters, if they exist, as replayed by other tasks."""
    await SQL["lock_letters"].run(connection, tenant_id=tenant_id, ids=list(tasks))
    await _mark_replayed(connection, tenant_id, tasks, actor)


async def _mark_replayed(
    connection: asyncpg.Connection, tenant_id: int, tasks: Mapping[UUID, UUID], actor: str
) -> None:
    ids, task_ids = list(tasks), list(tasks.values())
    await SQL["mark_replayed"].run(
        connection, tenant_id=tenant_id, ids=ids, task_ids=task_ids, actor=actor
    )


async def archive_letters(
    connection: asyncpg.Connection, tenant_id: int, ids: Sequence[UUID], actor: str
) -> None:
    """Archive these letters, if they exist: their steps were skipped."""
    await SQL["lock_letters"].run(connection, tenant_id=tenant_id, ids=ids)
    await SQL["archive_letters"].run(connection, tenant_id=tenant_id, ids=ids, actor=actor)


def _letter(row: asyncpg.Record) -> StoredLetter:
    return StoredLetter(
        task=read_row(StoredTask, row), reason=row["reason"], fingerprint=row["fingerprint"],
        attempts=row["executions"], resolution=row["resolution"], resolved_at=row["resolved_at"],
        replayed_as=row["replayed_as"],
    )  # fmt: skip
