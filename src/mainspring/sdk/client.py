"""`Client` and `AsyncClient`: the API, typed. The two are one code base, see `sync_async`.

with mainspring.Client() as client:
    task = client.tasks.create(mainspring.http("https://api.example.com/hook"), delay=60)
    for waiting in client.tasks.list(state="scheduled"): ...

async with mainspring.AsyncClient() as client:
    task = await client.tasks.create(mainspring.handler("send_mail"))
    print(await client.tasks.result(task.id, timeout=30))
"""

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from mainspring.sdk.calling import PATIENCE, ApiCaller
from mainspring.sdk.environment import Address, address
from mainspring.sdk.resources.administration import Installation, Keys, Secrets, Tenants
from mainspring.sdk.resources.dead_letters import DeadLetters, Effects
from mainspring.sdk.resources.schedules import Calendars, Schedules
from mainspring.sdk.resources.tasks import Tasks
from mainspring.sdk.resources.workflows import WorkflowRuns, Workflows
from mainspring.sdk.sync_async import Awaiting, Blocking, F, both, run
from mainspring.sdk.transport import AsyncTransport, BlockingTransport, Transport

T = TypeVar("T")


class _Client(Installation[F]):
    """The common part: every resource of the API is an attribute or a method."""

    _transport: Callable[[Address], Transport]

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        ca: str | None = None,
        proxy: str | None = None,
        client_cert: str | None = None,
        client_key: str | None = None,
        patience: float = PATIENCE,
        transport: Transport | None = None,
    ) -> None:
        where = address(
            url=url,
            api_key=api_key,
            ca=ca,
            proxy=proxy,
            client_cert=client_cert,
            client_key=client_key,
        )
        caller = ApiCaller(transport or self._transport(where), where.api_key, patience)
        super().__init__(caller)
        self.address = where
        self.tasks: Tasks[F] = Tasks(caller)
        self.schedules: Schedules[F] = Schedules(caller)
        self.calendars: Calendars[F] = Calendars(caller)
        self.workflows: Workflows[F] = Workflows(caller)
        self.workflow_runs: WorkflowRuns[F] = WorkflowRuns(caller)
        self.dead_letters: DeadLetters[F] = DeadLetters(caller)
        self.effects: Effects[F] = Effects(caller)
        self.keys: Keys[F] = Keys(caller)
        self.secrets: Secrets[F] = Secrets(caller)
        self.tenants: Tenants[F] = Tenants(caller)

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

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _problem: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.close()


class AsyncClient(_Client[Awaiting]):
    """The API for asyncio: every method is awaited."""

    _transport = AsyncTransport

    async def close(self) -> None:
        await self._caller.transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _problem: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        await self.close()
