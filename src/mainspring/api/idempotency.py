"""One key, one effect: requests with the same Idempotency-Key get the first one's answer.

Within a process the followers wait for the first; across nodes the key's row in the database
decides, and whoever comes second reads the answer that was stored with the insert.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from hashlib import sha256

from starlette.requests import Request

from mainspring.api.problems import Busy, KeyReused
from mainspring.clock import monotonic
from mainspring.errors import InvalidRequest, Problem, RequestError
from mainspring.store.tasks import Answer, Tasks

HEADER = "Idempotency-Key"
_WAIT = 10.0


@dataclass(frozen=True, slots=True)
class RequestKey:
    """Whose request this is, under which key, and what it asks."""

    tenant_id: int
    key: str
    body_hash: bytes


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer, and whether it is one that was given before."""

    body: bytes
    status: int
    replayed: bool


def key_in(request: Request) -> str | None:
    """The request's idempotency key, if it has one."""
    key = request.headers.get(HEADER)
    if key is None:
        return None
    if not 1 <= len(key) <= 255 or not (key.isascii() and key.isprintable()):
        raise InvalidRequest(
            f"the header {HEADER} is not valid",
            [Problem(f"/headers/{HEADER}", "1 to 255 printable ASCII characters are allowed")],
        )
    return key


def hash_of(request: Request, body: bytes) -> bytes:
    """What makes two requests the same: method, path and the body's bytes."""
    return sha256(f"{request.method} {request.url.path}\n".encode() + body).digest()


class Idempotency:
    """Keeps requests with the same key from running side by side."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._running: dict[tuple[int, str], asyncio.Future[Answer | None]] = {}

    async def once(
        self, request: RequestKey, attempt: Callable[[], Awaitable[bytes | None]]
    ) -> Answered:
        """Run `attempt` unless the key was used before; then answer what was answered first.

        `attempt` gives the body it answers with status 201, or None when the store found the key
        taken. When the first of several fails, the next one in line tries.
        """
        deadline = monotonic() + _WAIT
        while True:
            first = self._running.get((request.tenant_id, request.key))
            if first is None:
                return await self._lead(request, attempt)
            answer = await _follow(first, deadline)
            if answer is not None:
                return _replay(request, answer)

    async def _lead(
        self, request: RequestKey, attempt: Callable[[], Awaitable[bytes | None]]
    ) -> Answered:
        place = (request.tenant_id, request.key)
        mine = self._running[place] = asyncio.get_running_loop().create_future()
        try:
            outcome = await self._attempt(request, attempt)
            mine.set_result(Answer(request.body_hash, outcome.status, outcome.body))
            return outcome
        finally:
            del self._running[place]
            if not mine.done():
                mine.set_result(None)

    async def _attempt(
        self, request: RequestKey, attempt: Callable[[], Awaitable[bytes | None]]
    ) -> Answered:
        try:
            body = await attempt()
        except RequestError:
            # The first answer stands, even if the same body would be refused today.
            answer = await self._tasks.find_answer(request.tenant_id, request.key)
            if answer is None:
                raise
            return _replay(request, answer)
        if body is not None:
            return Answered(body, 201, replayed=False)
        answer = await self._tasks.find_answer(request.tenant_id, request.key)
        if answer is None:  # it ran out between the insert and this look
            raise Busy("the idempotency key has just run out; send the request again")
        return _replay(request, answer)


async def _follow(first: asyncio.Future[Answer | None], deadline: float) -> Answer | None:
    """The first one's answer; None when it failed."""
    try:
        return await asyncio.wait_for(asyncio.shield(first), deadline - monotonic())
    except TimeoutError:
        raise Busy("another request with this Idempotency-Key is still being served") from None


def _replay(request: RequestKey, answer: Answer) -> Answered:
    if answer.body_hash != request.body_hash:
        raise KeyReused("this Idempotency-Key was used before with another path or body")
    return Answered(answer.body, answer.status, replayed=True)
