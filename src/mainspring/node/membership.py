"""Membership in the cluster: heartbeats, ownership of partitions, takeover and handover.

Heartbeats have a loop and a connection of their own, so that nothing delays them, not even moving
partitions. Every heartbeat also measures the database's clock.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any
from uuid import UUID

import asyncpg
import structlog

from mainspring import clock, crash_points
from mainspring.domain.partitions import PARTITIONS, preferred_owner
from mainspring.errors import StoreUnavailable
from mainspring.node.partition_loader import PartitionLoader
from mainspring.node.retrying import repeat, wait_at_most
from mainspring.node.signals import Signals
from mainspring.node.state import NodeState
from mainspring.postgres.database import CONNECTION_LOST
from mainspring.store.cluster import ClusterStore

log = structlog.get_logger()

Connect = Callable[[], Awaitable[asyncpg.Connection]]


@dataclass(eq=False)
class Membership:
    """Joins the cluster, sends heartbeats, and moves partitions to where they belong."""

    _state: NodeState
    _connect: Connect
    _clock: clock.DatabaseClock
    _partition_loader: PartitionLoader
    _signals: Signals
    _version: str
    _moved: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _moving: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    """Held while partitions move: our identity stays the same meanwhile."""
    _url: str | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._heartbeat_connection = _Connection(self._connect)
        self._balance_connection = _Connection(self._connect)

    def hint(self) -> None:
        """Look now: a node came, went or handed partitions over."""
        self._moved.set()

    async def join(self, url: str | None) -> None:
        """Anchor the clock and enter the cluster as a new incarnation."""
        self._url = url
        cluster = ClusterStore(await self._heartbeat_connection.connection())
        for _ in range(3):
            sent = clock.monotonic()
            self._clock.sample(await cluster.now(), sent=sent, received=clock.monotonic())
        await self._enter(cluster)
        log.info("joined the cluster", action="node.joined", node=str(self._state.node_id))

    def loops(self) -> dict[str, Callable[[], Coroutine[Any, Any, None]]]:
        errors = (StoreUnavailable, *CONNECTION_LOST)
        keep = partial(repeat, metrics=self._state.metrics, errors=errors)
        return {
            "membership.beat": partial(
                keep, self._beat_once, message="a heartbeat failed", action="node.beat_failed"
            ),
            "membership.balance": partial(
                keep,
                self._balance_once,
                message="moving partitions failed",
                action="node.move_failed",
            ),
        }

    async def leave(self) -> None:
        """Hand everything over at once and stop being a member. The loops have been stopped."""
        try:
            async with asyncio.timeout(self._state.config.node_ttl), self._moving:
                cluster = ClusterStore(await self._balance_connection.connection())
                others = [n for n in await self._alive(cluster) if n != self._state.node_id]
                mine = (await cluster.ownership()).get(self._state.node_id, [])
                new_owners = {p: preferred_owner(p, others) if others else None for p in mine}
                if await self._hand_over(cluster, new_owners, leaving=True):
                    await self._signals.cluster_changed()
        except (StoreUnavailable, TimeoutError, *CONNECTION_LOST) as problem:
            # The others will notice our silence instead.
            log.warning("could not hand over", action="node.leave_failed", problem=repr(problem))
        log.info("left the cluster", action="node.left", node=str(self._state.node_id))

    async def close(self) -> None:
        self._heartbeat_connection.drop()
        self._balance_connection.drop()

    # Being alive -----------------------------------------------------------------------------

    async def _beat_once(self) -> None:
        async with self._heartbeat_connection.cluster() as cluster:
            await self._beat(cluster)
        await asyncio.sleep(self._state.config.heartbeat)

    async def _beat(self, cluster: ClusterStore) -> None:
        epoch, sent = self._state.epoch, clock.monotonic()
        beat = await cluster.beat(self._state.node_id, epoch, self._state.beats)
        if beat is None:
            # Unless it was our own handover that raised the epoch: when it is over, we know.
            async with self._moving:
                if self._state.epoch == epoch:
                    await self._rejoin(cluster)
            return
        self._state.beats = beat.beats
        jump = self._clock.sample(beat.now, sent=sent, received=clock.monotonic())
        if jump:
            log.warning(
                "the database's clock jumped", action="clock.jumped", seconds=round(jump, 3)
            )

    async def _rejoin(self, cluster: ClusterStore) -> None:
        """Start again as a new node. This one was declared dead, or the database was restarted,
        restored or replaced, and what we know of it may no longer be true."""
        former = self._state.node_id
        log.warning("no longer a member", action="node.fenced", node=str(former))
        self._state.metrics.node_fenced.inc()
        self._partition_loader.give_up(range(PARTITIONS))
        self._state.renew()
        await self._enter(cluster, former)
        self.hint()

    async def _enter(self, cluster: ClusterStore, former: UUID | None = None) -> None:
        name = self._state.config.node_name
        self._state.epoch = await cluster.join(
            self._state.node_id, name, self._url, self._version, former=former
        )

    # Owning partitions -----------------------------------------------------------------------

    async def _balance_once(self) -> None:
        self._moved.clear()
        async with self._moving, self._balance_connection.cluster() as cluster:
            handed_over = await self._balance(cluster)
        if handed_over:
            await self._signals.cluster_changed()
        await wait_at_most(self._moved, self._state.config.heartbeat)

    async def _balance(self, cluster: ClusterStore) -> bool:
        """Take partitions over and hand others over. Return whether any were handed over."""
        me = self._state.node_id
        alive = tuple(await self._alive(cluster))
        if me not in alive:
            return False  # declared dead: the next beat tells
        ownership = await cluster.ownership()
        self._state.owners = {p: owner for owner, found in ownership.items() for p in found}
        mine = set(ownership.get(me, ()))
        wanted = _shares(alive).get(me, frozenset())
        orphans = wanted & {p for p, owner in self._state.owners.items() if owner not in alive}
        if orphans:
            mine |= await self._take_over(cluster, orphans)
        excess = mine - wanted
        handed_over = False
        if excess:
            new_owners = {p: node for node, share in _shares(alive).items() for p in share & excess}
            handed_over = await self._hand_over(cluster, new_owners)
        self._partition_loader.give_up(self._state.engine.partitions - mine)
        self._partition_loader.load(mine - excess - self._state.engine.partitions)
        return handed_over

    async def _alive(self, cluster: ClusterStore) -> list[UUID]:
        """Return the living members, and fence those that fell silent."""
        alive = []
        for member in await cluster.members():
            if member.silent < self._state.config.node_ttl or member.id == self._state.node_id:
                alive.append(member.id)
            elif await cluster.declare_dead(member.id, self._state.config.node_ttl):
                log.warning(
                    "declared a node dead", action="node.declared_dead", node=str(member.id)
                )
            # else: it spoke up again, another node was faster, or something of it is in flight;
            # the next look tells.
        return alive

    async def _take_over(self, cluster: ClusterStore, orphans: Collection[int]) -> set[int]:
        state = self._state
        taken = await cluster.take_over(state.node_id, state.epoch, orphans, state.beats)
        crash_points.reach("takeover.committed")
        if taken:
            log.info("took partitions over", action="node.took_over", partitions=len(taken))
        return set(taken)

    async def _hand_over(
        self,
        cluster: ClusterStore,
        new_owners: Mapping[int, UUID | None],
        *,
        leaving: bool = False,
    ) -> bool:
        ownership = self._state.ownership()
        self._partition_loader.give_up(new_owners.keys())
        epoch = await cluster.hand_over(ownership, new_owners, leaving=leaving)
        crash_points.reach("handover.committed")
        if epoch is None:
            return False
        self._state.epoch = epoch
        self._state.owners = {**self._state.owners, **new_owners}
        log.info("handed partitions over", action="node.handed_over", partitions=len(new_owners))
        return True


class _Connection:
    """A connection that is made when it is needed, and anew after it was lost."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._connection: asyncpg.Connection | None = None

    async def connection(self) -> asyncpg.Connection:
        if self._connection is None or self._connection.is_closed():
            self._connection = await self._connect()
        return self._connection

    @asynccontextmanager
    async def cluster(self) -> AsyncIterator[ClusterStore]:
        """Use the connection, and drop it when something goes wrong."""
        try:
            yield ClusterStore(await self.connection())
        except (StoreUnavailable, *CONNECTION_LOST):
            self.drop()
            raise

    def drop(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None


@lru_cache(maxsize=8)
def _shares(nodes: tuple[UUID, ...]) -> dict[UUID, frozenset[int]]:
    """Return which partitions belong to which of these nodes."""
    shares: dict[UUID, set[int]] = {node: set() for node in nodes}
    for partition in range(PARTITIONS):
        shares[preferred_owner(partition, nodes)].add(partition)
    return {node: frozenset(share) for node, share in shares.items()}
