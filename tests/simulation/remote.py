"""The store as the drivers see it: the real classes, answered from memory over a link.

A link decides when a statement happens and whether its answer arrives. The direct link does both
at once; the simulated network is in `node.py`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Generic, Protocol, TypeVar
from uuid import UUID

from mainspring.domain.execution import Execution
from mainspring.domain.lateness import EndedWaiting
from mainspring.domain.outcome_rules import Finish, RetryLater
from mainspring.domain.partitions import Ownership
from mainspring.domain.rows import StreamKey, TaskRow
from mainspring.domain.tenant import TenantLimits
from mainspring.store import cluster
from mainspring.store.claims import EngineStore, ExtendedLease, Woken
from mainspring.store.creation import NO_EAGER_LEASE, Creation, EagerLeaseOffer, Made
from mainspring.store.keys import KeyStore
from mainspring.store.task_refs import Seen, TaskRef
from mainspring.store.tasks import LockedTask, TaskChange, TaskStore
from mainspring.store.tenants import StoredTenant, TenantStore
from mainspring.workflows.task_changes import TaskChangeService
from simulation.store import MemoryStore
from support.rows import MemoryRecord

S = TypeVar("S")
T = TypeVar("T")


class Link(Protocol):
    """How a statement gets to the store, and its answer back."""

    async def call(self, statement: Callable[[], T]) -> T: ...


class DirectLink:
    """No network at all."""

    async def call(self, statement: Callable[[], T]) -> T:
        return statement()


class OverLink(Generic[S]):
    """What asks a store over a link."""

    def __init__(self, store: S, link: Link) -> None:
        self._store = store
        self._link = link


class RemoteEngineStore(OverLink[MemoryStore], EngineStore):
    """The engine's store over a link."""

    async def load_window(
        self, partitions: Collection[int], *, after: float, until: float, cap: int
    ) -> list[TaskRow]:
        asked = frozenset(partitions)
        return await self._link.call(
            lambda: self._store.load_window(asked, after=after, until=until, cap=cap)
        )

    async def load_more(
        self, stream: StreamKey, *, since: float, until: float, known: Collection[UUID], limit: int
    ) -> list[TaskRow]:
        asked = frozenset(known)
        return await self._link.call(
            lambda: self._store.load_more(
                stream, since=since, until=until, known=asked, limit=limit
            )
        )

    async def poll_wakes(
        self, ownership: Ownership, heard: Collection[int], *, limit: int
    ) -> Woken:
        asked = list(heard)
        return await self._link.call(lambda: self._store.poll_wakes(ownership, asked, limit=limit))

    async def served_elsewhere(
        self, node_id: UUID, workers: Collection[tuple[int, str]]
    ) -> set[tuple[int, str]]:
        return await self._link.call(lambda: self._store.served_elsewhere(node_id, workers))

    async def look_at(self, tasks: Sequence[tuple[int, UUID]]) -> Seen:
        asked = list(tasks)
        return await self._link.call(lambda: self._store.look_at(asked))

    async def claim(
        self, ownership: Ownership, picks: Iterable[TaskRef], *, worker: str, lease: float
    ) -> list[Execution]:
        asked = list(picks)
        return await self._link.call(
            lambda: self._store.claim(ownership, asked, worker=worker, lease=lease)
        )

    async def claimed_by(self, picks: Iterable[TaskRef], *, worker: str) -> list[Execution]:
        asked = list(picks)
        return await self._link.call(lambda: self._store.claimed_by(asked, worker=worker))

    async def leased_to(self, tasks: Sequence[tuple[int, UUID]], *, worker: str) -> list[Execution]:
        return await self._link.call(lambda: self._store.leased_to(tasks, worker=worker))

    async def extend(self, held: Iterable[TaskRef], *, lease: float) -> list[ExtendedLease]:
        asked = list(held)
        return await self._link.call(lambda: self._store.extend(asked, lease=lease))

    async def expire_leases(self, held: Iterable[TaskRef], **more: Collection[UUID]) -> Seen:
        asked = list(held)
        return await self._link.call(lambda: self._store.expire_leases(asked, **more))

    async def expire(self, ownership: Ownership, *, limit: int) -> list[UUID]:
        return await self._link.call(lambda: self._store.expire(ownership, limit=limit))

    async def explain_ends(self, ended: Sequence[EndedWaiting]) -> None:
        await self._link.call(lambda: self._store.explain_ends(ended))

    async def finish(self, ownership: Ownership, finished: Iterable[Finish]) -> set[UUID]:
        asked = list(finished)
        return await self._link.call(lambda: self._store.finish(ownership, asked))

    async def retry(self, ownership: Ownership, retries: Iterable[RetryLater]) -> list[TaskRow]:
        asked = list(retries)
        return await self._link.call(lambda: self._store.retry(ownership, asked))


class RemoteTasks(OverLink[MemoryStore], TaskStore):
    """The API's store over a link: as much of it as creates tasks."""

    async def create(
        self,
        creations: Sequence[Creation],
        ownership: Ownership,
        offer: EagerLeaseOffer = NO_EAGER_LEASE,
    ) -> Made:
        waits = True

        def create() -> Made:
            made = self._store.create(creations, ownership, offer)
            if not waits:
                self._store.begun_unheard.update(row.id for row, _ in made.leased)
            return made

        try:
            return await self._link.call(create)
        finally:
            waits = False

    async def which_exist(self, tenant_id: int, ids: Sequence[UUID]) -> dict[UUID, int | None]:
        return await self._link.call(lambda: self._store.which_exist(tenant_id, ids))


class RemoteChanges(OverLink[MemoryStore], TaskChangeService):
    """Changes of tasks over a link."""

    async def change(
        self, tenant_id: int, task_id: UUID, decide: Callable[[LockedTask], TaskChange | T]
    ) -> T | bool | None:
        return await self._link.call(lambda: self._store.change(tenant_id, task_id, decide))


class RemoteKeys(OverLink[MemoryStore], KeyStore):
    """Tenants' limits over a link."""

    async def limits(self, tenants: Collection[int] | None = None) -> dict[int, TenantLimits]:
        return await self._link.call(lambda: self._store.limits(tenants))


class RemoteTenants(OverLink[MemoryStore], TenantStore):
    """Changes of limits over a link."""

    async def change(
        self, tenant_id: int, decide: Callable[[TenantLimits], TenantLimits], actor: str
    ) -> StoredTenant | None:
        def work() -> None:
            before = self._store.limits().get(tenant_id)
            if before is not None:
                self._store.set_limits(tenant_id, decide(before))

        return await self._link.call(work)


class RemoteConnection:
    """A connection that knows the statements of `store.cluster.ClusterStore` by their text."""

    def __init__(self, store: MemoryStore, link: Link) -> None:
        self._store = store
        self._link = link
        self._closed = False

    def is_closed(self) -> bool:
        return self._closed

    def terminate(self) -> None:
        self._closed = True

    async def fetchval(self, sql: str, *args: object) -> object:
        return await self._link.call(partial(self._answer, sql, args))

    async def fetch(self, sql: str, *args: object) -> object:
        return await self._link.call(partial(self._answer, sql, args))

    def _answer(self, sql: str, args: tuple[object, ...]) -> object:
        statement, answer = _STATEMENTS.get(sql, (None, None))
        if statement is None or answer is None:
            return self._store.now()
        return answer(self._store, **dict(zip(statement.parameters, args, strict=True)))


def _hand_over(
    store: MemoryStore,
    node_id: UUID,
    epoch: int,
    beats: int,
    partitions: Sequence[int],
    heirs: Sequence[UUID | None],
    state: str,
) -> int | None:
    gifts: Mapping[int, UUID | None] = dict(zip(partitions, heirs, strict=True))
    ownership = Ownership(node_id, epoch, frozenset(), beats)
    return store.hand_over(ownership, gifts, leaving=state == "left")


_ANSWERS: dict[str, Callable[..., object]] = {
    "join_cluster": lambda store, node_id, name, url, version, former: store.join(
        node_id, name, former
    ),
    "beat": lambda store, node_id, epoch, beats: [
        MemoryRecord(b._asdict()) for b in store.beat(node_id, epoch, beats)
    ],
    "members": lambda store: [
        MemoryRecord(id=m.id, name=m.name, url=m.url, epoch=m.epoch, silent=m.silent)
        for m in store.members()
    ],
    "ownership": lambda store: [
        MemoryRecord(owner=owner, partitions=found) for owner, found in store.ownership().items()
    ],
    "declare_dead": lambda store, node_id, ttl: (
        node_id if store.declare_dead(node_id, ttl) else None
    ),
    "take_over": lambda store, node_id, epoch, beats, partitions: [
        MemoryRecord(partition=p) for p in store.take_over(node_id, epoch, partitions, beats)
    ],
    "hand_over": _hand_over,
}
_STATEMENTS = {cluster.SQL[name].sql: (cluster.SQL[name], _ANSWERS[name]) for name in _ANSWERS}
