"""A task as its owner sees it: metadata only, in the order of the view `window_rows`."""

from typing import NamedTuple
from uuid import UUID

from mainspring.domain.lateness import Waited


class TaskRow(NamedTuple):
    """One unfinished task. Times are seconds since the epoch, by the database's clock."""

    tenant_id: int
    id: UUID
    rev: int
    partition: int
    state: str
    queue: str
    capability: str
    concurrency_key: str | None
    concurrency_limit: int | None
    priority: int
    due: float
    expires: float | None
    fence: int
    lease_end: float | None
    cancel_requested: bool
    worker: str | None = None
    incarnation: str | None = None
    """Set while a worker holds it, and not an executor of a node."""
    waited: Waited | None = None
    """What it has waited for since it was due, as far as that is written down."""


class StreamKey(NamedTuple):
    """Tasks of one partition that are alike but for their due time: what the window caps.

    Without a queue it stands for all of a tenant's tasks in the partition.
    """

    partition: int
    tenant_id: int
    queue: str | None = None
    capability: str | None = None
    concurrency_key: str | None = None
    priority: int | None = None


def stream_of(row: TaskRow) -> StreamKey:
    return StreamKey(
        row.partition, row.tenant_id, row.queue, row.capability, row.concurrency_key, row.priority
    )
