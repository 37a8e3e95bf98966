"""`client.dead_letters` and `client.effects`."""

from collections.abc import AsyncIterator
from typing import Any, Unpack
from uuid import UUID

from mainspring.sdk.encoding import present
from mainspring.sdk.resources.base import ApiResource, Page
from mainspring.sdk.resources.tasks import Task
from mainspring.sdk.sync_async import F, both, each
from mainspring.sdk.targets import DeadLetterListFields, Duration
from mainspring.wire.dead_letters import DeadLetterGroupOut, DeadLetterOut, EffectOut, ReplayedOut

Groups = list[DeadLetterGroupOut]


class DeadLetter(DeadLetterOut, kw_only=True):
    """A task that failed for good, and what was done about it."""

    task: Task


class DeadLetters(ApiResource[F]):
    """Tasks that failed for good."""

    _path = "/v1/dead-letters"

    @each
    def list(self, **filter: Unpack[DeadLetterListFields]) -> AsyncIterator[DeadLetter]:
        """Yield all that match, newest first."""
        return self._every(self._path, Page[DeadLetter], filter)

    @both
    async def groups(
        self, *, resolved: bool | None = None, name: str | None = None, queue: str | None = None
    ) -> Groups:
        """Return the errors of dead letters, the most frequent first."""
        query = {"group": True, "resolved": resolved, "name": name, "queue": queue}
        found = await self._call("GET", self._path, answer=Page[DeadLetterGroupOut], query=query)
        return found.items

    @both
    async def get(self, letter_id: UUID | str) -> DeadLetter:
        return await self._call("GET", self._at(letter_id), answer=DeadLetter)

    @both
    async def replay(self, letter_id: UUID | str) -> Task:
        """Make a new task of it; asking twice gives the same one."""
        return await self._post(Task, letter_id, "replay")

    @both
    async def replay_all(
        self,
        /,
        *,
        first: int | None = None,
        stop_on_failure_rate: float | None = None,
        **filter: Any,
    ) -> ReplayedOut:
        """Replay what matches, oldest first."""
        body = present(filter=filter, first=first, stop_on_failure_rate=stop_on_failure_rate)
        return await self._call("POST", self._at("replay"), body, answer=ReplayedOut)

    @both
    async def archive(self, letter_id: UUID | str) -> DeadLetter:
        return await self._post(DeadLetter, letter_id, "archive")

    @both
    async def delete(self, letter_id: UUID | str) -> None:
        await self._call("DELETE", self._at(letter_id))


class Effects(ApiResource[F]):
    """The effect log: it tells one of all callers about to do something that it is the first."""

    @both
    async def note(
        self,
        key: str,
        answer: Any = None,
        *,
        ttl: Duration | None = None,
        idempotency_key: str | None = None,
    ) -> EffectOut:
        """Record an effect; `first` says whether it was not recorded before."""
        body = {"key": key, "answer": answer, **present(ttl=ttl)}
        return await self._call("POST", "/v1/effects", body, answer=EffectOut, key=idempotency_key)
