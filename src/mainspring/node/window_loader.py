"""The loader: keeps the engine's window equal to the database, as that changes and as time goes on.

One loop, one thing at a time: the next stretch of time, changes by others (wake rows), limits, and
what expired. Reading whole partitions can take long: the partition loader does that.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from uuid import UUID

from mainspring import crash_points
from mainspring.domain.partitions import Ownership
from mainspring.errors import NothingSent, StoreUnavailable
from mainspring.node.dispatcher import Dispatcher
from mainspring.node.partition_loader import PartitionLoader
from mainspring.node.retrying import PeriodicJobs
from mainspring.node.state import NodeState
from mainspring.store.claims import EngineStore, Woken
from mainspring.store.keys import KeyStore

_WAKES_AT_ONCE = 2000
_EXPIRED_AT_ONCE = 1000
_LIMITS_EVERY = 2.0
_EXPIRE_EVERY = 1.0


@dataclass(eq=False)
class Loader:
    """Reads what is new or changed, and tells the engine."""

    _state: NodeState
    _store: EngineStore
    _keys: KeyStore
    _dispatcher: Dispatcher
    _partition_loader: PartitionLoader
    _jobs: PeriodicJobs = field(init=False)
    _heard: tuple[UUID, list[int]] = field(init=False)
    """The node's id, and the wake rows that the engine has heard of under it: they may go. Under
    another id the database may have been set back, and their numbers be given to others."""
    _read_until: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._jobs = PeriodicJobs(self._state, self._state.load_wanted)
        self._heard = (self._state.node_id, [])

    async def run(self) -> None:
        jobs, every = self._jobs, self._jobs.is_time
        while True:
            await jobs.run(self._advance_horizon)
            if every("wakes", self._state.config.wake_poll) or self._state.wakes_wanted:
                self._state.wakes_wanted = False
                await jobs.run(self._poll_wakes)
            outdated = self._state.limits_read_by != self._state.node_id
            if every("limits", _LIMITS_EVERY) or self._state.engine.wants_limits or outdated:
                await jobs.run(self._refresh_limits)
            if every("expire", _EXPIRE_EVERY):
                await jobs.run(self._expire)
            if self._state.engine.waits.unrecorded:
                await jobs.run(self._record_waits)
            await jobs.wait()

    async def _advance_horizon(self) -> None:
        """Look further ahead. The engine accepts the new stretch before it is read, so that what is
        written meanwhile reaches it."""
        wanted = self._state.clock.now() + self._state.config.look_ahead
        if wanted - self._read_until < self._state.config.look_ahead / 4:
            return
        self._state.engine.extend_horizon(wanted)
        partitions = self._state.engine.partitions
        if partitions:
            rows = await self._store.load_window(
                partitions, after=self._read_until, until=wanted, cap=self._state.config.read_cap
            )
            self._dispatcher.cancel(self._state.apply(rows))
        self._read_until = wanted

    async def _poll_wakes(self) -> None:
        ownership = self._state.ownership()
        if not ownership.partitions:
            return
        known_as, heard = self._heard
        if known_as != ownership.node_id:
            heard = []
        woken = await self._store.poll_wakes(ownership, heard, limit=_WAKES_AT_ONCE)
        if woken.wakes:
            crash_points.reach("wake.read")
            await self._apply_wakes(ownership, woken)
        # Not before: what the engine has not heard of must be there to be read again.
        self._heard = (ownership.node_id, woken.wakes)
        if len(woken.wakes) == _WAKES_AT_ONCE:
            self._jobs.run_soon("wakes")

    async def _apply_wakes(self, ownership: Ownership, woken: Woken) -> None:
        if woken.rows:
            # A task may have been moved here because its tenant got a limit: know it first.
            await self._load_limits({row.tenant_id for row in woken.rows})
            if self._state.node_id != ownership.node_id:
                return  # meanwhile the database may have been set back, and they with it
        self._dispatcher.cancel(self._state.apply(woken.rows, woken.gone))
        self._dispatcher.interrupt_workers(woken.rows)

    async def _refresh_limits(self) -> None:
        node = self._state.node_id
        await self._load_limits(None)
        self._state.limits_read_by = node
        if self._partition_loader.loading:
            self._state.partitions_wanted.set()

    async def _load_limits(self, tenants: Collection[int] | None) -> None:
        limits = await self._keys.limits(tenants)
        self._state.engine.set_limits(limits, self._state.clock.now())
        self._state.request_dispatch()

    async def _record_waits(self) -> None:
        """Record what tasks had waited for that ended while they waited."""
        waits = self._state.engine.waits
        ended = waits.peek_ended(_EXPIRED_AT_ONCE)
        await self._store.explain_ends(ended)
        waits.discard_ended(len(ended))

    async def _expire(self) -> None:
        ownership = self._state.ownership()
        if not ownership.partitions:
            return
        try:
            ended = await self._store.expire(ownership, limit=_EXPIRED_AT_ONCE)
        except NothingSent:
            raise
        except StoreUnavailable:
            until = self._state.clock.now() + self._state.config.near
            self._partition_loader.mark_maybe_changed(ownership.partitions, until)
            raise
        self._state.engine.remove(ended, self._state.clock.now())
        self._state.metrics.tasks_finished.labels("expired").inc(len(ended))
        if len(ended) == _EXPIRED_AT_ONCE:
            self._jobs.run_soon("expire")
