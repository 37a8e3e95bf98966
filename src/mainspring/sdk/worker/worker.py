"""The worker: it leases tasks, runs them and reports outcomes, on an event loop and two threads."""

import asyncio
import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from uuid import UUID

from mainspring.clock import monotonic
from mainspring.sdk.app import App
from mainspring.sdk.context import Context
from mainspring.sdk.environment import Address, child_environment
from mainspring.sdk.worker.allowlist import Allowlist
from mainspring.sdk.worker.commands import CommandRunner
from mainspring.sdk.worker.execution import Runner, WorkerExecution
from mainspring.sdk.worker.heartbeat_thread import HeartbeatThread
from mainspring.sdk.worker.leasing import Lane, LeaseErrors, Leaser, LeaseReader
from mainspring.sdk.worker.nodes import Nodes
from mainspring.sdk.worker.options import WorkerInfo, WorkerOptions, memory_mb_of
from mainspring.sdk.worker.outcomes import RELEASED
from mainspring.sdk.worker.processes import ProcessRunner
from mainspring.sdk.worker.protocol import LEASES, Leased, Leases, ServerClock
from mainspring.sdk.worker.reports import LogSender, Reporter
from mainspring.sdk.worker.runners import LoopRunner, ThreadRunner
from mainspring.sdk.worker.suspects import Suspects
from mainspring.wire.workers import AboutIn, LeaseIn

log = logging.getLogger("mainspring.worker")

_STOP_WITHIN = 3.0
"""Seconds that an execution has to end after it was asked to."""
_FLUSH_WITHIN = 10.0
_MOST_REMEMBERED = 20_000


class Worker:
    """Runs the tasks of an app, and the commands that are allowed, until it is told to stop."""

    def __init__(
        self,
        app: App | None,
        options: WorkerOptions,
        *,
        address: Address,
        app_path: str = "",
        allowed: Allowlist | None = None,
    ) -> None:
        self.app = app
        self.options = options
        self.nodes = Nodes(address)
        self.lease_errors = LeaseErrors()
        self.address = address
        self._app_path = app_path
        self.allowed = allowed
        self._executions: dict[WorkerExecution, Lane] = {}
        """Those whose leases have to be kept: running, or not acknowledged yet."""
        self._keys: set[tuple[UUID, int]] = set()
        self._exclusive: WorkerExecution | None = None
        """The execution beside which nothing may run, as it was lost with its workers before."""
        self._confirmed: WorkerExecution | None = None
        """The last such execution whose lease the heartbeat thread was told to confirm."""
        self._left_behind = False
        """Whether code of an abandoned execution may still run."""
        self._draining = False
        self._done: OrderedDict[tuple[UUID, int], None] = OrderedDict()
        """The last ones that are over: a late answer may give them again."""
        self._info = WorkerInfo(options)
        self._stop = asyncio.Event()
        self._finished = asyncio.Event()
        self.finished = 0
        self.running = 0
        self.replace_process: Callable[[], None] | None = None
        """How to replace the process when the event loop is blocked for good."""
        self.worn_out = False
        """Whether it stopped because its process should be replaced."""

    def stop(self) -> None:
        """Take no more work, finish or release what is running, and end."""
        self._stop.set()

    async def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Work until `stop`; `ready` is called when it begins to ask for tasks."""
        self._build()
        self._reader.start()
        self._heartbeats.start()
        duties: list[Coroutine[Any, Any, None]] = [
            self._reporter.run(),
            self._logs.run(),
            self._refresh_nodes(),
            self._tick(),
            *(leaser.run() for leaser in self._leasers),
        ]
        work = [asyncio.create_task(duty) for duty in duties]
        watch = asyncio.create_task(self._stop.wait())
        ready()
        try:
            await asyncio.wait([watch, *work], return_when=asyncio.FIRST_COMPLETED)
            failed = [task for task in work if task.done()]
            await self._drain()  # also where no more is leased: what runs can still be finished
            for task in failed:
                task.result()  # a duty ends by an error only: let it be seen
        finally:
            watch.cancel()
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            self._heartbeats.stop()
            await self._reader.call(self._lease_nodes.close())
            self._reader.stop()
            self._logs.close()
            await self._processes.close()
            if self._commands is not None:
                await self._commands.close()
            await self.nodes.close()

    # Building --------------------------------------------------------------------------------

    def _build(self) -> None:
        loop = asyncio.get_running_loop()
        options = self.options
        self._functions = self.app.functions if self.app is not None else {}
        heavy = [name for name, made in self._functions.items() if made.options.cpu_bound]
        light = [name for name in self._functions if name not in heavy]
        environment = child_environment(self.address)
        self._loop_runner = LoopRunner(loop)
        self._threads = ThreadRunner(loop)
        self._processes = ProcessRunner(self._app_path, environment, options)
        self._commands = None if self.allowed is None else CommandRunner(self.allowed, environment)
        self._logs = LogSender(self.nodes)
        self._reporter = Reporter(self.nodes, self._logs, self._forget)
        self._clock = ServerClock()
        self._loop = loop
        self._reader = LeaseReader(type(loop))
        self._lease_nodes = self.nodes.apart()
        self._heartbeats = HeartbeatThread(
            options, self.nodes, self._clock, loop, self._leased, self._loop_runner
        )
        self._heartbeats.warn = log.warning
        self._suspects = Suspects(loop, self._leased, self._heartbeats.start_named, self._place)
        if self.replace_process is not None:
            self._heartbeats.replace_process = self.replace_process
        commands = self._commands is not None
        self._lanes: list[Lane] = []
        if light or commands:
            self._lanes.append(Lane(options.concurrency, light, commands))
        if heavy:
            self._lanes.append(Lane(options.processes, heavy, commands=False))
        self._leasers = [Leaser(lane, self) for lane in self._lanes]

    # Executions ------------------------------------------------------------------------------

    async def ask(self, url: str, body: LeaseIn, lane: Lane, within: float) -> tuple[Leases, int]:
        """Ask a node for tasks, in a thread of its own: it reads the answer and keeps its leases
        also while a handler blocks the event loop. Tasks begin even if this call is cancelled."""
        return await self._reader.call(self._ask(url, body, lane, within))

    async def _ask(self, url: str, body: LeaseIn, lane: Lane, within: float) -> tuple[Leases, int]:
        answer = await self._lease_nodes.ask(
            url, LEASES, body, Leases, within=within, blocking=False
        )
        arrived = self.register(answer.tasks, lane) if answer.tasks else []
        if arrived:
            self._loop.call_soon_threadsafe(self.begin_all, arrived)
        return answer, len(arrived)

    def register(self, tasks: Sequence[Leased], lane: Lane) -> list[WorkerExecution]:
        """Keep the leases of tasks that have just arrived, in the thread that reads. One that is or
        was here is left out: the server did not know that the first answer had arrived."""
        self._clock.sample(tasks[-1])
        margin, arrived = self._clock.margin, []
        for leased in tasks:
            key = (leased.id, leased.fence)
            if key not in self._keys and key not in self._done:
                execution = self._execution_of(leased, margin)
                self._keys.add(key)
                self._executions[execution] = lane
                arrived.append(execution)
        return arrived

    def _execution_of(self, leased: Leased, margin: float) -> WorkerExecution:
        name = leased.target.name or (leased.target.argv or [""])[0]
        context = Context(
            leased.id,
            name=name,
            attempt=leased.attempt,
            fence=leased.fence,
            timeout=leased.timeout,
            clients=self.app,
            said=partial(self._logs.line_of, leased),
            details=leased.context,
        )
        function = self._functions.get(leased.target.name or "")
        runner = self._runner_of(leased, function)
        return WorkerExecution(
            leased,
            self._clock.local(leased.lease_until),
            context,
            function,
            runner or _NoRunner(),
            self._on_finished,
            margin,
            arriving=True,
        )

    def begin_all(self, arrived: Sequence[WorkerExecution]) -> None:
        """Start the executions of one answer."""
        for execution in arrived:
            execution.arriving = False
            self._executions[execution].take()
            self.running += 1
            self._place(execution)

    def _place(self, execution: WorkerExecution) -> None:
        """Start it now, or when nothing else runs, or release it. Several nodes give tasks, so only
        the worker can see to it that nothing runs beside what must be alone."""
        unable = isinstance(execution.runner, _NoRunner)
        if unable or self._draining or self._exclusive is not None:
            execution.finish(RELEASED)
        elif execution.leased.alone:
            self._exclusive = execution
            for each in self._lanes:
                each.closed = True
            self._start_exclusive()
        elif execution.leased.suspect and not execution.runner.apart:
            self._suspects.add(execution)
        elif self._suspects.busy:
            self._suspects.hold_back(execution)
        else:
            execution.start()

    def _start_exclusive(self) -> None:
        """Start it once all others are over and acknowledged, and its lease is confirmed. After too
        long a wait it is released (`_has_waited_enough`), and comes again to a worker that holds
        nothing."""
        execution = self._exclusive
        if execution is None or execution is self._confirmed or len(self._executions) > 1:
            return
        self._confirmed = execution
        execution.alone = not self._left_behind
        self._heartbeats.start_alone(execution)

    def _has_waited_enough(self, execution: WorkerExecution, now: float) -> bool:
        if execution is not self._exclusive or execution.started or len(self._executions) == 1:
            return False
        return now - execution.began >= min(self._clock.lease, execution.leased.timeout / 2)

    def _runner_of(self, leased: Leased, function: Any) -> Runner | None:
        if leased.target.type == "command":
            return self._commands
        if function is None:
            return None
        if function.options.cpu_bound:
            return self._processes
        return self._loop_runner if function.is_async else self._threads

    def _on_finished(self, execution: WorkerExecution) -> None:
        self._executions[execution].free()
        self.finished += 1
        self.running -= 1
        if execution is self._exclusive:
            self._exclusive = None
            for each in self._lanes:
                each.reopen()
        if execution.verdict is None:
            log.warning("the lease of task %s was lost", execution.leased.id)
            self._forget(execution)
        else:
            self._reporter.put(execution)
        if not self.running:
            self._finished.set()

    def _forget(self, execution: WorkerExecution) -> None:
        key = execution.key
        self._executions.pop(execution, None)
        self._done[key] = None  # before it is gone from the others: a thread looks at both
        self._keys.discard(key)
        if len(self._done) > _MOST_REMEMBERED:
            self._done.popitem(last=False)
        if self._exclusive is not None:
            self._start_exclusive()

    def _leased(self) -> list[WorkerExecution]:
        return list(self._executions)

    def leased_executions(self, most: int) -> list[tuple[UUID, int]] | None:
        return None if len(self._keys) > most else list(self._keys)

    def about(self) -> AboutIn | None:
        return self._info.current(self.finished, self.running, self._heartbeats.errors)

    def polls_interrupted(self) -> None:
        if self._executions:
            self._heartbeats.interrupt_polls()

    async def _refresh_nodes(self) -> None:
        while True:
            await self.nodes.refresh()
            await asyncio.sleep(5.0)

    # Time ------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        """Watch timeouts and memory, and show the heartbeat thread that the loop runs."""
        count = 0
        while True:
            now = self._heartbeats.pulse = monotonic()
            for execution in self._leased():
                if execution.is_withdrawn:
                    execution.finish(RELEASED)
                if execution.finished:
                    continue
                if execution.lease_end - self._clock.margin <= now:
                    # Cut off: stop before another worker begins.
                    execution.end("lost" if execution.begun else "released")
                if self._has_waited_enough(execution, now):
                    execution.end("released")
                if execution.ending is not None and now >= execution.deadline + _STOP_WITHIN:
                    log.error("task %s does not stop: it is left behind", execution.leased.id)
                    self._left_behind = True
                    execution.give_up()
                elif now >= execution.deadline:
                    execution.end("timeout")
            count += 1
            if count % 10 == 0:
                self._processes.watch_memory()
                self._check_wear()
            await asyncio.sleep(0.1)

    def _check_wear(self) -> None:
        most, limit = self.options.max_tasks, self.options.max_memory_mb
        if most is not None and self.finished >= most:
            log.info("%d executions are enough: this process is replaced", self.finished)
        elif limit is not None and memory_mb_of(os.getpid()) > limit:
            log.warning("more than %d MB in use: this process is replaced", limit)
        else:
            return
        self.worn_out = True
        self.stop()

    # The end ---------------------------------------------------------------------------------

    async def _drain(self) -> None:
        self._draining = True
        for leaser in self._leasers:
            await leaser.close()
        await self._reader.barrier()
        await self._wait_for_executions(self.options.grace)
        for execution in self._leased():
            execution.end("released")
        await self._wait_for_executions(_STOP_WITHIN)
        for execution in self._leased():
            if not execution.finished:
                execution.give_up()
        await self._reporter.flush(_FLUSH_WITHIN)
        await self._logs.all_sent(_FLUSH_WITHIN)

    async def _wait_for_executions(self, within: float) -> None:
        self._finished.clear()
        if not self.running:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._finished.wait()


class _NoRunner:
    """The runner for a task that this worker did not offer to run."""

    apart = True

    def start(self, execution: WorkerExecution) -> None:
        execution.finish(RELEASED)

    def stop(self, execution: WorkerExecution) -> None:
        pass
