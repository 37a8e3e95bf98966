"""Changing tasks: edit, cancel, pause, resume, run now, delete.

Every change is decided on the locked row, by the rules of `domain.transitions`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import NoReturn

from msgspec import UNSET
from starlette.responses import Response

from mainspring.api.http.decoding import decode_patch, readable_as
from mainspring.api.http.operations import TenantCall, no_such_task
from mainspring.api.http.parameters import flag
from mainspring.api.items import check_rev, if_match
from mainspring.api.ports import NodePort
from mainspring.api.tasks.patching import TaskPatcher
from mainspring.api.tasks.reading import existing_task, task_response
from mainspring.clock import Clock
from mainspring.domain import transitions
from mainspring.domain.task import TaskState
from mainspring.domain.transitions import Move, TaskStanding
from mainspring.errors import Problem, RequestError, StoreUnavailable
from mainspring.store.tasks import LockedTask, StoredTask, TaskChange, TaskStore
from mainspring.wire.tasks import TaskPatch
from mainspring.workflows.task_changes import TaskChanges

Rule = Callable[[TaskStanding], Move | None]


@dataclass(frozen=True, slots=True)
class _Preview:
    """A change that is only shown."""

    change: TaskChange


@dataclass(frozen=True, slots=True)
class TaskChangeResource:
    """PATCH, DELETE and the verbs of /v1/tasks/{id}."""

    tasks: TaskStore
    changes: TaskChanges
    node: NodePort
    clock: Clock
    patcher: TaskPatcher

    async def cancel(self, call: TenantCall) -> Response:
        return await self._move(call, transitions.cancel)

    async def pause(self, call: TenantCall) -> Response:
        return await self._move(call, transitions.pause)

    async def resume(self, call: TenantCall) -> Response:
        return await self._move(call, transitions.resume)

    async def run(self, call: TenantCall) -> Response:
        now = round(self.clock.now(), 6)
        return await self._move(call, lambda task: transitions.run(task, now))

    async def edit(self, call: TenantCall) -> Response:
        body = await call.body()
        try:
            patch = decode_patch(body)
        except RequestError as error:
            await self._refuse(call, error, readable_as(TaskPatch, body))
        dry_run = flag(call.request.query_params, "dry_run")
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
        task_id, revs = call.task_id, if_match(call.request)
        if not await self.changes.purge(
            call.tenant_id, task_id, call.actor, lambda rev: check_rev(revs, rev)
        ):
            raise no_such_task(task_id)
        self.node.announce(changed=self.node.ownership().partitions)
        return Response(status_code=204)

    async def _refuse(
        self, call: TenantCall, error: RequestError, patch: TaskPatch | None
    ) -> NoReturn:
        """Refuse a patch, and say as well what is wrong with that part of it which can be read."""
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

    async def _move(self, call: TenantCall, rule: Rule) -> Response:
        def decide(locked: LockedTask) -> TaskChange | bool:
            move = rule(_standing(locked))
            return False if move is None else _moved(locked, move)

        decided, task = await self._decide(call, decide)
        if decided is None:
            # It is finished: the rule says whether that is what the caller wanted.
            rule(_standing(task))
        return task_response(task)

    async def _decide(
        self, call: TenantCall, decide: Callable[[LockedTask], TaskChange | bool | _Preview]
    ) -> tuple[bool | _Preview | None, StoredTask]:
        """Let the store change the task, if it is at a revision that the caller wants, and tell its
        owner. What was decided, None when it is not unfinished; and the task as it is now."""
        task_id, revs = call.task_id, if_match(call.request)
        partitions: set[int] = set()

        def note(locked: LockedTask) -> TaskChange | bool | _Preview:
            check_rev(revs, locked.rev)
            partitions.add(locked.partition)
            return decide(locked)

        decided: bool | _Preview | None = await self.changes.change(call.tenant_id, task_id, note)
        if decided is True:
            self.node.announce(changed=partitions)
        task = await existing_task(self.tasks, call.tenant_id, task_id)
        if decided is None:
            check_rev(revs, task.rev)
        return decided, task


def _standing(task: LockedTask | StoredTask) -> TaskStanding:
    return TaskStanding(
        TaskState(task.state),
        task.attempts,
        task.due_at.timestamp(),
        task.cancel_requested,
        isinstance(task, LockedTask) and task.expanded,
    )


def _moved(locked: LockedTask, move: Move) -> TaskChange:
    change = TaskChange.of(locked)
    return replace(
        change,
        state=move.state,
        cancel_requested=move.cancel_requested,
        due=change.due if move.due is None else move.due,
    )


def _as_changed(task: StoredTask, change: TaskChange) -> StoredTask:
    """The task as it would read after the change."""
    return replace(
        task,
        run_at=datetime.fromtimestamp(change.run, UTC),
        due_at=datetime.fromtimestamp(change.due, UTC),
        expires_at=None if change.expires is None else datetime.fromtimestamp(change.expires, UTC),
        priority=change.priority,
        queue=change.queue,
        name=change.name,
        labels=change.labels,
        spec=change.spec,
        payload=change.payload,
    )
