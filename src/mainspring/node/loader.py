"""The loader: keeps the engine's window true to the database.

One loop, one thing at a time, so that loads never overtake each other: partitions that became ours,
changes by others (wake rows), the next stretch of time, refills of streams that ran low, and, as a
net under it all, a slow rotating reload of every partition.
"""

import asyncio
from collections import deque
from collections.abc import Collection, Sequence

import structlog

from mainspring import crash
from mainspring.config import Config
from mainspring.domain.placement import PARTITIONS
from mainspring.domain.rows import TaskRow
from mainspring.engine.window import Refill
from mainspring.errors import StoreUnavailable
from mainspring.node.dispatcher import Dispatcher
from mainspring.node.state import NodeState
from mainspring.observe.metrics import Metrics
from mainspring.store.engine import EngineStore
from mainspring.store.keys import Keys

log = structlog.get_logger()

_BEGINNING_OF_TIME = float("-inf")
_STOCK_CHUNK = 16
_LIMITS_EVERY = 2.0
_EXPIRE_EVERY = 1.0
_RETRY_PAUSE = 0.25
_RELOADED_TOGETHER = 2
_SLOWEST_RELOAD = 20


class Loader:
    """Reads, and tells the engine."""

    def __init__(
        self,
        config: Config,
        state: NodeState,
        store: EngineStore,
        keys: Keys,
        dispatcher: Dispatcher,
        metrics: Metrics,
    ) -> None:
        self._config = config
        self._state = state
        self._store = store
        self._keys = keys
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._to_load: set[int] = set()
        self._horizon = 0.0
        self._reload_next: list[int] = []
        self._due: dict[str, float] = {}

    def load(self, partitions: Collection[int]) -> None:
        """These partitions are ours: find out what is in them, then act for them."""
        self._to_load.update(partitions)
        self._state.load_wanted.set()

    def doubt(self, partitions: Collection[int]) -> None:
        """Something may have been written there that we never heard of: look at all again."""
        self.load(self._state.engine.partitions.intersection(partitions))

    def give_up(self, partitions: Collection[int]) -> None:
        """These partitions are no longer ours."""
        self._to_load.difference_update(partitions)
        self._state.engine.disown(partitions, self._state.clock.now())

    @property
    def loading(self) -> bool:
        return bool(self._to_load)

    def hint(self) -> None:
        """Somebody changed something: look at the wake rows now."""
        self._due["wakes"] = 0.0
        self._state.load_wanted.set()

    async def run(self) -> None:
        await self._refresh_limits()
        while True:
            try:
                await self._turn()
            except StoreUnavailable as problem:
                self._metrics.database_errors.inc()
                log.warning("loading failed", action="load.failed", problem=str(problem))
                await asyncio.sleep(_RETRY_PAUSE)
            await self._rest()

    async def _turn(self) -> None:
        self._state.load_wanted.clear()
        self._to_load.update(self._state.doubtful & self._state.engine.partitions)
        self._state.doubtful.clear()
        await self._advance()
        await self._take_stock()
        if self._is_time("wakes", self._config.wake_poll):
            await self._take_wakes()
        if self._state.engine.limits_wanted or self._is_time("limits", _LIMITS_EVERY):
            await self._refresh_limits()
        if self._is_time("expire", _EXPIRE_EVERY):
            await self._expire()
        if self._is_time("reload", self._reload_pace):
            await self._reload_some()
            self._rest_from_reloading()
        await self._refill_streams()

    async def _rest(self) -> None:
        if self._state.load_wanted.is_set():
            return
        now = self._state.clock.steady()
        wait = max(0.0, min(self._due.values(), default=now) - now)
        try:
            async with asyncio.timeout(min(wait, self._config.wake_poll)):
                await self._state.load_wanted.wait()
        except TimeoutError:
            pass

    def _is_time(self, chore: str, every: float) -> bool:
        # By the steady clock: the database's may stand still for us, after it jumped back.
        now = self._state.clock.steady()
        if now < self._due.get(chore, 0.0):
            return False
        self._due[chore] = now + every
        return True

    # Chores ----------------------------------------------------------------------------------

    async def _advance(self) -> None:
        """Look further ahead. The engine wants the new stretch before it is read: what is written
        meanwhile reaches it one way or the other."""
        wanted = self._state.clock.now() + self._config.look_ahead
        if wanted - self._horizon < self._config.look_ahead / 4:
            return
        self._state.engine.look_ahead_to(wanted)
        partitions = self._state.engine.partitions
        if partitions:
            self._saw(await self._read(partitions, after=self._horizon, until=wanted))
        self._horizon = wanted

    async def _read(
        self, partitions: Collection[int], *, after: float, until: float
    ) -> list[TaskRow]:
        # One more than the window holds of a stream: that one tells the window there is more.
        cap = self._config.stream_cap + 1
        return await self._store.take_stock(partitions, after=after, until=until, cap=cap)

    async def _take_stock(self) -> None:
        """Begin to act for partitions, some at a time: the first can start tasks while the rest
        are read."""
        while self._to_load:
            chunk = sorted(self._to_load)[:_STOCK_CHUNK]
            rows = await self._store.take_stock(
                chunk,
                after=_BEGINNING_OF_TIME,
                until=self._horizon,
                cap=self._config.stream_cap + 1,
            )
            still_ours = self._to_load.intersection(chunk)
            self._to_load.difference_update(chunk)
            now = self._state.clock.now()
            self._state.engine.own(
                still_ours, [row for row in rows if row.partition in still_ours], now
            )
            self._state.poke()
        self._metrics.partitions_owned.set(len(self._state.engine.partitions))

    async def _take_wakes(self) -> None:
        tenure = self._state.tenure()
        if not tenure.partitions:
            return
        try:
            seen = await self._store.take_wakes(tenure)
            if seen.rows:
                # A task may have been moved here because its tenant got a limit: know it first.
                await self._refresh_limits()
        except StoreUnavailable:
            # The rows may be deleted all the same, and what they said with them: look at all.
            self.doubt(tenure.partitions)
            raise
        if not (seen.rows or seen.gone):
            return
        crash.reach("wake.consumed")
        now = self._state.clock.now()
        self._dispatcher.cancel(self._state.engine.saw(seen.rows, now))
        self._dispatcher.cancel(self._state.engine.gone(seen.gone, now))
        self._dispatcher.nudge_workers(seen.rows)
        self._state.poke()

    async def _refresh_limits(self) -> None:
        self._state.engine.set_limits(await self._keys.limits(), self._state.clock.now())
        self._state.poke()

    async def _expire(self) -> None:
        tenure = self._state.tenure()
        if tenure.partitions:
            ended = await self._store.expire(tenure)
            self._state.engine.gone(ended, self._state.clock.now())
            self._metrics.tasks_finished.labels("expired").inc(len(ended))

    @property
    def _reload_pace(self) -> float:
        return self._config.reload_every / PARTITIONS * _RELOADED_TOGETHER

    async def _reload_some(self) -> None:
        """Compare some partitions with the database: the net under hints, wakes and signals."""
        owned = self._state.engine.partitions
        self._reload_next = self._reload_next or sorted(owned)
        partitions = owned.intersection(self._reload_next[:_RELOADED_TOGETHER])
        del self._reload_next[:_RELOADED_TOGETHER]
        if not partitions:
            return
        rows = await self._read(partitions, after=_BEGINNING_OF_TIME, until=self._horizon)
        self._saw(rows)
        found = {row.id for row in rows}
        doubtful = [
            task
            for partition in partitions
            for task in self._state.engine.running_in(partition)
            if task[1] not in found
        ]
        if doubtful:
            seen = await self._store.look_at(doubtful)
            self._saw(seen.rows)
            self._state.engine.gone(seen.gone, self._state.clock.now())

    def _rest_from_reloading(self) -> None:
        """A large backlog makes a reload dear: the net shall take a hundredth of the time at most,
        so that it does not slow what it is there to catch."""
        every = self._reload_pace
        spent = self._state.clock.steady() - (self._due["reload"] - every)
        self._due["reload"] += min(max(0.0, 100 * spent - every), _SLOWEST_RELOAD * every)

    async def _refill_streams(self) -> None:
        engine = self._state.engine
        wanted = deque(engine.refills())
        try:
            while wanted:
                rows = await self._load(wanted[0])
                engine.refilled(wanted.popleft(), rows, self._state.clock.now())
                self._state.poke()
        finally:
            # One that failed must not make the others wait for an answer for ever.
            for refill in wanted:
                engine.not_refilled(refill)

    async def _load(self, refill: Refill) -> list[TaskRow]:
        if refill.stream.queue is None:
            partition = refill.stream.partition
            return await self._read([partition], after=_BEGINNING_OF_TIME, until=self._horizon)
        return await self._store.load_more(
            refill.stream,
            since=refill.since,
            until=self._horizon,
            known=refill.known,
            limit=refill.limit,
        )

    def _saw(self, rows: Sequence[TaskRow]) -> None:
        self._dispatcher.cancel(self._state.engine.saw(rows, self._state.clock.now()))
        if rows:
            self._state.poke()
