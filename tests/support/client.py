"""One tenant at one node, over HTTP."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import aiohttp
import msgspec

from support.asgi import Answer

Task = dict[str, Any]


class Unacknowledged(Exception):
    """A create was not answered with 201: whether the task exists is not known."""


def handler(name: str, **fields: Any) -> Task:
    """A task for a built-in handler."""
    return {"target": {"type": "handler", "name": f"mainspring.{name}"}, **fields}


def noop(**fields: Any) -> Task:
    return handler("noop", **fields)


def sleep(seconds: float, **fields: Any) -> Task:
    return handler("sleep", payload={"seconds": seconds}, timeout=300, **fields)


def fail(attempts: int = 3, delay: float = 0.05, **fields: Any) -> Task:
    """A task that fails for good after so many executions."""
    retry = {"max_attempts": attempts, "initial": delay, "factor": 1}
    return handler("fail", retry=retry, **fields)


class Client:
    """Calls the API. An answer that never comes is Unacknowledged."""

    def __init__(self, session: aiohttp.ClientSession, url: str, key: str) -> None:
        self._session = session
        self._url = url
        self._headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}

    async def call(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        data = None if body is None else msgspec.json.encode(body)
        try:
            async with self._session.request(
                method, self._url + path, data=data, headers={**self._headers, **(headers or {})}
            ) as response:
                return Answer(response.status, response.headers, await response.read())
        except (aiohttp.ClientError, TimeoutError) as problem:
            raise Unacknowledged(repr(problem)) from problem

    async def get(self, path: str) -> Answer:
        return await self.call("GET", path)

    async def post(self, path: str, body: object = None, **headers: str) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.call("POST", path, body, named)

    async def create(self, task: Task, *, key: str | None = None) -> UUID:
        """Create one task, under an idempotency key if one is given."""
        headers = {"Idempotency_Key": key} if key else {}
        answer = await self.post("/v1/tasks", task, **headers)
        return UUID(_acknowledged(answer)["id"])

    async def batch(self, tasks: Sequence[Task]) -> list[UUID]:
        answer = await self.post("/v1/tasks/batch", {"tasks": tasks})
        return [UUID(text) for text in _acknowledged(answer)["ids"]]


def _acknowledged(answer: Answer) -> Any:
    if answer.status != 201:
        raise Unacknowledged(f"{answer.status} {answer.body[:300]!r}")
    return answer.json()
