"""Changing tasks: edit, cancel, pause, resume, run now, delete; cancel many; report an outcome.

Every change is decided on the locked row, by the rules of `domain.transitions`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NoReturn

import msgspec
from msgspec import UNSET
from starlette.responses import Response

from mainspring.api.http.bodies import json_response
from mainspring.api.http.body_errors import readable_as
from mainspring.api.http.decoding import decode_as, decode_patch
from mainspring.api.http.operations import TenantCall, no_such_task
from mainspring.api.node_ports import NodePort
from mainspring.api.tasks.filters import task_filter
from mainspring.api.tasks.patching import TaskPatcher
from mainspring.api.tasks.reading import existing_task, task_response
from mainspring.api.views import instant, instant_or_none
from mainspring.clock import Clock
from mainspring.domain import transitions
from mainspring.domain.execution import Outcome, Report, TaskError
from mainspring.domain.task import TaskState
from mainspring.domain.transitions import Move, TaskStanding
from mainspring.errors import Conflict, Problem, RequestError, StoreUnavailable
from mainspring.store.tasks import LockedTask, StoredTask, TaskChange, TaskStore
from mainspring.wire.dead_letters import CancelIn, CancelledOut
from mainspring.wire.tasks import CompleteIn, TaskPatch
from mainspring.workflows.task_changes import CancelCounts, TaskChangeService

Rule = Callable[[TaskStanding], Move | None]


@dataclass(frozen=True, slots=True)
class _Preview:
    """A change that is only shown."""

    change: TaskChange


@dataclass(frozen=True, slots=True)
class TaskChangeResource:
    """PATCH, DELETE and the verbs of /v1/tasks/{id}."""

    tasks: TaskStore
    changes: TaskChangeService
    node: NodePort
    clock: Clock
    patcher: TaskPatcher

    async def move(self, rule: Rule, call: TenantCall) -> Response:
        """Change the state of a task as the rule decides."""
        decided, task = await self._decide(call, partial(change_by, rule))
        if decided is None:
            # It is finished: the rule says whether that is what the caller wanted.
            rule(_standing(task))
        return task_response(task)

    async def run(self, call: TenantCall) -> Response:
        now = round(self.clock.now(), 6)
        return await self.move(partial(transitions.run, now=now), call)

    async def edit(self, call: TenantCall) -> Response:
        body = await call.body()
        try:
            patch = decode_patch(body)
        except RequestError as error:
            await self._refuse(call, error, readable_as(TaskPatch, body))
        dry_run = call.dry_run
        sent = [name for name in patch.__struct_fields__ if getattr(patch, name) is not UNSET]

        def decide(locked: LockedTask) -> TaskChange | _Preview:
            transitions.check_editable(_standing(locked), sent)
            change = self.patcher.apply(locked, patch)
            return _Preview(change) if dry_run else change

        decided, task = await self._decide(call, decide)
        if decided is None:
            transitions.check_editable(_standing(task))
        if isinstance(decided, _Preview):
            task = _as_changed(task, decided.change)
        return task_response(task)

    async def delete(self, call: TenantCall) -> Response:
        task_id = call.task_id
        if not await self.changes.purge(call.tenant_id, task_id, call.actor, call.check_rev):
            raise no_such_task(task_id)
        self.node.announce(changed=self.node.ownership().partitions)
        return Response(status_code=204)

    async def complete(self, call: TenantCall) -> Response:
        """Record the outcome under the fence, on any node."""
        sent = decode_as(CompleteIn, await call.body(), _payloads)
        running = await self.tasks.running(call.tenant_id, call.task_id)
        if running is None:
            await existing_task(self.tasks, call)
            raise Conflict("the task is not running: it ended, or waits for its next execution")
        if running.spec.target.type != "http":
            raise no_such_task(call.task_id)
        if running.fence != sent.fence:
            raise Conflict("there is a newer execution: the outcome of this one does not count")
        outcome = Outcome.SUCCEEDED if sent.status == "succeeded" else Outcome.FAILED
        error = None
        if outcome is Outcome.FAILED:
            error = TaskError("failed", sent.error or "the receiver reported a failure")
        result = bytes(sent.result) or None
        report = Report(
            running, outcome, running.picked, self.clock.now(), result, error, sent.retryable,
            status_code=202,
        )  # fmt: skip
        if not await self.node.conclude(report):
            raise Conflict("the execution has just ended: another outcome was recorded")
        return task_response(await existing_task(self.tasks, call))

    async def _refuse(
        self, call: TenantCall, error: RequestError, patch: TaskPatch | None
    ) -> NoReturn:
        """Refuse a patch, with the problems of the part that can be read as well."""
        if patch is None:
            raise error
        if not {"/run_at", "/delay", "/jitter"}.isdisjoint(p.pointer for p in error.problems):
            patch.expires_at = UNSET  # whether it is late enough cannot be said
        more: Sequence[Problem] = ()
        try:
            task = await self.tasks.see(call.tenant_id, call.task_id)
            if task is not None:
                self.patcher.apply(task, patch)
        except RequestError as found:
            more = found.problems
        except StoreUnavailable:
            pass  # what is known to be wrong is enough
        raise type(error)(error.detail, [*error.problems, *more]) from None

    async def _decide(
        self, call: TenantCall, decide: Callable[[LockedTask], TaskChange | bool | _Preview]
    ) -> tuple[bool | _Preview | None, StoredTask]:
        """Change the task if it is at a revision that the caller wants, and tell its owner. Return
        what was decided, None if the task is finished, and the task as it is now."""
        task_id = call.task_id
        partitions: set[int] = set()

        def note(locked: LockedTask) -> TaskChange | bool | _Preview:
            call.check_rev(locked.rev)
            partitions.add(locked.partition)
            return decide(locked)

        decided: bool | _Preview | None = await self.changes.change(call.tenant_id, task_id, note)
        if decided is True:
            self.node.announce(changed=partitions)
        task = await existing_task(self.tasks, call)
        if decided is None:
            call.check_rev(task.rev)
        return decided, task


@dataclass(frozen=True, slots=True)
class TaskBulk:
    """POST /v1/tasks/cancel."""

    changes: TaskChangeService
    node: NodePort

    async def cancel(self, call: TenantCall) -> Response:
        wanted = decode_as(CancelIn, await call.body())
        where = task_filter(wanted.filter)
        if wanted.dry_run or call.dry_run:
            total = await self.changes.count_cancellable(call.tenant_id, where)
        else:
            total = CancelCounts()
            async for done in self.changes.cancel_matching(call.tenant_id, where, call.actor):
                total += done
                if done.partitions:
                    self.node.announce(changed=done.partitions)
        return json_response(CancelledOut(total.ended, total.asked))


def _standing(task: LockedTask | StoredTask) -> TaskStanding:
    return TaskStanding(
        TaskState(task.state),
        task.attempts,
        task.due_at.timestamp(),
        task.cancel_requested,
        isinstance(task, LockedTask) and task.expanded,
    )


def change_by(rule: Rule, locked: LockedTask) -> TaskChange | bool:
    """Return the change of the task that the rule decides on; False where there is none to make."""
    move = rule(_standing(locked))
    if move is None:
        return False
    change = TaskChange.of(locked)
    return replace(
        change,
        state=move.state,
        cancel_requested=move.cancel_requested,
        due=change.due if move.due is None else move.due,
    )


def _as_changed(task: StoredTask, change: TaskChange) -> StoredTask:
    """Return the task as it would read after the change."""
    return replace(
        task,
        run_at=instant(change.run),
        due_at=instant(change.due),
        expires_at=instant_or_none(change.expires),
        priority=change.priority,
        queue=change.queue,
        name=change.name,
        labels=change.labels,
        spec=change.spec,
        payload=change.payload,
    )


def _payloads(sent: CompleteIn) -> list[msgspec.Raw]:
    return [sent.result] if bytes(sent.result) else []
