"""What loader and partition loader do: bounded, and nothing at the expense of another."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import chain, repeat
from typing import cast
from unittest import mock
from uuid import UUID

import pytest

from mainspring.config import Config
from mainspring.domain.partitions import Ownership
from mainspring.domain.rows import StreamKey, TaskRow
from mainspring.domain.tenant import TenantLimits
from mainspring.engine.core import Engine, EngineSettings
from mainspring.engine.leases import HeldLease
from mainspring.engine.window import Refill
from mainspring.errors import NothingSent, StoreUnavailable
from mainspring.lifecycle import Supervisor
from mainspring.node import retrying as jobs
from mainspring.node.dispatcher import Dispatcher
from mainspring.node.partition_loader import PartitionLoader
from mainspring.node.state import NodeState
from mainspring.node.window_loader import Loader
from mainspring.store.claims import EngineStore, Woken
from mainspring.store.keys import KeyStore
from mainspring.store.task_refs import Seen
from support.manual_clock import ManualClock

NOW = 1000.0
NOTHING = Woken([], [], [])


class Store(EngineStore):
    """A store that answers as told, notes what it was asked, and can wait for that."""

    def __init__(self) -> None:
        self.partition_loader: list[TaskRow] = []
        self.wakes: list[Woken] = []
        self.expired: list[list[UUID]] = []
        self.failing: set[str] = set()
        self.problem: type[StoreUnavailable] = StoreUnavailable
        self.too_much_in: int | None = None
        self.slow_in: int | None = None
        self.slow = asyncio.Event()
        self.asked: list[tuple[str, object]] = []
        self._news = asyncio.Event()

    def _note(self, job: str, what: object) -> None:
        self.asked.append((job, what))
        self._news.set()
        if job in self.failing:
            raise self.problem(f"{job} took too long")

    async def until(self, holds: Callable[[], bool]) -> None:
        """Asks anew when the store was asked for something, and when time went by."""
        async with asyncio.timeout(5):
            while not holds():
                self._news.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), 0.01)

    def asked_for(self, job: str) -> list[object]:
        return [what for name, what in self.asked if name == job]

    async def load_window(
        self, partitions: Collection[int], *, after: float, until: float, cap: int
    ) -> list[TaskRow]:
        found = [
            r for r in self.partition_loader if r.partition in partitions and after < r.due <= until
        ]
        self._note("window", sorted(partitions))
        if self.too_much_in in partitions:
            raise StoreUnavailable("window took too long")
        if self.slow_in in partitions:
            await self.slow.wait()
        return found

    async def poll_wakes(
        self, ownership: Ownership, heard: Collection[int], *, limit: int
    ) -> Woken:
        self._note("wakes", list(heard))
        return self.wakes.pop(0) if self.wakes else NOTHING

    async def expire(self, ownership: Ownership, *, limit: int) -> list[UUID]:
        self._note("expire", limit)
        return self.expired.pop(0) if self.expired else []

    async def load_more(
        self, stream: StreamKey, *, since: float, until: float, known: Collection[UUID], limit: int
    ) -> list[TaskRow]:
        self._note("more", stream)
        return []

    async def look_at(self, tasks: Sequence[tuple[int, UUID]]) -> Seen:
        self._note("look", list(tasks))
        return Seen([], [task_id for _, task_id in tasks])


class Limits(KeyStore):
    """Every tenant that is asked for is there; the asking can fail."""

    def __init__(self) -> None:
        self.asked: list[Collection[int] | None] = []
        self.problem: Exception | None = None

    async def limits(self, tenants: Collection[int] | None = None) -> dict[int, TenantLimits]:
        self.asked.append(tenants)
        if tenants is not None and self.problem is not None:
            problem, self.problem = self.problem, None
            raise problem
        return {tenant: TenantLimits() for tenant in tenants or [1]}


class Idle:
    """As much of a dispatcher as is asked."""

    def cancel(self, held: Iterable[HeldLease]) -> None:
        pass

    def interrupt_workers(self, rows: Iterable[TaskRow]) -> None:
        pass


class Bench:
    """A loader on a store that we write the answers of."""

    def __init__(self) -> None:
        self.clock = ManualClock(NOW)
        engine, config = Engine(EngineSettings(stream_cap=4)), Config(wake_poll=0.01)
        self.state = NodeState(engine, self.clock, config)
        self.store, self.limits = Store(), Limits()
        dispatcher = cast(Dispatcher, Idle())
        self.partition_loader = PartitionLoader(self.state, self.store, dispatcher)
        self.loader = Loader(self.state, self.store, self.limits, dispatcher, self.partition_loader)

    @asynccontextmanager
    async def running(self, *, own: Collection[int] = (1, 2)) -> AsyncIterator[None]:
        self.state.engine.own(own, [], NOW)
        supervisor = Supervisor()
        supervisor.start("loader", self.loader.run)
        supervisor.start("window", self.partition_loader.run)
        try:
            yield
        finally:
            await supervisor.stop()

    @asynccontextmanager
    async def reading_slowly(
        self, *found: TaskRow, wakes: Sequence[Woken] = ()
    ) -> AsyncIterator[None]:
        """Read partition 3, which takes until this ends; ten seconds go by, and the others look for
        wakes meanwhile."""
        self.store.slow_in = 3
        self.partition_loader.load([3])
        async with self.running():
            await self.store.until(lambda: [3] in self.store.asked_for("window"))
            self.store.partition_loader, self.store.wakes = list(found), list(wakes)
            self.clock.advance(10)
            await self.request_wakes(len(self.store.asked_for("wakes")) + 2)
            yield

    async def request_wakes(self, times: int) -> list[object]:
        """Let it look so often; return what it named as heard."""
        while len(asked := self.store.asked_for("wakes")) < times:
            self.state.request_wakes()
            await self.store.until(partial(self._more_than, len(asked)))
        return asked

    def _more_than(self, times: int) -> bool:
        return len(self.store.asked_for("wakes")) > times


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(jobs, "RETRY_PAUSE", 0.001)
    return Bench()


def task(
    number: int,
    *,
    partition: int = 1,
    tenant: int = 1,
    due: float = NOW,
    expires: float | None = None,
) -> TaskRow:
    return TaskRow(
        tenant, UUID(int=number), 1, partition, "scheduled", "q", "http", None, None, 5, due,
        expires, 0, None, False,
    )  # fmt: skip


@pytest.mark.parametrize("job", ["window", "wakes", "expire"])
async def test_a_job_that_fails_each_time_takes_no_others_turn(bench: Bench, job: str) -> None:
    bench.store.failing.add(job)
    bench.partition_loader.load([3])
    async with bench.running():
        await bench.store.until(
            lambda: {"window", "wakes", "expire"} <= dict(bench.store.asked).keys()
        )


async def test_what_is_too_much_at_once_is_asked_for_in_smaller_parts(bench: Bench) -> None:
    """And the partition that cannot be read at all keeps no other from being owned."""
    bench.store.too_much_in = 7
    bench.partition_loader.load(range(20))
    async with bench.running(own=()):
        await bench.store.until(lambda: len(bench.state.engine.partitions) == 19)
        await bench.store.until(lambda: [7] in bench.store.asked_for("window"))
        bench.store.too_much_in = None
        await bench.store.until(lambda: len(bench.state.engine.partitions) == 20)
        bench.partition_loader.load(range(20, 36))
        await bench.store.until(lambda: list(range(20, 36)) in bench.store.asked_for("window"))


async def test_while_a_partition_is_read_all_else_goes_on(bench: Bench) -> None:
    woken = Woken([task(2, partition=2)], [], [10])
    async with bench.reading_slowly(task(1, partition=1, due=NOW + 15), wakes=[woken]):
        assert len(bench.state.engine.window) == 2
        assert bench.state.engine.partitions == {1, 2}


async def test_a_slow_read_catches_up_with_the_horizon(bench: Bench) -> None:
    """What came into sight during the read was read for the others, but not for this one."""
    async with bench.reading_slowly(task(1, partition=3, due=NOW + 15)):
        bench.store.slow.set()
        await bench.store.until(lambda: 3 in bench.state.engine.partitions)
    assert len(bench.state.engine.window) == 1


@pytest.mark.parametrize("how", ["given up and taken again", "doubted"])
async def test_a_read_that_began_too_early_does_not_count(bench: Bench, how: str) -> None:
    """Somebody else may have changed something in between."""
    async with bench.running():
        # The first reload; there is no other while the clock stands still.
        await bench.store.until(lambda: [1, 2] in bench.store.asked_for("window"))
        bench.store.slow_in = 3
        if how == "doubted":
            bench.state.engine.own([3], [], NOW)
            bench.state.mark_stale([3])
        else:
            bench.partition_loader.load([3])
        await bench.store.until(lambda: [3] in bench.store.asked_for("window"))
        bench.store.partition_loader = [task(1, partition=3)]
        if how == "doubted":
            bench.state.mark_stale([3])
        else:
            bench.partition_loader.give_up([3])
            bench.partition_loader.load([3])
        bench.store.slow.set()
        await bench.store.until(lambda: len(bench.state.engine.window) == 1)


async def test_streams_are_filled_again_before_all_partitions_are_read(bench: Bench) -> None:
    turned_away = [task(n, partition=0) for n in range(6)]
    engine = bench.state.engine
    async with bench.running(own=(0,)):
        await bench.store.until(lambda: [0] in bench.store.asked_for("window"))
        engine.update(turned_away, NOW)
        engine.remove([row.id for row in turned_away[:4]], NOW)
        bench.partition_loader.load(range(1, 33))
        await bench.store.until(lambda: len(engine.partitions) == 33)
    jobs = [job for job, _ in bench.store.asked]
    assert "window" in jobs[jobs.index("more") :]


async def test_a_failed_refill_is_requested_again(bench: Bench) -> None:
    turned_away = [task(n) for n in range(6)]
    engine = bench.state.engine
    async with bench.running():
        await bench.store.until(lambda: bool(bench.store.asked_for("window")))
        engine.update(turned_away, NOW)
        engine.remove([row.id for row in turned_away[:4]], NOW)
        with mock.patch.object(
            engine.window, "refilled", side_effect=ValueError("a mistake of ours")
        ):
            bench.state.partitions_wanted.set()
            await bench.store.until(lambda: bool(bench.store.asked_for("more")))
        await bench.store.until(lambda: len(bench.store.asked_for("more")) > 1)


async def test_what_fails_in_one_loop_ends_no_read_of_the_other(bench: Bench) -> None:
    bench.store.slow_in = 3
    bench.partition_loader.load([3])
    bench.store.wakes = [Woken([task(1)], [], [10])]
    bench.limits.problem = ValueError("a mistake of ours")
    async with bench.running():
        await bench.store.until(lambda: [3] in bench.store.asked_for("window"))
        await bench.request_wakes(len(bench.store.asked_for("wakes")) + 2)
        bench.store.slow.set()
        await bench.store.until(lambda: 3 in bench.state.engine.partitions)
    assert not bench.limits.problem
    assert bench.store.asked_for("window").count([3]) == 1


async def test_wakes_are_confirmed_after_the_engine_has_them(bench: Bench) -> None:
    bench.store.wakes = [Woken([task(1)], [], [10, 11])]
    async with bench.running():
        assert await bench.request_wakes(3) == [[], [10, 11], []]
    assert len(bench.state.engine.window) == 1


async def test_wakes_read_under_another_node_id_stay(bench: Bench) -> None:
    """In a database that was set back their numbers are others'."""
    bench.store.wakes = [Woken([task(1)], [], [10, 11])]
    async with bench.running():
        await bench.request_wakes(1)
        await bench.store.until(lambda: len(bench.state.engine.window) == 1)
        bench.state.renew()
        assert await bench.request_wakes(2) == [[], []]


async def test_wakes_read_before_a_restore_are_not_confirmed(bench: Bench) -> None:
    bench.store.wakes = [Woken([task(1)], [], [10])]
    compile_fast_path, state = bench.limits.limits, bench.state

    async def meanwhile(tenants: Collection[int] | None = None) -> dict[int, TenantLimits]:
        if tenants is not None:
            state.renew()
        return await compile_fast_path(tenants)

    with mock.patch.object(bench.limits, "limits", meanwhile):
        async with bench.running():
            await bench.request_wakes(2)
    assert len(state.engine.window) == 0


async def test_no_partition_is_acted_for_by_limits_of_another_life(bench: Bench) -> None:
    """They are read anew first: the database may have been set back."""
    asked, slow = asyncio.Event(), asyncio.Event()

    async def slowly(tenants: Collection[int] | None = None) -> dict[int, TenantLimits]:
        asked.set()
        await slow.wait()
        return {}

    async with bench.running(own=()):
        await bench.store.until(lambda: bench.state.limits_read_by is not None)
        with mock.patch.object(bench.limits, "limits", slowly):
            bench.state.renew()
            bench.partition_loader.load([3])
            await asked.wait()
            read = len(bench.store.asked_for("window"))
            await bench.store.until(lambda: not bench.state.partitions_wanted.is_set())
            assert len(bench.store.asked_for("window")) == read
            assert 3 not in bench.state.engine.partitions
            slow.set()
            await bench.store.until(lambda: 3 in bench.state.engine.partitions)


@pytest.mark.parametrize("problem", [StoreUnavailable("lost"), ValueError("a mistake of ours")])
async def test_wakes_that_the_engine_did_not_get_stay(bench: Bench, problem: Exception) -> None:
    bench.store.wakes = [Woken([task(1)], [], [10])]
    bench.limits.problem = problem
    async with bench.running():
        await bench.request_wakes(1)
    async with bench.running():
        assert await bench.request_wakes(2) == [[], []]


async def test_only_limits_of_woken_tenants_are_asked_for(bench: Bench) -> None:
    bench.store.wakes = [Woken([task(1), task(2, tenant=9)], [UUID(int=3)], [10, 11, 12])]
    async with bench.running():
        await bench.request_wakes(2)
    assert [tenants for tenants in bench.limits.asked if tenants is not None] == [{1, 9}]


async def test_a_full_answer_lets_the_other_jobs_run_before_the_next(
    bench: Bench,
) -> None:
    """At once, and not when its time comes again: here the clock stands still."""
    bench.store.wakes = [Woken([], [UUID(int=n)] * 2000, list(range(2000))) for n in range(2)]
    bench.store.expired = [[UUID(int=n)] * 1000 for n in range(2)]
    async with bench.running():
        await bench.store.until(lambda: len(bench.store.asked_for("expire")) == 3)
    jobs = [job for job, _ in bench.store.asked if job != "window"]
    assert jobs == ["wakes", "expire"] * 3


@pytest.mark.parametrize(
    ("problem", "looked_at"), [(StoreUnavailable, [[(1, UUID(int=1))]]), (NothingSent, [])]
)
async def test_after_a_lost_answer_what_expired_is_looked_at(
    bench: Bench, problem: type[StoreUnavailable], looked_at: list[object]
) -> None:
    """Nobody may ever want to run it: nothing else would tell the engine that it is gone."""
    bench.store.failing, bench.store.problem = {"expire"}, problem
    bench.store.partition_loader = [task(1, expires=NOW + 1), task(2, expires=NOW + 99)]
    bench.partition_loader.load([1])
    async with bench.running(own=()):
        await bench.store.until(lambda: len(bench.state.engine.window) == 2)
        bench.clock.advance(1)
        await bench.store.until(lambda: bool(bench.store.asked_for("expire")))
        bench.store.partition_loader, bench.store.failing = [], set()
        bench.clock.advance(60)
        read = len(bench.store.asked_for("window"))
        bench.state.partitions_wanted.set()
        await bench.store.until(lambda: len(bench.store.asked_for("window")) > read)
        await bench.request_wakes(len(bench.store.asked_for("wakes")) + 2)
    assert bench.store.asked_for("look") == looked_at
    assert len(bench.state.engine.window) == 2 - len(looked_at)


async def test_a_partition_is_read_once_for_all_tenants_that_need_it(bench: Bench) -> None:
    stream = StreamKey(1, 5, "q", "http", None, 5)
    keys = [StreamKey(1, 5), StreamKey(2, 5), stream, StreamKey(1, 6), StreamKey(1, 7)]
    wanted = [Refill(key, NOW, (), 4) for key in keys]
    answered: list[StreamKey] = []

    def refilled(refill: Refill, rows: Sequence[TaskRow]) -> None:
        answered.append(refill.stream)

    rounds = chain([wanted], repeat([]))
    with (
        mock.patch.object(bench.state.engine.window, "refills", side_effect=rounds),
        mock.patch.object(bench.state.engine.window, "refilled", refilled),
    ):
        bench.store.partition_loader = [task(1), task(2, tenant=6), task(3, tenant=7)]
        async with bench.running():
            await bench.store.until(lambda: bool(bench.store.asked_for("more")))
            await bench.store.until(lambda: len(answered) == len(keys))
    assert answered == keys
    assert bench.store.asked_for("window").count([1]) == 1
    assert len(bench.state.engine.window) == 3
