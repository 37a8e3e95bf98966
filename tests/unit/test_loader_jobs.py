"""What a loader does again and again goes on while the database's clock stands still for a node."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast

from mainspring.config import Config
from mainspring.domain.partitions import Ownership
from mainspring.domain.tenant import TenantLimits
from mainspring.engine.core import Engine, EngineSettings
from mainspring.engine.leases import HeldLease
from mainspring.node.partition_loader import PartitionLoader
from mainspring.node.state import NodeState
from mainspring.node.window_loader import Loader
from mainspring.store.claims import Woken
from support.manual_clock import ManualClock
from support.waiting import eventually


class EmptyStore:
    """A store in which there is nothing, and that counts how often it is asked; a dispatcher, too,
    that has nothing to do."""

    def __init__(self) -> None:
        self.wakes = self.expiries = 0

    async def load_window(self, *_which: object, **_when: object) -> list[object]:
        return []

    async def poll_wakes(self, _ownership: Ownership, heard: Sequence[int], *, limit: int) -> Woken:
        assert limit
        assert not heard
        self.wakes += 1
        return Woken([], [], [])

    async def expire(self, _ownership: Ownership, *, limit: int) -> list[object]:
        assert limit
        self.expiries += 1
        return []

    def cancel(self, leases: Sequence[HeldLease]) -> None:
        assert not leases

    async def limits(self, _tenants: object) -> dict[int, TenantLimits]:
        return {}


async def test_jobs_go_on_while_the_databases_clock_is_back() -> None:
    clock, empty, engine = ManualClock(), EmptyStore(), Engine(EngineSettings())
    engine.own([0], [], clock.now())
    state = NodeState(engine, clock, Config(wake_poll=0.25))
    store = cast(Any, empty)
    partition_loader = PartitionLoader(state, store, store)
    loader = Loader(state, store, store, store, partition_loader)
    work = asyncio.create_task(loader.run())
    clock.jump_back(3600.0)
    for times in (1, 2, 3):

        async def done(times: int = times) -> bool:
            return min(empty.wakes, empty.expiries) == times

        await eventually(done, within=5, what="everything was looked at again")
        clock.advance(1.0)
    work.cancel()
    with suppress(asyncio.CancelledError):
        await work
