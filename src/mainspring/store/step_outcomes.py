"""Outcomes of steps: what the recorder writes when a task is part of a run.

The outcome, the counters of the steps that wait for it, and what they become are one transaction.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from uuid import UUID

import asyncpg

from mainspring.domain.execution import Outcome, Report, TaskError
from mainspring.domain.placement import Tenure
from mainspring.domain.settlement import Finish
from mainspring.domain.task import TaskState
from mainspring.store import queries
from mainspring.store.database import Database
from mainspring.store.engine import TaskRef, assignment_of, finish_arguments
from mainspring.store.step_rows import Ended, Moved, RunHead, ended_of, place_of
from mainspring.store.steps import Steps

SQL = queries.load("steps")
_FINISH = queries.load("outcomes")["finish"]


@dataclass(frozen=True, slots=True)
class StepsFinished:
    """Which outcomes were accepted, and what followed from them."""

    accepted: set[UUID]
    moved: Moved


class StepOutcomes:
    """The store as the recorder uses it for steps."""

    def __init__(self, database: Database, steps: Steps) -> None:
        self._database = database
        self._steps = steps

    async def finish(self, tenure: Tenure, finished: Sequence[Finish], now: float) -> StepsFinished:
        """Record ends of steps, guarded by fence, and move their runs on."""

        async def work(connection: asyncpg.Connection) -> StepsFinished:
            huge = await self._steps.hold(connection, [_run_of(finish) for finish in finished])
            rows = await connection.fetch(_FINISH, *finish_arguments(tenure, finished))
            accepted = {row["id"] for row in rows}
            ended = [ended_of(f) for f in finished if f.report.assignment.id in accepted]
            moved = await self._steps.settle(connection, tenure, ended, now, huge=huge)
            return StepsFinished(accepted, moved)

        return await self._database.transact(work)

    async def lose(
        self,
        tenure: Tenure,
        held: Sequence[TaskRef],
        now: float,
        *,
        blamed: Collection[UUID] = (),
    ) -> StepsFinished:
        """End tries of steps whose lease ran out, and that were asked to cancel, or, of those in
        `blamed`, were leased alone and lost with their worker."""
        rows = await self._database.fetch(
            SQL["lost_steps"],
            [h.tenant_id for h in held],
            [h.id for h in held],
            [h.guard for h in held],
            list(blamed),
        )
        if not rows:
            return StepsFinished(set(), Moved())
        finished = [_lost(row, now) for row in rows]
        return await self.finish(tenure, finished, now)

    async def expiring(self, tenure: Tenure) -> list[Ended]:
        """Steps of our partitions that were not started by their expiry."""
        rows = await self._database.fetch(SQL["overdue_steps"], list(tenure.partitions))
        return [
            Ended(row["tenant_id"], row["workflow_run_id"], step, TaskState.EXPIRED, item)
            for row in rows
            for step, item in (place_of(row["step"]),)
        ]

    async def expire(self, tenure: Tenure, leaving: Sequence[Ended], now: float) -> Moved:
        """End these, unless they have been started since."""
        if not leaving:
            return Moved()

        async def work(connection: asyncpg.Connection) -> Moved:
            await self._steps.hold(connection, [(e.tenant_id, e.run_id) for e in leaving])
            told = Moved()
            ended = await self._steps.tasks.end(connection, leaving, told)
            moved = await self._steps.settle(connection, tenure, ended, now)
            moved.told |= told.told
            return moved

        return await self._database.transact(work)

    async def overdue(self, tenure: Tenure) -> list[tuple[int, UUID]]:
        """Runs of our partitions whose deadline has passed."""
        rows = await self._database.fetch(SQL["overdue_runs"], list(tenure.partitions))
        return [(row["tenant_id"], row["id"]) for row in rows]

    async def stop(
        self, tenure: Tenure, tenant_id: int, run_id: UUID, why: str, now: float
    ) -> Moved:
        """End a run before its time: only cleanup is left to do."""

        async def work(connection: asyncpg.Connection) -> Moved:
            await self._steps.hold(connection, [(tenant_id, run_id)])
            row = await connection.fetchrow(SQL["head"], tenant_id, run_id)
            if row is None:
                return Moved()
            return await self._steps.cut_short(connection, tenure, RunHead(*row), why, now)

        return await self._database.transact(work)


def _lost(row: asyncpg.Record, now: float) -> Finish:
    a = assignment_of(tuple(row)[:-1])
    report = Report(a, Outcome.LOST, a.picked, max(a.picked, now))
    if row["cancel_requested"]:
        return Finish(report, TaskState.CANCELLED)
    error = TaskError("poison", "it was lost with its worker, alone as well")
    return Finish(report._replace(error=error), TaskState.FAILED, "poison")


def _run_of(finish: Finish) -> tuple[int, UUID]:
    assignment = finish.report.assignment
    assert assignment.workflow_run_id is not None
    return assignment.tenant_id, assignment.workflow_run_id
