"""Group commit: creations that come at the same time share one INSERT.

Nothing waits to form a batch: a flush takes what gathered while the flushes before it ran. Big
batches have a queue of their own, so that a single create never waits behind one.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

import asyncpg
import structlog

from mainspring import crash_points
from mainspring.api.node_ports import NodePort
from mainspring.clock import Clock, monotonic
from mainspring.domain.execution import Execution
from mainspring.domain.partitions import Ownership
from mainspring.domain.rows import TaskRow
from mainspring.errors import InvalidRequest, NothingSent, StoreUnavailable
from mainspring.node.retrying import write_in_parts
from mainspring.observe.metrics import Metrics
from mainspring.store.creation import Creation, EagerLeaseOffer, window_row
from mainspring.store.tasks import TaskStore

_FLUSHES_AT_ONCE = 2
_TASKS_PER_FLUSH = 1000
_BIG = 100
_REREAD_FOR = 5.0
_REREAD_EVERY = 0.25
# What a caller can change; of whatever else is refused the cause is ours.
_OF_THE_VALUES = (
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.ProgramLimitExceededError,
    asyncpg.InterfaceError,  # the driver cannot encode a value
)

_log = structlog.get_logger()


class _PendingCreation(NamedTuple):
    """A creation and its caller, who waits to hear whether it was inserted."""

    creation: Creation
    done: "asyncio.Future[bool]"


@dataclass(slots=True)
class Ingest:
    """The inserts of all tasks that the API creates."""

    tasks: TaskStore
    node: NodePort
    clock: Clock
    metrics: Metrics
    near: float
    _small: "_InsertQueue" = field(init=False)
    _big: "_InsertQueue" = field(init=False)

    def __post_init__(self) -> None:
        self._small = _InsertQueue(self._flush)
        self._big = _InsertQueue(self._flush)

    def create(self, creation: Creation) -> "asyncio.Future[bool]":
        """Insert all its tasks or none. The result: True when it is committed, False when its
        idempotency key was taken already, StoreUnavailable when that cannot be known."""
        queue = self._big if len(creation.tasks) > _BIG else self._small
        return queue.add(creation)

    async def _flush(self, group: Sequence[_PendingCreation]) -> None:
        await write_in_parts(group, self._write, self._refuse)

    async def _write(self, group: Sequence[_PendingCreation]) -> None:
        creations = [waiting.creation for waiting in group]
        offer = self.node.offer_eager_lease(task for c in creations for task in c.tasks)
        try:
            made = await self._insert(creations, offer)
        except NothingSent as error:
            for waiting in group:
                _fail(waiting, error)
        except StoreUnavailable as error:
            await self._read_again(group, offer, error)
        else:
            for waiting in group:
                _resolve(waiting, waiting.creation.tasks[0].id in made)

    async def _insert(
        self, creations: Sequence[Creation], offer: EagerLeaseOffer
    ) -> dict[UUID, int]:
        ownership = self.node.ownership()
        leased: Sequence[tuple[TaskRow, Execution]] | None = ()
        try:
            crash_points.reach("create.before_commit")
            made = await self.tasks.create(creations, ownership, offer)
            crash_points.reach("create.committed")
            leased = made.leased
        except NothingSent:
            raise
        except StoreUnavailable:
            leased = None
            raise
        finally:
            self.node.end_eager_lease(offer, leased)
        self.metrics.tasks_created.inc(len(made.partitions))
        ids = {row.id for row, _ in made.leased}
        if len(ids) < len(made.partitions):
            self._announce(creations, dict(made.partitions), ownership, ids)
        crash_points.reach("create.told_engine")
        return made.partitions

    def _announce(
        self,
        creations: Sequence[Creation],
        made: Mapping[UUID, int | None],
        ownership: Ownership,
        known: Collection[UUID],
    ) -> None:
        """Tell the owners of what is due soon; they load the rest when its time comes near. This
        node has the `known` ones already."""
        until = self.clock.now() + self.near
        ours: list[TaskRow] = []
        others: set[int] = set()
        for creation in creations:
            for task in creation.tasks:
                partition = made.get(task.id)
                if partition is None or task.due > until:
                    continue
                if partition not in ownership.partitions:
                    others.add(partition)
                elif task.id not in known:
                    ours.append(window_row(task, partition))
        if ours or others:
            self.node.announce(ours, others)

    async def _refuse(self, waiting: _PendingCreation, error: Exception) -> None:
        _log.error("the database refused a task", action="create.refused", exc_info=error)
        if isinstance(error, _OF_THE_VALUES):
            error = InvalidRequest("the database refused the values of this task")
        _fail(waiting, error)

    async def _read_again(
        self, group: Sequence[_PendingCreation], offer: EagerLeaseOffer, error: StoreUnavailable
    ) -> None:
        """Look whether an insert took effect, after its answer was lost."""
        deadline = monotonic() + _REREAD_FOR
        by_tenant: dict[int, list[_PendingCreation]] = {}
        for waiting in group:
            by_tenant.setdefault(waiting.creation.tenant_id, []).append(waiting)
        for tenant_id, members in by_tenant.items():
            creations = [waiting.creation for waiting in members]
            found = await self._find(tenant_id, creations, deadline)
            self.metrics.tasks_created.inc(len(found))
            self._announce(creations, found, self.node.ownership(), offer.tasks)
            for waiting in members:
                if waiting.creation.tasks[0].id in found:  # one speaks for all: none or all exist
                    _resolve(waiting, True)
                else:
                    _fail(waiting, error)

    async def _find(
        self, tenant_id: int, creations: Sequence[Creation], deadline: float
    ) -> Mapping[UUID, int | None]:
        """Return the tasks that exist, each with its partition while it is unfinished."""
        ids = [task.id for creation in creations for task in creation.tasks]
        while monotonic() < deadline:
            try:
                return await self.tasks.which_exist(tenant_id, ids)
            except StoreUnavailable:
                await asyncio.sleep(_REREAD_EVERY)
        # They may be there all the same, and our engine does not know of them.
        self.node.mark_stale()
        return {}


class _InsertQueue:
    """A queue of creations, emptied by at most two flushes at a time."""

    def __init__(self, flush: Callable[[Sequence[_PendingCreation]], Awaitable[None]]) -> None:
        self._flush = flush
        self._queue: deque[_PendingCreation] = deque()
        self._flushes: set[asyncio.Task[None]] = set()
        self._starting = False

    def add(self, creation: Creation) -> "asyncio.Future[bool]":
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._queue.append(_PendingCreation(creation, done))
        self._start()
        return done

    def _start(self) -> None:
        if self._starting or not self._queue or len(self._flushes) >= _FLUSHES_AT_ONCE:
            return
        # The task runs in the loop's next turn: who arrives in this turn shares its flush.
        self._starting = True
        task = asyncio.create_task(self._drain())
        self._flushes.add(task)
        task.add_done_callback(self._flushes.discard)

    async def _drain(self) -> None:
        self._starting = False
        while group := self._take():
            self._start()
            try:
                await self._flush(group)
            except Exception as error:
                for waiting in group:
                    _fail(waiting, error)
            finally:
                # Reached with callers still waiting only when the process is being stopped.
                for waiting in group:
                    _fail(waiting, StoreUnavailable("the node is stopping"))

    def _take(self) -> list[_PendingCreation]:
        group: list[_PendingCreation] = []
        size = 0
        while self._queue:
            size += len(self._queue[0].creation.tasks)
            if group and size > _TASKS_PER_FLUSH:
                break
            group.append(self._queue.popleft())
        return group


def _resolve(waiting: _PendingCreation, inserted: bool) -> None:
    # The caller may have gone; its tasks are committed all the same.
    if not waiting.done.done():
        waiting.done.set_result(inserted)


def _fail(waiting: _PendingCreation, error: Exception) -> None:
    if not waiting.done.done():
        waiting.done.set_exception(error)
