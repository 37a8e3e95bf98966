"""Schedules: created, listed and changed by the API; decided on by the owner of their partition."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, TypeVar
from uuid import UUID

import asyncpg
import msgspec

from mainspring import timezones
from mainspring.domain.partitions import NO_OWNERSHIP, Ownership
from mainspring.domain.schedules.definition import ScheduleDefinition, spread_of
from mainspring.domain.schedules.misfire import BacklogDecision, Ruling
from mainspring.domain.schedules.policies import Decision
from mainspring.postgres.database import Database, columns_of, transaction
from mainspring.schedules.occurrences import (
    DecidedSchedules,
    OccurrenceWriter,
    ScheduleDecision,
    advance,
    record,
)
from mainspring.store.answers import BeforeCommit
from mainspring.store.audit import write_entry
from mainspring.store.lists.paging import LAST_ID
from mainspring.store.schedules.schedules import (
    SQL,
    OccurrenceEntry,
    StoredOccurrence,
    StoredSchedule,
    Template,
)
from mainspring.store.task_refs import owner_of
from mainspring.store.upkeep import occurrence_retention

T = TypeVar("T")

_encode = msgspec.json.Encoder().encode
_END_OF_TIME = 253_000_000_000.0


class DueSchedule(NamedTuple):
    """A schedule whose time comes near."""

    tenant_id: int
    id: UUID
    wake: float


@dataclass(frozen=True, slots=True)
class ScheduleChange:
    """What a new or locked schedule shall become."""

    state: str
    name: str
    definition: ScheduleDefinition
    template: Template
    decided_to: float
    next: float | None

    @classmethod
    def of(cls, schedule: StoredSchedule) -> "ScheduleChange":
        """The schedule as it is: use `dataclasses.replace` for what shall differ."""
        return cls(
            schedule.state, schedule.name, schedule.definition, schedule.template,
            schedule.decided_to, schedule.next,
        )  # fmt: skip


class Changed(NamedTuple):
    """A schedule after a change, and what was decided on the way."""

    schedule: StoredSchedule
    decisions: DecidedSchedules


class OverdueSchedules(NamedTuple):
    """How many schedules are overdue, and since when the first of them is."""

    schedules: int
    since: datetime | None


class NameTaken(Exception):
    """The tenant has a schedule of that name already."""


@dataclass(eq=False)
class ScheduleService:
    """Schedules of every tenant."""

    _database: Database
    _occurrence_writer: OccurrenceWriter

    # For the API ------------------------------------------------------------------------------

    @transaction
    async def create(
        self,
        connection: asyncpg.Connection,
        tenant_id: int,
        schedule_id: UUID,
        wanted: ScheduleChange,
        conclude: BeforeCommit[StoredSchedule],
    ) -> StoredSchedule | None:
        """Insert an active schedule; None when the name is taken."""
        key = {"tenant_id": tenant_id, "schedule_id": schedule_id}
        columns = _columns(schedule_id, wanted)
        if not await SQL["create_schedule"].found(connection, **key, **columns):
            return None
        schedule = await SQL["get_schedule"].one(connection, StoredSchedule, **key)
        await conclude(connection, schedule)
        return schedule

    async def get(self, tenant_id: int, schedule_id: UUID) -> StoredSchedule | None:
        return await SQL["get_schedule"].row(
            self._database, StoredSchedule, tenant_id=tenant_id, schedule_id=schedule_id
        )

    async def page(
        self,
        tenant_id: int,
        *,
        before: UUID | None,
        limit: int,
        state: str | None = None,
        name: str | None = None,
        overdue: float | None = None,
    ) -> Sequence[StoredSchedule]:
        """Return schedules, newest first; with `overdue` only those late by more seconds."""
        return await SQL["list_schedules"].rows(
            self._database,
            StoredSchedule,
            tenant_id=tenant_id,
            before=before or LAST_ID,
            state=state,
            name=name,
            limit=limit,
            overdue=overdue,
        )

    async def occurrences(
        self,
        tenant_id: int,
        schedule_id: UUID,
        *,
        before: tuple[float, int] | None,
        decision: str | None,
        limit: int,
    ) -> Sequence[StoredOccurrence]:
        """Lines of the ledger, newest first."""
        at, attempt = before or (_END_OF_TIME, 0)
        return await SQL["list_occurrences"].rows(
            self._database,
            StoredOccurrence,
            tenant_id=tenant_id,
            schedule_id=schedule_id,
            before=at,
            attempt=attempt,
            decision=decision,
            limit=limit,
        )

    @transaction
    async def change(
        self,
        connection: asyncpg.Connection,
        tenant_id: int,
        schedule_id: UUID,
        decide: Callable[[StoredSchedule], ScheduleChange | None],
    ) -> Changed | None:
        """Lock a schedule, decide what is due of it by its old definition, and write what `decide`
        returns, if anything. None: there is no such schedule. What `decide` raises undoes
        everything."""
        decisions = DecidedSchedules()
        locked = await _locked(connection, tenant_id, schedule_id)
        while locked is not None and locked.overdue > 0:
            step = await self._occurrence_writer.decide_due(connection, NO_OWNERSHIP, [locked])
            decisions.made += step.made
            decisions.cancelled_in |= step.cancelled_in
            locked = await _locked(connection, tenant_id, schedule_id)
        while locked is not None and locked.state == "paused" and locked.passed:
            await _skip_paused(connection, locked)
            locked = await _locked(connection, tenant_id, schedule_id)
        if locked is None:
            return None
        chosen = decide(locked)
        if chosen is not None:
            await _write(connection, locked, chosen)
            locked = await _locked(connection, tenant_id, schedule_id) or locked
        return Changed(locked, decisions)

    @transaction
    async def delete(
        self,
        connection: asyncpg.Connection,
        tenant_id: int,
        schedule_id: UUID,
        actor: str,
        check: Callable[[StoredSchedule], None],
    ) -> bool:
        """Remove a schedule and its ledger; its tasks stay. False: there is none."""
        locked = await _locked(connection, tenant_id, schedule_id)
        if locked is None:
            return False
        check(locked)
        await SQL["delete_schedule"].run(connection, tenant_id=tenant_id, schedule_id=schedule_id)
        await occurrence_retention.delete_ledger(connection, tenant_id, schedule_id)
        subject = str(schedule_id)
        await write_entry(connection, tenant_id, actor, "schedule.deleted", subject)
        return True

    @transaction
    async def run_now(
        self,
        connection: asyncpg.Connection,
        tenant_id: int,
        schedule_id: UUID,
        conclude: BeforeCommit[DecidedSchedules],
    ) -> DecidedSchedules | None:
        """Create a task that is due now, beside the timetable. None: there is no such schedule."""
        locked = await _locked(connection, tenant_id, schedule_id)
        if locked is None:
            return None
        task = self._occurrence_writer.manual_task(locked)
        made = await self._occurrence_writer.create(connection, NO_OWNERSHIP, [task])
        decisions = DecidedSchedules(made=made)
        await conclude(connection, decisions)
        return decisions

    @transaction
    async def backfill(
        self,
        connection: asyncpg.Connection,
        tenant_id: int,
        schedule_id: UUID,
        choose: Callable[[StoredSchedule], Sequence[float]],
        max_running: int | None,
        conclude: BeforeCommit[DecidedSchedules],
    ) -> DecidedSchedules | None:
        """Create tasks for those of the chosen nominal times that never had one."""
        locked = await _locked(connection, tenant_id, schedule_id)
        if locked is None:
            return None
        # Off the event loop: working out many times may take seconds.
        times = await asyncio.to_thread(choose, locked)
        if not times:
            return DecidedSchedules()
        rows = await SQL["ran_between"].fetch(
            connection, tenant_id=tenant_id, schedule_id=schedule_id, first=times[0], last=times[-1]
        )
        ran = {round(row["nominal"], 6) for row in rows}
        missing = [at for at in times if round(at, 6) not in ran]
        tasks, entries = self._occurrence_writer.backfill_tasks(locked, missing, max_running)
        made = await self._occurrence_writer.create(connection, NO_OWNERSHIP, tasks)
        await record(connection, entries)
        decisions = DecidedSchedules(made=made, decided=len(missing))
        await conclude(connection, decisions)
        return decisions

    # For the owner ----------------------------------------------------------------------------

    async def due(
        self, partitions: Collection[int], *, until: float, limit: int
    ) -> list[DueSchedule]:
        """Return schedules to decide on until then, earliest first."""
        return await SQL["due_schedules"].rows(
            self._database, DueSchedule, partitions=list(partitions), until=until, limit=limit
        )

    @transaction
    async def fire(
        self, connection: asyncpg.Connection, ownership: Ownership, due: Sequence[DueSchedule]
    ) -> DecidedSchedules:
        """Decide on those schedules that are due by the database's clock and still ours."""
        locked = await SQL["lock_due"].rows(
            connection,
            StoredSchedule,
            **owner_of(ownership),
            **columns_of(("tenant_id", "id"), due),
        )
        return await self._occurrence_writer.decide_due(connection, ownership, locked)

    async def overdue(self, seconds: float) -> OverdueSchedules:
        """Count the schedules that are overdue by more than these seconds."""
        return await SQL["overdue"].one(self._database, OverdueSchedules, seconds=seconds)

    async def report_overdue(self, seconds: float, *, limit: int) -> list[str]:
        """Write an event for each schedule that is newly overdue by that long; return which."""
        rows = await SQL["report_overdue"].fetch(self._database, seconds=seconds, limit=limit)
        return [row["schedule"] for row in rows]

    @transaction
    async def retime(
        self, connection: asyncpg.Connection, partitions: Collection[int], *, limit: int
    ) -> int:
        """Compute some next times anew that came from an older tz database; return how many."""
        version = timezones.version()
        locked = await SQL["lock_outdated"].rows(
            connection, StoredSchedule, partitions=list(partitions), tzdata=version, limit=limit
        )
        times = [None if s.next is None else s.timetable.next(s.decided_to) for s in locked]
        await SQL["retime"].run(
            connection,
            tzdata=version,
            **columns_of(("tenant_id", "id", "rev"), locked),
            next=times,
            wake=[_wake(s.id, s.definition, t) for s, t in zip(locked, times, strict=True)],
        )
        return len(locked)


async def _locked(
    connection: asyncpg.Connection, tenant_id: int, schedule_id: UUID
) -> StoredSchedule | None:
    return await SQL["lock_schedule"].row(
        connection, StoredSchedule, tenant_id=tenant_id, schedule_id=schedule_id
    )


async def _write(
    connection: asyncpg.Connection, locked: StoredSchedule, change: ScheduleChange
) -> None:
    """Write a change; NameTaken when another schedule of the tenant has the name."""
    try:
        written = await SQL["change_schedule"].found(
            connection,
            tenant_id=locked.tenant_id,
            schedule_id=locked.id,
            rev=locked.rev,
            state=change.state,
            **_columns(locked.id, change),
        )
    except asyncpg.UniqueViolationError as error:
        if error.constraint_name != "schedules_tenant_id_name_key":
            raise
        raise NameTaken from error
    if not written:
        raise AssertionError("a locked schedule cannot have changed")


async def _skip_paused(connection: asyncpg.Connection, paused: StoredSchedule) -> None:
    """Record what was due while a schedule was paused as skipped."""
    until = paused.now - paused.offset
    table = paused.timetable
    backlog = table.backlog(paused.decided_to, until, most=0, cut=until)
    spans = sorted([*backlog.older, *backlog.excluded])
    rulings = [Ruling(span, Decision.SKIPPED_PAUSED, "the schedule was paused") for span in spans]
    await record(connection, [OccurrenceEntry(paused, ruling) for ruling in rulings])
    decided_to = max(backlog.until, paused.decided_to)
    nothing = BacklogDecision(())
    await advance(
        connection, [ScheduleDecision(paused, nothing, decided_to, table.next(decided_to))]
    )


def _columns(schedule_id: UUID, schedule: ScheduleChange) -> dict[str, object]:
    """Return the columns of a schedule and of what follows from its definition."""
    definition = schedule.definition
    return {
        "name": schedule.name,
        "decided_to": schedule.decided_to,
        "timezone": definition.timezone,
        "tzdata": timezones.version(),
        "calendars": list(definition.calendars),
        "definition": _encode(definition),
        "template": _encode(schedule.template),
        "next": schedule.next,
        "wake": _wake(schedule_id, definition, schedule.next),
    }


def _wake(schedule_id: UUID, definition: ScheduleDefinition, next_at: float | None) -> float | None:
    return None if next_at is None else next_at + spread_of(schedule_id, definition.spread)
