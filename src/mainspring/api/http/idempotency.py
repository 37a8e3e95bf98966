"""Idempotency: requests with the same Idempotency-Key get the first one's answer.

Within a process the followers wait for the first; across nodes the key's row in the database
decides. New tasks store their answer in the statement that creates them; any other POST takes a
turn on the key, is served, and leaves its answer there: in the transaction that makes something
(`ResponseRecorder`), or afterwards where doing it again is harmless. Should its node die before
that, the turn runs out and the next request is served afresh.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256, shake_256
from random import Random
from typing import NamedTuple, TypeVar

import asyncpg
import structlog
from starlette.requests import Request
from starlette.responses import Response

from mainspring import crash_points
from mainspring.api.http.auth import tenant_gone
from mainspring.api.http.bodies import read_body, with_body
from mainspring.clock import monotonic
from mainspring.errors import (
    Busy,
    InvalidRequest,
    KeyReused,
    Problem,
    RequestError,
    StoreUnavailable,
)
from mainspring.store.answers import AnswerStore, BeforeCommit, StoredAnswer, Turn, keep_answer

HEADER = "Idempotency-Key"
REPLAYED = "Idempotency-Replayed"
_WAIT = 10.0
_LOOK_AGAIN = 0.05
_LONGEST_TURN = 60.0
"""Seconds that a request may take, besides those that it waits because it was asked to."""
_IN_PROGRESS = 0
_NONCE = 16

T = TypeVar("T")

log = structlog.get_logger()


class RequestKey(NamedTuple):
    """The tenant and the key of a request, and the hash of what it asks."""

    tenant_id: int
    key: str
    body_hash: bytes


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer, and whether it is one that was given before."""

    body: bytes
    status: int
    replayed: bool
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KeyOwner:
    """The caller of a POST. `secret`, the caller's own, seals an answer that shows a secret.
    `waits`: how long the operation may wait before it is served; two polls must not overlap."""

    tenant_id: int
    secret: str | None = field(default=None, repr=False)
    waits: float = 0.0


@dataclass(frozen=True, slots=True)
class ResponseRecorder:
    """Stores the answer to one request, encrypted where it shows a secret."""

    turn: Turn
    body_hash: bytes
    ttl: float
    secret: str | None = field(repr=False)

    async def keep(self, connection: asyncpg.Connection, response: Response) -> None:
        """Store the answer in the transaction of what was asked for: both last or neither."""
        answer = self.sealed(_answer_of(response))
        if not await keep_answer(connection, self.turn, answer, self.ttl):
            raise Busy("this took so long that another request with its key may be served by now")

    def sealed(self, answered: Answered) -> StoredAnswer:
        body = answered.body
        if self.secret is not None:
            body = self.turn.token + _sealed(body, self.secret, self.turn.token)
        return StoredAnswer(self.body_hash, answered.status, body, dict(answered.headers))


Handler = Callable[[Request, ResponseRecorder | None], Awaitable[Response]]


def recording(
    recorder: ResponseRecorder | None, answer: Callable[[T], Response]
) -> BeforeCommit[T]:
    """Return the last step of a transaction that makes something: it stores the answer."""

    async def conclude(connection: asyncpg.Connection, made: T) -> None:
        if recorder is not None:
            await recorder.keep(connection, answer(made))

    return conclude


def key_in(request: Request) -> str | None:
    """Return the request's idempotency key, if it has one."""
    given = request.headers.getlist(HEADER)
    if not given:
        return None
    key = given[0]
    if len(given) > 1:
        wrong = "is given more than once"
    elif not 1 <= len(key) <= 255 or not (key.isascii() and key.isprintable()):
        wrong = "1 to 255 printable ASCII characters are allowed"
    else:
        return key
    problem = Problem(f"/headers/{HEADER}", wrong)
    raise InvalidRequest(f"the header {HEADER} is not valid", [problem])


def hash_of(request: Request, body: bytes, secret: str | None = None) -> bytes:
    """Hash what makes two requests the same: method, path, query and the body's bytes; where the
    answer is a secret, also the key of the caller."""
    query = request.scope["query_string"].decode("latin-1")
    target = f"{request.method} {request.url.path}{'?' if query else ''}{query}\n"
    asked_by = b"" if secret is None else sha256(secret.encode("utf-8", "surrogatepass")).digest()
    return sha256(target.encode() + asked_by + body).digest()


class Idempotency:
    """Keeps requests with the same key from running side by side."""

    def __init__(self, answers: AnswerStore, ttl: float, rng: Random) -> None:
        self._answers = answers
        self._ttl = ttl
        self._rng = rng
        self._running: dict[tuple[int, str], asyncio.Future[StoredAnswer | None]] = {}

    async def create(
        self, request: RequestKey, attempt: Callable[[], Awaitable[bytes | None]]
    ) -> Answered:
        """Run `attempt` unless the key was used before; then return the first answer.

        `attempt` returns the body of an answer 201 that is stored already; None: the key is taken.
        """
        return await self._once(request, lambda: self._create(request, attempt))

    async def serve(self, caller: KeyOwner, request: Request, handler: Handler) -> Response:
        """Answer any other POST, once per key. A dry run changes nothing, so it takes no key."""
        key = key_in(request)
        if key is None or request.query_params.get("dry_run") in ("true", "1"):
            return await handler(request, None)
        body = await read_body(request)
        asked = RequestKey(caller.tenant_id, key, hash_of(request, body, caller.secret))
        again = with_body(request, body)
        answered = await self._once(
            asked, lambda: self._serve(asked, caller, lambda recorder: handler(again, recorder))
        )
        headers = dict(answered.headers)
        if answered.replayed:
            headers[REPLAYED] = "true"
        return Response(answered.body, answered.status, headers)

    async def _once(
        self, request: RequestKey, attempt: Callable[[], Awaitable[Answered]]
    ) -> Answered:
        """Run one attempt at a time for a key: when the first fails, the next one runs."""
        deadline = monotonic() + _WAIT
        while True:
            first = self._running.get((request.tenant_id, request.key))
            if first is None:
                return await self._run_first(request, attempt)
            answer = await _wait_for_first(first, deadline)
            if answer is not None:
                return _replay(request, answer)

    async def _run_first(
        self, request: RequestKey, attempt: Callable[[], Awaitable[Answered]]
    ) -> Answered:
        place = (request.tenant_id, request.key)
        mine = self._running[place] = asyncio.get_running_loop().create_future()
        try:
            outcome = await attempt()
            mine.set_result(
                StoredAnswer(request.body_hash, outcome.status, outcome.body, dict(outcome.headers))
            )
            return outcome
        finally:
            del self._running[place]
            if not mine.done():
                mine.set_result(None)

    async def _create(
        self, request: RequestKey, attempt: Callable[[], Awaitable[bytes | None]]
    ) -> Answered:
        for _again in (False, True):  # its key may run out between the insert and the look
            try:
                body = await attempt()
            except RequestError:
                # The first answer stands, even if the same body would be refused today.
                answer = await self._answers.find(request.tenant_id, request.key)
                if answer is None:
                    raise
                return _replay(request, answer)
            if body is not None:
                return Answered(body, 201, replayed=False)
            answer = await self._answers.find(request.tenant_id, request.key)
            if answer is not None:
                return _replay(request, answer)
        raise tenant_gone()

    async def _serve(
        self,
        asked: RequestKey,
        caller: KeyOwner,
        run: Callable[[ResponseRecorder], Awaitable[Response]],
    ) -> Answered:
        turn = Turn(asked.tenant_id, asked.key, self._rng.randbytes(_NONCE))
        deadline = monotonic() + _WAIT
        longest = _LONGEST_TURN + caller.waits
        while not await self._answers.take_turn(turn, asked.body_hash, longest):
            answer = await self._answers.find(asked.tenant_id, asked.key)
            if answer is not None and answer.status != _IN_PROGRESS:
                return _unsealed(_replay(asked, answer), caller.secret)
            if answer is not None and answer.body_hash != asked.body_hash:
                raise _reused()
            if monotonic() > deadline:
                raise _busy()
            await asyncio.sleep(_LOOK_AGAIN)
        recorder = ResponseRecorder(turn, asked.body_hash, self._ttl, caller.secret)
        kept = False
        try:
            response = await run(recorder)
            crash_points.reach("post.served")
            answered = _answer_of(response)
            if response.status_code < 400:
                await self._keep(recorder, answered)
                kept = True
            return answered
        finally:
            if not kept:
                await self._give_up(turn)

    async def _keep(self, recorder: ResponseRecorder, answered: Answered) -> None:
        """Store an answer, unless the transaction of its effect has done so. A failure is logged
        only: the effect is committed, so the caller must be answered."""
        try:
            await self._answers.keep(recorder.turn, recorder.sealed(answered), recorder.ttl)
        except StoreUnavailable as problem:
            log.warning(
                "an answer was not stored", action="answer.not_stored", problem=str(problem)
            )

    async def _give_up(self, turn: Turn) -> None:
        try:
            await self._answers.give_up(turn)
        except StoreUnavailable:
            log.info("a turn was not given up: it expires", action="answer.turn_not_given_up")


async def _wait_for_first(
    first: asyncio.Future[StoredAnswer | None], deadline: float
) -> StoredAnswer | None:
    """Wait for the answer to the first request; None when it failed."""
    try:
        return await asyncio.wait_for(asyncio.shield(first), deadline - monotonic())
    except TimeoutError:
        raise _busy() from None


def _replay(request: RequestKey, answer: StoredAnswer) -> Answered:
    if answer.body_hash != request.body_hash:
        raise _reused()
    return Answered(answer.body, answer.status, replayed=True, headers=answer.headers or {})


def _answer_of(response: Response) -> Answered:
    """A handler's answer as it is stored: the length follows from the body."""
    headers = {name: value for name, value in response.headers.items() if name != "content-length"}
    return Answered(bytes(response.body), response.status_code, replayed=False, headers=headers)


def _sealed(body: bytes, secret: str, nonce: bytes) -> bytes:
    """Encrypt a body, or decrypt it, with the caller's secret, of which only a hash is stored."""
    pad = shake_256(nonce + secret.encode("utf-8", "surrogatepass")).digest(len(body))
    return bytes(a ^ b for a, b in zip(body, pad, strict=True))


def _unsealed(answered: Answered, secret: str | None) -> Answered:
    if secret is None:
        return answered
    body = _sealed(answered.body[_NONCE:], secret, answered.body[:_NONCE])
    return replace(answered, body=body)


def _busy() -> Busy:
    return Busy("another request with this Idempotency-Key is still being served")


def _reused() -> KeyReused:
    return KeyReused(
        "this Idempotency-Key was used before with another method, path, query or body"
        " (or another API key, where the answer is a secret)"
    )
