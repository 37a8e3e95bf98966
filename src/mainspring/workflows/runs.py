"""Runs of workflows: begun, read, listed; cancelled, paused, resumed, retried; a step skipped.

Every change locks the run's row first, then its steps and their tasks.
"""

from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from functools import wraps
from typing import Any, Concatenate, ParamSpec
from uuid import UUID

import asyncpg

from mainspring.domain.ids import TaskIds
from mainspring.domain.partitions import Ownership
from mainspring.domain.task import TaskState
from mainspring.domain.workflows.definition import WorkflowDefinition
from mainspring.domain.workflows.retry import (
    FAIL_FAST,
    LOST,
    EndedBefore,
    StepProgress,
    count_needs,
    downstream,
    same_lists,
    with_left_out,
)
from mainspring.errors import Conflict, NotFound
from mainspring.postgres.database import Database, columns_of, transaction
from mainspring.postgres.rows import read_row, read_rows
from mainspring.store.answers import BeforeCommit
from mainspring.store.audit import write_entry
from mainspring.store.dead_letters import archive_letters, mark_letters_replayed
from mainspring.store.lists.paging import LAST_ID, RowPage, fill, next_mark
from mainspring.store.workflows.definitions import Definitions
from mainspring.store.workflows.step_rows import (
    ITSELF,
    Ended,
    Moved,
    NewRun,
    NewStep,
    RunHead,
    RunTransaction,
)
from mainspring.store.workflows.steps import add_steps
from mainspring.store.workflows.workflow_runs import SQL, RunFilter, StoredRun, StoredStep
from mainspring.workflows.advancing import LARGE, Steps

P = ParamSpec("P")


@dataclass(slots=True, kw_only=True)
class RunChange(RunTransaction):
    """A change of a run by a caller, within the transaction that has locked the run."""

    head: RunHead
    actor: str

    async def audit(self, action: str, **detail: object) -> None:
        """Note the change in the audit log."""
        tenant_id, subject = self.head.tenant_id, str(self.head.id)
        await write_entry(self.connection, tenant_id, self.actor, action, subject, **detail)

    async def states(self) -> dict[str, StepProgress]:
        """Return how far each step has come."""
        rows = await SQL["all_steps"].fetch(
            self.connection, **self.head.key, fail_fast=FAIL_FAST, itself=ITSELF
        )
        return {row["step"]: read_row(StepProgress, row) for row in rows}

    async def reset_steps(
        self,
        definition: WorkflowDefinition,
        states: Mapping[str, StepProgress],
        again: Set[str],
        tasks: Mapping[str, UUID],
    ) -> None:
        """Put steps back, with new tasks where they have had theirs."""
        ordered = sorted(again)
        counts = [count_needs(definition, step, states, again) for step in ordered]
        await SQL["reset_steps"].run(
            self.connection,
            **self.head.key,
            steps=ordered,
            task_ids=[tasks.get(step) for step in ordered],
            needed=[len(definition.by_id[step].needs) for step in ordered],
            **columns_of(EndedBefore._fields, counts),
        )

    async def reopen(
        self, definition: WorkflowDefinition, kept: Collection[StepProgress], again: int
    ) -> RunHead:
        """Resume the run with `again` steps to do; it does not fail fast again for steps that
        failed."""
        failed = sum(state.state in LOST for state in kept)
        return await SQL["reopen_run"].one(
            self.connection,
            RunHead,
            **self.head.key,
            unfinished=again + sum(not state.over for state in kept),
            failed=failed,
            deadline=None if definition.deadline is None else self.now + definition.deadline,
            stopping="failure" if failed and definition.on_failure == "fail_fast" else None,
        )

    async def given_up(self, steps: Sequence[str]) -> list[tuple[str, UUID]]:
        """Return the tasks of these steps and their items that may have left dead letters."""
        rows = await SQL["given_up"].fetch(self.connection, **self.head.key, steps=steps)
        return [(row["step"], row["task_id"]) for row in rows]


def locks_run(
    method: Callable[Concatenate["WorkflowRunService", RunChange, P], Awaitable[Moved]],
) -> Callable[
    Concatenate["WorkflowRunService", Ownership, int, UUID, str, float, P],
    Coroutine[Any, Any, Moved | None],
]:
    """Run a method as a transaction that has locked the run; None when there is no such run."""

    @wraps(method)
    async def run(
        runs: "WorkflowRunService",
        connection: asyncpg.Connection,
        ownership: Ownership,
        tenant_id: int,
        run_id: UUID,
        actor: str,
        now: float,
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Moved | None:
        key = {"tenant_id": tenant_id, "run_id": run_id}
        head = await SQL["lock_run"].row(connection, RunHead, **key)
        if head is None:
            return None
        change = RunChange(connection, ownership, now, head=head, actor=actor)
        return await method(runs, change, *args, **kwargs)

    return transaction(run)


@dataclass(eq=False)
class WorkflowRunService:
    """Runs of every tenant, and what callers do to them."""

    _database: Database
    _steps: Steps
    _definitions: Definitions
    _ids: TaskIds
    _scan: int = 1000

    # Reading ----------------------------------------------------------------------------------

    async def get(self, tenant_id: int, run_id: UUID) -> StoredRun | None:
        return await SQL["get_run"].row(
            self._database, StoredRun, tenant_id=tenant_id, run_id=run_id
        )

    async def steps(self, tenant_id: int, run_id: UUID, *, items: bool = False) -> list[StoredStep]:
        """Return the steps of a run, with `items` also the items of its lists."""
        return await SQL["get_steps"].rows(
            self._database, StoredStep, tenant_id=tenant_id, run_id=run_id, items=items
        )

    async def definition(self, tenant_id: int, run: StoredRun) -> WorkflowDefinition:
        """Return the definition of a run."""
        head = RunHead(tenant_id, run.id, run.workflow, run.version, run.state, None, 0, 0)
        return await self._definitions.get(self._database, head)

    async def page(
        self, tenant_id: int, where: RunFilter, *, before: UUID | None, limit: int
    ) -> RowPage[StoredRun, UUID]:
        """Return runs older than `before`; a page may be short and still have a next one."""

        async def look(before: UUID | None, limit: int) -> RowPage[StoredRun, UUID]:
            scan = limit if where == RunFilter() else self._scan
            marks = {"before": before or LAST_ID, "limit": limit, "scan": scan}
            rows = await SQL["list_runs"].fetch(
                self._database, tenant_id=tenant_id, **asdict(where), **marks
            )
            runs = read_rows(StoredRun, [row for row in rows if row["id"] is not None])
            return RowPage(runs, next_mark(UUID, rows, limit, scan))

        return await fill(look, before, limit)

    # Changing ---------------------------------------------------------------------------------

    async def create(
        self, ownership: Ownership, run: NewRun, conclude: BeforeCommit[Moved] | None = None
    ) -> Moved | None:
        """Begin a run; None when its tenant is gone. `conclude` is the last to happen with it."""
        definition = run.definition
        plain = _plain_roots(definition)
        mixed = len(plain) < len(definition.roots)
        added = self._new_steps(definition, definition.by_id, run.now, plain)
        if conclude is None and not mixed and len(definition.steps) <= LARGE:
            rows = await add_steps(self._database, ownership, run.head, added, run=run)
            return Moved(rows) if rows else None

        async def begin(connection: asyncpg.Connection) -> Moved | None:
            tx = RunTransaction(connection, ownership, run.now)
            tx.moved.rows += await self._steps.tasks.add(tx, run.head, added, run)
            if mixed:
                await self._steps.reconsider(tx, run.head)
            if not (tx.moved.rows or tx.moved.ended):
                return None
            if conclude is not None:
                await conclude(connection, tx.moved)
            return tx.moved

        return await self._database.transact(begin)

    @locks_run
    async def cancel(self, change: RunChange) -> Moved:
        """End a run: what waits is over, what runs is asked to stop, cleanup is done."""
        head = change.head
        if head.state == "cancelled" or head.stopping == "cancel":
            return Moved()
        if head.state not in ("running", "paused"):
            raise Conflict(f"a run that is {head.state} cannot be cancelled")
        await change.audit("workflow_run.cancelled")
        return await self._steps.stop_run(change, head, "cancel")

    @locks_run
    async def pause(self, change: RunChange) -> Moved:
        """Pause a run: nothing more of it starts; what runs goes on."""
        head = change.head
        if head.state == "paused":
            return Moved()
        if head.state != "running" or head.stopping in ("cancel", "deadline"):
            raise Conflict(f"a run that is {_standing(head)} cannot be paused")
        await change.audit("workflow_run.paused")
        return Moved(told=await self._steps.set_paused(change.connection, head, paused=True))

    @locks_run
    async def resume(self, change: RunChange) -> Moved:
        """Resume a run: what became ready meanwhile starts now."""
        head = change.head
        if head.state == "running":
            return Moved()
        if head.state != "paused":
            raise Conflict(f"a run that is {head.state} cannot be resumed")
        await change.audit("workflow_run.resumed")
        change.moved.told |= await self._steps.set_paused(change.connection, head, paused=False)
        return await self._steps.reconsider(change, head._replace(state="running"))

    @locks_run
    async def retry(self, change: RunChange, step: str | None = None) -> Moved:
        """Repeat the failed steps, or the named one, and all that come after them."""
        definition = await self._definitions.get(change.connection, change.head)
        states = await change.states()
        if step is None:
            again = {name for name, state in states.items() if state.state in LOST}
            if not again:
                raise Conflict("no step of the run has failed")
        else:
            again = {_known(definition, step)}
        await change.audit("workflow_run.retried", step=step)
        return await self._reset(change, definition, states, downstream(definition, again))

    @locks_run
    async def skip(self, change: RunChange, step: str) -> Moved:
        """Skip a step: those after it go on as if it had succeeded."""
        connection, head = change.connection, change.head
        definition = await self._definitions.get(connection, head)
        states = await change.states()
        standing = states[_known(definition, step)]
        if standing.waived:
            return Moved()
        await change.audit("workflow_step.skipped", step=step)
        if standing.state in ("blocked", "released"):
            leaving = Ended(head.tenant_id, head.id, step, TaskState.SKIPPED, waived=True)
            ended = await self._steps.tasks.end(change, [leaving])
            if not ended:
                raise Conflict("the step is running: cancel its task first")
            return await self._steps.advance_runs(change, ended)
        if standing.state == "expanded":
            raise Conflict("the step is running: cancel its tasks first")
        if standing.state == "completed":
            raise Conflict("the step has completed")
        letters = [task for _, task in await change.given_up([step])]
        await archive_letters(connection, head.tenant_id, letters, change.actor)
        await SQL["waive"].run(connection, **head.key, step=step)
        states[step] = StepProgress("skipped", waived=True)
        again = downstream(definition, {step}) - {step}
        return await self._reset(change, definition, states, again, changed={step})

    # Details ----------------------------------------------------------------------------------

    async def _reset(
        self,
        change: RunChange,
        definition: WorkflowDefinition,
        states: Mapping[str, StepProgress],
        failed: Set[str],
        changed: Collection[str] = (),
    ) -> Moved:
        """Put steps back to waiting, and let the run go on. Their dead letters, and those of their
        items, are resolved: a replay would do the work twice."""
        connection, head, now = change.connection, change.head, change.now
        again = with_left_out(definition, states, failed)
        busy = sorted(s for s in again if states[s].state in ("released", "expanded"))
        if busy:
            raise Conflict(f"the step {busy[0]!r} is under way: cancel it or let it end first")
        fresh = {s for s in again if states[s].state != "blocked"}
        added = self._new_steps(definition, fresh, now, frozenset())
        tasks = {step.step: step.task_id for step in added}
        successors = {task: tasks[step] for step, task in await change.given_up(list(fresh))}
        await mark_letters_replayed(connection, head.tenant_id, successors, change.actor)
        same = same_lists(definition, states, again, changed)
        await SQL["drop_items"].run(connection, **head.key, steps=list(again), same=same)
        await change.reset_steps(definition, states, again, tasks)
        if added:
            await add_steps(connection, change.ownership, head, added, tasks_only=True)
        kept = [state for name, state in states.items() if name not in again]
        reopened = await change.reopen(definition, kept, len(again))
        return await self._steps.reconsider(change, reopened)

    def _new_steps(
        self,
        definition: WorkflowDefinition,
        names: Collection[str],
        now: float,
        plain: Collection[str],
    ) -> list[NewStep]:
        """Return new steps: blocked, except those that can start at once."""
        return [
            NewStep(
                step.id, ITSELF, "released" if step.id in plain else "blocked", len(step.needs),
                definition.children[step.id], self._ids.make(now), round(now + step.delay, 6),
                step.template, step.id in definition.plain,
            )
            for step in definition.steps
            if step.id in names
        ]  # fmt: skip


def _plain_roots(definition: WorkflowDefinition) -> frozenset[str]:
    """Return the steps that start with the run, whatever its input."""
    return frozenset(
        name
        for name in definition.roots
        for step in (definition.by_id[name],)
        if not (step.condition or step.foreach or step.template.dynamic or step.template.jitter)
        and step.when in ("all_succeeded", "all_finished")
    )


def _known(definition: WorkflowDefinition, step: str) -> str:
    if step not in definition.by_id:
        raise NotFound(f"the run has no step {step[:64]!r}")
    return step


def _standing(head: RunHead) -> str:
    return "being ended" if head.state == "running" else head.state
