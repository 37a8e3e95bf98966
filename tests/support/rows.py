"""Rows and assignments for tests of the engine, with defaults for what does not matter."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

from mainspring.domain.execution import Execution
from mainspring.domain.lateness import Waited
from mainspring.domain.retry import RetryPolicy
from mainspring.domain.rows import TaskRow
from mainspring.domain.task import Target, TaskSpec


def task_id(number: int) -> UUID:
    return UUID(int=number)


def row(
    number: int,
    *,
    tenant: int = 1,
    rev: int = 1,
    partition: int = 0,
    state: str = "scheduled",
    queue: str = "default",
    capability: str = "handler:work",
    key: str | None = None,
    limit: int | None = None,
    priority: int = 5,
    due: float = 0.0,
    expires: float | None = None,
    fence: int = 0,
    lease_end: float | None = None,
    cancel_requested: bool = False,
    waited: Waited | None = None,
) -> TaskRow:
    if key is not None and limit is None:
        limit = 1
    return TaskRow(
        tenant, task_id(number), rev, partition, state, queue, capability, key, limit, priority,
        due, expires, fence, lease_end, cancel_requested, waited=waited,
    )  # fmt: skip


def execution(
    of: TaskRow, *, lease_end: float = 15.0, failures: int = 0, retry: RetryPolicy | None = None
) -> Execution:
    spec = TaskSpec(Target("handler", name="work"), retry=retry or RetryPolicy())
    return Execution(
        of.tenant_id, of.id, of.fence + 1, of.partition, 1, failures, of.due, of.due, lease_end,
        spec, b"", of.due,
    )  # fmt: skip


class MemoryRecord(dict[str, Any]):
    """In place of a record of the driver: it knows its columns, and iterates over its values."""

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values())

    def __getitem__(self, column: str | int) -> Any:
        return list(self.values())[column] if isinstance(column, int) else super().get(column)
