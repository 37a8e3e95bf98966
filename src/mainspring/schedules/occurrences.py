"""Decisions on occurrences: ledger lines, tasks and the schedule's next time in one transaction.

The caller has locked the schedules' rows. `domain.schedules.misfire` decides; this module reads
what that needs, and writes the decision.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import NamedTuple
from uuid import UUID

import asyncpg

from mainspring import timezones
from mainspring.domain.ids import TaskIds
from mainspring.domain.partitions import Ownership
from mainspring.domain.schedules import misfire
from mainspring.domain.schedules.definition import INSTANT, Span
from mainspring.domain.schedules.misfire import BacklogDecision, Ruling
from mainspring.domain.schedules.policies import Decision
from mainspring.domain.schedules.template import Values, expand, has_placeholders
from mainspring.postgres.database import columns_of, sparse
from mainspring.store.creation import Creation, NewTask, creation_arguments
from mainspring.store.schedules.schedules import SQL, OccurrenceEntry, StoredSchedule
from mainspring.store.tasks import SQL as TASKS

MOST_TASKS = 5000
"""Maximum number of tasks of one transaction; further schedules wait for the next one."""


class Placed(NamedTuple):
    """A new task and its partition."""

    task: NewTask
    partition: int


@dataclass(slots=True)
class DecidedSchedules:
    """What a transaction did, to be announced after the commit."""

    made: list[Placed] = field(default_factory=list)
    cancelled_in: set[int] = field(default_factory=set)
    decided: int = 0
    counts: dict[str, int] = field(default_factory=dict)


class ScheduleDecision(NamedTuple):
    """The decision about what is due of a schedule, and how it goes on."""

    schedule: StoredSchedule
    verdict: BacklogDecision
    decided_to: float
    next: float | None


class OccurrenceWriter:
    """The writer of occurrences and their tasks."""

    def __init__(self, ids: TaskIds, rng: Random, *, near: float) -> None:
        self._ids = ids
        self._rng = rng
        self._near = near

    async def decide_due(
        self, connection: asyncpg.Connection, ownership: Ownership, due: Sequence[StoredSchedule]
    ) -> DecidedSchedules:
        """Decide on everything that is due of these schedules, whose rows the caller has locked."""
        decisions = DecidedSchedules()
        limited = [s.id for s in due if s.definition.overlap != "allow"]
        unfinished: dict[UUID, int] = {}
        if limited:
            rows = await SQL["count_unfinished"].fetch(connection, schedule_ids=limited)
            unfinished = {row["schedule_id"]: row["unfinished"] for row in rows}
        gone = await self._gone(connection, due)
        steps: list[ScheduleDecision] = []
        entries: list[OccurrenceEntry] = []
        tasks: list[NewTask] = []
        for schedule in due:
            if len(tasks) >= MOST_TASKS:
                break
            step = decide(schedule, unfinished.get(schedule.id, 0), gone=schedule.id in gone)
            steps.append(step)
            if step.verdict.cancel:
                decisions.cancelled_in |= await self._cancel(connection, step)
            for task, entry in self.lines(step):
                entries.append(entry)
                if task is not None:
                    tasks.append(task)
                decisions.counts[entry.ruling.decision] = (
                    decisions.counts.get(entry.ruling.decision, 0) + entry.ruling.span.size
                )
        decisions.made = await self.create(connection, ownership, tasks)
        await record(connection, entries)
        await advance(connection, steps)
        decisions.decided = len(steps)
        return decisions

    async def create(
        self, connection: asyncpg.Connection, ownership: Ownership, tasks: Sequence[NewTask]
    ) -> list[Placed]:
        """Insert tasks within the caller's transaction."""
        if not tasks:
            return []
        by_tenant: dict[int, list[NewTask]] = {}
        for task in tasks:
            by_tenant.setdefault(task.tenant_id, []).append(task)
        creations = [Creation(tenant, made) for tenant, made in by_tenant.items()]
        arguments = creation_arguments(creations, ownership, self._near)
        rows = await TASKS["create_tasks"].fetch(connection, **arguments)
        places = {row["id"]: row["partition"] for row in rows}
        return [Placed(task, places[task.id]) for task in tasks]

    def task(
        self,
        schedule: StoredSchedule,
        nominal: float,
        *,
        number: int,
        concurrency: tuple[str, int] | None = None,
    ) -> NewTask:
        """Return the task of one occurrence: run number `number` of the schedule."""
        template, definition = schedule.template, schedule.definition
        run = round(nominal + schedule.offset, 6)
        due = run
        if definition.jitter:
            due = round(run + self._rng.uniform(0, definition.jitter), 6)
        key, limit = template.concurrency_key, template.concurrency_limit
        if concurrency is not None:
            key, limit = concurrency
        return NewTask(
            tenant_id=schedule.tenant_id,
            id=self._ids.make(schedule.now),
            created=schedule.now,
            run=run,
            due=due,
            expires=None,
            concurrency_key=key,
            concurrency_limit=limit,
            priority=template.priority,
            queue=template.queue,
            capability=template.capability,
            name=template.name,
            labels=template.labels,
            spec=bytes(template.spec),
            payload=_payload(schedule, nominal, number),
            schedule_id=schedule.id,
            nominal=nominal,
        )

    def manual_task(self, schedule: StoredSchedule) -> NewTask:
        """Return a task that is due now, beside the timetable, without a line in the ledger."""
        now = round(schedule.now, 6)
        task = self.task(
            schedule, now, number=schedule.runs + 1, concurrency=_own_concurrency(schedule)
        )
        return task._replace(run=now, due=now)

    def backfill_tasks(
        self, schedule: StoredSchedule, times: Sequence[float], max_running: int | None
    ) -> tuple[list[NewTask], list[OccurrenceEntry]]:
        """Return tasks for past nominal times, with their lines. They are due now, one after the
        other: due at their nominal times, they would go before all that is urgent today."""
        template = schedule.template
        limit = max_running or schedule.definition.max_running
        turn = (f"backfill:{schedule.id}", limit)
        if template.concurrency_key is not None:
            turn = (template.concurrency_key, min(limit, template.concurrency_limit or limit))
        tasks = [
            self.task(schedule, at, number=schedule.runs + index, concurrency=turn)._replace(
                due=round(schedule.now + index * INSTANT, 6)
            )
            for index, at in enumerate(times, 1)
        ]
        entries = [
            OccurrenceEntry(
                schedule, Ruling(Span(at, at, 1), Decision.BACKFILLED, "by request"), task.id
            )
            for at, task in zip(times, tasks, strict=True)
        ]
        return tasks, entries

    def lines(self, step: ScheduleDecision) -> list[tuple[NewTask | None, OccurrenceEntry]]:
        """Return each ruling with its task, if it has one."""
        schedule, number = step.schedule, step.schedule.runs
        turn = _own_concurrency(schedule)
        lines: list[tuple[NewTask | None, OccurrenceEntry]] = []
        for ruling in step.verdict.rulings:
            if ruling.decision is not Decision.FIRED:
                lines.append((None, OccurrenceEntry(schedule, ruling)))
                continue
            number += 1
            task = self.task(schedule, ruling.span.first, number=number, concurrency=turn)
            lines.append((task, OccurrenceEntry(schedule, ruling, task.id)))
        return lines

    async def _gone(
        self, connection: asyncpg.Connection, due: Sequence[StoredSchedule]
    ) -> set[UUID]:
        watched = [s for s in due if s.definition.stop_on_410]
        if not watched:
            return set()
        rows = await SQL["gone_targets"].fetch(
            connection, tenant_ids=[s.tenant_id for s in watched], ids=[s.id for s in watched]
        )
        return {row["id"] for row in rows}

    async def _cancel(self, connection: asyncpg.Connection, step: ScheduleDecision) -> set[int]:
        schedule = step.schedule
        rows = await SQL["lock_unfinished"].fetch(
            connection,
            tenant_id=schedule.tenant_id,
            schedule_id=schedule.id,
            limit=step.verdict.cancel,
        )
        told = await SQL["cancel_tasks"].fetch(
            connection, tenant_id=schedule.tenant_id, ids=[row["id"] for row in rows]
        )
        return {row["partition"] for row in told}


def decide(schedule: StoredSchedule, unfinished: int, *, gone: bool = False) -> ScheduleDecision:
    """Decide on everything that is due of a schedule, and when it is due again."""
    now = schedule.now - schedule.offset
    if gone or schedule.next is None:
        return ScheduleDecision(schedule, BacklogDecision(()), max(now, schedule.decided_to), None)
    decision = misfire.decide_due(
        schedule.definition,
        schedule.timetable,
        first=schedule.next,
        decided_to=schedule.decided_to,
        now=now,
        unfinished=unfinished,
        runs=schedule.runs,
    )
    return ScheduleDecision(schedule, *decision)


def _own_concurrency(schedule: StoredSchedule) -> tuple[str, int] | None:
    """Return the concurrency key and limit of tasks that may not overlap: the schedule's own."""
    definition = schedule.definition
    if definition.overlap in ("queue", "cancel_running"):
        return f"schedule:{schedule.id}", definition.max_running
    return None


def _payload(schedule: StoredSchedule, nominal: float, number: int) -> bytes:
    payload = bytes(schedule.template.payload)
    if not has_placeholders(payload):
        return payload
    at = datetime.fromtimestamp(nominal, UTC).isoformat().replace("+00:00", "Z")
    values: Values = {"scheduled_at": at, "occurrence": number, "schedule_id": str(schedule.id)}
    return expand(payload, values)


async def record(connection: asyncpg.Connection, entries: Sequence[OccurrenceEntry]) -> None:
    """Write lines of the ledger."""
    if not entries:
        return
    rulings: list[Ruling] = [entry.ruling for entry in entries]
    await SQL["record_decisions"].run(
        connection,
        schedule_ids=[entry.schedule.id for entry in entries],
        tenant_ids=[entry.schedule.tenant_id for entry in entries],
        **columns_of(Span._fields, [ruling.span for ruling in rulings]),
        **columns_of(("decision", "reason"), rulings),
        task_ids=sparse([entry.task_id for entry in entries]),
    )


async def advance(connection: asyncpg.Connection, steps: Sequence[ScheduleDecision]) -> None:
    """Write the next times of schedules."""
    if not steps:
        return
    fired = [step.verdict.fired for step in steps]
    moved = await SQL["advance"].fetch(
        connection,
        **columns_of(("tenant_id", "id", "rev"), [step.schedule for step in steps]),
        **columns_of(("decided_to", "next"), steps),
        wake=[None if s.next is None else s.next + s.schedule.offset for s in steps],
        fired=[len(times) for times in fired],
        last=[times[-1] if times else None for times in fired],
        tzdata=timezones.version(),
    )
    if len(moved) != len(steps):
        raise AssertionError("a locked schedule cannot have changed")
