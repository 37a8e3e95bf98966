"""A street with an office on it: the API over real sockets, where creates may go the short way."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from starlette.types import Scope

from mainspring.api.http.fast_path import ResponseSink, ServeFast
from mainspring.config import Config
from mainspring.store.vault import Vault
from mainspring.wiring.api import build_app
from support.api import Office, opened_office
from support.door import Doorway, Visitor, opened_door


@dataclass
class Street:
    """An office with a door, which remembers of every request with a known head whether it was
    served on the spot."""

    office: Office
    doorway: Doorway | None = None
    ways: list[bool] = field(default_factory=list)

    def compile_fast_path(self, scope: Scope) -> ServeFast | None:
        serve = self.office.app.compile_fast_path(scope)
        if serve is None:
            return None

        def watched(body: bytes, reply: ResponseSink) -> bool:
            self.ways.append(serve(body, reply))
            return self.ways[-1]

        return watched

    async def caller(self, key: str = "a:all") -> "Caller":
        assert self.doorway is not None
        return Caller(self, await self.doorway.visit(), key)

    async def counted(self, tenant: str = "a") -> int:
        rows = await self.office.database.fetch(
            "SELECT 1 FROM tasks WHERE tenant_id = $1", self.office.tenants[tenant]
        )
        return len(rows)

    def metric(self, name: str, **labels: str) -> float:
        found = self.office.deps.metrics.registry.get_sample_value(f"mainspring_{name}", labels)
        return found or 0.0

    def answered(self, status: int) -> float:
        labels = {"route": "/v1/tasks", "method": "POST", "status": str(status)}
        return self.metric("http_requests_total", **labels)


Answer = tuple[int, dict[str, str], Any]


@dataclass
class Caller:
    """A connection that sends creates with one key."""

    street: Street
    visitor: Visitor
    key: str

    def say(self, body: bytes, *more: str, path: str = "/v1/tasks") -> None:
        lines = (
            f"POST {path} HTTP/1.1",
            "Host: x",
            f"Authorization: Bearer {self.key}",
            f"Content-Length: {len(body)}",
            *more,
        )
        self.visitor.say("\r\n".join([*lines, "", ""]).encode() + body)

    async def post(self, body: bytes, *more: str, path: str = "/v1/tasks") -> Answer:
        self.say(body, *more, path=path)
        return await self.hear()

    async def hear(self) -> Answer:
        status, headers, said = await self.visitor.hear()
        return status, headers, msgspec.json.decode(said)

    async def ordinarily(self, body: bytes, *more: str) -> Answer:
        """The same, with a header that keeps it from the short way."""
        before = len(self.street.ways)
        answer = await self.post(body, *more, "X-Request-Id: one-off")
        assert len(self.street.ways) == before
        return answer

    async def is_known(self, body: bytes, *more: str) -> None:
        """Make the head of such a body known: the key first, then the head."""
        for _ in range(2):
            await self.post(body, *more)

    async def on_the_spot(self, body: bytes, *more: str) -> Answer:
        before = len(self.street.ways)
        answer = await self.post(body, *more)
        assert self.street.ways[before:] == [True], (body, answer)
        return answer

    async def declined(self, body: bytes, *more: str) -> Answer:
        before = len(self.street.ways)
        answer = await self.post(body, *more)
        assert self.street.ways[before:] == [False], (body, answer)
        return answer


@asynccontextmanager
async def opened_street(database_url: str, config: Config) -> AsyncIterator[Street]:
    async with AsyncExitStack() as stack:
        office = await stack.enter_async_context(opened_office(database_url, config))
        deps = replace(office.deps, vault=Vault(b"k" * 32))
        street = Street(Office(deps, build_app(deps), office.tenants))
        door = opened_door(street.office.app, compiler=street)
        street.doorway = await stack.enter_async_context(door)
        yield street
