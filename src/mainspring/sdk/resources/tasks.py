"""`client.tasks`: create, read, change, and wait for results."""

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, Unpack
from uuid import UUID

from msgspec import field

from mainspring.domain.task import UNFINISHED, TaskState
from mainspring.errors import TaskNotCompleted
from mainspring.sdk.encoding import present
from mainspring.sdk.resources.base import ApiResource, Page
from mainspring.sdk.sync_async import F, both, each
from mainspring.sdk.targets import Target, TaskChanges, TaskFields, TaskListFields, described
from mainspring.wire.dead_letters import CancelledOut
from mainspring.wire.tasks import ExecutionOut, ExplanationOut, Ids, TaskOut
from mainspring.wire.workers import LogLineOut

TaskIds = list[UUID]
Executions = list[ExecutionOut]

_FINAL = frozenset(TaskState) - UNFINISHED


class Task(TaskOut, kw_only=True):
    """A task. Lists leave the payload out unless it is asked for."""

    payload: Any = None
    retry: Any = field(default_factory=dict)
    concurrency: Any = None
    requires: Any = None
    etag: str | None = None

    @property
    def finished(self) -> bool:
        return self.finished_at is not None or self.state in _FINAL


class Tasks(ApiResource[F]):
    """Tasks and their executions."""

    _path = "/v1/tasks"

    @both
    async def create(
        self, target: Target, *, idempotency_key: str | None = None, **fields: Unpack[TaskFields]
    ) -> Task:
        """Create a task. Without `run_at` and `delay` it is due now."""
        body = described(target, fields)
        return await self._call("POST", self._path, body, answer=Task, key=idempotency_key)

    @both
    async def create_many(
        self, tasks: Iterable[Mapping[str, Any]], *, idempotency_key: str | None = None
    ) -> TaskIds:
        """Create up to 10,000 tasks, all or none; each is what `create` would send."""
        body = {"tasks": [dict(task) for task in tasks]}
        found = await self._call("POST", self._at("batch"), body, answer=Ids, key=idempotency_key)
        return found.ids

    @both
    async def get(self, task_id: UUID | str) -> Task:
        return await self._call("GET", self._at(task_id), answer=Task)

    @each
    def list(self, **filter: Unpack[TaskListFields]) -> AsyncIterator[Task]:
        """Yield all that match, newest first; `limit` is the size of a page."""
        return self._every(self._path, Page[Task], filter)

    @both
    async def executions(self, task_id: UUID | str, outcome: str | None = None) -> Executions:
        """Return its executions, oldest first."""
        path, query = self._at(task_id, "executions"), {"outcome": outcome}
        found = await self._call("GET", path, answer=Page[ExecutionOut], query=query)
        return found.items

    @both
    async def explain(self, task_id: UUID | str) -> ExplanationOut:
        """Return why it is not running."""
        return await self._call("GET", self._at(task_id, "explain"), answer=ExplanationOut)

    @each
    def logs(self, task_id: UUID | str) -> AsyncIterator[LogLineOut]:
        """Yield what its handler or command wrote, oldest first."""
        return self._every(self._at(task_id, "logs"), Page[LogLineOut], {})

    @both
    async def edit(
        self, task_id: UUID | str, *, if_match: str | None = None, **changes: Unpack[TaskChanges]
    ) -> Task:
        """Change a task that has not started. With `if_match=task.etag` only what was read."""
        return await self._call("PATCH", self._at(task_id), changes, answer=Task, if_match=if_match)

    @both
    async def cancel(self, task_id: UUID | str) -> Task:
        """End it; a running one is asked to stop."""
        return await self._post(Task, task_id, "cancel")

    @both
    async def pause(self, task_id: UUID | str) -> Task:
        return await self._post(Task, task_id, "pause")

    @both
    async def resume(self, task_id: UUID | str) -> Task:
        return await self._post(Task, task_id, "resume")

    @both
    async def run(self, task_id: UUID | str) -> Task:
        """Make it due now."""
        return await self._post(Task, task_id, "run")

    @both
    async def delete(self, task_id: UUID | str) -> None:
        """Cancel it where needed, then purge it and its executions."""
        await self._call("DELETE", self._at(task_id))

    @both
    async def cancel_all(self, /, *, dry_run: bool = False, **filter: Any) -> CancelledOut:
        """Cancel all that match; what is not named is not looked at."""
        query = {"dry_run": True} if dry_run else None
        body = {"filter": filter}
        return await self._call("POST", self._at("cancel"), body, answer=CancelledOut, query=query)

    @both
    async def complete(
        self,
        task_id: UUID | str,
        fence: int,
        *,
        succeeded: bool = True,
        result: Any = None,
        error: str | None = None,
        retryable: bool = True,
    ) -> Task:
        """Report the outcome of work that was accepted with 202."""
        body = {
            "fence": fence,
            "status": "succeeded" if succeeded else "failed",
            "result": result,
            "retryable": retryable,
            **present(error=error),
        }
        return await self._call("POST", self._at(task_id, "complete"), body, answer=Task)

    @both
    async def wait(self, task_id: UUID | str, timeout: float | None = None) -> Task:
        """Return the task once it has ended, in any state; TaskUnfinished if that takes longer."""
        return await self._until_finished(self._at(task_id), Task, timeout)

    @both
    async def result(self, task_id: UUID | str, timeout: float | None = None) -> Any:
        """Return what its handler returned; TaskNotCompleted if it ended in any other way."""
        task = await self._until_finished(self._at(task_id), Task, timeout)
        if task.state == "completed":
            return task.result
        said = task.error["message"] if task.error else "there is no error to tell of"
        raise TaskNotCompleted(f"task {task.id} is {task.state}: {said}", task.state, task.error)
