"""Signals: what a commit of this node means for its engine, and hints to other nodes.

A hint only says where to look; what must not be lost is a wake row. It travels as a NOTIFY of its
own, after the commit it speaks of and many changes at a time, because NOTIFY takes a lock over the
whole server at commit. Behind a pooler there is no LISTEN: then everything still works, by polling.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

import asyncpg
import structlog

from mainspring.domain.rows import TaskRow
from mainspring.errors import StoreUnavailable
from mainspring.node.retrying import repeat
from mainspring.node.state import NodeState
from mainspring.postgres.database import CONNECTION_LOST, Database
from mainspring.store.cluster import SQL
from mainspring.store.workflows.step_rows import Moved

log = structlog.get_logger()

_CHANNEL = "mainspring"
_CLUSTER_CHANGED = "cluster"
_GATHER = 0.003
_RETRY_PAUSE = 1.0
_PROBE_EVERY = 5.0


class Signals:
    """Sends and hears hints."""

    def __init__(
        self,
        state: NodeState,
        database: Database,
        connect: Callable[[], Awaitable[asyncpg.Connection]] | None,
    ) -> None:
        self._state = state
        self._database = database
        self._connect = connect
        self._pending: set[str] = set()
        self._filled = asyncio.Event()
        self.on_wake: Callable[[], None] = lambda: None
        self.on_cluster_changed: Callable[[], None] = lambda: None
        self.on_mail: Callable[[], None] = lambda: None

    def wake_owners(self, partitions: Collection[int]) -> None:
        """Hint to the owners of these partitions that they have wake rows."""
        owners = {self._state.owners.get(partition) for partition in partitions}
        self._pending.update(str(o) for o in owners if o is not None and o != self._state.node_id)
        if self._pending:
            self._filled.set()

    async def cluster_changed(self) -> None:
        """Hint that partitions changed hands. At once: the sender may be about to exit."""
        await self._notify([_CLUSTER_CHANGED])

    async def send(self) -> None:
        """Loop: send what has gathered."""
        while True:
            await self._filled.wait()
            self._filled.clear()
            await asyncio.sleep(_GATHER)
            await self.flush()

    async def flush(self) -> None:
        """Send now what has gathered."""
        payloads, self._pending = self._pending, set()
        await self._notify(payloads)

    async def listen(self) -> None:
        """Loop: hear what others send."""
        if self._connect is None:
            return
        await repeat(
            partial(self._listen, self._connect),
            self._state.metrics,
            "stopped hearing hints",
            action="signals.lost",
            errors=(StoreUnavailable, *CONNECTION_LOST),
            pause=_RETRY_PAUSE,
        )

    async def _listen(self, connect: Callable[[], Awaitable[asyncpg.Connection]]) -> None:
        connection = await connect()
        try:
            await connection.add_listener(_CHANNEL, self._hear)
            # What was sent while nobody listened is lost: look for oneself.
            self.on_wake()
            self.on_cluster_changed()
            self.on_mail()
            while True:
                await asyncio.sleep(_PROBE_EVERY)
                await SQL["probe"].run(connection)
        finally:
            connection.terminate()

    def _hear(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        if payload == _CLUSTER_CHANGED:
            self.on_cluster_changed()
        elif payload == str(self._state.node_id):
            self.on_wake()
        elif payload == f"mail:{self._state.node_id}":
            self.on_mail()

    async def _notify(self, payloads: Collection[str]) -> None:
        try:
            for payload in payloads:
                await SQL["notify"].run(self._database, channel=_CHANNEL, payload=payload)
        except StoreUnavailable as problem:
            log.warning("a hint was not sent", action="signals.unsent", problem=str(problem))


@dataclass(eq=False)
class Announcer:
    """The one way to announce a commit: the engine hears of the rows in partitions of this node;
    the owners of others find wake rows, which the same statement wrote, and get a hint to look."""

    _state: NodeState
    _signals: Signals

    def announce(self, rows: Sequence[TaskRow] = (), changed: Collection[int] = ()) -> None:
        """Announce new or changed tasks, and the partitions that have other wake rows."""
        ours = self._state.engine.partitions
        mine = [row for row in rows if row.partition in ours]
        self._state.engine.update(mine, self._state.clock.now())
        self._state.request_dispatch()
        if not ours.isdisjoint(changed):
            self._state.request_wakes()
        if elsewhere := {row.partition for row in rows}.union(changed) - ours:
            self._signals.wake_owners(elsewhere)

    def announce_runs(self, moved: Moved) -> None:
        """Announce and count what a transaction did to runs; eager leases are known already."""
        for state, count in moved.ended.items():
            self._state.metrics.workflow_runs_finished.labels(state).inc(count)
        self._state.metrics.steps_released.inc(len(moved.rows))
        self.announce([row for row in moved.rows if row.state != "running"], moved.told)
