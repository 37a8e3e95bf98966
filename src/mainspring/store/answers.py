"""First answers, kept for who asks again: under idempotency keys, and in the effect log."""

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
"""The last step of a transaction that made something: keep the answer of who asked for it."""


class StoredAnswer(NamedTuple):
    """What the first caller under an idempotency key was told."""

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
    """Something that was done once, and what came of it. `first`: it was told just now."""

    answer: bytes
    created_at: datetime
    first: bool = True


class AnswerStore(Store):
    """What was answered under idempotency keys."""

    async def find(self, tenant_id: int, key: str) -> StoredAnswer | None:
        """Return what the first caller under this key was told; status 0 while it is being
        served."""
        return await SQL["find_answer"].row(
            self._database, StoredAnswer, tenant_id=tenant_id, key=key
        )

    async def take_turn(self, turn: Turn, body_hash: bytes, lease: float) -> bool:
        """Become the one who serves this key, for at most `lease` seconds; False: somebody is,
        or was."""
        return await SQL["take_turn"].found(
            self._database,
            tenant_id=turn.tenant_id,
            key=turn.key,
            body_hash=body_hash,
            token=turn.token,
            lease=lease,
        )

    async def keep(self, turn: Turn, answer: StoredAnswer, ttl: float) -> None:
        """End a turn with an answer. Nothing happens if it expired: then it is another's."""
        await _keep(self._database, turn, answer, ttl)

    async def give_up(self, turn: Turn) -> None:
        """End a turn without an answer: the next request under the key is served afresh."""
        await SQL["give_up_turn"].run(
            self._database, tenant_id=turn.tenant_id, key=turn.key, token=turn.token
        )


async def keep_answer(
    connection: asyncpg.Connection, turn: Turn, answer: StoredAnswer, ttl: float
) -> bool:
    """Do the same within the transaction of what was asked for. False: the turn has expired."""
    return await _keep(connection, turn, answer, ttl)


async def _keep(on: Queryable, turn: Turn, answer: StoredAnswer, ttl: float) -> bool:
    return await SQL["keep_answer"].found(
        on, tenant_id=turn.tenant_id, key=turn.key, token=turn.token,
        status=answer.status, answer=answer.body, headers=answer.headers, ttl=ttl,
    )  # fmt: skip


class EffectStore(Store):
    """The effect log of every tenant."""

    async def note(self, tenant_id: int, key: str, answer: bytes, ttl: float) -> StoredEffect:
        """Note an effect. Of all that note the same one, exactly one is the first."""
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
