"""The API over real sockets, where creates may go the fast path."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
from starlette.types import Scope

from mainspring.api.http.fast_path import ResponseSink, ServeFast
from mainspring.config import Config
from mainspring.store.vault import Vault
from support.http_server import HttpConnection, HttpListener, open_http_server
from support.in_process_api import InProcessApi, open_api


@dataclass
class LiveApi:
    """The API behind an HTTP server, with a note of every request with a known head: whether it
    was served on the fast path."""

    api: InProcessApi
    listener: HttpListener | None = None
    served_fast: list[bool] = field(default_factory=list)

    def compile_fast_path(self, scope: Scope) -> ServeFast | None:
        serve = self.api.app.compile_fast_path(scope)
        if serve is None:
            return None

        def watched(body: bytes, reply: ResponseSink) -> bool:
            self.served_fast.append(serve(body, reply))
            return self.served_fast[-1]

        return watched

    async def connect(self, key: str = "a:all") -> "ApiConnection":
        assert self.listener is not None
        return ApiConnection(self, await self.listener.connect(), key)

    async def count_tasks(self, tenant: str = "a") -> int:
        rows = await self.api.database.fetch(
            "SELECT 1 FROM tasks WHERE tenant_id = $1", self.api.tenants[tenant]
        )
        return len(rows)

    def metric(self, name: str, **labels: str) -> float:
        found = self.api.deps.metrics.registry.get_sample_value(f"mainspring_{name}", labels)
        return found or 0.0

    def answered(self, status: int) -> float:
        labels = {"route": "/v1/tasks", "method": "POST", "status": str(status)}
        return self.metric("http_requests_total", **labels)


Answer = tuple[int, dict[str, str], Any]


@dataclass
class ApiConnection:
    """A connection that sends creates with one key."""

    live_api: LiveApi
    http: HttpConnection
    key: str

    def send(self, body: bytes, *more: str, path: str = "/v1/tasks") -> None:
        lines = (
            f"POST {path} HTTP/1.1",
            "Host: x",
            f"Authorization: Bearer {self.key}",
            f"Content-Length: {len(body)}",
            *more,
        )
        self.http.send("\r\n".join([*lines, "", ""]).encode() + body)

    async def post(self, body: bytes, *more: str, path: str = "/v1/tasks") -> Answer:
        self.send(body, *more, path=path)
        return await self.read_response()

    async def read_response(self) -> Answer:
        status, headers, body = await self.http.read_response()
        return status, headers, msgspec.json.decode(body)

    async def post_normally(self, body: bytes, *more: str) -> Answer:
        """The same, with a header that keeps it from the fast path."""
        before = len(self.live_api.served_fast)
        answer = await self.post(body, *more, "X-Request-Id: one-off")
        assert len(self.live_api.served_fast) == before
        return answer

    async def make_known(self, body: bytes, *more: str) -> None:
        """Make the head of such a body known: the key first, then the head."""
        for _ in range(2):
            await self.post(body, *more)

    async def post_fast(self, body: bytes, *more: str) -> Answer:
        before = len(self.live_api.served_fast)
        answer = await self.post(body, *more)
        assert self.live_api.served_fast[before:] == [True], (body, answer)
        return answer

    async def post_declined(self, body: bytes, *more: str) -> Answer:
        before = len(self.live_api.served_fast)
        answer = await self.post(body, *more)
        assert self.live_api.served_fast[before:] == [False], (body, answer)
        return answer


@asynccontextmanager
async def open_live_api(database_url: str, config: Config) -> AsyncIterator[LiveApi]:
    async with AsyncExitStack() as stack:
        vault = Vault(b"k" * 32)
        live_api = LiveApi(await stack.enter_async_context(open_api(database_url, config, vault)))
        server = open_http_server(live_api.api.app, fast_path=live_api.compile_fast_path)
        live_api.listener = await stack.enter_async_context(server)
        yield live_api
