"""A worker of the simulation: a process that polls the nodes' real lease services over a network
that fails, runs what it gets as chance has it, sends heartbeats, reports, and dies of poison."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeVar
from uuid import UUID

from mainspring.domain.capability import ALONE, Offer
from mainspring.domain.execution import Outcome, TaskError
from mainspring.engine.demand import WorkerSession
from mainspring.errors import Conflict, MainspringError, NotReady, StoreUnavailable
from mainspring.node.workers.heartbeats_and_reports import HeartbeatAnswer, Verdict, WorkerReport
from mainspring.node.workers.lease_service import LeaseRequest, LeaseService
from mainspring.node.workers.mailbox import ExecutionKey
from mainspring.store.leases import HeldHeartbeat, LeasedTask
from simulation.node import SimNode, resolve
from simulation.world import World

T = TypeVar("T")

HANDLER = "far"
CAPABILITY = f"handler:{HANDLER}"
POISON = b'"poison"'
OFFER = Offer(frozenset({"default", "mail"}), frozenset({HANDLER}))

_BEAT_EVERY = 1.0
_TIMEOUT = 2.0
_PAUSE = 0.3


class SimWorker:
    """One process under a worker's name; `died` is called when it is no more."""

    def __init__(
        self,
        world: World,
        tenant_id: int,
        name: str,
        nodes: Callable[[], list[SimNode]],
        judged: Callable[[WorkerReport, Verdict], None],
        died: Callable[["SimWorker"], None],
    ) -> None:
        self.world = world
        self.holder = WorkerSession(tenant_id, name, str(world.uuid()))
        self.process = world.start_process()
        self._rng = Random(world.rng.getrandbits(64))
        self._slots = self._rng.choice((1, 3, 10))
        self._announces = self._rng.choice((True, False))
        self._nodes = nodes
        self._judged = judged
        self._died = died
        self._executions: dict[ExecutionKey, asyncio.Task[None]] = {}
        self._stopped: set[ExecutionKey] = set()
        self._begun: set[ExecutionKey] = set()
        self._served: set[tuple[SimNode, asyncio.Task[None]]] = set()
        self.process.spawn(self._poll)
        self.process.spawn(self._beat)

    @property
    def alive(self) -> bool:
        return not self.process.dead

    def crash(self) -> None:
        """Its connections break; whether a node notices is another matter."""
        if not self.alive:
            return
        self.process.kill()
        for node, request in self._served:
            if node.alive and self._rng.random() < 0.5:
                node.process.call_soon(request.cancel)
        self._died(self)

    def pause(self, seconds: float) -> None:
        self.process.stopped_until = self.world.now + seconds

    def resume(self) -> None:
        self.process.stopped_until = 0.0

    # What it does ----------------------------------------------------------------------------

    async def _poll(self) -> None:
        while True:
            free = self._slots - len(self._executions)
            if free <= 0:
                await asyncio.sleep(0.1)
                continue
            wait = self._rng.choice((0.2, 1.0, 3.0))
            request = LeaseRequest(
                self.holder, OFFER, free, wait, running=frozenset(self._executions),
                announces=self._announces,
            )  # fmt: skip
            try:
                leased = await self._lease(request)
            except Conflict:
                self.world.later(0.0, self.crash)  # another process has its name
                return
            except (StoreUnavailable, NotReady, TimeoutError):
                await asyncio.sleep(_PAUSE)
                continue
            for task in leased:
                name = (task.execution.id, task.execution.fence)
                if name not in self._executions:
                    self._executions[name] = asyncio.create_task(self._run(task))

    async def _lease(self, request: LeaseRequest) -> list[LeasedTask]:
        return await self._ask(lambda lease_service: lease_service.lease(request), request.wait)

    async def _run(self, task: LeasedTask) -> None:
        tried = task.execution
        try:
            if self._announces and task.suspect and not await self._announced(task):
                self._executions.pop((tried.id, tried.fence), None)
                return
            self._begun.add((tried.id, tried.fence))
            await asyncio.sleep(self.world.duration(self._rng, short=0.8, longest=12.0))
            if tried.payload == POISON:
                self.world.later(0.0, self.crash)
                await asyncio.sleep(60)
            report = self._outcome(tried.id, tried.fence)
        except asyncio.CancelledError:
            report = WorkerReport(
                tried.id, tried.fence, Outcome.FAILED, error=TaskError("x", "stopped")
            )
        self._stopped.add((report.id, report.fence))
        await self._report(report)
        self._executions.pop((report.id, report.fence), None)
        if self._rng.random() < self.world.faults.duplicate_report:
            await asyncio.sleep(self._rng.uniform(0.0, 4.0))
            await self._report(report)

    async def _announced(self, task: LeasedTask) -> bool:
        """Whether the server knows that it begins, with nothing beside it if that is so."""
        tried = task.execution
        alone = task.capability.endswith(ALONE) and len(self._executions) == 1
        beat = HeldHeartbeat(tried.id, tried.fence, alone=alone)
        try:
            (pulse,) = await self._pulses([beat])
        except (StoreUnavailable, TimeoutError):
            return False
        return pulse.action == "continue"

    async def _report(self, report: WorkerReport) -> None:
        while True:
            try:
                (verdict,) = await self._ask(
                    lambda lease_service: lease_service.report(self.holder.tenant_id, [report]),
                    _TIMEOUT,
                )
            except (StoreUnavailable, TimeoutError):
                await asyncio.sleep(_PAUSE)
            else:
                self._judged(report, verdict)
                return

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(_BEAT_EVERY)
            beats = [HeldHeartbeat(*name, started=name in self._begun) for name in self._executions]
            if not beats:
                continue
            try:
                pulses = await self._pulses(beats)
            except (StoreUnavailable, TimeoutError):
                continue
            for beat, pulse in zip(beats, pulses, strict=True):
                name = (beat.id, beat.fence)
                running = self._executions.get(name)
                if running is not None and pulse.action == "cancel" and name not in self._stopped:
                    self._stopped.add(name)  # from then on it only has to report
                    running.cancel()
                # What is lost goes on all the same: it is fenced when it reports.

    async def _pulses(self, beats: list[HeldHeartbeat]) -> list[HeartbeatAnswer]:
        return await self._ask(
            lambda lease_service: lease_service.beat(self.holder, beats), _TIMEOUT
        )

    def _outcome(self, task_id: UUID, fence: int) -> WorkerReport:
        chance = self._rng.random()
        if chance < 0.7:
            return WorkerReport(task_id, fence, Outcome.SUCCEEDED)
        if chance < 0.8:
            return WorkerReport(task_id, fence, Outcome.RELEASED)
        error = TaskError("made-up", "chance had it so")
        return WorkerReport(task_id, fence, Outcome.FAILED, error=error, retryable=chance < 0.95)

    # How it reaches a node -------------------------------------------------------------------

    async def _ask(self, call: Callable[[LeaseService], Awaitable[T]], wait: float) -> T:
        """Ask a node, whichever the load balancer chooses; TimeoutError when no answer comes."""
        if not self.alive:
            raise asyncio.CancelledError  # the dead say nothing
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        world, nodes = self.world, [node for node in self._nodes() if node.started]
        if not nodes:
            raise StoreUnavailable("there is no node")
        node = self._rng.choice(nodes)
        if world.rng.random() >= world.faults.request_lost:
            world.later(world.delay(), lambda: self._arrive(node, call, answer))
        async with asyncio.timeout(wait + _TIMEOUT):
            return await answer

    def _arrive(
        self,
        node: SimNode,
        call: Callable[[LeaseService], Awaitable[T]],
        answer: "asyncio.Future[T]",
    ) -> None:
        async def serve() -> None:
            request = asyncio.current_task()
            assert request is not None
            self._served.add((node, request))
            result: T | MainspringError
            try:
                result = await call(node.lease_service)
            except MainspringError as problem:
                result = problem
            finally:
                self._served.discard((node, request))
            if self.world.rng.random() >= self.world.faults.answer_lost:
                self.world.later(self.world.delay(), lambda: self._hear(answer, result))

        if node.alive:
            node.process.spawn(serve)

    def _hear(self, answer: "asyncio.Future[T]", result: T | MainspringError) -> None:
        if self.alive:
            self.process.call_soon(resolve, answer, result)
