"""Membership: being alive, owning partitions, taking over from the dead, making room for the new.

Heartbeats have a connection of their own, so that no other work can delay them. Every beat also
measures the database's clock.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import lru_cache
from uuid import UUID

import asyncpg
import structlog

from mainspring import clock, crash
from mainspring.config import Config
from mainspring.domain.placement import PARTITIONS, preferred_owner
from mainspring.errors import StoreUnavailable
from mainspring.node.loader import Loader
from mainspring.node.signals import Signals
from mainspring.node.state import NodeState
from mainspring.observe.metrics import Metrics
from mainspring.store.cluster import Cluster, Member
from mainspring.store.database import CONNECTION_LOST

log = structlog.get_logger()

_RETRY_PAUSE = 0.25


class Membership:
    """Joins the cluster, beats, and moves partitions towards where they belong."""

    def __init__(
        self,
        config: Config,
        state: NodeState,
        connect: Callable[[], Awaitable[asyncpg.Connection]],
        database_clock: clock.DatabaseClock,
        loader: Loader,
        signals: Signals,
        metrics: Metrics,
        version: str,
    ) -> None:
        self._config = config
        self._state = state
        self._connect = connect
        self._clock = database_clock
        self._loader = loader
        self._signals = signals
        self._metrics = metrics
        self._version = version
        self._connection: asyncpg.Connection | None = None
        self._moved = asyncio.Event()
        self._busy = asyncio.Lock()
        self._leaving = False
        self._url: str | None = None

    def hint(self) -> None:
        """Somebody came, went or gave something away: look now."""
        self._moved.set()

    async def join(self, url: str | None) -> None:
        """Anchor the clock and enter the cluster as a new incarnation."""
        self._url = url
        cluster = await self._cluster()
        assert self._connection is not None
        for _ in range(3):
            sent = clock.monotonic()
            now = await self._connection.fetchval(
                "SELECT extract(epoch FROM clock_timestamp())::float8"
            )
            self._clock.sample(now, sent=sent, received=clock.monotonic())
        self._state.epoch = await cluster.join(
            self._state.node_id, self._config.node_name, url, self._version
        )
        log.info("joined the cluster", action="node.joined", node=str(self._state.node_id))

    async def run(self) -> None:
        while not self._leaving:
            self._moved.clear()
            try:
                async with self._busy:
                    await self._turn()
            except (StoreUnavailable, *CONNECTION_LOST) as problem:
                self._metrics.database_errors.inc()
                log.warning("a heartbeat failed", action="node.beat_failed", problem=repr(problem))
                self._drop_connection()
                await asyncio.sleep(_RETRY_PAUSE)
                continue
            try:
                async with asyncio.timeout(self._config.heartbeat):
                    await self._moved.wait()
            except TimeoutError:
                pass

    async def leave(self) -> None:
        """Hand everything over at once and stop being a member."""
        self._leaving = True
        try:
            async with asyncio.timeout(self._config.node_ttl), self._busy:
                cluster = await self._cluster()
                heirs = [m.id for m in await self._alive(cluster) if m.id != self._state.node_id]
                mine = (await cluster.ownership()).get(self._state.node_id, [])
                gifts = {p: preferred_owner(p, heirs) if heirs else None for p in mine}
                await self._hand_over(cluster, gifts, leaving=True)
        except (StoreUnavailable, TimeoutError, *CONNECTION_LOST) as problem:
            # The others will notice our silence instead.
            log.warning("could not hand over", action="node.leave_failed", problem=repr(problem))
        log.info("left the cluster", action="node.left", node=str(self._state.node_id))

    async def close(self) -> None:
        self._drop_connection()

    async def _turn(self) -> None:
        cluster = await self._cluster()
        sent = clock.monotonic()
        now = await cluster.beat(self._state.node_id, self._state.epoch)
        if now is None:
            await self._rejoin(cluster)
            return
        jump = self._clock.sample(now, sent=sent, received=clock.monotonic())
        if jump:
            log.warning(
                "the database's clock jumped", action="clock.jumped", seconds=round(jump, 3)
            )
        await self._balance(cluster)

    async def _rejoin(self, cluster: Cluster) -> None:
        """We were declared dead: whatever we owned is another's now. Start again as a new node."""
        log.warning("declared dead by others", action="node.fenced", node=str(self._state.node_id))
        self._metrics.node_fenced.inc()
        self._loader.give_up(range(PARTITIONS))
        self._state.renew()
        self._state.epoch = await cluster.join(
            self._state.node_id, self._config.node_name, self._url, self._version
        )
        self.hint()

    async def _balance(self, cluster: Cluster) -> None:
        me = self._state.node_id
        alive = await self._alive(cluster)
        ids = tuple(member.id for member in alive)
        if me not in ids:
            return  # declared dead since the beat: the next beat tells
        ownership = await cluster.ownership()
        self._state.owners = {p: owner for owner, found in ownership.items() for p in found}
        mine = set(ownership.get(me, ()))
        wanted = _shares(ids).get(me, frozenset())
        orphans = {
            p
            for owner, found in ownership.items()
            if owner not in ids
            for p in found
            if p in wanted
        }
        if orphans:
            mine |= await self._take_over(cluster, orphans)
        excess = mine - wanted
        if excess:
            shares = _shares(ids)
            heir = {p: node for node, share in shares.items() for p in share & excess}
            await self._hand_over(cluster, heir)
        self._loader.give_up(self._state.engine.partitions - mine)
        self._loader.load(mine - excess - self._state.engine.partitions)

    async def _alive(self, cluster: Cluster) -> list[Member]:
        """The living members; those that fell silent are fenced on the way."""
        alive = []
        for member in await cluster.members():
            if member.silent < self._config.node_ttl or member.id == self._state.node_id:
                alive.append(member)
            elif await cluster.declare_dead(member.id, self._config.node_ttl):
                log.warning(
                    "declared a node dead", action="node.declared_dead", node=str(member.id)
                )
            # else: it spoke up again, or another node was faster; the next beat tells.
        return alive

    async def _take_over(self, cluster: Cluster, orphans: set[int]) -> set[int]:
        taken = await cluster.take_over(self._state.node_id, self._state.epoch, orphans)
        crash.reach("takeover.committed")
        if taken:
            log.info("took partitions over", action="node.took_over", partitions=len(taken))
        return set(taken)

    async def _hand_over(
        self,
        cluster: Cluster,
        gifts: dict[int, UUID | None] | dict[int, UUID],
        *,
        leaving: bool = False,
    ) -> None:
        tenure = self._state.tenure()
        self._loader.give_up(gifts.keys())
        epoch = await cluster.hand_over(tenure, gifts, leaving=leaving)
        crash.reach("handover.committed")
        if epoch is not None:
            self._state.epoch = epoch
            self._state.owners = {**self._state.owners, **gifts}
            log.info("handed partitions over", action="node.handed_over", partitions=len(gifts))
            await self._signals.cluster_changed()

    async def _cluster(self) -> Cluster:
        if self._connection is None or self._connection.is_closed():
            self._connection = await self._connect()
        return Cluster(self._connection)

    def _drop_connection(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None


@lru_cache(maxsize=8)
def _shares(nodes: tuple[UUID, ...]) -> dict[UUID, frozenset[int]]:
    """Which partitions belong to which of these nodes."""
    shares: dict[UUID, set[int]] = {node: set() for node in nodes}
    for partition in range(PARTITIONS):
        shares[preferred_owner(partition, nodes)].add(partition)
    return {node: frozenset(share) for node, share in shares.items()}
