"""New tasks as they are inserted, and those that are leased in the same statement."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from mainspring.domain.execution import Execution
from mainspring.domain.partitions import Ownership
from mainspring.domain.rows import TaskRow
from mainspring.domain.task import TaskState
from mainspring.postgres.database import columns_of, sparse
from mainspring.store.claims import LeasedRow
from mainspring.store.task_refs import owner_of


class NewTask(NamedTuple):
    """A task that is about to be inserted; times in seconds since the epoch."""

    tenant_id: int
    id: UUID
    created: float
    run: float
    due: float
    expires: float | None
    concurrency_key: str | None
    concurrency_limit: int | None
    priority: int
    queue: str
    capability: str
    name: str | None
    labels: Mapping[str, str] | None
    spec: bytes
    payload: bytes
    replay_of: UUID | None = None
    schedule_id: UUID | None = None
    nominal: float | None = None


class Keyed(NamedTuple):
    """An idempotency key and the answer to remember under it, for `ttl` seconds."""

    key: str
    body_hash: bytes
    answer: bytes
    ttl: float


class Creation(NamedTuple):
    """One caller's tasks: all of them are inserted or none."""

    tenant_id: int
    tasks: Sequence[NewTask]
    keyed: Keyed | None = None


class EagerLeaseOffer(NamedTuple):
    """New tasks that may be leased as they are inserted, on which worker, for how long."""

    tasks: Mapping[UUID, NewTask]
    worker: str
    lease: float


NO_EAGER_LEASE = EagerLeaseOffer({}, "", 0.0)


class Made(NamedTuple):
    """What was inserted: id → partition; and what of it was leased."""

    partitions: dict[UUID, int]
    leased: list[tuple[TaskRow, Execution]]


def window_row(task: NewTask, partition: int) -> TaskRow:
    """Return a new task as its owner's engine needs it, without reading it from the database."""
    return TaskRow(
        task.tenant_id, task.id, 1, partition, TaskState.SCHEDULED, task.queue, task.capability,
        task.concurrency_key, task.concurrency_limit, task.priority, task.due, task.expires,
        fence=0, lease_end=None, cancel_requested=False,
    )  # fmt: skip


def started_task(
    task: NewTask, partition: int, picked: float, lease_end: float
) -> tuple[TaskRow, Execution]:
    """Return a new task that was leased as it was inserted."""
    row = window_row(task, partition)._replace(
        rev=2, state=TaskState.RUNNING, fence=1, lease_end=lease_end
    )
    return row, LeasedRow(
        task.tenant_id, task.id, row.fence, partition, 1, 0, task.due, picked, lease_end,
        task.spec, task.payload, task.run,
    ).execution()  # fmt: skip


def creation_arguments(
    creations: Sequence[Creation],
    ownership: Ownership,
    near: float,
    offer: EagerLeaseOffer = NO_EAGER_LEASE,
) -> dict[str, object]:
    """Return the arguments of `create_tasks`, rows in lock order."""
    rows = sorted(
        (
            (task, creation.keyed.key if creation.keyed else None)
            for creation in creations
            for task in creation.tasks
        ),
        key=lambda row: (row[0].tenant_id, row[0].id),
    )
    keyed = sorted(
        ((c.tenant_id, c.keyed) for c in creations if c.keyed),
        key=lambda pair: (pair[0], pair[1].key),
    )
    tasks = [task for task, _key in rows]
    return {
        **owner_of(ownership),
        "near": near,
        **columns_of(NewTask._fields, tasks),
        "task_keys": sparse([key for _task, key in rows]),
        "key_tenant_ids": [tenant for tenant, _ in keyed],
        **columns_of(Keyed._fields, [entry for _, entry in keyed]),
        "at_once": [task.id in offer.tasks for task in tasks] if offer.tasks else [],
        "worker": offer.worker,
        "lease": offer.lease,
    }
