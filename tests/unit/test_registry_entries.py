"""A worker whose lanes ask each for its own: the node knows every kind, and shows them as one."""

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any, cast

import pytest

from mainspring.domain.capability import THERE_FOR, Offer, needs_worker, there_for
from mainspring.engine.core import Engine, EngineSettings
from mainspring.engine.demand import WorkerSession
from mainspring.errors import StoreUnavailable
from mainspring.node.state import NodeState
from mainspring.node.workers.heartbeats_and_reports import WorkerReports
from mainspring.node.workers.registry import WorkerRegistry
from mainspring.store.workers import Touch, WorkerStore, offer_shown
from support.manual_clock import ManualClock

SESSION = WorkerSession(1, "w", "1")
THREADS = Offer(frozenset({"default"}), frozenset({"mail", "fetch"}), tags=frozenset({"gpu"}))
PROCESSES = Offer(frozenset({"default"}), frozenset({"train"}), tags=frozenset({"gpu"}))


class FakeWorkerStore:
    """Where workers are noted: in a list."""

    def __init__(self) -> None:
        self.registered = 0
        self.touched: list[Touch] = []
        self.held: list[dict[tuple[int, str], int]] = []
        self.away = False

    async def register(self, *_worker: Any) -> bool:
        self.registered += 1
        await asyncio.sleep(0)
        return True

    async def touch(self, touches: Sequence[Touch]) -> set[tuple[int, str]]:
        if self.away:
            raise StoreUnavailable("the database is away")
        self.touched += touches
        return {touch[:2] for touch in touches}

    async def note_held(self, _node: object, held: dict[tuple[int, str], int]) -> None:
        self.held.append(held)

    @property
    def offers(self) -> list[dict[str, object]]:
        return [touch.offer for touch in self.touched if touch.offer is not None]


class World:
    def __init__(self, there_for: float = THERE_FOR) -> None:
        self.clock = ManualClock()
        self.state = NodeState(Engine(EngineSettings(), needs_worker), self.clock)
        self.store = FakeWorkerStore()
        self.began: list[WorkerSession] = []
        self.registry = WorkerRegistry(
            self.state, cast(WorkerStore, self.store), self.began.append, there_for
        )

    async def ask(self, *offers: Offer, holder: WorkerSession = SESSION) -> None:
        for offer in offers:
            await self.registry.admit(holder, offer, None)


@pytest.fixture
def world() -> World:
    return World()


async def test_lanes_are_shown_as_one_and_written_once(world: World) -> None:
    for _ in range(5):
        await world.ask(THREADS, PROCESSES)
        await world.registry.write()
    (shown,) = world.store.offers
    assert shown["handlers"] == ["fetch", "mail", "train"]
    assert (shown["queues"], shown["tags"], shown["commands"]) == (["default"], ["gpu"], False)
    assert len(world.store.touched) == 5


async def test_lanes_that_come_at_the_same_time_are_both_known(world: World) -> None:
    await asyncio.gather(world.ask(THREADS), world.ask(PROCESSES))
    assert world.store.registered == 2
    assert world.began == [SESSION]
    await world.registry.write()
    assert world.store.offers[-1]["handlers"] == ["fetch", "mail", "train"]


async def test_every_offer_is_announced_separately(world: World) -> None:
    await world.ask(THREADS, PROCESSES, THREADS)
    assert set(world.registry.kinds()) == {(1, THREADS), (1, PROCESSES)}
    assert len(list(world.registry.kinds())) == 2
    assert set(world.registry.heard(SESSION, None)) == {THREADS, PROCESSES}
    assert world.registry.heard(SESSION._replace(incarnation="2"), None) == ()


async def test_a_new_process_has_only_its_own_offers(world: World) -> None:
    await world.ask(THREADS, PROCESSES)
    await world.ask(PROCESSES, holder=SESSION._replace(incarnation="2"))
    assert list(world.registry.kinds()) == [(1, PROCESSES)]


async def test_a_heartbeat_keeps_every_kind_known(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Leases:
        async def extend_for(self, *_beats: Any, **_times: Any) -> list[Any]:
            return []

    known: list[tuple[int, Offer, float]] = []
    monkeypatch.setattr(world.state.engine.workers, "touch", lambda *kind: known.append(kind))
    unused: Any = None
    reporting = WorkerReports(world.state, cast(Any, Leases()), unused, world.registry)
    await world.ask(THREADS, PROCESSES)
    world.clock.advance(50)
    await reporting.beat(SESSION, [])
    now = world.clock.now()
    assert sorted(known) == sorted([(1, THREADS, now), (1, PROCESSES, now)])


async def test_a_worker_with_long_leases_is_kept_between_heartbeats() -> None:
    world = World(there_for(600.0))
    await world.ask(THREADS)
    world.clock.advance(401)
    await world.registry.write()
    assert [offer for _, offer in world.registry.kinds()] == [THREADS]
    assert world.registry.heard(SESSION, None) == (THREADS,)
    world.clock.advance(406)
    assert list(world.registry.kinds()) == []


async def test_what_could_not_be_written_is_written_later(world: World) -> None:
    await world.ask(THREADS, PROCESSES)
    world.store.away = True
    with pytest.raises(StoreUnavailable):
        await world.registry.write()
    world.store.away = False
    await world.registry.write()
    assert world.store.offers == [offer_shown(THREADS, PROCESSES)]


async def test_ever_new_offers_of_a_worker_are_not_all_remembered(
    world: World,
) -> None:
    random = Random(1)
    for number in range(1000):
        await world.ask(Offer(frozenset({"default"}), frozenset({f"h{number}"})))
        if random.random() < 0.5:
            await world.ask(THREADS)
    kinds = [offer for _, offer in world.registry.kinds()]
    assert len(kinds) == 16
    assert THREADS in kinds
    assert any("h999" in offer.handlers for offer in kinds)


def test_resources_are_shown_as_last_reported() -> None:
    small, large = THREADS._replace(memory_mb=10, cpu=1), PROCESSES._replace(memory_mb=20, cpu=2)
    shown = offer_shown(large, small._replace(commands=True))
    assert (shown["memory_mb"], shown["cpu"], shown["commands"]) == (10, 1, True)


async def test_a_worker_that_hung_up_is_hidden_until_it_returns(world: World) -> None:
    await world.ask(THREADS)
    assert list(world.registry.kinds()) == [(1, THREADS)]
    world.registry.left(WorkerSession(1, "w", "before"))
    assert list(world.registry.kinds()) == [(1, THREADS)]
    world.registry.left(SESSION)
    assert list(world.registry.kinds()) == []
    assert world.registry.knows(SESSION)
    world.registry.heard(SESSION, None)
    assert list(world.registry.kinds()) == [(1, THREADS)]


async def test_of_very_long_offers_few_are_remembered(world: World) -> None:
    for number in range(5):
        handlers = frozenset(f"h{number}-{n}" for n in range(4000))
        await world.ask(Offer(frozenset({"default"}), handlers))
    assert len(list(world.registry.kinds())) == 2


async def test_lease_counts_are_written_again_under_a_new_node_id(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database may have been set back to before it was written."""
    held = {SESSION[:2]: 2}
    monkeypatch.setattr(world.state.engine.running, "by_worker", lambda: held)
    for _ in range(2):
        await world.registry.write()
    assert world.store.held == [held]
    world.state.renew()
    await world.registry.write()
    assert world.store.held == [held, held]
