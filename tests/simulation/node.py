"""A node of the simulation: the real drivers and the real engine, in a process and on a network
that fail; and an executor that makes up outcomes."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from random import Random
from typing import TypeVar, cast
from uuid import UUID

import asyncpg

from mainspring.api.tasks.ingest import Ingest
from mainspring.clock import DatabaseClock
from mainspring.config import Config
from mainspring.domain.capability import needs_worker
from mainspring.domain.execution import Execution, Outcome, Report, TaskError
from mainspring.domain.ids import TaskIds
from mainspring.engine.core import Engine, EngineSettings
from mainspring.errors import Conflict, MainspringError, StoreUnavailable
from mainspring.execution.builtin import BuiltInExecutor
from mainspring.execution.port import ReportSink
from mainspring.node.deadlines import Deadlines
from mainspring.node.dispatcher import Dispatcher
from mainspring.node.housekeeping import Housekeeper
from mainspring.node.materializer import Materializer
from mainspring.node.membership import Membership
from mainspring.node.node import Node
from mainspring.node.partition_loader import PartitionLoader
from mainspring.node.recorder import Recorder
from mainspring.node.signals import Announcer, Signals
from mainspring.node.state import NodeState
from mainspring.node.window_loader import Loader
from mainspring.node.workers.lease_service import LeaseService
from mainspring.node.workers.mailbox import Mailbox
from mainspring.observe.metrics import Metrics
from mainspring.schedules.occurrences import OccurrenceWriter
from mainspring.store.workflows.step_rows import Moved
from mainspring.workflows.outcomes import StepOutcomes, StepsFinished
from simulation.leases import MemoryLeases, RemoteLeases, RemoteMessages, RemoteWorkers
from simulation.remote import (
    RemoteChanges,
    RemoteConnection,
    RemoteEngineStore,
    RemoteKeys,
    RemoteTasks,
)
from simulation.schedules import MemorySchedules, RemoteSchedules
from simulation.store import MemoryStore
from simulation.world import World

T = TypeVar("T")

METRICS = Metrics()
CAPABILITY = "handler:mainspring.work"
"""What runs inside a node."""


class Network:
    """Between one process and the store. A statement and its answer travel apart: either can be
    slow or lost, and a statement can arrive long after its sender gave up on it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.cut = False

    async def call(self, statement: Callable[[], T]) -> T:
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if self.cut:
            return await answer
        world, faults = self._world, self._world.faults
        life, fate = world.life, world.rng.random()
        if fate < faults.request_lost or world.now < world.down_until:
            self._give_up(answer)
        elif fate < faults.request_lost + faults.answer_lost:
            world.later(world.delay(), lambda: _happen(statement))
            self._give_up(answer)
        elif fate < faults.request_lost + faults.answer_lost + faults.late:
            self._give_up(answer)
            world.later(1.0 + world.rng.expovariate(1.0), lambda: _happen(statement))
        else:
            world.later(world.delay(), lambda: self._deliver(answer, statement, life))
        return await answer

    def _deliver(self, answer: "asyncio.Future[T]", statement: Callable[[], T], life: int) -> None:
        """A statement that waits in a pooler reaches a database that was set back meanwhile."""
        if self._world.now < self._world.down_until:
            self._world.at(self._world.down_until, lambda: _happen(statement))
            self._give_up(answer)
            return
        result: T | MainspringError
        try:
            result = statement()
        except Conflict as problem:
            result = problem
        self._world.later(self._world.delay(), lambda: self._answer(answer, result, life))

    def _answer(self, answer: "asyncio.Future[T]", result: T | MainspringError, life: int) -> None:
        """No answer outlasts the server: whoever waits for it has lost its connection."""
        if life != self._world.life:
            result = StoreUnavailable("the connection was lost")
        self._post(answer, result)

    def _give_up(self, answer: "asyncio.Future[T]") -> None:
        lost = StoreUnavailable("the connection was lost")
        self._world.later(self._world.rng.uniform(0.0, 1.0), lambda: self._post(answer, lost))

    def _post(self, answer: "asyncio.Future[T]", result: T | MainspringError) -> None:
        process = answer.get_loop()
        if not self.cut:
            process.call_soon(resolve, answer, result)


def _happen(statement: Callable[[], object]) -> None:
    """Nobody hears the answer."""
    with suppress(Conflict):
        statement()


def resolve(answer: "asyncio.Future[T]", result: T | MainspringError) -> None:
    if answer.done():
        return
    if isinstance(result, MainspringError):
        answer.set_exception(result)
    else:
        answer.set_result(result)


class LossySignals(Signals):
    """Hints that may get lost, as hints may."""

    def __init__(self, world: World, state: NodeState, others: "Callable[[], list[SimNode]]"):
        self._world = world
        self._state = state
        self._others = others

    def wake_owners(self, partitions: Collection[int]) -> None:
        owners = {self._state.owners.get(partition) for partition in partitions}
        for node in self._others():
            if node.state.node_id in owners:
                self._tell(node.state.request_wakes)

    async def cluster_changed(self) -> None:
        for node in self._others():
            self._tell(node.membership.hint)

    def mailed(self, node_id: UUID) -> None:
        for node in self._others():
            if node.state.node_id == node_id:
                self._tell(node.post.hint)

    async def send(self) -> None:
        return

    async def flush(self) -> None:
        return

    async def listen(self) -> None:
        return

    def _tell(self, hint: Callable[[], None]) -> None:
        if self._world.rng.random() >= self._world.faults.hint_lost:
            self._world.later(self._world.delay(), hint)


class _NoDeadlines:
    """No workflows run here: their own tests drive them through crashes."""

    async def run(self) -> None:
        pass


class _NoSteps:
    """Nor are there any steps that a worker could lose."""

    async def expire_leases(self, *_held: object, **_more: object) -> StepsFinished:
        return StepsFinished(set(), Moved())


class _NoHousekeeping:
    """History is not cleared within the minute that a simulated world lasts."""

    async def run(self) -> None:
        return

    async def leave(self) -> None:
        return


class Chaos(BuiltInExecutor):
    """An executor: executions last as long as chance has it and end as chance has it."""

    def __init__(self, world: World, rng: Random, clock: DatabaseClock, report: ReportSink) -> None:
        super().__init__(clock, report)
        self._world = world
        self._rng = rng
        self._begun: set[tuple[UUID, int]] = set()

    def can_run(self, capability: str) -> bool:
        return capability == CAPABILITY

    def start(self, executions: Sequence[Execution]) -> None:
        for execution in executions:
            name = (execution.id, execution.fence)
            if name in self._begun:
                self._world.begun_twice.append(name)
            self._begun.add(name)
            attempt = self._executions[name] = asyncio.create_task(self._run(execution))
            attempt.add_done_callback(partial(self._report_unbegun, execution))

    async def stop(self, grace: float) -> None:
        if self._executions:
            await asyncio.wait(list(self._executions.values()), timeout=grace)
        self._releasing = True
        for attempt in list(self._executions.values()):
            attempt.cancel()
        if self._executions:
            await asyncio.wait(list(self._executions.values()))

    async def _run(self, execution: Execution) -> None:
        started = self._clock.now()
        try:
            await asyncio.sleep(self._world.duration(self._rng, short=0.9, longest=9.0))
            report = self._outcome(execution, started)
        except asyncio.CancelledError:
            outcome = Outcome.RELEASED if self._releasing else Outcome.CANCELLED
            report = Report(execution, outcome, started, self._clock.now())
        del self._executions[execution.id, execution.fence]
        self._report([report])
        if self._rng.random() < self._world.faults.duplicate_report:
            # At once, or when the task may be running again.
            delay = self._rng.choice((0.0, self._rng.uniform(0.0, 4.0)))
            asyncio.get_running_loop().call_later(delay, self._report, [report])

    def _report_unbegun(self, execution: Execution, _attempt: "asyncio.Task[None]") -> None:
        """Who is cancelled before its first step never gets to report that itself."""
        if self._executions.pop((execution.id, execution.fence), None) is not None:
            outcome = Outcome.RELEASED if self._releasing else Outcome.CANCELLED
            now = self._clock.now()
            self._report([Report(execution, outcome, now, now)])

    def _outcome(self, execution: Execution, started: float) -> Report:
        now = self._clock.now()
        chance = self._rng.random()
        if chance < 0.75:
            return Report(execution, Outcome.SUCCEEDED, started, now)
        error = TaskError("made-up", "chance had it so")
        return Report(execution, Outcome.FAILED, started, now, error=error, retryable=chance < 0.95)


class SimNode:
    """One process with everything in it; a crash ends it, and another takes its place."""

    def __init__(
        self,
        world: World,
        store: MemoryStore,
        config: Config,
        others: "Callable[[], list[SimNode]]",
    ) -> None:
        self.world = world
        self.process = world.start_process()
        self.network = Network(world)
        self.clock = DatabaseClock()
        self.started = False
        self.blemished = False
        """Whether it was ever cut off from the world for a while: then its leases may run out."""
        rng = Random(world.rng.getrandbits(64))
        settings = EngineSettings(
            lease=config.lease,
            aging_step=config.aging_step,
            stream_cap=config.stream_cap,
            tenant_cap=config.tenant_cap,
        )
        self.state = NodeState(
            Engine(settings, needs_worker), self.clock, config, METRICS, node_id=world.uuid()
        )
        remote = RemoteEngineStore(store, self.network)
        signals = LossySignals(world, self.state, others)
        announcer = Announcer(self.state, signals)
        recorder = Recorder(self.state, remote, cast(StepOutcomes, _NoSteps()), announcer, rng)
        dispatcher = Dispatcher(self.state, remote, recorder)
        self.post = Mailbox(self.state, self._messages(store, signals), config.wake_poll)
        leases = MemoryLeases(store)
        self.lease_service = LeaseService(
            self.state,
            RemoteLeases(leases, self.network),
            recorder,
            RemoteWorkers(leases, self.network),
            self.post,
            dispatcher.lease_maintenance.expire_leases,
        )
        dispatcher.serve_workers(self.lease_service)
        keys = RemoteKeys(store, self.network)
        partition_loader = PartitionLoader(self.state, remote, dispatcher)
        self.loader = Loader(self.state, remote, keys, dispatcher, partition_loader)
        self.membership = Membership(
            self.state, self._connection(store), self.clock, partition_loader, signals, "simulated"
        )
        self.node = Node(
            self.state,
            self.membership,
            self.loader,
            partition_loader,
            dispatcher,
            recorder,
            signals,
            announcer,
            cast(Housekeeper, _NoHousekeeping()),
            self._materializer(config, store, announcer),
            cast(Deadlines, _NoDeadlines()),
            [Chaos(world, rng, self.clock, recorder.report)],
            self.lease_service,
        )
        self.tasks = RemoteTasks(store, self.network)
        self.changes = RemoteChanges(store, self.network)
        self.ingest = Ingest(self.tasks, self.node, self.clock, METRICS, store.near)
        self.process.spawn(self._start)

    def _messages(self, store: MemoryStore, signals: LossySignals) -> RemoteMessages:
        return RemoteMessages(store, self.network, signals.mailed)

    def _materializer(
        self, config: Config, store: MemoryStore, announcer: Announcer
    ) -> Materializer:
        chance = Random(self.world.rng.getrandbits(64))
        occurrence_writer = OccurrenceWriter(TaskIds(chance), chance, near=store.near)
        schedules = RemoteSchedules(MemorySchedules(store), self.network, occurrence_writer)
        return Materializer(self.state, schedules, announcer)

    @property
    def alive(self) -> bool:
        return not self.process.dead

    def crash(self) -> None:
        self.network.cut = True
        self.process.kill()

    def pause(self, seconds: float) -> None:
        self.blemished = True
        self.process.stopped_until = self.world.now + seconds

    def resume(self) -> None:
        self.process.stopped_until = 0.0

    def leave(self, gone: Callable[[], None]) -> None:
        """Stop as after SIGTERM."""

        async def stop() -> None:
            await self.node.stop()
            gone()

        self.process.spawn(stop)

    async def _start(self) -> None:
        while True:
            try:
                await self.node.start(None)
            except StoreUnavailable:
                await asyncio.sleep(0.5)
                self.state.renew()
            else:
                self.started = True
                return

    def _connection(self, store: MemoryStore) -> "Callable[[], asyncio.Future[asyncpg.Connection]]":
        async def connect() -> asyncpg.Connection:
            return cast(asyncpg.Connection, RemoteConnection(store, self.network))

        return lambda: asyncio.ensure_future(connect())
