"""The partition loader: reads partitions as a whole, or as much of them as the engine has room for.

Partitions that became ours, streams that ran low, and, as a net under all that tells the engine of
changes, a slow rotating reload of every partition. With a large backlog one of these reads takes
seconds: they have a loop of their own, and the loader's goes on meanwhile.
"""

from collections import deque
from collections.abc import Collection, Mapping
from itertools import islice
from uuid import UUID

from mainspring.domain.partitions import PARTITIONS
from mainspring.domain.rows import TaskRow
from mainspring.engine.window import Refill
from mainspring.errors import StoreUnavailable
from mainspring.node.dispatcher import Dispatcher
from mainspring.node.retrying import PeriodicJobs
from mainspring.node.state import NodeState
from mainspring.store.claims import EngineStore

_BEGINNING_OF_TIME = float("-inf")
_CHUNK = 16
_RELOADED_TOGETHER = 2
_SLOWEST_RELOAD = 20


class PartitionLoader:
    """Reads whole partitions and streams, and tells the engine."""

    def __init__(self, state: NodeState, store: EngineStore, dispatcher: Dispatcher) -> None:
        self._state = state
        self._store = store
        self._dispatcher = dispatcher
        self._jobs = PeriodicJobs(state, state.partitions_wanted)
        self._to_load: dict[int, object] = {}
        """Partitions to load, in order, each with a token: a read under an older one is void."""
        self._chunk = _CHUNK
        self._maybe_changed: dict[int, float] = {}
        self._reload_next: list[int] = []

    def load(self, partitions: Collection[int]) -> None:
        """Load partitions that are ours now, then act for them."""
        for partition in sorted(partitions):
            self._to_load.setdefault(partition, object())
        self._state.partitions_wanted.set()

    def give_up(self, partitions: Collection[int]) -> None:
        """Stop acting for partitions that are no longer ours."""
        for partition in partitions:
            self._to_load.pop(partition, None)
        self._state.engine.disown(partitions, self._state.clock.now())

    @property
    def loading(self) -> bool:
        return bool(self._to_load)

    def mark_maybe_changed(self, partitions: Collection[int], until: float) -> None:
        """Note that until then a statement whose answer was lost may expire tasks in these."""
        self._maybe_changed.update(dict.fromkeys(partitions, until))

    async def run(self) -> None:
        jobs = self._jobs
        while True:
            await jobs.run(self._load_windows)
            if jobs.is_time("reload", self._reload_pace):
                began = self._state.clock.steady()
                await jobs.run(self._reload_some)
                # A large backlog makes a reload dear: it shall take a hundredth of the time at
                # most, so that it does not slow what it is there to catch.
                spent = self._state.clock.steady() - began
                jobs.delay("reload", min(100 * spent, _SLOWEST_RELOAD * self._reload_pace))
            await jobs.run(self._refill_streams)
            await jobs.wait()

    # Whole partitions ------------------------------------------------------------------------

    async def _read(self, partitions: Collection[int]) -> list[TaskRow]:
        """Return what is in partitions, up to the horizon, which may move on while we read."""
        rows: list[TaskRow] = []
        after = _BEGINNING_OF_TIME
        cap = self._state.config.read_cap
        while after < (until := self._state.engine.horizon):
            rows += await self._store.load_window(partitions, after=after, until=until, cap=cap)
            after = until
        return rows

    async def _load_windows(self) -> None:
        """Begin to act for some partitions. The rest comes after all other jobs: meanwhile tasks of
        the first start, and streams are refilled."""
        state = self._state
        for partition in state.stale_partitions & state.engine.partitions:
            self._to_load[partition] = object()
        state.stale_partitions.clear()
        if not self._to_load:
            self._chunk = _CHUNK
            state.metrics.partitions_owned.set(len(state.engine.partitions))
        # It must be known how far to look, and how much each tenant may run.
        elif state.engine.horizon and state.limits_read_by == state.node_id:
            state.partitions_wanted.set()
            await self._load_chunk(dict(islice(self._to_load.items(), self._chunk)))

    async def _load_chunk(self, chunk: Mapping[int, object]) -> None:
        try:
            rows = await self._read(chunk.keys())
        except StoreUnavailable:
            # Perhaps there is too much in one of them: the others shall not wait for it, and the
            # next attempt is at fewer.
            self._chunk = max(1, self._chunk // 4)
            for partition in self._to_load.keys() & chunk:
                self._to_load[partition] = self._to_load.pop(partition)
            raise
        still_ours = {p for p, token in chunk.items() if self._to_load.get(p) is token}
        for partition in still_ours:
            del self._to_load[partition]
        found = [row for row in rows if row.partition in still_ours]
        self._state.engine.own(still_ours, found, self._state.clock.now())
        self._state.request_dispatch()

    # Rotating reload -------------------------------------------------------------------------

    @property
    def _reload_pace(self) -> float:
        return self._state.config.reload_every / PARTITIONS * _RELOADED_TOGETHER

    async def _reload_some(self) -> None:
        """Compare some partitions with the database, in case a change was not heard of."""
        owned = self._state.engine.partitions
        self._reload_next = self._reload_next or sorted(owned)
        partitions = owned.intersection(self._reload_next[:_RELOADED_TOGETHER])
        del self._reload_next[:_RELOADED_TOGETHER]
        if not partitions:
            return
        rows = await self._read(partitions)
        self._dispatcher.cancel(self._state.apply(rows))
        now = self._state.clock.now()
        maybe_gone = self._maybe_gone(partitions, {row.id for row in rows}, now)
        if maybe_gone:
            seen = await self._store.look_at(maybe_gone)
            self._dispatcher.cancel(self._state.apply(seen.rows, seen.gone))
        self._maybe_changed = {
            partition: until
            for partition, until in self._maybe_changed.items()
            if partition not in partitions or until > now
        }

    def _maybe_gone(
        self, partitions: Collection[int], found: Collection[UUID], now: float
    ) -> list[tuple[int, UUID]]:
        """Return tasks that the engine knows and that may be gone."""
        engine = self._state.engine
        running = (
            task for partition in partitions for task in engine.running.in_partition(partition)
        )
        not_found = [task for task in running if task[1] not in found]
        maybe_changed = self._maybe_changed.keys() & partitions
        if not maybe_changed:
            return not_found
        return not_found + engine.window.expired_in(maybe_changed, now)

    # Streams that ran low --------------------------------------------------------------------

    async def _refill_streams(self) -> None:
        engine = self._state.engine
        wanted = deque(engine.window.refills())
        read = set[int]()
        try:
            while wanted:
                rows = await self._rows_for(wanted[0], read)
                self._state.apply(rows)
                engine.window.refilled(wanted[0], rows)
                wanted.popleft()
        finally:
            # One that failed must not make the others wait for an answer for ever.
            for refill in wanted:
                engine.window.not_refilled(refill)

    async def _rows_for(self, refill: Refill, read: set[int]) -> list[TaskRow]:
        """Return the rows of a refill. `read` has the partitions that were read for others."""
        partition = refill.stream.partition
        if refill.stream.queue is None:
            if partition in read:
                return []  # another tenant asked for it: the engine has seen everybody's tasks
            rows = await self._read([partition])
            read.add(partition)
            return rows
        return await self._store.load_more(
            refill.stream,
            since=refill.since,
            until=self._state.engine.horizon,
            known=refill.known,
            limit=refill.limit,
        )
