"""The recorder: writes outcomes in batches, fenced, and never loses one it was given."""

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar
from uuid import UUID

import structlog

from mainspring import crash_points
from mainspring.domain.execution import Outcome, Report, TaskError
from mainspring.domain.outcome_rules import Finish, RetryLater, decide_outcome, finish
from mainspring.domain.rows import TaskRow
from mainspring.domain.task import TaskState
from mainspring.errors import StoreUnavailable
from mainspring.node.eager_leases import EagerLeases
from mainspring.node.retrying import RETRY_PAUSE, until_answered, write_in_parts
from mainspring.node.signals import Announcer
from mainspring.node.state import NodeState
from mainspring.postgres.database import REFUSED
from mainspring.store.claims import EngineStore
from mainspring.store.task_refs import TaskRef
from mainspring.store.workflows.step_rows import NO_STEP_LEASES, Moved
from mainspring.workflows.outcomes import StepOutcomes

T = TypeVar("T")
W = TypeVar("W")

log = structlog.get_logger()

_WRITES_IN_FLIGHT = 2
_WAITING = (TaskState.SCHEDULED, TaskState.PAUSED)
_UNSTORABLE = "unstorable-result"


@dataclass(slots=True)
class _Asked:
    """A caller that waits until so many executions are written."""

    theirs: Collection[int]
    """Which reports are, by identity: others may say something else about the same executions."""
    open: int
    answered: asyncio.Future[None]
    accepted: set[tuple[UUID, int]] = field(default_factory=set)


@dataclass(eq=False)
class Recorder:
    """A queue of reports and a few writers. While they are busy it grows into the next batch, so
    batches are large exactly when that pays."""

    _state: NodeState
    _store: EngineStore
    _steps: StepOutcomes
    _announcer: Announcer
    _rng: Random
    eager_leases: EagerLeases | None = field(default=None, init=False)
    """Runs released steps at once, where slots are free."""
    _queue: deque[Report] = field(default_factory=deque, init=False)
    _asked: dict[tuple[UUID, int], list[_Asked]] = field(default_factory=dict, init=False)
    _filled: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _writing: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._metrics = self._state.metrics

    def report(self, reports: Sequence[Report]) -> None:
        """Take reports from an executor: the sink of all executors."""
        crash_points.reach("report.received")
        for report in reports:
            self._state.engine.leases.drop(report.execution.id, report.execution.fence)
        self._queue.extend(reports)
        self._filled.set()

    async def record(self, reports: Sequence[Report]) -> list[bool]:
        """Take reports from outside the node and wait until they are written. Return whether each
        was accepted; of one execution only the first report is."""
        if not reports:
            return []
        names = [(report.execution.id, report.execution.fence) for report in reports]
        theirs = {id(report) for report in reports}
        asked = _Asked(theirs, len(set(names)), asyncio.get_running_loop().create_future())
        for name in set(names):
            self._asked.setdefault(name, []).append(asked)
        self.report(reports)
        await asked.answered
        return [name in asked.accepted for name in names]

    async def expire_step_leases(
        self, held: Sequence[TaskRef], count_crash: Collection[UUID], presumed: Collection[UUID]
    ) -> None:
        """End lost steps that were asked to cancel or killed workers, and advance their runs."""
        ownership, now = self._state.ownership(), self._state.clock.now()
        done = await self._steps.expire_leases(
            ownership, held, now, count_crash=count_crash, presumed=presumed
        )
        self._announcer.announce_runs(done.moved)
        self._metrics.executions.labels("lost").inc(len(done.accepted))

    async def run(self) -> None:
        async with asyncio.TaskGroup() as writers:
            for _ in range(_WRITES_IN_FLIGHT):
                writers.create_task(self._write_batches())

    async def drained(self) -> None:
        """Wait until everything that was reported is written."""
        while self._queue or self._writing:  # noqa: ASYNC110 - only at the end of a process
            await asyncio.sleep(0.01)

    async def _write_batches(self) -> None:
        while True:
            while not self._queue:
                self._filled.clear()
                await self._filled.wait()
            size = min(len(self._queue), self._state.config.record_batch)
            batch = [self._queue.popleft() for _ in range(size)]
            self._metrics.record_batch.observe(size)
            self._writing += 1
            try:
                for apart in _apart(batch):
                    await self._write(apart)
            except BaseException:
                self._queue.extendleft(reversed(batch))
                raise
            finally:
                self._writing -= 1

    async def _write(self, batch: Sequence[Report]) -> None:
        """Write reports of different tasks."""
        finishes: list[Finish] = []
        retries: list[RetryLater] = []
        for report in batch:
            match decide_outcome(report, self._rng):
                case Finish() as end:
                    finishes.append(end)
                case RetryLater() as retry:
                    retries.append(retry)
        accepted: set[UUID] = set()
        if retries:
            accepted, cancelled = await self._record_retries(retries)
            finishes += cancelled
        if finishes:
            accepted |= await self._record_finishes(finishes)
        if self._asked:
            self._answer(batch, accepted)
        foreign = {report.execution.partition for report in batch} - self._state.engine.partitions
        self._announcer.announce(changed=foreign)

    def _answer(self, batch: Sequence[Report], accepted: set[UUID]) -> None:
        for report in batch:
            name = (report.execution.id, report.execution.fence)
            for asked in self._asked.pop(name, ()):
                if report.execution.id in accepted and id(report) in asked.theirs:
                    asked.accepted.add(name)
                asked.open -= 1
                if asked.open == 0 and not asked.answered.done():
                    asked.answered.set_result(None)

    async def _record_finishes(self, finishes: Sequence[Finish]) -> set[UUID]:
        """Write ends. Those of steps are written apart: no other outcome waits for a run's row."""
        steps = [f for f in finishes if f.report.execution.workflow_run_id is not None]
        if not steps:
            return self._end(finishes, await self._finish(finishes))
        plain = [f for f in finishes if f.report.execution.workflow_run_id is None]
        accepted = self._end(plain, await self._finish(plain)) if plain else set()
        return accepted | self._end(steps, await self._finish_steps(steps))

    def _end(self, finishes: Sequence[Finish], accepted: set[UUID]) -> set[UUID]:
        """Pass on outcomes that were written to the engine and the metrics."""
        crash_points.reach("record.committed")
        now = self._state.clock.now()
        for end in finishes:
            execution = end.report.execution
            self._state.engine.end(execution.id, execution.fence, now)
        done = [end for end in finishes if end.report.execution.id in accepted]
        self._count(end.report for end in done)
        for state, count in Counter(end.state.value for end in done).items():
            self._metrics.tasks_finished.labels(state).inc(count)
        self._metrics.fenced_outcomes.inc(len(finishes) - len(accepted))
        return accepted

    async def _record_retries(
        self, retries: Sequence[RetryLater]
    ) -> tuple[set[UUID], list[Finish]]:
        """Schedule tasks again. Return which, and the ends, yet to be written, of those that were
        asked to cancel."""
        rows, unwritten = await self._retry(retries)
        crash_points.reach("retry.committed")
        now = self._state.clock.now()
        self._state.engine.update(rows, now)
        again = {row.id for row in rows}
        cancelled: list[Finish] = []
        for retry in retries:
            execution = retry.report.execution
            if execution.id in again or execution.id in unwritten:
                self._state.engine.end(execution.id, execution.fence, now)
            else:
                cancelled.append(finish(retry.report, TaskState.CANCELLED))
        self._count(retry.report for retry in retries if retry.report.execution.id in again)
        return again, cancelled

    async def _finish(self, finishes: Sequence[Finish]) -> set[UUID]:
        """Write ends until it is done. Writing again what may have been written already is
        harmless: the fence lets it through once."""

        async def write(part: Sequence[Finish]) -> set[UUID]:
            return await self._store.finish(self._state.ownership(), part)

        return set(await self._write_all(finishes, write, _failure_instead))

    async def _write_all(
        self,
        items: Sequence[T],
        write: Callable[[Sequence[T]], Awaitable[Iterable[W]]],
        instead: Callable[[T, Exception], T | None],
    ) -> list[W]:
        """Write until everything is written, and return what the writes returned. `instead` says
        what to write in place of an item that is refused, if anything."""
        results: list[W] = []

        async def write_part(part: Sequence[T]) -> None:
            results.extend(await until_answered(lambda: write(part), self._metrics))

        async def refused(item: T, error: Exception) -> None:
            if (other := instead(item, error)) is not None:
                await write_in_parts([other], write_part, refused)

        await write_in_parts(items, write_part, refused)
        return results

    async def _finish_steps(self, finishes: Sequence[Finish]) -> set[UUID]:
        """Write ends of steps and advance their runs, on the fast path where that will do."""
        try:
            accepted = await self._finish_fast(finishes)
        except StoreUnavailable:
            # What was written without a word to us is not accepted again, and looked at.
            self._metrics.database_errors.inc()
            await asyncio.sleep(RETRY_PAUSE)
            return await self._finish_with_care(finishes, maybe_changed=True)
        except REFUSED:
            accepted = set()
        rest = [f for f in finishes if f.report.execution.id not in accepted]
        return accepted | await self._finish_with_care(rest) if rest else accepted

    async def _finish_fast(self, finishes: Sequence[Finish]) -> set[UUID]:
        eager = self.eager_leases
        offer = eager.offer_steps() if eager else NO_STEP_LEASES
        moved = Moved()
        try:
            crash_points.reach("step.before_commit")
            done = await self._steps.finish_fast(self._state.ownership(), finishes, offer)
            moved = done.moved
            crash_points.reach("step.committed")
        finally:
            if eager:
                eager.end_steps(offer, moved.leased)
        self._announcer.announce_runs(moved)
        return done.accepted

    async def _finish_with_care(
        self, finishes: Sequence[Finish], *, maybe_changed: bool = False
    ) -> set[UUID]:
        """Write ends of steps. If an answer is lost, steps may have been released without word to
        the engine: then all is read again."""

        async def write(part: Sequence[Finish]) -> set[UUID]:
            nonlocal maybe_changed
            try:
                now = self._state.clock.now()
                crash_points.reach("step.before_commit")
                done = await self._steps.finish(self._state.ownership(), part, now)
            except StoreUnavailable:
                maybe_changed = True
                raise
            crash_points.reach("step.committed")
            self._announcer.announce_runs(done.moved)
            if maybe_changed:
                self._state.mark_stale(self._state.engine.partitions)
            return done.accepted

        return set(await self._write_all(finishes, write, _failure_instead))

    async def _retry(self, retries: Sequence[RetryLater]) -> tuple[list[TaskRow], set[UUID]]:
        """Write retries until it is done. Return the rows, also those of a write whose answer was
        lost: nobody else tells the engine of them. And which tasks cannot be written."""
        unwritten: set[UUID] = set()
        maybe_changed = False

        async def write(part: Sequence[RetryLater]) -> list[TaskRow]:
            nonlocal maybe_changed
            try:
                written = await self._store.retry(self._state.ownership(), part)
                return written + (await self._rescheduled(part) if maybe_changed else [])
            except StoreUnavailable:
                maybe_changed = True
                raise

        def instead(retry: RetryLater, error: Exception) -> RetryLater | None:
            if _is_given_up(retry.report, error):
                unwritten.add(retry.report.execution.id)
                return None
            return retry._replace(report=_storable(retry.report, error))

        return await self._write_all(retries, write, instead), unwritten

    async def _rescheduled(self, retries: Sequence[RetryLater]) -> list[TaskRow]:
        tasks = [(r.report.execution.tenant_id, r.report.execution.id) for r in retries]
        seen = await self._store.look_at(tasks)
        return [row for row in seen.rows if row.state in _WAITING]

    def _count(self, reports: Iterable[Report]) -> None:
        for outcome, count in Counter(report.outcome.value for report in reports).items():
            self._metrics.executions.labels(outcome).inc(count)


def _apart(reports: Sequence[Report]) -> Iterator[Sequence[Report]]:
    """Yield the reports such that no statement sees a task twice: it would accept both. Of one
    execution the first report counts; another execution of the task comes in a later statement."""
    while reports:
        first: dict[UUID, Report] = {}
        later = []
        for report in reports:
            kept = first.setdefault(report.execution.id, report)
            if kept.execution.fence != report.execution.fence:
                later.append(report)
        yield list(first.values())
        reports = later


def _failure_instead(end: Finish, error: Exception) -> Finish | None:
    """Return a failure in place of a result that cannot be stored; None: that is refused, too."""
    if _is_given_up(end.report, error):
        return None
    told = _storable(end.report, error)._replace(
        outcome=Outcome.FAILED, result=None, retryable=False
    )
    return finish(told, TaskState.FAILED, end.dead_because or "not_retryable")


def _is_given_up(report: Report, error: Exception) -> bool:
    """Whether a report was refused a second time, without the texts that could be to blame. Its
    lease will end, and the task is retried."""
    if report.error is None or report.error.code != _UNSTORABLE:
        return False
    task = str(report.execution.id)
    log.error("an outcome was refused", action="record.refused", task=task, exc_info=error)
    return True


def _storable(report: Report, error: Exception) -> Report:
    """The same report with an error that can be stored."""
    task = str(report.execution.id)
    log.error("a result cannot be stored", action="record.unstorable", task=task)
    return report._replace(error=TaskError(_UNSTORABLE, type(error).__name__))
