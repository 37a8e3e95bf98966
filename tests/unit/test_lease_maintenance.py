"""How a dispatcher keeps leases: its own go on, whatever becomes of those that others let run out,
and whatever the database's clock does."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any, cast
from uuid import UUID

from mainspring.config import Config
from mainspring.domain.execution import Execution
from mainspring.domain.partitions import Ownership
from mainspring.domain.rows import TaskRow
from mainspring.domain.tenant import TenantLimits
from mainspring.engine.core import Engine, EngineSettings
from mainspring.node.dispatcher import Dispatcher
from mainspring.node.recorder import Recorder
from mainspring.node.state import NodeState
from mainspring.observe.metrics import Metrics
from mainspring.store.claims import ExtendedLease
from mainspring.store.task_refs import Seen, TaskRef
from support.manual_clock import ManualClock
from support.rows import execution, row, task_id
from support.waiting import eventually

NOW = 1000.0
LEASE = 15.0


class Runs:
    """An executor whose executions last until they are cancelled."""

    def __init__(self) -> None:
        self.cancelled: list[tuple[UUID, int]] = []
        self.was_started = asyncio.Event()
        self.was_cancelled = asyncio.Event()

    def can_run(self, capability: str) -> bool:
        return capability == "http"

    def room(self) -> int | None:
        return None

    def start(self, executions: Sequence[Execution]) -> None:
        self.was_started.set()

    def cancel(self, task_id: UUID, fence: int) -> None:
        self.cancelled.append((task_id, fence))
        self.was_cancelled.set()


class Leases:
    """A store in which somebody holds the run of what is to be lost, for ever."""

    def __init__(self) -> None:
        self.extended: list[UUID] = []
        self.losing = asyncio.Event()
        self.claiming = asyncio.Event()
        self.claimed = asyncio.Event()

    async def claim(
        self, _ownership: Ownership, picks: Sequence[TaskRef], **_lease: object
    ) -> list[Execution]:
        """Answered only when the test says so."""
        self.claiming.set()
        await self.claimed.wait()
        rows = [row(pick.id.int, capability="http", due=NOW) for pick in picks]
        return [execution(found, lease_end=NOW + LEASE) for found in rows]

    async def extend(self, held: Sequence[TaskRef], *, lease: float) -> list[ExtendedLease]:
        self.extended += [ref.id for ref in held]
        return [ExtendedLease(ref.tenant_id, ref.id, NOW + lease, False) for ref in held]

    async def expire_leases(self, _held: Sequence[TaskRef], **_known: Sequence[UUID]) -> Seen:
        self.losing.set()
        await asyncio.Event().wait()
        raise AssertionError("unreachable")


class World:
    def __init__(self) -> None:
        config, metrics = Config(database_url="postgresql:///x", lease=LEASE), Metrics()
        self.clock, self.store, self.executor = ManualClock(NOW), Leases(), Runs()
        self.engine = Engine(EngineSettings(lease=LEASE))
        self.engine.own([0], [], NOW)
        self.engine.set_limits({1: TenantLimits()}, NOW)
        self.state = NodeState(self.engine, self.clock, config, metrics)
        nothing = cast(Any, None)
        recorder = Recorder(self.state, nothing, nothing, nothing, Random(1))
        self.dispatcher = Dispatcher(self.state, cast(Any, self.store), recorder)
        self.dispatcher.add_executor(cast(Any, self.executor))

    def running_here(self, number: int) -> None:
        found = self.running(number)
        leased = (found, execution(found._replace(fence=0), lease_end=NOW + LEASE))
        eager = self.dispatcher.eager_leases
        eager.end_steps(eager.offer_steps(), [leased])

    def running_elsewhere(self, number: int) -> None:
        self.engine.update([self.running(number)], NOW)

    def running(self, number: int, rev: int = 2) -> TaskRow:
        fields: dict[str, Any] = {"capability": "http", "due": NOW, "lease_end": NOW + LEASE}
        return row(number, rev=rev, state="running", fence=1, **fields)

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.state.request_dispatch()

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        work = asyncio.create_task(self.dispatcher.run())
        try:
            yield
        finally:
            work.cancel()
            with suppress(asyncio.CancelledError):
                await work

    async def is_watched(self) -> bool:
        return self.engine.leases.next_extension() is not None

    def was_extended(self, number: int, times: int) -> Callable[[], Awaitable[bool]]:
        async def enough() -> bool:
            return self.store.extended.count(task_id(number)) >= times

        return enough


async def test_a_lease_is_extended_while_another_cannot_be_ended() -> None:
    world = World()
    world.running_here(1)
    world.running_elsewhere(2)
    async with world.at_work():
        await eventually(world.is_watched, within=5, what="the dispatcher has looked at it")
        for turn in range(1, 4):
            world.pass_time(LEASE / 3)
            await eventually(world.was_extended(1, turn), within=5, what="it is extended")
        world.pass_time(1.0)
        await asyncio.wait_for(world.store.losing.wait(), 5)
        world.pass_time(LEASE / 3)
        await eventually(world.was_extended(1, 4), within=5, what="it is extended all the same")
    assert task_id(2) not in world.store.extended


async def test_leases_are_extended_while_the_databases_clock_is_back() -> None:
    """It jumped back: what it showed before it shows again only much later."""
    world = World()
    world.running_here(1)
    async with world.at_work():
        await eventually(world.is_watched, within=5, what="the dispatcher has looked at it")
        world.clock.jump_back(3600.0)
        for turn in range(1, 4):
            world.pass_time(LEASE / 3)
            await eventually(world.was_extended(1, turn), within=5, what="it is extended")


async def test_tasks_are_started_while_the_databases_clock_is_back() -> None:
    """Their leases are dated by it, and seem to be over by the time before the jump."""
    world = World()
    world.engine.extend_horizon(NOW + 10)
    world.clock.advance(3600.0)
    world.clock.jump_back(3600.0)
    world.engine.update([row(1, capability="http", due=NOW)], world.clock.now())
    async with world.at_work():
        world.store.claimed.set()
        await asyncio.wait_for(world.executor.was_started.wait(), 5)


async def test_others_leases_are_ended_while_the_clock_is_set_back() -> None:
    world = World()
    world.clock.advance(3600.0)
    world.clock.jump_back(3600.0)
    world.running_elsewhere(2)
    async with world.at_work():
        world.pass_time(LEASE - 1)
        assert not world.store.losing.is_set()
        world.pass_time(2.0)
        await asyncio.wait_for(world.store.losing.wait(), 5)


async def test_a_cancel_before_the_answer_to_the_claim_is_acted_on() -> None:
    world = World()
    world.engine.extend_horizon(NOW + 10)
    world.engine.update([row(1, capability="http", due=NOW)], NOW)
    async with world.at_work():
        await asyncio.wait_for(world.store.claiming.wait(), 5)
        asked = world.running(1, rev=3)._replace(cancel_requested=True)
        world.dispatcher.cancel(world.engine.update([asked], NOW))
        assert world.executor.cancelled == []
        world.store.claimed.set()
        await asyncio.wait_for(world.executor.was_cancelled.wait(), 5)
    assert world.executor.cancelled == [(task_id(1), 1)]
    assert world.store.extended == []
