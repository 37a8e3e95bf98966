"""Outcomes of steps: what the recorder writes when a task is part of a run.

The outcome, the counters of the steps that wait for it, and their releases are one transaction.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple
from uuid import UUID

import asyncpg

from mainspring.domain.execution import Outcome, Report, TaskError
from mainspring.domain.outcome_rules import Finish, finish
from mainspring.domain.partitions import Ownership
from mainspring.domain.rows import TaskRow
from mainspring.domain.task import TaskState
from mainspring.domain.workflows.definition import RunState
from mainspring.postgres.database import Database, transaction
from mainspring.postgres.rows import read_row
from mainspring.store.claims import LeasedRow
from mainspring.store.outcomes import SQL as OUTCOMES
from mainspring.store.outcomes import by_task, finish_arguments
from mainspring.store.task_refs import TaskRef, ref_columns
from mainspring.store.workflows.step_rows import (
    ITSELF,
    NO_STEP_LEASES,
    Ended,
    Moved,
    RunHead,
    RunTransaction,
    StepLeaseOffer,
    parse_label,
)
from mainspring.store.workflows.steps import SQL
from mainspring.workflows.advancing import LARGE, Steps
from mainspring.workflows.results import MOST_RESULT, reported_end

_MOST_INTRICATE = 10_000


class StepsFinished(NamedTuple):
    """The outcomes that were accepted, and what followed from them."""

    accepted: set[UUID]
    moved: Moved


class StepOutcomes:
    """Outcomes of steps of every tenant."""

    def __init__(self, database: Database, steps: Steps) -> None:
        self._database = database
        self._steps = steps
        self._intricate: dict[tuple[int, UUID], None] = {}
        """Runs for which the fast path is not tried again: ends of their steps need decisions."""

    async def finish_fast(
        self,
        ownership: Ownership,
        finished: Sequence[Finish],
        offer: StepLeaseOffer = NO_STEP_LEASES,
    ) -> StepsFinished:
        """Record ends that need no decisions, in one statement; the rest is for `finish`."""
        plain = sorted(self._plain(finished), key=by_task)
        if not plain:
            return StepsFinished(set(), Moved())
        rows = await SQL["finish_fast"].fetch(
            self._database,
            **finish_arguments(ownership, plain),
            run_ids=[f.report.execution.workflow_run_id for f in plain],
            steps=[f.report.execution.step for f in plain],
            lease=offer.lease,
            worker=offer.worker,
            most=offer.most,
        )
        done = StepsFinished(set(), Moved())
        for row in rows:
            match row["what"]:
                case "ended":
                    done.accepted.add(row["id"])
                case "released":
                    _note_released(row, done.moved)
                case "run":
                    done.moved.count_end(RunState.COMPLETED)
                case "intricate":
                    self._intricate[row["tenant_id"], row["id"]] = None
        while len(self._intricate) > _MOST_INTRICATE:
            del self._intricate[next(iter(self._intricate))]
        return done

    def _plain(self, finished: Sequence[Finish]) -> list[Finish]:
        """Return the ends that may need no decisions: the only ends of their runs here, of runs
        that are not known to be intricate."""
        if len(finished) > LARGE:
            return []
        others = {_run_of(finish) for finish in finished if not _is_plain(finish)}
        return [
            finish
            for finish in finished
            if (run := _run_of(finish)) not in others and run not in self._intricate
        ]

    @transaction
    async def finish(
        self,
        connection: asyncpg.Connection,
        ownership: Ownership,
        finished: Sequence[Finish],
        now: float,
    ) -> StepsFinished:
        """Record ends of steps, guarded by fence, and advance their runs."""
        huge = await self._steps.lock_runs(connection, [_run_of(finish) for finish in finished])
        rows = await OUTCOMES["finish"].fetch(connection, **finish_arguments(ownership, finished))
        accepted = {row["id"] for row in rows}
        ended = [reported_end(f) for f in finished if f.report.execution.id in accepted]
        tx = RunTransaction(connection, ownership, now)
        return StepsFinished(accepted, await self._steps.advance_runs(tx, ended, huge=huge))

    async def expire_leases(
        self,
        ownership: Ownership,
        held: Sequence[TaskRef],
        now: float,
        *,
        count_crash: Collection[UUID] = (),
        presumed: Collection[UUID] = (),
    ) -> StepsFinished:
        """End executions whose lease ended if they were asked to cancel, or if, of those in
        `count_crash`, they started alone and were lost with their worker; `presumed` ones count as
        started."""
        rows = await SQL["lost_steps"].fetch(
            self._database,
            **ref_columns(held, "fences"),
            count_crash=list(count_crash),
            presumed=list(presumed),
        )
        if not rows:
            return StepsFinished(set(), Moved())
        finished = [_lost(row, now) for row in rows]
        return await self.finish(ownership, finished, now)

    async def expiring(self, ownership: Ownership) -> list[Ended]:
        """Return steps of our partitions that were not started by their expiry."""
        rows = await SQL["overdue_steps"].fetch(
            self._database, partitions=list(ownership.partitions)
        )
        return [
            Ended(row["tenant_id"], row["workflow_run_id"], step, TaskState.EXPIRED, item)
            for row in rows
            for step, item in (parse_label(row["step"]),)
        ]

    @transaction
    async def expire(
        self,
        connection: asyncpg.Connection,
        ownership: Ownership,
        leaving: Sequence[Ended],
        now: float,
    ) -> Moved:
        """End these steps, unless they have been started since."""
        if not leaving:
            return Moved()
        await self._steps.lock_runs(connection, [(e.tenant_id, e.run_id) for e in leaving])
        tx = RunTransaction(connection, ownership, now)
        return await self._steps.advance_runs(tx, await self._steps.tasks.end(tx, leaving))

    async def overdue(self, ownership: Ownership) -> list[tuple[int, UUID]]:
        """Return runs of our partitions whose deadline has passed."""
        rows = await SQL["overdue_runs"].fetch(
            self._database, partitions=list(ownership.partitions)
        )
        return [(row["tenant_id"], row["id"]) for row in rows]

    @transaction
    async def stop(
        self,
        connection: asyncpg.Connection,
        ownership: Ownership,
        tenant_id: int,
        run_id: UUID,
        why: str,
        now: float,
    ) -> Moved:
        """End a run before its time: only cleanup is left to do."""
        await self._steps.lock_runs(connection, [(tenant_id, run_id)])
        head = await SQL["head"].row(connection, RunHead, tenant_id=tenant_id, run_id=run_id)
        if head is None:
            return Moved()
        return await self._steps.stop_run(RunTransaction(connection, ownership, now), head, why)


def _lost(row: asyncpg.Record, now: float) -> Finish:
    a = read_row(LeasedRow, row).execution()
    report = Report(a, Outcome.LOST, a.picked, max(a.picked, now))
    if row["cancel_requested"]:
        return finish(report, TaskState.CANCELLED)
    error = TaskError("poison", "it was lost with its worker, alone as well")
    return finish(report._replace(error=error), TaskState.FAILED, "poison")


def _note_released(row: asyncpg.Record, moved: Moved) -> None:
    task = read_row(TaskRow, row)
    moved.rows.append(task)
    if task.state == "running":
        moved.leased.append((task, read_row(LeasedRow, row).execution()))


def _is_plain(finish: Finish) -> bool:
    """Whether it is a success of a whole step, with a result that can be kept as it is."""
    result, step = finish.report.result, finish.report.execution.step
    assert step is not None
    kept = result is None or len(result) <= MOST_RESULT
    return finish.state is TaskState.COMPLETED and kept and parse_label(step)[1] == ITSELF


def _run_of(finish: Finish) -> tuple[int, UUID]:
    execution = finish.report.execution
    assert execution.workflow_run_id is not None
    return execution.tenant_id, execution.workflow_run_id
