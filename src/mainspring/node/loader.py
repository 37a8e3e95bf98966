"""The loader: keeps the engine's window true to the database.

One loop, one thing at a time, so that loads never overtake each other: partitions that became ours,
changes by others (wake rows), the next stretch of time, refills of streams that ran low, and, as a
net under it all, a slow rotating reload of every partition.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from itertools import islice
from uuid import UUID

import structlog

from mainspring import crash
from mainspring.config import Config
from mainspring.domain.placement import PARTITIONS
from mainspring.domain.rows import TaskRow
from mainspring.engine.window import Refill
from mainspring.errors import NothingSent, StoreUnavailable
from mainspring.node.dispatcher import Dispatcher
from mainspring.node.state import NodeState
from mainspring.observe.metrics import Metrics
from mainspring.store.engine import EngineStore, Woken
from mainspring.store.keys import Keys

log = structlog.get_logger()

_BEGINNING_OF_TIME = float("-inf")
_STOCK_CHUNK = 16
_WAKES_AT_ONCE = 2000
_EXPIRED_AT_ONCE = 1000
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
        self._to_load: dict[int, None] = {}  # a set that keeps its order
        self._stock_chunk = _STOCK_CHUNK
        self._heard: list[int] = []
        """Wake rows of which the engine has heard: they may go."""
        self._unsure: dict[int, float] = {}
        """Partitions in which tasks may expire without a word to the engine, and until when: a
        statement whose answer was lost may come late."""
        self._horizon = 0.0
        self._reload_next: list[int] = []
        self._due: dict[str, float] = {}

    def load(self, partitions: Collection[int]) -> None:
        """These partitions are ours: find out what is in them, then act for them."""
        self._to_load.update(dict.fromkeys(sorted(partitions)))
        self._state.load_wanted.set()

    def give_up(self, partitions: Collection[int]) -> None:
        """These partitions are no longer ours."""
        for partition in partitions:
            self._to_load.pop(partition, None)
        self._state.engine.disown(partitions, self._state.clock.now())

    @property
    def loading(self) -> bool:
        return bool(self._to_load)

    def hint(self) -> None:
        """Somebody changed something: look at the wake rows now."""
        self._soon_again("wakes")

    async def run(self) -> None:
        await self._refresh_limits()
        while True:
            if not await self._turn():
                await asyncio.sleep(_RETRY_PAUSE)
            await self._rest()

    async def _turn(self) -> bool:
        """Every chore whose time has come; answers whether all were done."""
        self._state.load_wanted.clear()
        self._to_load.update(dict.fromkeys(self._state.doubtful & self._state.engine.partitions))
        self._state.doubtful.clear()
        done = [await self._try(self._advance), await self._try(self._take_stock)]
        if self._is_time("wakes", self._config.wake_poll):
            done.append(await self._try(self._take_wakes))
        if self._state.engine.limits_wanted or self._is_time("limits", _LIMITS_EVERY):
            done.append(await self._try(self._refresh_limits))
        if self._is_time("expire", _EXPIRE_EVERY):
            done.append(await self._try(self._expire))
        if self._is_time("reload", self._reload_pace):
            done.append(await self._try(self._reload_some))
            self._rest_from_reloading()
        done.append(await self._try(self._refill_streams))
        return all(done)

    async def _try(self, chore: Callable[[], Awaitable[None]]) -> bool:
        """Do a chore. One that fails, perhaps each time, takes no other's turn."""
        try:
            with self._state.engine.reading():
                await chore()
        except StoreUnavailable as problem:
            self._metrics.database_errors.inc()
            name = chore.__name__.strip("_")
            log.warning("loading failed", action="load.failed", chore=name, problem=str(problem))
            return False
        return True

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

    def _soon_again(self, chore: str) -> None:
        """There is more to do of it: in the next turn, after the others had theirs."""
        self._due[chore] = 0.0
        self._state.load_wanted.set()

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
        self,
        partitions: Collection[int],
        *,
        after: float = _BEGINNING_OF_TIME,
        until: float | None = None,
    ) -> list[TaskRow]:
        """What is in partitions, up to our horizon if nothing else is said."""
        until = self._horizon if until is None else until
        # One more than the window holds of a stream: that one tells the window there is more.
        cap = self._config.stream_cap + 1
        return await self._store.take_stock(partitions, after=after, until=until, cap=cap)

    async def _take_stock(self) -> None:
        """Begin to act for partitions, some at a time: the first can start tasks while the rest
        are read."""
        while self._to_load:
            await self._take_stock_of(list(islice(self._to_load, self._stock_chunk)))
        self._stock_chunk = _STOCK_CHUNK
        self._metrics.partitions_owned.set(len(self._state.engine.partitions))

    async def _take_stock_of(self, chunk: Sequence[int]) -> None:
        try:
            rows = await self._read(chunk)
        except StoreUnavailable:
            # Perhaps there is too much in one of them: the others shall not wait for it, and the
            # next attempt is at fewer.
            self._stock_chunk = max(1, self._stock_chunk // 4)
            for partition in self._to_load.keys() & chunk:
                self._to_load[partition] = self._to_load.pop(partition)
            raise
        still_ours = self._to_load.keys() & chunk
        for partition in still_ours:
            del self._to_load[partition]
        found = [row for row in rows if row.partition in still_ours]
        self._state.engine.own(still_ours, found, self._state.clock.now())
        self._state.poke()

    async def _take_wakes(self) -> None:
        tenure = self._state.tenure()
        if not tenure.partitions:
            return
        woken = await self._store.take_wakes(tenure, self._heard, limit=_WAKES_AT_ONCE)
        if woken.wakes:
            crash.reach("wake.read")
            await self._hear(woken)
        # Not before: what the engine has not heard of must be there to be read again.
        self._heard = woken.wakes
        if len(woken.wakes) == _WAKES_AT_ONCE:
            self._soon_again("wakes")

    async def _hear(self, woken: Woken) -> None:
        if woken.rows:
            # A task may have been moved here because its tenant got a limit: know it first.
            await self._learn_limits({row.tenant_id for row in woken.rows})
        now = self._state.clock.now()
        self._dispatcher.cancel(self._state.engine.saw(woken.rows, now))
        self._dispatcher.cancel(self._state.engine.gone(woken.gone, now))
        self._dispatcher.nudge_workers(woken.rows)
        self._state.poke()

    async def _refresh_limits(self) -> None:
        await self._learn_limits(None)

    async def _learn_limits(self, tenants: Collection[int] | None) -> None:
        limits = await self._keys.limits(tenants)
        self._state.engine.set_limits(limits, self._state.clock.now())
        self._state.poke()

    async def _expire(self) -> None:
        tenure = self._state.tenure()
        if not tenure.partitions:
            return
        try:
            ended = await self._store.expire(tenure, limit=_EXPIRED_AT_ONCE)
        except NothingSent:
            raise
        except StoreUnavailable:
            until = self._state.clock.now() + self._config.near
            self._unsure.update(dict.fromkeys(tenure.partitions, until))
            raise
        self._state.engine.gone(ended, self._state.clock.now())
        self._metrics.tasks_finished.labels("expired").inc(len(ended))
        if len(ended) == _EXPIRED_AT_ONCE:
            self._soon_again("expire")

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
        rows = await self._read(partitions)
        self._saw(rows)
        now = self._state.clock.now()
        doubtful = self._doubtful_in(partitions, {row.id for row in rows}, now)
        if doubtful:
            seen = await self._store.look_at(doubtful)
            self._saw(seen.rows)
            self._state.engine.gone(seen.gone, self._state.clock.now())
        self._unsure = {
            partition: until
            for partition, until in self._unsure.items()
            if partition not in partitions or until > now
        }

    def _doubtful_in(
        self, partitions: Collection[int], found: Collection[UUID], now: float
    ) -> list[tuple[int, UUID]]:
        """Tasks that the engine knows and that may be gone."""
        engine = self._state.engine
        running = (task for partition in partitions for task in engine.running_in(partition))
        doubtful = [task for task in running if task[1] not in found]
        unsure = self._unsure.keys() & partitions
        return doubtful + engine.overdue_in(unsure, now) if unsure else doubtful

    def _rest_from_reloading(self) -> None:
        """A large backlog makes a reload dear: the net shall take a hundredth of the time at most,
        so that it does not slow what it is there to catch."""
        every = self._reload_pace
        spent = self._state.clock.steady() - (self._due["reload"] - every)
        self._due["reload"] += min(max(0.0, 100 * spent - every), _SLOWEST_RELOAD * every)

    async def _refill_streams(self) -> None:
        engine = self._state.engine
        wanted = deque(engine.refills())
        read = set[int]()
        try:
            while wanted:
                rows = await self._load(wanted[0], read)
                engine.refilled(wanted.popleft(), rows, self._state.clock.now())
                self._state.poke()
        finally:
            # One that failed must not make the others wait for an answer for ever.
            for refill in wanted:
                engine.not_refilled(refill)

    async def _load(self, refill: Refill, read: set[int]) -> list[TaskRow]:
        """`read` has the partitions that were read as a whole since the refills were asked for."""
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
            until=self._horizon,
            known=refill.known,
            limit=refill.limit,
        )

    def _saw(self, rows: Sequence[TaskRow]) -> None:
        self._dispatcher.cancel(self._state.engine.saw(rows, self._state.clock.now()))
        if rows:
            self._state.poke()
