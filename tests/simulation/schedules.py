"""Schedules of the simulation: what their owner asks of the schedule service, in memory.

What is decided is decided by the real code (`occurrences.decide`, `OccurrenceWriter.lines`). Here
is what the SQL does around it: whose schedules these are, which are due, and that it is one
transaction.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

import msgspec

from mainspring.domain.partitions import Ownership
from mainspring.domain.schedules.definition import ScheduleDefinition, spread_of
from mainspring.schedules.occurrences import DecidedSchedules, OccurrenceWriter, Placed, decide
from mainspring.schedules.service import DueSchedule, OverdueSchedules, ScheduleService
from mainspring.store.schedules.schedules import StoredSchedule
from simulation.remote import Link
from simulation.store import MemoryStore
from simulation.tables import Line, ScheduleRow

_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class MemorySchedules:
    """One method per statement, on the tables of a store."""

    store: MemoryStore

    def due(self, partitions: Collection[int], until: float, limit: int) -> list[DueSchedule]:
        found = [
            DueSchedule(row.tenant_id, row.id, row.wake)
            for row in self.store.tables.schedules.values()
            if row.partition in partitions and row.state == "active" and row.wake <= until
        ]
        return sorted(found, key=lambda due: due.wake)[:limit]

    def fire(
        self, ownership: Ownership, due: Sequence[DueSchedule], occurrence_writer: OccurrenceWriter
    ) -> DecidedSchedules:
        decided = DecidedSchedules()
        self.store.writer = ownership
        if not self.store.is_valid(ownership):
            return decided
        now = self.store.now()
        for name in sorted((schedule.tenant_id, schedule.id) for schedule in due):
            row = self.store.tables.schedules.get(name[1])
            if row is None or row.state != "active" or row.partition not in ownership.partitions:
                continue
            if row.wake <= now and row.tenant_id in self.store.tables.tenants:
                self._decide(row, ownership, occurrence_writer, decided)
        self.store.committed("fire")
        return decided

    def overdue(self, seconds: float) -> int:
        past = self.store.now() - seconds
        rows = self.store.tables.schedules.values()
        return sum(row.state == "active" and row.wake < past for row in rows)

    def _decide(
        self,
        row: ScheduleRow,
        ownership: Ownership,
        occurrence_writer: OccurrenceWriter,
        decided: DecidedSchedules,
    ) -> None:
        unfinished = self.store.tasks_of(row.id)
        step = decide(stored(row, self.store.now()), len(unfinished))
        waiting = [task for task in unfinished if not task.cancel_requested]
        for task in waiting[: step.verdict.cancel]:
            self.store.cancel(task)
            decided.cancelled_in.add(task.partition)
        for new, entry in occurrence_writer.lines(step):
            if new is not None:
                made = self.store.add_task(new, ownership)
                assert made is not None
                decided.made.append(Placed(new, made.partition))
            ruling = entry.ruling
            self.store.tables.occurrences.append(
                Line(
                    row.id,
                    ruling.span.first,
                    ruling.span.last,
                    ruling.span.size,
                    ruling.decision.value,
                    entry.task_id,
                )
            )
        row.rev, row.runs = row.rev + 1, row.runs + len(step.verdict.fired)
        row.decided_to = step.decided_to
        if step.next is None:
            row.state = "ended"
        else:
            row.next = step.next
        decided.decided += 1


def stored(row: ScheduleRow, now: float) -> StoredSchedule:
    return StoredSchedule(
        tenant_id=row.tenant_id,
        id=row.id,
        rev=row.rev,
        edition=1,
        partition=row.partition,
        state=row.state,
        name=str(row.id),
        definition_bytes=msgspec.json.encode(row.definition),
        template_bytes=row.template,
        created_at=_EPOCH,
        updated_at=_EPOCH,
        decided_to=row.decided_to,
        next=row.next if row.state != "ended" else None,
        last=None,
        runs=row.runs,
        holidays=None,
        now=now,
    )


class RemoteSchedules(ScheduleService):
    """The owner's side of the schedules' store, over a link."""

    def __init__(
        self, schedules: MemorySchedules, link: Link, occurrence_writer: OccurrenceWriter
    ) -> None:
        self._memory = schedules
        self._link = link
        self._occurrence_writer = occurrence_writer

    async def due(
        self, partitions: Collection[int], *, until: float, limit: int
    ) -> list[DueSchedule]:
        asked = frozenset(partitions)
        return await self._link.call(lambda: self._memory.due(asked, until, limit))

    async def fire(self, ownership: Ownership, due: Sequence[DueSchedule]) -> DecidedSchedules:
        asked = list(due)
        return await self._link.call(
            lambda: self._memory.fire(ownership, asked, self._occurrence_writer)
        )

    async def overdue(self, seconds: float) -> OverdueSchedules:
        return await self._link.call(lambda: OverdueSchedules(self._memory.overdue(seconds), None))

    async def report_overdue(self, seconds: float, *, limit: int) -> list[str]:
        return []

    async def retime(self, partitions: Collection[int], *, limit: int) -> int:
        return 0


def new_schedule(
    tenant_id: int,
    schedule_id: UUID,
    partition: int,
    definition: ScheduleDefinition,
    template: bytes,
) -> ScheduleRow:
    """A schedule as it is right after it was made, at the start of its series."""
    assert definition.start_at is not None
    first = definition.start_at
    offset = spread_of(schedule_id, definition.spread)
    return ScheduleRow(
        tenant_id, schedule_id, partition, definition, template, first - 1.0, first, offset
    )
