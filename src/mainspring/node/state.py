"""What the drivers of one node share: the engine, the clock, the settings, the metrics, and the
node's right to act."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID, uuid4

from mainspring.clock import Clock
from mainspring.config import Config
from mainspring.domain.partitions import Ownership
from mainspring.domain.rows import TaskRow
from mainspring.engine.core import Engine
from mainspring.engine.leases import HeldLease
from mainspring.observe.metrics import Metrics


@dataclass(slots=True)
class NodeState:
    """One per process. Everything runs on one event loop, so nothing here needs a lock."""

    engine: Engine
    clock: Clock
    config: Config = field(default_factory=Config)
    metrics: Metrics = field(default_factory=Metrics)
    node_id: UUID = field(default_factory=uuid4)
    epoch: int = 0
    beats: int = 0
    """How many heartbeats the database has counted, as far as we know."""
    owners: Mapping[int, UUID | None] = field(default_factory=dict)
    """The owners of partitions when last read: good enough for hints."""
    dispatch_wanted: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the dispatcher has something to look at."""
    load_wanted: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the loader has something to look at."""
    wakes_wanted: bool = False
    """Whether the loader shall look at the wake rows."""
    partitions_wanted: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the partition loader has something to look at."""
    stale_partitions: set[int] = field(default_factory=set)
    """Partitions in which something may have been written that the engine was not told of."""
    limits_read_by: UUID | None = None
    """The node's id when all tenants' limits were read last: nothing starts by older ones."""
    _forgetting: list[Callable[[], None]] = field(default_factory=list)

    @property
    def worker(self) -> str:
        """The name under which this process leases tasks; never used again by another one."""
        return f"node:{self.node_id}"

    def ownership(self) -> Ownership:
        """Return our present right to act: for partitions that are ours and loaded."""
        return Ownership(self.node_id, self.epoch, self.engine.partitions, self.beats)

    def on_new_incarnation(self, forget: Callable[[], None]) -> None:
        """Call this when the node gets a new id: what was read before may never have been."""
        self._forgetting.append(forget)

    def renew(self) -> None:
        """Become a new node: this one was declared dead, or the database is another one."""
        self.node_id, self.epoch, self.beats = uuid4(), 0, 0
        self.load_wanted.set()
        for forget in self._forgetting:
            forget()

    def apply(self, rows: Sequence[TaskRow], gone: Sequence[UUID] = ()) -> list[HeldLease]:
        """Tell the engine which tasks were read and which are finished. Return our executions that
        have to be cancelled."""
        now = self.clock.now()
        self.request_dispatch()
        return self.engine.update(rows, now) + self.engine.remove(gone, now)

    def request_wakes(self) -> None:
        """Let the loader look at the wake rows now."""
        self.wakes_wanted = True
        self.load_wanted.set()

    def mark_stale(self, partitions: Collection[int]) -> None:
        """Let the partition loader read these partitions anew, for an answer was lost."""
        self.stale_partitions.update(partitions)
        self.partitions_wanted.set()

    def request_dispatch(self) -> None:
        self.dispatch_wanted.set()
