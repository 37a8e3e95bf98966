"""The advance of runs: what the end of a step means for the steps that wait for it.

All of it happens inside the transaction that records the end, with the rows of the runs locked. Two
nodes that record the last two parents of a join take turns, and the second one releases it.
`domain.workflows.rules` decides on each step; this module reads what that needs, and writes the
decision.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from uuid import UUID

import asyncpg

from mainspring.domain.execution import TaskError
from mainspring.domain.ids import TaskIds
from mainspring.domain.partitions import NO_OWNERSHIP
from mainspring.domain.task import TaskState
from mainspring.domain.workflows.condition import ConditionFailed
from mainspring.domain.workflows.definition import RunState, Step, TaskTemplate, WorkflowDefinition
from mainspring.domain.workflows.retry import FAIL_FAST
from mainspring.domain.workflows.rules import (
    MOST_BYTES,
    RenderFailed,
    RunEnd,
    Scope,
    StepDecision,
    condition_met,
    decide,
    foreach_state,
    items,
    render,
    render_each,
    run_state,
)
from mainspring.postgres.database import columns_of, new_ids
from mainspring.postgres.rows import read_row, read_rows
from mainspring.store.cluster import SQL as CLUSTER
from mainspring.store.workflows.definitions import Definitions
from mainspring.store.workflows.step_rows import (
    ITSELF,
    Ended,
    Moved,
    RunHead,
    RunTransaction,
    StartingStep,
    WaitingStep,
    parse_label,
)
from mainspring.store.workflows.steps import SQL, StepTasks
from mainspring.workflows.results import TOO_LARGE, check_readable, read_input, step_result

MOST_JOINED = 2**22
"""Maximum bytes of the results of a step's items together."""
LARGE = 100
"""Number of rows above which a statement is planned anew."""
_HUGE = 2000
_ENDED_BY: dict[str | None, RunEnd] = {"cancel": "cancelled", "deadline": "deadline"}
"""By what a run was ended before its time, as it is stored."""


@dataclass(slots=True)
class _Plan:
    """What is decided about a run, to be written; the lists are those of all runs together."""

    head: RunHead
    definition: WorkflowDefinition
    since: float
    """The moment from which the delays of its steps count."""
    starts: list[StartingStep]
    ends: list[Ended]
    fans: list[tuple[StartingStep, list[TaskTemplate]]]

    def skip(self, step: Step) -> None:
        """Plan to skip a step and all that are skipped for that reason alone: a chain of a thousand
        steps is skipped at once."""
        head, queue = self.head, [step.id]
        while queue:
            skipped = queue.pop()
            self.ends.append(Ended(head.tenant_id, head.id, skipped, TaskState.SKIPPED))
            for name in self.definition.children[skipped]:
                child = self.definition.by_id[name]
                alone = len(child.needs) == 1
                if alone and decide(child, 1, 0, 0, 1, 1) is StepDecision.SKIP:
                    queue.append(name)


_Touched = dict[UUID, list[WaitingStep]]
"""The steps whose counters changed, by run."""


@dataclass(slots=True)
class _Advance:
    """Runs that advance within a transaction, and what is known of them."""

    tx: RunTransaction
    heads: dict[UUID, RunHead]
    since: dict[UUID, float]
    """For each run the moment from which the delays of its steps count."""


class Steps:
    """Advances runs. Every method runs within the caller's transaction."""

    def __init__(
        self, definitions: Definitions, ids: TaskIds, rng: Random, most_bytes: int = MOST_BYTES
    ) -> None:
        self._definitions = definitions
        self._rng = rng
        self._most_bytes = most_bytes
        self.tasks = StepTasks(ids)

    async def lock_runs(
        self, connection: asyncpg.Connection, runs: Collection[tuple[int, UUID]]
    ) -> bool:
        """Lock runs: always before any task of theirs, so that nobody deadlocks. Return whether one
        of them is so large that the end of a step may concern thousands."""
        ordered = sorted(set(runs))
        rows = await SQL["hold_runs"].fetch(
            connection,
            tenant_ids=[tenant for tenant, _ in ordered],
            ids=[run for _, run in ordered],
        )
        return any(row["total"] > _HUGE for row in rows)

    async def lock_runs_of(
        self, connection: asyncpg.Connection, tenant_id: int, tasks: Sequence[UUID]
    ) -> None:
        """Lock the runs that these tasks are steps of."""
        await SQL["hold_runs_of"].run(connection, tenant_id=tenant_id, task_ids=list(tasks))

    async def advance_runs(
        self, tx: RunTransaction, ended: Sequence[Ended], *, huge: bool = False
    ) -> Moved:
        """Count the ends of steps, and release, skip and end what follows from them, until nothing
        does. Return all that the transaction did."""
        if huge:
            await SQL["plan_anew"].run(tx.connection)
        since: dict[UUID, float] = {}
        for end in ended:
            since[end.run_id] = max(since.get(end.run_id, 0.0), end.finished or tx.now)
        runs = _Advance(tx, {}, since)
        return await self._advance(runs, await self._count_ends(runs, ended))

    async def mark_step_changed(
        self, connection: asyncpg.Connection, tenant_id: int, run_id: UUID, label: str
    ) -> None:
        """Note that a caller changed the task of a step, which has to queue from now on."""
        step, item = parse_label(label)
        await SQL["queue_step"].run(
            connection, tenant_id=tenant_id, run_id=run_id, step=step, item=item
        )

    async def count_cancelled(
        self,
        connection: asyncpg.Connection,
        tenant_id: int,
        tasks: Iterable[tuple[UUID | None, str | None]],
    ) -> None:
        """Advance the runs, if any, of tasks that were cancelled: each as its run and its step.
        Owners learn of the tasks that this releases by wake rows."""
        ended = [
            Ended(tenant_id, run_id, step, TaskState.CANCELLED, item)
            for run_id, label in tasks
            if run_id is not None and label is not None
            for step, item in (parse_label(label),)
        ]
        if ended:
            now = await CLUSTER["database_time"].value(connection, float)
            await self.advance_runs(RunTransaction(connection, NO_OWNERSHIP, now), ended)

    async def reconsider(self, tx: RunTransaction, head: RunHead) -> Moved:
        """Decide anew on everything in a run that waits: after it was resumed, or begun."""
        rows = await SQL["unfinished_steps"].fetch(tx.connection, **head.key)
        waiting = read_rows(
            WaitingStep,
            [row for row in rows if row["item"] == ITSELF and row["state"] != "released"],
        )
        runs = _Advance(tx, {head.id: head}, {head.id: tx.now})
        return await self._advance(runs, {head.id: waiting})

    async def stop_run(self, tx: RunTransaction, head: RunHead, why: str) -> Moved:
        """End a run before its time. One that is paused is resumed for what is left to do."""
        if head.state not in ("running", "paused"):
            return tx.moved
        if head.state == "paused":
            await self.set_paused(tx.connection, head, paused=False)
        return await self.advance_runs(tx, await self._stop(tx, head, why))

    async def set_paused(
        self, connection: asyncpg.Connection, head: RunHead, *, paused: bool
    ) -> set[int]:
        """Pause a run, so that nothing of it starts, or resume it; return the partitions
        concerned."""
        run, tasks = ("pause_run", "pause_tasks") if paused else ("unpause_run", "unpause_tasks")
        await SQL[run].run(connection, **head.key)
        rows = await SQL[tasks].fetch(connection, **head.key)
        return {row["partition"] for row in rows}

    async def _stop(self, tx: RunTransaction, head: RunHead, why: str) -> list[Ended]:
        """End the steps of a stopped run that wait, and ask those that run to cancel. After a
        failure the steps that deal with one are left to do; otherwise only cleanup is."""
        connection = tx.connection
        definition = await self._definitions.get(connection, head)
        await SQL["stop_run"].run(connection, **head.key, why=why)
        kept = definition.survivors
        if why != "failure":
            kept = frozenset(step.id for step in definition.steps if step.cleanup)
        unfinished = await SQL["unfinished_steps"].fetch(connection, **head.key)
        rows = [row for row in unfinished if row["step"] not in kept]
        # Without the lock, one that runs now and waits a moment later is neither ended nor asked.
        tasks = [row["task_id"] for row in rows]
        await SQL["hold_tasks"].run(connection, tenant_id=head.tenant_id, ids=tasks)
        leaving = [_stopped(head, row, why) for row in rows if row["state"] != "expanded"]
        ended = await self.tasks.end(tx, leaving)
        over = {(e.step, e.item) for e in ended}
        running = [
            row["task_id"]
            for row in rows
            if row["state"] == "released" and (row["step"], row["item"]) not in over
        ]
        tenants = [head.tenant_id] * len(running)
        asked = await SQL["ask_to_cancel"].fetch(connection, tenant_ids=tenants, ids=running)
        tx.moved.told |= {row["partition"] for row in asked}
        return ended

    async def _advance(self, runs: _Advance, touched: _Touched) -> Moved:
        """Decide on steps whose counters changed; their ends change other counters."""
        while touched:
            await self._join_lists(runs, touched)
            touched = await self._count_ends(runs, await self._follow(runs, touched))
        await self._end_runs(runs)
        return runs.tx.moved

    # Counting ---------------------------------------------------------------------------------

    async def _count_ends(self, runs: _Advance, ended: Sequence[Ended]) -> _Touched:
        """Count the ends; return the steps that waited for them, by run."""
        if not ended:
            return {}
        if len(ended) > LARGE:
            await SQL["plan_anew"].run(runs.tx.connection)
        ordered = sorted(ended, key=lambda e: (e.tenant_id, e.run_id, e.step, e.item))
        touched: _Touched = {}
        columns = columns_of(Ended._fields, ordered)
        for row in await SQL["advance"].fetch(runs.tx.connection, **columns):
            runs.heads[row["id"]] = read_row(RunHead, row)
            waiting = touched.setdefault(row["id"], [])
            if row["step"] is not None:
                state, failed = row["step_state"], row["step_failed"]
                counts = row["needed"], row["finished"], row["succeeded"], failed
                waiting.append(WaitingStep(row["step"], state, *counts))
        return touched

    async def _join_lists(self, runs: _Advance, touched: _Touched) -> None:
        """End steps whose items have all ended: if that fails the run, what waits does not
        start."""
        whole = [
            (runs.heads[run_id], wait.step)
            for run_id, waiting in touched.items()
            if runs.heads[run_id].state != "paused"
            for wait in waiting
            if wait.state == "expanded" and wait.finished == wait.needed
        ]
        joined = [await self._join(runs.tx.connection, head, step) for head, step in whole]
        ended = await self.tasks.end(runs.tx, joined)
        for run_id, waiting in (await self._count_ends(runs, ended)).items():
            newer = {wait.step for wait in waiting}
            known = [wait for wait in touched[run_id] if wait.step not in newer]
            touched[run_id] = known + waiting

    async def _end_runs(self, runs: _Advance) -> None:
        over = sorted(head for head in runs.heads.values() if head.unfinished == 0)
        if not over:
            return
        states = [await self._final_state(runs.tx.connection, head) for head in over]
        await SQL["end_runs"].run(
            runs.tx.connection,
            **columns_of(("tenant_id", "id"), over),
            states=[state.value for state in states],
        )
        for state in states:
            runs.tx.moved.count_end(state)

    async def _final_state(self, connection: asyncpg.Connection, head: RunHead) -> RunState:
        if not head.failed:
            return RunState.COMPLETED
        rows = await SQL["count_states"].fetch(connection, **head.key)
        counts = {TaskState(row["state"]): row["steps"] for row in rows}
        return run_state(counts, ended=_ENDED_BY.get(head.stopping))

    # Deciding ---------------------------------------------------------------------------------

    async def _follow(self, runs: _Advance, touched: _Touched) -> list[Ended]:
        """Release what may start; return what ends without having run."""
        tx, connection = runs.tx, runs.tx.connection
        starts, ends, stopped = list[StartingStep](), list[Ended](), list[Ended]()
        fans: list[tuple[StartingStep, list[TaskTemplate]]] = []
        for run_id, concerned in touched.items():
            head, waiting = runs.heads[run_id], concerned
            if head.state == "paused":
                continue
            definition = await self._definitions.get(connection, head)
            if head.failed and head.stopping is None and definition.on_failure == "fail_fast":
                stopped += await self._stop(tx, head, "failure")
                runs.heads[run_id] = head = head._replace(stopping="failure")
                over = {e.step for e in stopped if e.run_id == run_id}
                waiting = [w for w in waiting if w.step not in over]
            plan = _Plan(head, definition, runs.since[run_id], starts, ends, fans)
            await self._decide(connection, plan, waiting)
        if len(starts) + len(ends) > LARGE:
            await SQL["plan_anew"].run(connection)
        await self.tasks.release(tx, starts)
        for start, made in fans:
            if await self.tasks.fan_out(tx, start, made):
                ends.append(await self._join(connection, start.run, start.step.id))
        return stopped + await self.tasks.end(tx, ends)

    async def _decide(
        self, connection: asyncpg.Connection, plan: _Plan, waiting: Sequence[WaitingStep]
    ) -> None:
        ready: list[Step] = []
        for wait in waiting:
            if wait.state == "expanded":
                continue
            step = plan.definition.by_id[wait.step]
            decision = decide(
                step, wait.finished, wait.succeeded, wait.failed, wait.skipped, wait.needed
            )
            if decision is StepDecision.START:
                ready.append(step)
            elif decision is StepDecision.SKIP:
                plan.skip(step)
        if not ready:
            return
        scope = await self._scope(connection, plan.head, ready)
        for step in ready:
            self._prepare(plan, step, scope)

    def _prepare(self, plan: _Plan, step: Step, scope: Scope | None) -> None:
        """Plan the start of a step, by its condition and with its templates filled in."""
        due = round(plan.since + step.delay, 6)
        if step.template.jitter:
            due = round(due + self._rng.uniform(0, step.template.jitter), 6)
        head = plan.head
        start = StartingStep(head, step, due, None)
        if scope is None:
            plan.starts.append(start)
            return
        most = self._most_bytes
        try:
            check_readable(step, scope)
            if not condition_met(step.condition, scope):
                plan.skip(step)
                return
            found = items(step, scope)
            if found is None:
                plan.starts.append(start._replace(template=render(step.template, scope, most)))
                return
            made = list(render_each(step, scope, found, most))
            plan.fans.append((start, made))
            if not made:
                end = Ended(head.tenant_id, head.id, step.id, TaskState.COMPLETED, result=b"[]")
                plan.ends.append(end)
        except (RenderFailed, ConditionFailed) as problem:
            code = "template" if isinstance(problem, RenderFailed) else "condition"
            error = TaskError(code, str(problem))
            plan.ends.append(Ended(head.tenant_id, head.id, step.id, TaskState.FAILED, error=error))

    async def _scope(
        self, connection: asyncpg.Connection, head: RunHead, ready: Sequence[Step]
    ) -> Scope | None:
        """Return the scope of the templates and conditions of steps; None when they have none."""
        if not any(step.has_templates for step in ready):
            return None
        given = await SQL["run_input"].value(connection, bytes, **head.key)
        used = sorted({name for step in ready for name in step.uses})
        rows = await SQL["results"].fetch(connection, **head.key, steps=used) if used else ()
        return Scope(read_input(given), {row["step"]: step_result(row) for row in rows})

    async def _join(self, connection: asyncpg.Connection, head: RunHead, step: str) -> Ended:
        """Return the end of a step whose items have all ended: its result is the list of theirs."""
        rows = await SQL["item_results"].fetch(connection, **head.key, step=step)
        state = foreach_state(Counter(TaskState(row["state"]) for row in rows))
        result, error = b"[%s]" % b",".join(row["result"] or b"null" for row in rows), None
        if state is not TaskState.COMPLETED:
            lost = sum(row["state"] != "completed" for row in rows)
            error = TaskError("items", f"{lost} of {len(rows)} items did not complete")
        if len(result) > MOST_JOINED:
            text = f"the results of the items have {len(result)} bytes; the most is {MOST_JOINED}"
            result, error = b"", error or TaskError(TOO_LARGE, text)
        return Ended(head.tenant_id, head.id, step, state, result=result or None, error=error)


def new_steps(
    rng: Random, most_bytes: int = MOST_BYTES, definitions: Definitions | None = None
) -> Steps:
    """Return a service that shares nothing with others, except for definitions."""
    ids = new_ids(Random(rng.getrandbits(64)))
    return Steps(definitions or Definitions(), ids, rng, most_bytes)


def _stopped(head: RunHead, row: asyncpg.Record, why: str) -> Ended:
    """Return the end of a step that does not run because its run is stopped."""
    state, error = TaskState.CANCELLED, None
    if why == "failure" and row["state"] == "blocked":
        state, error = TaskState.SKIPPED, TaskError(FAIL_FAST, "another step had failed")
    return Ended(head.tenant_id, head.id, row["step"], state, row["item"], error=error)
