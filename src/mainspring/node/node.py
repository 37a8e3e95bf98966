"""A node: the drivers, started and stopped in the right order, and the API's way to them."""

import asyncio
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import structlog

from mainspring.domain.capability import needs_worker
from mainspring.domain.execution import Report
from mainspring.domain.partitions import Ownership
from mainspring.domain.rows import TaskRow
from mainspring.engine.explain import Situation
from mainspring.engine.leases import HeldLease
from mainspring.errors import StoreUnavailable
from mainspring.execution.port import Executor
from mainspring.lifecycle import Supervisor
from mainspring.node.deadlines import Deadlines
from mainspring.node.dispatcher import Dispatcher
from mainspring.node.eager_leases import EagerLease
from mainspring.node.housekeeping import Housekeeper
from mainspring.node.materializer import Materializer
from mainspring.node.membership import Membership
from mainspring.node.partition_loader import PartitionLoader
from mainspring.node.recorder import Recorder
from mainspring.node.signals import Announcer, Signals
from mainspring.node.state import NodeState
from mainspring.node.window_loader import Loader
from mainspring.node.workers.lease_service import LeaseService
from mainspring.store.creation import EagerLeaseOffer, NewTask
from mainspring.store.workflows.step_rows import Moved

log = structlog.get_logger()

_CONCLUDED_WITHIN = 5.0


@dataclass(eq=False)
class Node:
    """One server process's share of the work."""

    _state: NodeState
    _membership: Membership
    _loader: Loader
    _partition_loader: PartitionLoader
    _dispatcher: Dispatcher
    _recorder: Recorder
    _signals: Signals
    _announcer: Announcer
    _housekeeper: Housekeeper
    _materializer: Materializer
    _deadlines: Deadlines
    _executors: Sequence[Executor]
    _lease_service: LeaseService
    _supervisor: Supervisor = field(default_factory=Supervisor, init=False)
    _joined: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._signals.on_wake = self.woken
        self._signals.on_cluster_changed = self._membership.hint
        for executor in self._executors:
            self._dispatcher.add_executor(executor)

    async def start(self, url: str | None) -> None:
        """Join the cluster and begin to work."""
        await self._membership.join(url)
        self._joined = True
        loops = {
            "signals.listen": self._signals.listen,
            "signals.send": self._signals.send,
            "loader": self._loader.run,
            "partition_loader": self._partition_loader.run,
            "dispatcher": self._dispatcher.run,
            "recorder": self._recorder.run,
            "housekeeper": self._housekeeper.run,
            "materializer": self._materializer.run,
            "deadlines": self._deadlines.run,
        }
        loops |= self._membership.loops() | self._lease_service.loops()
        for name, loop in loops.items():
            self._supervisor.start(name, loop)

    async def stop(self) -> None:
        """Take no more work, hand partitions over at once, finish or release what is running."""
        self._joined = False
        self._dispatcher.close()
        self._lease_service.close()
        await self._supervisor.stop(
            *self._membership.loops(),
            "loader",
            "partition_loader",
            "housekeeper",
            "materializer",
            "deadlines",
        )
        await self._membership.leave()
        await self._housekeeper.leave()
        await asyncio.gather(
            *(executor.stop(self._state.config.grace) for executor in self._executors)
        )
        await self._write_the_rest()
        await self._signals.flush()
        await self._supervisor.stop()
        await self._membership.close()

    async def _write_the_rest(self) -> None:
        try:
            async with asyncio.timeout(5):
                await self._recorder.drained()
        except TimeoutError:
            log.warning("some outcomes were not written", action="node.unwritten")

    def woken(self) -> None:
        """Look at the wake rows, and for due schedules."""
        self._state.request_wakes()
        self._materializer.hint()

    # The API's way in ------------------------------------------------------------------------

    def ownership(self) -> Ownership:
        return self._state.ownership()

    def offer_eager_lease(self, tasks: Iterable[NewTask]) -> EagerLeaseOffer:
        return self._dispatcher.eager_leases.offer_tasks(tasks)

    def end_eager_lease(self, offer: EagerLeaseOffer, leased: Sequence[EagerLease] | None) -> None:
        self._dispatcher.eager_leases.end_tasks(offer, leased)

    def announce(self, rows: Sequence[TaskRow] = (), changed: Collection[int] = ()) -> None:
        self._announcer.announce(rows, changed)
        if not self._state.engine.partitions.isdisjoint(changed):
            self._materializer.hint()

    def announce_runs(self, moved: Moved) -> None:
        self._announcer.announce_runs(moved)
        if moved.told:
            self._materializer.hint()

    def mark_stale(self) -> None:
        self._state.mark_stale(self._state.engine.partitions)

    async def conclude(self, report: Report) -> bool:
        try:
            async with asyncio.timeout(_CONCLUDED_WITHIN):
                [accepted] = await self._recorder.record([report])
        except TimeoutError:
            # It is written as soon as that can be done; nobody shall hang until then.
            raise StoreUnavailable("the outcome was not written in time") from None
        if accepted:
            # If the execution is ours, its executor has nothing to wait for; if not, its node finds
            # out when it extends the lease.
            execution = report.execution
            held = HeldLease(execution.tenant_id, execution.id, execution.fence)
            self._dispatcher.cancel([held])
        return accepted

    def explain(self, row: TaskRow) -> Situation:
        around = self._state.engine.situation(row, self._state.clock.now())
        if needs_worker(row.capability):
            return around
        slots = self._dispatcher.room_for(row) if around.owned else None
        waits = (executor.holds_back(row.id, row.fence) for executor in self._executors)
        return around._replace(
            can_run=self._dispatcher.accepts(row.capability),
            free_slots=slots,
            held_back=next(filter(None, waits), None),
        )

    def ready(self) -> bool:
        """Whether the node has joined, and has loaded all that is its own."""
        return self._joined and bool(self._state.owners) and not self._partition_loader.loading
