"""A whole scheduler in virtual time: the engine of a server, in memory, on a clock that you move.

    with VirtualTime(app, start="2027-03-01T08:00:00+00:00") as world:
        remind.schedule("ann", delay=timedelta(days=3))
        world.advance(days=7)
        assert [run.at for run in world.runs_of(remind)] == [world.start + timedelta(days=3)]

Due times, priorities, concurrency, retries and schedules follow the very rules of a server.
Handlers run on a virtual event loop: `asyncio.sleep(3600)` takes an hour of the world's time and
none of yours.
"""

import asyncio
import selectors
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from typing import Any, Self
from uuid import UUID

import msgspec

from mainspring.clock import utc
from mainspring.domain.execution import Execution, Outcome, Report, TaskError
from mainspring.domain.ids import TaskIds
from mainspring.domain.outcome_rules import Finish, decide_outcome
from mainspring.domain.tenant import TenantLimits
from mainspring.engine.core import Engine, EngineSettings
from mainspring.errors import NotFound
from mainspring.sdk.app import App
from mainspring.sdk.context import Context, HandlerLogLine, variables_with
from mainspring.sdk.functions import TaskFunction
from mainspring.sdk.worker.outcomes import ReportedOutcome, failed, failure, success
from mainspring.testing.memory import MemoryApi
from mainspring.testing.schedules import VirtualSchedules
from mainspring.testing.tasks import TENANT, VirtualTask, in_seconds

_FOR_EVER = 1e15
_MANY = 2**31
_CLIENTS = ("client", "async_client")
_INSTANT = 1e-6


@dataclass(frozen=True, slots=True)
class Run:
    """One execution of a task, in the world's time."""

    name: str
    task_id: UUID
    at: datetime
    ended: datetime
    attempt: int
    status: str
    payload: dict[str, Any]
    result: Any = None
    error: str | None = None
    logs: tuple[str, ...] = ()


class VirtualTime:
    """The world. What the app's tasks send while it lasts goes here, and not to a server."""

    def __init__(
        self,
        app: App,
        *,
        start: datetime | str = "2027-01-01T00:00:00+00:00",
        slots: int = 100,
        seed: int = 0,
        periodic: bool = True,
    ) -> None:
        self.app = app
        self.start = datetime.fromisoformat(start) if isinstance(start, str) else start
        self.runs: list[Run] = []
        self.tasks: dict[UUID, VirtualTask] = {}
        self._slots = slots
        self._periodic = periodic
        self._rng = Random(seed)
        self._ids = TaskIds(Random(seed))
        self._loop = VirtualLoop(self.start.timestamp())
        self._engine = Engine(EngineSettings(lease=_FOR_EVER, stream_cap=_MANY, tenant_cap=_MANY))
        self._schedules = VirtualSchedules(self._loop.clock, self._new_id, self._request_step)
        self._step_requested = False
        self._alarm: asyncio.TimerHandle | None = None
        self._running: dict[UUID, asyncio.Task[Any]] = {}
        self.api = MemoryApi()
        self._add_routes()

    # The world's time ------------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        return utc(self._loop.clock())

    def advance(self, **duration: float) -> list[Run]:
        """Let time pass: `days=`, `hours=`, `minutes=`, `seconds=`. Return what ran meanwhile."""
        return self.advance_to(self.now + timedelta(**duration))

    def advance_to(self, moment: datetime) -> list[Run]:
        """Let time pass until that moment, what is due then included."""
        before = len(self.runs)
        self._loop.run_until_complete(self._until(moment.timestamp()))
        return self.runs[before:]

    def runs_of(self, function: TaskFunction[..., Any]) -> list[Run]:
        return [run for run in self.runs if run.name == function.name]

    def __enter__(self) -> Self:
        now = self._loop.clock()
        own = self.app.__dict__
        self._before: dict[str, Any] = {name: own[name] for name in _CLIENTS if name in own}
        self.app.use(self.api.client, self.api.async_client)
        self._engine.extend_horizon(_FOR_EVER)
        self._engine.own(range(256), [], now)
        self._engine.set_limits({TENANT: TenantLimits()}, now)
        if self._periodic:
            self._loop.run_until_complete(self.app.sync_periodic())
        return self

    def __exit__(self, *_raised: object) -> None:
        for name in _CLIENTS:
            self.app.__dict__.pop(name, None)
        self.app.__dict__.update(self._before)
        for task in self._running.values():
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _until(self, target: float) -> None:
        self._request_step()
        while (left := target - self._loop.clock()) > 0:  # noqa: ASYNC110 - time moves meanwhile
            await asyncio.sleep(left)
        quiet = 0
        while quiet < 20:  # what is due at this very moment still runs, and what follows from it
            before = (self._step_requested, len(self.runs), len(self._running))
            await asyncio.sleep(0)
            still = before == (self._step_requested, len(self.runs), len(self._running))
            quiet = quiet + 1 if still and not self._step_requested else 0

    # The way of a task -----------------------------------------------------------------------

    def _request_step(self) -> None:
        if not self._step_requested:
            self._step_requested = True
            self._loop.call_soon(self._step)

    def _step(self) -> None:
        """Do what a node's drivers do, at one moment: decide, pick, claim, start."""
        self._step_requested = False
        now = self._loop.clock()
        self._fire(now)
        free = self._slots - self._engine.leases.slots
        picked = self._engine.pick(now, free, lambda _capability: True)
        claimed = [self.tasks[entry.row.id].claim(now) for entry in picked]
        self._engine.finish_claim(picked, claimed, now)
        for execution in claimed:
            self._begin(execution)
        for task in [task for task in self.tasks.values() if task.expired_at(now)]:
            task.state = "expired"
            self._engine.remove([task.id], now)
        self._set_alarm(now)

    def _set_alarm(self, now: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        wakes = (self._engine.next_wake(), self._schedules.next_at())
        wake = min((at for at in wakes if at is not None), default=_FOR_EVER)
        if wake - now < _FOR_EVER / 10:
            self._alarm = self._loop.call_later(max(_INSTANT, wake - now), self._request_step)

    def _fire(self, now: float) -> None:
        for schedule in self._schedules.due(now):
            mine = [t for t in self.tasks.values() if t.schedule_id == schedule.id]
            unfinished = [task for task in mine if not task.final]
            before = schedule.runs
            verdict = schedule.decide(now, len(unfinished))
            for task in unfinished[: verdict.cancel]:
                self._cancel(task)
            for number, nominal in enumerate(verdict.fired, before + 1):
                payload = msgspec.Raw(schedule.payload_at(nominal, number))
                body = {**schedule.body["task"], "payload": payload}
                self._add(body, nominal + schedule.offset, schedule.id, nominal)

    def _add(
        self, body: Mapping[str, Any], due: float, schedule: UUID | None, nominal: float | None
    ) -> VirtualTask:
        now, fields = self._loop.clock(), in_seconds(body)
        task = VirtualTask(self._new_id(), fields, now, due, schedule, nominal)
        self.tasks[task.id] = task
        self._engine.update([task.row()], now)
        self._request_step()
        return task

    def _begin(self, execution: Execution) -> None:
        task = self.tasks[execution.id]
        function = self.app.functions.get(task.handler or "")
        said: list[HandlerLogLine] = []
        context = Context(
            task.id,
            name=task.handler or "",
            attempt=execution.attempt,
            fence=execution.fence,
            clients=self.api,
            said=said.append,
            details=task.details(),
        )
        work = _run(function, task, context, execution.spec.timeout)
        variables = variables_with(context)
        running = self._running[task.id] = self._loop.create_task(work, context=variables)
        began = self.now
        running.add_done_callback(lambda done: self._ended(execution, began, done, said))

    def _ended(
        self,
        execution: Execution,
        began: datetime,
        done: "asyncio.Task[Any]",
        said: list[HandlerLogLine],
    ) -> None:
        now = self._loop.clock()
        task = self.tasks[execution.id]
        self._running.pop(task.id, None)
        verdict = failed("cancelled", "") if done.cancelled() else done.result()
        report = _report(execution, verdict, began.timestamp(), now, done.cancelled())
        outcome = decide_outcome(report, self._rng)
        result = None if verdict.result is None else msgspec.json.decode(verdict.result)
        self.runs.append(
            Run(
                task.handler or "",
                task.id,
                began,
                self.now,
                execution.attempt,
                report.outcome.value,
                msgspec.json.decode(task.payload),
                result,
                verdict.message or None,
                tuple(line.message for line in said),
            )
        )
        self._engine.leases.drop(task.id, execution.fence)
        task.record(outcome, verdict, now)
        if isinstance(outcome, Finish):
            self._engine.end(task.id, execution.fence, now)
        else:
            self._engine.update([task.row()], now)
        self._request_step()

    # Routes ----------------------------------------------------------------------------------

    def _add_routes(self) -> None:
        route, schedules = self.api.route, self._schedules
        route("POST", "/v1/tasks", self._create)
        route("POST", "/v1/tasks/batch", self._create_many)
        route("GET", "/v1/tasks", self._list)
        route("GET", "/v1/tasks/*", lambda task_id, _query: (200, self._task(task_id).shown()))
        route("POST", "/v1/tasks/*/cancel", self._cancel_by_id)
        route("POST", "/v1/schedules", schedules.create)
        route("GET", "/v1/schedules", schedules.page)
        route("GET", "/v1/schedules/*", schedules.one)
        route("PUT", "/v1/schedules/*", schedules.replace)
        route("DELETE", "/v1/schedules/*", schedules.delete)
        self._keys: dict[str, UUID] = {}

    def _create(self, body: dict[str, Any], key: str | None) -> tuple[int, object]:
        if key is None or key not in self._keys:
            task = self._add(body, VirtualTask.due_of(body, self._loop.clock()), None, None)
            self._keys[key or str(task.id)] = task.id
        else:
            task = self.tasks[self._keys[key]]
        return 201, task.shown()

    def _create_many(self, body: dict[str, Any], _key: str | None) -> tuple[int, object]:
        now = self._loop.clock()
        made = [self._add(one, VirtualTask.due_of(one, now), None, None) for one in body["tasks"]]
        return 201, {"ids": [task.id for task in made]}

    def _list(self, query: Mapping[str, str]) -> tuple[int, object]:
        found = [
            task.shown()
            for task in reversed(self.tasks.values())
            if query.get("state") in (None, task.state)
            if query.get("name") in (None, task.body.get("name"))
        ]
        return 200, {"items": found, "next_cursor": None}

    def _cancel_by_id(self, task_id: str) -> tuple[int, object]:
        task = self._task(task_id)
        self._cancel(task)
        return 200, task.shown()

    def _cancel(self, task: VirtualTask) -> None:
        if task.id in self._running:
            self._running[task.id].cancel()
        elif not task.final:
            task.state = "cancelled"
            self._engine.remove([task.id], self._loop.clock())
            self._request_step()

    def _task(self, task_id: str) -> VirtualTask:
        found = self.tasks.get(UUID(task_id))
        if found is None:
            raise NotFound(f"there is no task {task_id!r}")
        return found

    def _new_id(self) -> UUID:
        return self._ids.make(self._loop.clock())


async def _run(
    function: TaskFunction[..., Any] | None, task: VirtualTask, context: Context, within: float
) -> ReportedOutcome:
    if task.target["type"] != "handler":
        return success(None)  # what it would call is outside of this world
    if function is None:
        return failed("unknown", f"the app has no task {task.handler!r}", retryable=False)
    try:
        call = function.signature.unpack(task.payload, context)
        async with asyncio.timeout(within) as limit:
            value: Any = function.function(*call.args, **call.kwargs)
            return success(await value if function.is_async else value)
    except TimeoutError as problem:
        if limit.expired():
            return failed("timeout", f"not done within {within:g} s")
        return failure(problem)
    except Exception as problem:
        return failure(problem)


def _report(
    execution: Execution, verdict: ReportedOutcome, began: float, now: float, cancelled: bool
) -> Report:
    outcome = Outcome.SUCCEEDED if verdict.status == "succeeded" else Outcome.FAILED
    if cancelled:
        outcome = Outcome.CANCELLED
    elif verdict.code == "timeout":
        outcome = Outcome.TIMED_OUT
    error = None if verdict.code is None else TaskError(verdict.code, verdict.message)
    return Report(
        execution,
        outcome,
        began,
        now,
        verdict.result,
        error,
        verdict.retryable,
        verdict.retry_after,
    )


class VirtualLoop(asyncio.SelectorEventLoop):
    """Nothing waits. Real input and output is looked at, but time does not wait for it."""

    def __init__(self, start: float) -> None:
        self._start = start
        self._now = 0.0  # counted from the start: the seconds since 1970 are too coarse to add up
        super().__init__(_Impatient(self))

    def time(self) -> float:
        return self._now

    def clock(self) -> float:
        """Return the seconds since the epoch, in whole microseconds."""
        return round(self._start + self._now, 6)

    def pass_time(self, seconds: float) -> None:
        self._now += seconds


class _Impatient(selectors.DefaultSelector):
    """A selector that moves the clock instead of waiting."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._virtual = loop

    def select(self, timeout: float | None = None) -> list[tuple[Any, int]]:
        found: list[tuple[Any, int]] = super().select(0 if timeout is not None else 1.0)
        if not found and timeout is not None and timeout > 0:
            self._virtual.pass_time(timeout)
        return found
