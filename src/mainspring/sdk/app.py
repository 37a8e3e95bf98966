"""`App`: functions that become tasks.

    app = mainspring.App()

    @app.task(queue="mail", retries=3, timeout=60)
    def send_mail(to: str, subject: str = "Hello") -> None: ...

    send_mail("ann@example.com")                          # calls it, here and now
    send_mail.delay("ann@example.com")                    # a worker calls it soon
    send_mail.schedule("ann@example.com", delay=3600)     # … in an hour
    send_mail.schedule("ann@example.com", cron="0 8 * * MON", timezone="Europe/Berlin")

    @app.periodic(cron="0 2 * * *")
    async def clean_up() -> None: ...

A worker runs them: `mainspring worker module:app`.
"""

import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cached_property
from importlib import import_module
from inspect import currentframe
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

from mainspring.domain.task import BUILT_IN_HANDLERS
from mainspring.errors import ConfigError, InvalidArguments
from mainspring.sdk.client import AsyncClient, Client
from mainspring.sdk.context import Context
from mainspring.sdk.environment import Address, AddressFields, check_names
from mainspring.sdk.functions import Options, TaskFunction, check
from mainspring.sdk.periodic import Owner, Periodic, Synced, sync
from mainspring.sdk.targets import Requires, Retry, ScheduleFields

P = ParamSpec("P")
R = TypeVar("R")


class Decorator(Protocol):
    """Makes a task of a function. The worker passes the context, if that is its first parameter."""

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> TaskFunction[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> TaskFunction[P, R]: ...


class App:
    """Your tasks, and clients of the API that stores them, made when they are first used."""

    def __init__(
        self, name: str | None = None, *, version: int = 0, **address: Unpack[AddressFields]
    ) -> None:
        check_names(address)
        if version < 0:
            raise InvalidArguments(f"version: {version} is negative")
        self.name = name or _calling_module()
        """Whose periodic schedules these are: two apps with one key need two names."""
        self.version = version
        """Rises with every deployment, so that of two side by side the newer one decides."""
        self.functions: dict[str, TaskFunction[..., Any]] = {}
        self.periodics: dict[str, Periodic] = {}
        self._address = address

    @cached_property
    def client(self) -> Client:
        """The API, for plain code."""
        return Client(**self._address)

    @cached_property
    def async_client(self) -> AsyncClient:
        """The API, for async code."""
        return AsyncClient(**self._address)

    def use_address(self, where: Address) -> None:
        """Call the API there, unless the app itself says where."""
        if not any(self._address.values()):
            self._address = cast(AddressFields, asdict(where))

    def use(self, client: Client, async_client: AsyncClient) -> None:
        """Call the API through these clients: for tests, and for programs that have clients."""
        self.__dict__["client"] = client
        self.__dict__["async_client"] = async_client

    @overload
    def task(self, function: Callable[Concatenate[Context, P], R], /) -> TaskFunction[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> TaskFunction[P, R]: ...
    @overload
    def task(
        self,
        /,
        *,
        name: str | None = None,
        queue: str | None = None,
        retries: int | Retry | None = None,
        timeout: float | None = None,
        max_concurrency: int | None = None,
        priority: int | None = None,
        sla: float | None = None,
        labels: Mapping[str, str] | None = None,
        requires: Requires | None = None,
        cpu_bound: bool = False,
    ) -> Decorator: ...
    def task(self, function: Any = None, /, *, name: str | None = None, **options: Any) -> Any:
        """Make a task of a function.

        `retries`: how often it is run again, or a whole policy. `max_concurrency`: how many run at
        once, on all workers together. `cpu_bound`: run it in a process of its own.
        """
        if function is not None:
            return self._add(function, None, Options())
        chosen = Options(**options)
        return lambda function: self._add(function, name, chosen)

    def periodic(
        self,
        *,
        name: str | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **timing: Unpack[ScheduleFields],
    ) -> Callable[[Callable[P, R] | TaskFunction[P, R]], TaskFunction[P, R]]:
        """Run a function on a schedule: `cron`, `interval` or `rrule`, with a schedule's options.
        Workers create or update the schedule when they start."""

        def decorate(function: Callable[P, R] | TaskFunction[P, R]) -> TaskFunction[P, R]:
            made: Any = function
            if not isinstance(function, TaskFunction):
                made = self._add(function, None, Options())
            wanted = made.recurring(name or made.name, (), kwargs or {}, dict(timing))
            if wanted.name in self.periodics:
                raise InvalidArguments(f"there is a periodic {wanted.name!r} already")
            self.periodics[wanted.name] = wanted
            found: TaskFunction[P, R] = made
            return found

        return decorate

    async def sync_periodic(self) -> Synced:
        """Make the server's schedules of this app those that are declared; return what it did."""
        owner = Owner(self.name, self.version)
        return await sync(self.async_client, owner, list(self.periodics.values()))

    def _add(
        self, function: Callable[P, R], wanted: str | None, options: Options
    ) -> TaskFunction[P, R]:
        name = check(function, wanted)
        if name in self.functions:
            raise InvalidArguments(f"there is a task {name!r} already: give it another name")
        if name.startswith(BUILT_IN_HANDLERS):
            raise InvalidArguments(f"{name!r}: names that begin so run in the server")
        made: TaskFunction[P, R] = TaskFunction(self, function, name, options)
        self.functions[name] = made
        return made


def _calling_module() -> str:
    """Return the name of the module that makes an app."""
    frame = currentframe()
    made_in = frame and frame.f_back and frame.f_back.f_back
    return made_in.f_globals["__name__"] if made_in else "app"


def load_app(path: str) -> App:
    """Return the app that `module:name` names; without a name, the one app of the module."""
    module_name, _, name = path.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # as if the module had been run from this directory
    try:
        module = import_module(module_name)
    except Exception as problem:  # it is the user's code that runs: anything may happen
        where = _with_location(problem)
        raise ConfigError([f"{module_name!r} cannot be imported: {where}"]) from problem
    if name:
        found = getattr(module, name, None)
        if not isinstance(found, App):
            raise ConfigError([f"{module_name!r} has no mainspring.App {name!r}"])
        return found
    apps = {id(value): value for value in vars(module).values() if isinstance(value, App)}
    if len(apps) != 1:
        raise ConfigError([f"{module_name!r} has {len(apps)} apps: name one, as in module:app"])
    return next(iter(apps.values()))


def _with_location(problem: Exception) -> str:
    """Return the error, and the line of code that raised it."""
    if isinstance(problem, ModuleNotFoundError):
        return str(problem)
    frames = traceback.extract_tb(problem.__traceback__)
    theirs = [frame for frame in frames if "importlib" not in frame.filename]
    where = f" ({theirs[-1].filename}, line {theirs[-1].lineno})" if len(theirs) > 1 else ""
    return f"{type(problem).__name__}: {problem}{where}"
