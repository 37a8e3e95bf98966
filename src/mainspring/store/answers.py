"""First answers, kept for who asks again: under idempotency keys, and in the effect log."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

import asyncpg

from mainspring.postgres import named_sql as queries
from mainspring.postgres.database import Database
from mainspring.postgres.rows import read_row
from mainspring.store.tasks import StoredAnswer

SQL = queries.load("answers")
T = TypeVar("T")

BeforeCommit = Callable[[asyncpg.Connection, T], Awaitable[None]]
"""The last step of a transaction that made something: keep the answer of who asked for it."""


@dataclass(frozen=True, slots=True)
class Turn:
    """The right to serve the first request under a key; `token` tells it from a later one."""

    tenant_id: int
    key: str
    token: bytes


@dataclass(frozen=True, slots=True)
class StoredEffect:
    """Something that was done once, and what came of it. `first`: it was told just now."""

    answer: bytes
    created_at: datetime
    first: bool


class AnswerStore:
    """What was answered under idempotency keys."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, tenant_id: int, key: str) -> StoredAnswer | None:
        """What the first caller under this key was told; status 0 while it is being served."""
        row = await self._database.fetch_row(*SQL["find_answer"](tenant_id=tenant_id, key=key))
        return read_row(StoredAnswer, row) if row else None

    async def take_turn(self, turn: Turn, body_hash: bytes, lease: float) -> bool:
        """Become the one who serves this key, for at most `lease` seconds; False: somebody is,
        or was."""
        row = await self._database.fetch_row(
            *SQL["take_turn"](
                tenant_id=turn.tenant_id,
                key=turn.key,
                body_hash=body_hash,
                token=turn.token,
                lease=lease,
            )
        )
        return row is not None

    async def keep(self, turn: Turn, answer: StoredAnswer, ttl: float) -> None:
        """End a turn with an answer. Nothing happens if it ran out: then it is another's."""
        await self._database.fetch(*_kept(turn, answer, ttl))

    async def give_up(self, turn: Turn) -> None:
        """End a turn without an answer: the next request under the key is served afresh."""
        await self._database.fetch(
            *SQL["give_up_turn"](tenant_id=turn.tenant_id, key=turn.key, token=turn.token)
        )


async def keep_answer(
    connection: asyncpg.Connection, turn: Turn, answer: StoredAnswer, ttl: float
) -> bool:
    """The same within the transaction of what was asked for. False: the turn ran out."""
    row = await connection.fetchrow(*_kept(turn, answer, ttl))
    return row is not None


def _kept(turn: Turn, answer: StoredAnswer, ttl: float) -> tuple[Any, ...]:
    return SQL["keep_answer"](
        tenant_id=turn.tenant_id, key=turn.key, token=turn.token,
        status=answer.status, answer=answer.body, headers=answer.headers, ttl=ttl,
    )  # fmt: skip


class EffectStore:
    """The effect log of every tenant."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def note(self, tenant_id: int, key: str, answer: bytes, ttl: float) -> StoredEffect:
        """Tell of an effect. Of all who tell of the same one, exactly one is the first."""
        while True:
            row = await self._database.fetch_row(
                *SQL["note_effect"](tenant_id=tenant_id, key=key, answer=answer, ttl=ttl)
            )
            if row is not None:
                return StoredEffect(row["answer"], row["created_at"], first=True)
            row = await self._database.fetch_row(*SQL["find_effect"](tenant_id=tenant_id, key=key))
            if row is not None:  # else it ran out between the two: then we may be the first
                return StoredEffect(row["answer"], row["created_at"], first=False)
