"""Replays: new tasks from dead letters, one or many, stopped when too many of them fail."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from mainspring.api.node_ports import NodePort
from mainspring.api.tasks.views import decode_spec
from mainspring.clock import Clock, monotonic
from mainspring.domain.capability import capability_of
from mainspring.domain.ids import TaskIds
from mainspring.store.creation import NewTask
from mainspring.store.dead_letters import DeadLetterStore, LetterFilter, Replay, StoredLetter
from mainspring.wire.dead_letters import ReplayedOut, ReplayIn

_CHUNK = 100
_CAREFUL_CHUNK = 10
_WAIT_PER_CHUNK = 5.0
_LONGEST = 30.0
_POLL_EVERY = 0.1


@dataclass(frozen=True, slots=True)
class Replayer:
    """The creation of new tasks from dead letters."""

    store: DeadLetterStore
    ids: TaskIds
    clock: Clock
    node: NodePort

    async def one(self, tenant_id: int, task_id: UUID, actor: str) -> Replay | None:
        """Replay one dead letter, or return the replay it has already; None when there is none."""
        replays = await self._replay(tenant_id, [task_id], actor)
        return replays.get(task_id)

    async def count(self, tenant_id: int, where: LetterFilter, first: int) -> int:
        """Return how many `many` would replay now."""
        count, after, upto = 0, None, self.ids.make(self.clock.now())
        while count < first:
            found = await self.store.unresolved(
                tenant_id, where, after=after, upto=upto, limit=min(1000, first - count)
            )
            count += len(found.ids)
            after = found.next_after
            if after is None:
                break
        return count

    async def many(
        self, tenant_id: int, where: LetterFilter, wanted: ReplayIn, actor: str
    ) -> ReplayedOut:
        """Replay what matches, oldest first.

        With a failure rate it goes in small steps, a quarter of what is wanted at most, and before
        each looks at how the tasks made so far fare. What it made itself and died again is left
        alone. A synchronous call cannot wait for long: after 5 s it judges by what is known, and
        goes on if that is nothing; after 30 s in all it stops.
        """
        rate = wanted.stop_on_failure_rate
        chunk = _CHUNK if rate is None else max(1, min(_CAREFUL_CHUNK, wanted.first // 4))
        upto, after = self.ids.make(self.clock.now()), None
        deadline = monotonic() + _LONGEST
        made: list[UUID] = []
        while len(made) < wanted.first:
            found = await self.store.unresolved(
                tenant_id, where, after=after, upto=upto, limit=min(chunk, wanted.first - len(made))
            )
            if rate is not None and made and found.ids:
                if await self._failing(tenant_id, made, rate, deadline):
                    return ReplayedOut(len(made), made, True, "failure_rate")
                if monotonic() >= deadline:
                    return ReplayedOut(len(made), made, True, "time")
            replays = await self._replay(tenant_id, found.ids, actor)
            made += [replay.task_id for replay in replays.values() if replay.task is not None]
            after = found.next_after
            if after is None:
                break
        return ReplayedOut(len(made), made)

    async def _failing(
        self, tenant_id: int, made: Sequence[UUID], rate: float, deadline: float
    ) -> bool:
        """Whether the share of these tasks that failed exceeds the rate."""
        until = min(monotonic() + _WAIT_PER_CHUNK, deadline)
        while True:
            seen = await self.store.outcomes(tenant_id, made)
            if seen.failed > rate * len(made):
                return True  # however the others end
            known = seen.failed + seen.others
            if known == len(made) or monotonic() >= until:
                return seen.failed > rate * known
            await asyncio.sleep(_POLL_EVERY)

    async def _replay(self, tenant_id: int, ids: Sequence[UUID], actor: str) -> dict[UUID, Replay]:
        if not ids:
            return {}
        replays = await self.store.replay(
            tenant_id, ids, lambda letter: self._task_of(tenant_id, letter), actor
        )
        partitions = {r.partition for r in replays.values() if r.partition is not None}
        if partitions:
            self.node.announce(changed=partitions)
        return replays

    def _task_of(self, tenant_id: int, letter: StoredLetter) -> NewTask:
        """Return a task with the same work, due now and without the expiry of the dead one."""
        now = round(self.clock.now(), 6)
        dead = letter.task
        return NewTask(
            tenant_id=tenant_id,
            id=self.ids.make(now),
            created=now,
            run=now,
            due=now,
            expires=None,
            concurrency_key=dead.concurrency_key,
            concurrency_limit=dead.concurrency_limit,
            priority=dead.priority,
            queue=dead.queue,
            capability=capability_of(decode_spec(dead.spec)),
            name=dead.name,
            labels=dead.labels,
            spec=dead.spec,
            payload=dead.payload,
            replay_of=dead.id,
        )
