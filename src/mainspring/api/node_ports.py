"""What the API needs of the node it runs in."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from mainspring.domain.execution import Execution, Report
from mainspring.domain.partitions import Ownership
from mainspring.domain.rows import TaskRow
from mainspring.engine.demand import WorkerSession
from mainspring.engine.explain import Situation
from mainspring.node.workers.heartbeats_and_reports import HeartbeatAnswer, Verdict, WorkerReport
from mainspring.node.workers.lease_service import LeaseRequest
from mainspring.store.creation import EagerLeaseOffer, NewTask
from mainspring.store.leases import HeldHeartbeat, LeasedTask
from mainspring.store.workflows.step_rows import Moved

AboutWorker = Mapping[str, object] | None
"""What a worker tells of itself, if anything."""


class LeasePort(Protocol):
    """The node as workers see it. Every method waits for the database, and raises its errors."""

    async def lease(self, request: LeaseRequest) -> list[LeasedTask]:
        """Wait for tasks; when it is cancelled, what was leased meanwhile is released."""

    async def beat(
        self, holder: WorkerSession, beats: Sequence[HeldHeartbeat], about: AboutWorker = None
    ) -> list[HeartbeatAnswer]:
        """Extend the leases of what a worker runs."""

    async def report(self, tenant_id: int, said: Sequence[WorkerReport]) -> list[Verdict]:
        """Record outcomes of a worker: each is accepted, fenced or unknown."""


class NodePort(Protocol):
    """The node as the API sees it. Every method returns at once and never raises."""

    def ownership(self) -> Ownership:
        """The node's present right to act, for statements that depend on what it owns."""

    def offer_eager_lease(self, tasks: Iterable[NewTask]) -> EagerLeaseOffer:
        """Choose tasks, about to be inserted, that may be leased to this node in the same
        statement. `end_eager_lease` must follow in any case."""

    def end_eager_lease(
        self, offer: EagerLeaseOffer, leased: Sequence[tuple[TaskRow, Execution]] | None
    ) -> None:
        """Start those that were leased. None: the answer was lost, look for them."""

    def announce(self, rows: Sequence[TaskRow] = (), changed: Collection[int] = ()) -> None:
        """Announce a commit: tasks that were created in partitions of this node, of which no wake
        row tells, and partitions that have wake rows to look at."""

    def announce_runs(self, moved: Moved) -> None:
        """Announce what a commit did to runs of workflows."""

    def mark_stale(self) -> None:
        """Look at everything again: an answer was lost, and something may have been committed."""

    async def conclude(self, report: Report) -> bool:
        """Record an outcome that came through the API; False when its execution is not the current
        one. This one waits for the database, and raises StoreUnavailable when that takes too long:
        then the outcome is yet to be written, and whether it will count is not known."""

    def explain(self, row: TaskRow) -> Situation:
        """Return what this node knows around a task: much if it owns the partition."""

    def ready(self) -> bool:
        """Whether this node should be given requests."""
