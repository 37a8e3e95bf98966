"""`Client` and `AsyncClient`: the API, typed. The two are one code base, see `sync_async`.

with mainspring.Client() as client:
    task = client.tasks.create(mainspring.http("https://api.example.com/hook"), delay=60)
    for waiting in client.tasks.list(state="scheduled"): ...

async with mainspring.AsyncClient() as client:
    task = await client.tasks.create(mainspring.handler("send_mail"))
    print(await client.tasks.result(task.id, timeout=30))
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self, Unpack

import msgspec

from mainspring.sdk.calling import DEFAULT_TIMEOUT, ApiCaller
from mainspring.sdk.environment import Address, ConnectionFields, address
from mainspring.sdk.resources.administration import Installation
from mainspring.sdk.sync_async import Awaiting, Blocking, F, both, run
from mainspring.sdk.transport import AsyncTransport, BlockingTransport, Transport

if TYPE_CHECKING:
    from mainspring.sdk.resources.administration import Keys, Secrets, Tenants
    from mainspring.sdk.resources.dead_letters import DeadLetters, Effects
    from mainspring.sdk.resources.schedules import Calendars, Schedules
    from mainspring.sdk.resources.tasks import Tasks
    from mainspring.sdk.resources.workflows import WorkflowRuns, Workflows

_RESOURCES = {
    "tasks": ("tasks", "Tasks"),
    "schedules": ("schedules", "Schedules"),
    "calendars": ("schedules", "Calendars"),
    "workflows": ("workflows", "Workflows"),
    "workflow_runs": ("workflows", "WorkflowRuns"),
    "dead_letters": ("dead_letters", "DeadLetters"),
    "effects": ("dead_letters", "Effects"),
    "keys": ("administration", "Keys"),
    "secrets": ("administration", "Secrets"),
    "tenants": ("administration", "Tenants"),
}
"""By attribute: the module and the class, loaded when the attribute is first used."""


class _Client(Installation[F]):
    """The common part: every resource of the API is an attribute or a method."""

    _transport: Callable[[Address], Transport]
    tasks: "Tasks[F]"
    schedules: "Schedules[F]"
    calendars: "Calendars[F]"
    workflows: "Workflows[F]"
    workflow_runs: "WorkflowRuns[F]"
    dead_letters: "DeadLetters[F]"
    effects: "Effects[F]"
    keys: "Keys[F]"
    secrets: "Secrets[F]"
    tenants: "Tenants[F]"

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        transport: Transport | None = None,
        **connection: Unpack[ConnectionFields],
    ) -> None:
        where = address(url=url, api_key=api_key, **connection)
        caller = ApiCaller(transport or self._transport(where), where.api_key, timeout)
        super().__init__(caller)
        self.address = where

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name not in _RESOURCES:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            module, kind = _RESOURCES[name]
            place = import_module(f"mainspring.sdk.resources.{module}")
            resource = getattr(place, kind)(self._caller)
            setattr(self, name, resource)
            return resource

    @both
    async def call(
        self,
        method: str,
        path: str,
        body: object = msgspec.UNSET,
        query: Mapping[str, Any] | None = None,
    ) -> Any:
        """Any other call, as plain JSON values."""
        return await self._caller.call(method, path, body, answer=object, query=query)


class Client(_Client[Blocking]):
    """The API for plain code: every method blocks until it has an answer. Threads may share it."""

    _transport = BlockingTransport

    def close(self) -> None:
        run(self._caller.transport.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()


class AsyncClient(_Client[Awaiting]):
    """The API for asyncio: every method is awaited."""

    _transport = AsyncTransport

    async def close(self) -> None:
        await self._caller.transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_raised: object) -> None:
        await self.close()
