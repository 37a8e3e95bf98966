"""Outcomes of steps: what the recorder writes when a task is part of a run.

The outcome, the counters of the steps that wait for it, and what they become are one transaction.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from uuid import UUID

import asyncpg

from mainspring.domain.execution import Outcome, Report, TaskError
from mainspring.domain.placement import Tenure
from mainspring.domain.rows import TaskRow
from mainspring.domain.settlement import Finish
from mainspring.domain.task import TaskState
from mainspring.domain.workflow_rules import RunState
from mainspring.store import queries
from mainspring.store.database import Database
from mainspring.store.engine import TaskRef, assignment_of, by_task, finish_arguments
from mainspring.store.step_rows import (
    ITSELF,
    MOST_RESULT,
    NO_HAND_OVER,
    Ended,
    HandOver,
    Moved,
    RunHead,
    ended_of,
    place_of,
)
from mainspring.store.steps import LARGE, Steps

SQL = queries.load("steps")
_FINISH = queries.load("outcomes")["finish"]
_MOST_INTRICATE = 10_000
_TASK_COLUMNS = 15


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
        self._intricate: dict[tuple[int, UUID], None] = {}
        """Runs of which a step left something to decide: with others it is not tried again."""

    async def finish(
        self,
        tenure: Tenure,
        finished: Sequence[Finish],
        now: float,
        hand_over: HandOver = NO_HAND_OVER,
    ) -> StepsFinished:
        """Record ends of steps, guarded by fence, and move their runs on."""
        plain = self._plain(finished)
        done = await self._finish_plainly(tenure, plain, hand_over) if plain else None
        if done is None:
            return await self._finish_with_care(tenure, finished, now)
        rest = [f for f in finished if f.report.assignment.id not in done.accepted]
        if not rest:
            return done
        for finish in rest:
            self._intricate[_run_of(finish)] = None
        while len(self._intricate) > _MOST_INTRICATE:
            del self._intricate[next(iter(self._intricate))]
        more = await self._finish_with_care(tenure, rest, now)
        more.moved.add(done.moved)
        return StepsFinished(done.accepted | more.accepted, more.moved)

    def _plain(self, finished: Sequence[Finish]) -> list[Finish]:
        """Ends that may leave nothing to decide: of runs of which nothing else ended here, and
        which are not known for needing more."""
        if len(finished) > LARGE:
            return []
        others = {_run_of(finish) for finish in finished if not _is_plain(finish)}
        return [f for f in finished if _run_of(f) not in others | self._intricate.keys()]

    async def _finish_plainly(
        self, tenure: Tenure, finished: Sequence[Finish], hand_over: HandOver
    ) -> StepsFinished | None:
        """Record what leaves nothing to decide; None: there was something, and nothing was done."""
        ordered = sorted(finished, key=by_task)
        runs = [f.report.assignment.workflow_run_id for f in ordered]
        steps = [f.report.assignment.step for f in ordered]
        try:
            rows = await self._database.fetch(
                SQL["finish_plainly"],
                *finish_arguments(tenure, ordered),
                runs,
                steps,
                hand_over.tenants,
                hand_over.lease,
                hand_over.worker,
            )
        except asyncpg.CheckViolationError:
            return None
        moved = Moved()
        accepted: set[UUID] = set()
        for row in rows:
            match row["what"]:
                case "ended":
                    accepted.add(row["id"])
                case "run":
                    moved.add(Moved(ended={RunState.COMPLETED.value: 1}))
                case "released":
                    _note_released(row, moved)
        return StepsFinished(accepted, moved)

    async def _finish_with_care(
        self, tenure: Tenure, finished: Sequence[Finish], now: float
    ) -> StepsFinished:
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


def _note_released(row: asyncpg.Record, moved: Moved) -> None:
    task = TaskRow(*tuple(row)[1 : 1 + _TASK_COLUMNS])
    moved.rows.append(task)
    if task.state == "running":
        assert task.lease_end is not None
        assignment = assignment_of(
            (
                task.tenant_id, task.id, task.fence, task.partition, row["attempts"],
                row["failures"], task.due, row["picked"], task.lease_end, row["spec"],
                row["payload"], task.due, row["workflow_run_id"], row["step"],
            )
        )  # fmt: skip
        moved.begun.append((task, assignment))


def _is_plain(finish: Finish) -> bool:
    """Whether a success of a step as a whole, whose result can be kept as it is."""
    result, step = finish.report.result, finish.report.assignment.step
    assert step is not None
    kept = result is None or len(result) <= MOST_RESULT
    return finish.state is TaskState.COMPLETED and kept and place_of(step)[1] == ITSELF


def _run_of(finish: Finish) -> tuple[int, UUID]:
    assignment = finish.report.assignment
    assert assignment.workflow_run_id is not None
    return assignment.tenant_id, assignment.workflow_run_id
