"""Responses kept for repeated requests: under idempotency keys, and in the effect log."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import NamedTuple, TypeVar

import asyncpg

from mainspring.postgres import named_sql as queries
from mainspring.postgres.database import Store
from mainspring.postgres.named_sql import Queryable

SQL = queries.load("answers")
T = TypeVar("T")

BeforeCommit = Callable[[asyncpg.Connection, T], Awaitable[None]]
"""The last step of a transaction that creates something: store the response to the request."""


class StoredAnswer(NamedTuple):
    """The response to the first request under an idempotency key."""

    body_hash: bytes
    status: int
    body: bytes
    headers: dict[str, str] | None = None


class Turn(NamedTuple):
    """The right to serve the first request under a key; `token` tells it from a later one."""

    tenant_id: int
    key: str
    token: bytes


class StoredEffect(NamedTuple):
    """An effect that was noted once, with its result; `first` if it was noted just now."""

    answer: bytes
    created_at: datetime
    first: bool = True


class AnswerStore(Store):
    """Responses under idempotency keys."""

    async def find(self, tenant_id: int, key: str) -> StoredAnswer | None:
        """Return the response to the first request under this key; status 0 while it is served."""
        return await SQL["find_answer"].row(
            self._database, StoredAnswer, tenant_id=tenant_id, key=key
        )

    async def take_turn(self, turn: Turn, body_hash: bytes, lease: float) -> bool:
        """Reserve this key for at most `lease` seconds; False if another request has or had it."""
        return await SQL["take_turn"].found(
            self._database, **turn._asdict(), body_hash=body_hash, lease=lease
        )

    async def keep(self, turn: Turn, answer: StoredAnswer, ttl: float) -> None:
        """End a turn with a response; nothing happens if the turn has expired."""
        await keep_answer(self._database, turn, answer, ttl)

    async def give_up(self, turn: Turn) -> None:
        """End a turn without a response: the next request under the key is served afresh."""
        await SQL["give_up_turn"].run(self._database, **turn._asdict())


async def keep_answer(on: Queryable, turn: Turn, answer: StoredAnswer, ttl: float) -> bool:
    """Store a response, within the transaction of its request. False: the turn has expired."""
    return await SQL["keep_answer"].found(
        on, tenant_id=turn.tenant_id, key=turn.key, token=turn.token,
        status=answer.status, answer=answer.body, headers=answer.headers, ttl=ttl,
    )  # fmt: skip


class EffectStore(Store):
    """The effect log of every tenant."""

    async def note(self, tenant_id: int, key: str, answer: bytes, ttl: float) -> StoredEffect:
        """Note an effect. Of all callers that note the same one, exactly one is the first."""
        while True:
            noted = await SQL["note_effect"].row(
                self._database, StoredEffect, tenant_id=tenant_id, key=key, answer=answer, ttl=ttl
            )
            if noted is not None:
                return noted
            earlier = await SQL["find_effect"].row(
                self._database, StoredEffect, tenant_id=tenant_id, key=key
            )
            if earlier is not None:  # else it expired between the two: then we may be the first
                return earlier._replace(first=False)
