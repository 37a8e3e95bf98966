"""What the API needs of the node it runs in."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from mainspring.domain.execution import Assignment, Report
from mainspring.domain.placement import Tenure
from mainspring.domain.rows import TaskRow
from mainspring.engine.demand import Holder
from mainspring.engine.explain import Situation
from mainspring.node.workers.lease_service import Wish
from mainspring.node.workers.reports import Pulse, Said, Verdict
from mainspring.store.creation import HeadStart, NewTask
from mainspring.store.leases import Beat, Leased
from mainspring.store.step_rows import Moved


class LeasePort(Protocol):
    """The node as workers see it. Every method waits for the database, and raises its errors."""

    async def lease(self, wish: Wish) -> list[Leased]:
        """Wait for tasks; when it is cancelled, what was leased meanwhile is released."""
        ...

    async def beat(
        self,
        holder: Holder,
        beats: Sequence[Beat],
        about: Mapping[str, object] | None = None,
    ) -> list[Pulse]:
        """A worker runs these."""
        ...

    async def report(self, tenant_id: int, said: Sequence[Said]) -> list[Verdict]:
        """What a worker says about its tries: accepted, fenced or unknown."""
        ...


class NodePort(Protocol):
    """The node as the API sees it. Every method returns at once and never raises."""

    def tenure(self) -> Tenure:
        """The node's present right to act, for statements that depend on what it owns."""
        ...

    def offer_head_start(self, tasks: Iterable[NewTask]) -> HeadStart:
        """Which tasks that are about to be inserted may be leased to this node with it. To be ended
        in any case."""
        ...

    def end_head_start(
        self, start: HeadStart, begun: Sequence[tuple[TaskRow, Assignment]] | None
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

    def doubt(self) -> None:
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
