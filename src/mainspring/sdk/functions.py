"""A function that is also a task: call it here, or let a worker call it at the right moment."""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property, update_wrapper
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar
from uuid import uuid4

from msgspec import Raw

from mainspring.errors import InvalidArguments
from mainspring.sdk.arguments import Signature
from mainspring.sdk.context import Clients, Context
from mainspring.sdk.encoding import present
from mainspring.sdk.periodic import Periodic
from mainspring.sdk.targets import Duration, Moment, Requires, Retry, described, handler
from mainspring.sdk.workflow import DeclaredStep

if TYPE_CHECKING:
    from mainspring.sdk.resources.schedules import Schedule
    from mainspring.sdk.resources.tasks import Task

P = ParamSpec("P")
R = TypeVar("R")

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,199}")
"""Names of handlers that the API accepts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of a function's tasks; None leaves one to the server."""

    queue: str | None = None
    retries: int | Retry | None = None
    timeout: float | None = None
    max_concurrency: int | None = None
    priority: int | None = None
    sla: float | None = None
    labels: Mapping[str, str] | None = None
    requires: Requires | None = None
    cpu_bound: bool = False
    expires_at: Moment | None = None

    def fields(self, name: str) -> dict[str, Any]:
        """Return the fields of a task."""
        retry = self.retries
        if isinstance(retry, int):
            retry = {"max_attempts": retry + 1}
        limit = self.max_concurrency
        return present(
            name=name,
            queue=self.queue,
            retry=retry,
            timeout=self.timeout,
            concurrency=None if limit is None else {"key": f"task:{name}", "limit": limit},
            priority=self.priority,
            sla=self.sla,
            labels=self.labels,
            requires=self.requires,
            expires_at=self.expires_at,
        )


def check(function: Any, name: str | None) -> str:
    """Return the name of the task of a function; InvalidArguments where it can have none."""
    if isinstance(function, TaskFunction):
        raise InvalidArguments(f"{function.name!r} is a task already: see `with_options`")
    if isinstance(function, DeclaredStep):
        raise InvalidArguments(
            f"{function.id!r} is a step of a workflow already: swap the two, @flow.step goes above "
            "@app.task"
        )
    if not callable(function):
        raise InvalidArguments(
            f"{function!r} is no function: write @app.task, or @app.task(name=…)"
        )
    name = name or getattr(function, "__name__", None)
    if name is None or _NAME.fullmatch(name) is None:
        raise InvalidArguments(
            f"{name or function!r} cannot name a task: give it a name of letters, digits and _.:/-"
        )
    for code in _codes(function):
        if inspect.isgeneratorfunction(code) or inspect.isasyncgenfunction(code):
            raise InvalidArguments(f"{name!r} is a generator: a task returns, it does not yield")
    return name


def _codes(function: Any) -> tuple[Any, Any]:
    """Return the objects that may hold its code: itself, or what makes it callable."""
    return function, getattr(function, "__call__", None)  # noqa: B004


class TaskFunction(Generic[P, R]):
    """A function that `@app.task` made a task. Calling it calls the function."""

    __name__: str

    def __init__(
        self, app: Clients, function: Callable[..., R], name: str, options: Options
    ) -> None:
        update_wrapper(self, function)  # first: its own attributes may be called as ours are
        self.app = app
        self.function = function
        self.name = name
        self.options = options
        self.is_async = any(map(inspect.iscoroutinefunction, _codes(function)))

    @cached_property
    def signature(self) -> Signature:
        return Signature(self.function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        wanted = self.signature.context_parameter
        if wanted is None or wanted in kwargs or any(isinstance(a, Context) for a in args):
            return self.function(*args, **kwargs)
        context = Context(uuid4(), name=self.name, clients=self.app)
        given: Any = self.signature.with_context(args, kwargs, context)
        return self.function(*given.args, **given.kwargs)

    def with_options(self, **changes: Any) -> "TaskFunction[P, R]":
        """Return it with other options: `send_mail.with_options(priority=9).delay(…)`."""
        return TaskFunction(self.app, self.function, self.name, replace(self.options, **changes))

    def prepare(self, *args: P.args, **kwargs: P.kwargs) -> dict[str, Any]:
        """Return the task as it would be sent: for `client.tasks.create_many` and `Enqueue`."""
        return self._prepared(args, kwargs)

    def as_step(self) -> dict[str, Any]:
        """Return the fields of a workflow step that calls it, which the step may override."""
        if self.options.expires_at is not None:
            raise InvalidArguments(f"{self.name}: a step of a workflow has no expires_at")
        return {"handler": self.name, **self.options.fields(self.name)}

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> "Task":
        """Let a worker call it as soon as one is free."""
        return self.app.client.tasks.create(**self._prepared(args, kwargs))

    async def adelay(self, *args: P.args, **kwargs: P.kwargs) -> "Task":
        """`delay` for async code."""
        return await self.app.async_client.tasks.create(**self._prepared(args, kwargs))

    def schedule(
        self,
        *args: Any,
        at: Moment | None = None,
        delay: Duration | None = None,
        cron: str | None = None,
        timezone: str | None = None,
        schedule_name: str | None = None,
        **kwargs: Any,
    ) -> "Task | Schedule":
        """Let a worker call it at a time, after a delay, or by a cron expression: that creates or
        changes the schedule of this name (by default the task's)."""
        create = self._timed(args, kwargs, at, delay, cron, timezone, schedule_name)
        made: Task | Schedule = create(self.app.client)
        return made

    async def aschedule(
        self,
        *args: Any,
        at: Moment | None = None,
        delay: Duration | None = None,
        cron: str | None = None,
        timezone: str | None = None,
        schedule_name: str | None = None,
        **kwargs: Any,
    ) -> "Task | Schedule":
        """`schedule` for async code."""
        create = self._timed(args, kwargs, at, delay, cron, timezone, schedule_name)
        made: Task | Schedule = await create(self.app.async_client)
        return made

    def apply_async(
        self,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        countdown: float | None = None,
        eta: datetime | None = None,
        expires: datetime | None = None,
        queue: str | None = None,
        priority: int | None = None,
        task_id: str | None = None,
    ) -> "Task":
        """`delay` and `schedule` under the names that Celery gave them. A `task_id` is sent as the
        idempotency key: the same one again makes no second task."""
        changes = present(expires_at=expires, queue=queue, priority=priority)
        chosen = self.with_options(**changes) if changes else self
        wanted = chosen._prepared(tuple(args), kwargs or {}, run_at=eta, delay=countdown)
        return self.app.client.tasks.create(**wanted, idempotency_key=task_id)

    def _prepared(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], **times: Any
    ) -> dict[str, Any]:
        if times.get("run_at") is not None and times.get("delay") is not None:
            raise InvalidArguments("give a time or a delay, not both")
        payload = Raw(self.signature.pack(args, kwargs))
        fields = {**self.options.fields(self.name), "payload": payload, **times}
        return described(handler(self.name), fields)

    def _timed(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        at: Moment | None,
        delay: Duration | None,
        cron: str | None,
        timezone: str | None,
        name: str | None,
    ) -> Callable[[Any], Any]:
        """Return how a client creates the task or, with a cron expression, the schedule."""
        if cron is None:
            for field, value in {"timezone": timezone, "schedule_name": name}.items():
                if value is not None:
                    raise InvalidArguments(f"{field} goes with cron; a time has its offset with it")
            task = self._prepared(args, kwargs, run_at=at, delay=delay)
            return lambda client: client.tasks.create(**task)
        if at is not None or delay is not None:
            raise InvalidArguments("give one of at, delay and cron")
        timing = {"cron": cron, "timezone": timezone or "UTC"}
        made = self.recurring(name or self.name, args, kwargs, timing)
        return lambda client: client.schedules.put(made.name, made.template(), **timing)

    def recurring(
        self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], timing: Mapping[str, Any]
    ) -> Periodic:
        """Return a schedule of this name that calls it with these arguments."""
        payload = self.signature.pack(args, kwargs)
        return Periodic(name, self.name, self.options.fields(self.name), payload, timing)
