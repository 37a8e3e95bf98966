"""What workers ask for and hold, as values; `pools.py` matches them with tasks."""

from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple
from uuid import UUID

from mainspring.domain.capability import Offer, need_of
from mainspring.domain.rows import TaskRow


class WorkerSession(NamedTuple):
    """A worker's incarnation."""

    tenant_id: int
    worker: str
    incarnation: str


class LeaseHolder(NamedTuple):
    """The worker that holds a running task, and whether the task must be its only one."""

    session: WorkerSession
    alone: bool = False


class RemoteDemand(NamedTuple):
    """Tasks that wait here for workers of another node."""

    node: UUID
    tenant_id: int
    offer: Offer
    tasks: int


@dataclass(slots=True, eq=False)
class Poll:
    """A worker's free slots, waiting to be filled. Compared by identity."""

    session: WorkerSession
    offer: Offer
    free: int
    _: KW_ONLY
    idle: bool = True
    """Whether the worker says that it runs nothing."""
    here: bool = True
    """Whether the worker waits at this node: then we know when it is answered."""
    announces: bool = False
    """Whether the worker announces what it starts."""
    shared: bool = False
    """Whether other nodes may claim for it, too: then none knows all that it gets."""
    in_flight: int = 0
    """Tasks that were picked for it and are being claimed."""

    @property
    def kind(self) -> tuple[int, Offer]:
        return self.session.tenant_id, self.offer


def lease_holder_of(row: TaskRow) -> LeaseHolder | None:
    """Return the worker that holds a running task; None when it runs inside a node."""
    if row.worker is None or row.incarnation is None:
        return None
    session = WorkerSession(row.tenant_id, row.worker, row.incarnation)
    return LeaseHolder(session, need_of(row.capability).alone)
