"""What the API needs of the node it runs in."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from mainspring.domain.execution import Execution, Report
from mainspring.domain.placement import Ownership
from mainspring.domain.rows import TaskRow
from mainspring.engine.demand import WorkerSession
from mainspring.engine.explain import Situation
from mainspring.node.workers.lease_service import LeaseRequest
from mainspring.node.workers.reports import HeartbeatAnswer, Verdict, WorkerReport
from mainspring.store.creation import EagerLeaseOffer, NewTask
from mainspring.store.leases import HeldHeartbeat, LeasedTask
from mainspring.store.workflow.step_rows import Moved


class LeasePort(Protocol):
    """The node as workers see it. Every method waits for the database, and raises its errors."""

    async def lease(self, wish: LeaseRequest) -> list[LeasedTask]:
        """Wait for tasks; when it is cancelled, what was leased meanwhile is released."""
        ...

    async def beat(
        self,
        holder: WorkerSession,
        beats: Sequence[HeldHeartbeat],
        about: Mapping[str, object] | None = None,
    ) -> list[HeartbeatAnswer]:
        """A worker runs these."""
        ...

    async def report(self, tenant_id: int, said: Sequence[WorkerReport]) -> list[Verdict]:
        """What a worker says about its tries: accepted, fenced or unknown."""
        ...


class NodePort(Protocol):
    """The node as the API sees it. Every method returns at once and never raises."""

    def ownership(self) -> Ownership:
        """The node's present right to act, for statements that depend on what it owns."""
        ...

    def offer_eager_lease(self, tasks: Iterable[NewTask]) -> EagerLeaseOffer:
        """Which tasks that are about to be inserted may be leased to this node with it. To be ended
        in any case."""
        ...

    def end_eager_lease(
        self, start: EagerLeaseOffer, begun: Sequence[tuple[TaskRow, Execution]] | None
    ) -> None:
        """These of them were leased: start them. None: the answer was lost, look for them."""
        ...

    def created(self, rows: Sequence[TaskRow]) -> None:
        """These tasks were committed in partitions this node owns: no wake row tells of them."""
        ...

    def changed(self) -> None:
        """A change was committed: look at the wake rows now rather than at the next poll."""
        ...

    def moved(self, moved: Moved) -> None:
        """Runs of workflows moved on, and this was committed: tell whom it concerns."""
        ...

    def mark_stale(self) -> None:
        """An answer was lost, and something may have been committed: look at everything again."""
        ...

    def hint_others(self, partitions: Collection[int]) -> None:
        """The owners of these partitions have wake rows to look at: a hint that may get lost."""
        ...

    async def conclude(self, report: Report) -> bool:
        """Record an outcome that came through the API; False when its try is not the current one.
        This one waits for the database, and raises StoreUnavailable when that takes too long:
        then the outcome is yet to be written, and whether it will count is not known."""
        ...

    def explain(self, row: TaskRow) -> Situation:
        """What surrounds a task, as far as this node knows: much if it owns the partition."""
        ...

    def ready(self) -> bool:
        """Whether this node should be given requests."""
        ...
