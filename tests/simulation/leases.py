"""The statements about workers and leases, in memory: the contract suite binds them to the SQL."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from uuid import UUID

import msgspec

from mainspring.domain.execution import Outcome
from mainspring.domain.partitions import Ownership
from mainspring.domain.task import TaskSpec
from mainspring.store.claims import ExtendedLease
from mainspring.store.cluster import MessageStore
from mainspring.store.leases import (
    HeldExecution,
    HeldHeartbeat,
    Judged,
    LeasedTask,
    LeaseStore,
)
from mainspring.store.task_refs import WorkerPick
from mainspring.store.workers import Touch, WorkerStore
from simulation.remote import Link, OverLink
from simulation.store import MemoryStore, assignment_of
from simulation.tables import Task

_decode_spec = msgspec.json.Decoder(TaskSpec).decode

ExecutionRef = tuple[UUID, int]


class MemoryLeases:
    """The statements over the simulation's tables."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._tables = store.tables

    def claim_for(
        self, ownership: Ownership, picks: Iterable[WorkerPick], lease: float
    ) -> list[LeasedTask]:
        if not self._store.is_valid(ownership):
            return []
        leased = []
        self._store.writer = ownership
        for pick in sorted(picks):
            if self.is_current(pick.tenant_id, pick.worker, pick.incarnation):
                task = self._store.begin_execution(pick.ref, pick.worker, pick.incarnation, lease)
                if task is not None:
                    leased.append(_leased(task))
        self._store.committed("claim")
        return leased

    def claimed_for(self, picks: Iterable[WorkerPick]) -> list[LeasedTask]:
        found = []
        for pick in sorted(picks):
            self._store.claimed_by([pick.ref], worker=pick.worker)  # makes its rev stale
            task = self._tables.tasks.get(pick.id)
            if task is None or task.rev <= pick.rev:
                continue
            if (task.worker, task.incarnation) == pick[3:5]:
                found.append(_leased(task))
        return found

    def extend_for(
        self,
        holder: tuple[int, str, str],
        beats: Iterable[HeldHeartbeat],
        lease: float,
        grace: float,
    ) -> list[ExtendedLease]:
        beaten, now = [], self._store.now()
        for beat in beats:
            task = self._present(holder[0], beat.id, beat.fence)
            if task is None or (task.worker, task.incarnation) != holder[1:]:
                continue
            assert task.picked is not None
            last = task.picked + _decode_spec(task.spec).timeout + grace
            over = now >= last
            assert task.lease_until is not None
            early = beat.started and not task.began and task.lease_until > now + lease / 3
            if not over and not early:
                task.lease_until = min(now + lease, last + lease / 2)
            task.began |= beat.started
            task.began_alone |= beat.started and beat.alone
            end = task.lease_until
            beaten.append(ExtendedLease(holder[0], task.id, end, task.cancel_requested, over))
        self._store.committed("extend")
        return beaten

    def leased(self, tenant_id: int, executions: Sequence[ExecutionRef]) -> list[LeasedTask]:
        return [_leased(task) for task in self._held(tenant_id, executions)]

    def held(self, tenant_id: int, executions: Sequence[ExecutionRef]) -> list[HeldExecution]:
        return [
            HeldExecution(assignment_of(task)._replace(payload=b""), task.cancel_requested)
            for task in self._held(tenant_id, executions)
        ]

    def judge(
        self, tenant_id: int, executions: Sequence[tuple[UUID, int, Outcome]]
    ) -> list[Judged]:
        return [
            Judged(id, fence, outcome.value, self._told(id, fence, outcome), self._known(id))
            for id, fence, outcome in executions
        ]

    def register(self, tenant_id: int, name: str, incarnation: str) -> bool:
        if (tenant_id, name, incarnation) in self._tables.former_workers:
            return False
        before = self._tables.workers.get((tenant_id, name))
        if before not in (None, incarnation):
            self._tables.former_workers.add((tenant_id, name, before))
        self._tables.workers[tenant_id, name] = incarnation
        self._store.committed("register")
        return True

    def is_current(self, tenant_id: int, name: str, incarnation: str) -> bool:
        return self._tables.workers.get((tenant_id, name)) in (None, incarnation)

    def _held(self, tenant_id: int, executions: Sequence[ExecutionRef]) -> list[Task]:
        found = [self._present(tenant_id, id, fence) for id, fence in executions]
        return [task for task in found if task is not None and task.incarnation is not None]

    def _present(self, tenant_id: int, task_id: UUID, fence: int) -> Task | None:
        task = self._tables.tasks.get(task_id)
        if task is None or task.tenant_id != tenant_id or task.state != "running":
            return None
        return task if task.fence == fence else None

    def _told(self, task_id: UUID, fence: int, outcome: Outcome) -> bool:
        """Whether the same was told of this execution before."""
        recorded = self._tables.outcome_of(task_id, fence)
        cancelled = recorded == Outcome.CANCELLED and outcome is not Outcome.SUCCEEDED
        return recorded == outcome or cancelled

    def _known(self, task_id: UUID) -> bool:
        return task_id in self._tables.tasks or task_id in self._tables.history


def _leased(task: Task) -> LeasedTask:
    suspect = task.losses + task.unproven_losses > 0
    return LeasedTask(
        assignment_of(task), task.capability, None, task.queue, None, None, None, suspect
    )


class RemoteLeases(OverLink[MemoryLeases], LeaseStore):
    """Workers' leases over a link."""

    async def claim_for(
        self, ownership: Ownership, picks: Iterable[WorkerPick], *, lease: float
    ) -> list[LeasedTask]:
        asked = list(picks)
        return await self._link.call(lambda: self._store.claim_for(ownership, asked, lease))

    async def claimed_for(self, picks: Iterable[WorkerPick]) -> list[LeasedTask]:
        asked = list(picks)
        return await self._link.call(lambda: self._store.claimed_for(asked))

    async def extend_for(
        self,
        tenant_id: int,
        worker: str,
        incarnation: str,
        beats: Iterable[HeldHeartbeat],
        *,
        lease: float,
        grace: float,
    ) -> list[ExtendedLease]:
        holder, told = (tenant_id, worker, incarnation), list(beats)
        return await self._link.call(lambda: self._store.extend_for(holder, told, lease, grace))

    async def leased(self, tenant_id: int, executions: Sequence[ExecutionRef]) -> list[LeasedTask]:
        return await self._link.call(lambda: self._store.leased(tenant_id, executions))

    async def held(self, tenant_id: int, executions: Sequence[ExecutionRef]) -> list[HeldExecution]:
        return await self._link.call(lambda: self._store.held(tenant_id, executions))

    async def judge(
        self, tenant_id: int, executions: Sequence[tuple[UUID, int, Outcome]]
    ) -> list[Judged]:
        return await self._link.call(lambda: self._store.judge(tenant_id, executions))


class RemoteWorkers(OverLink[MemoryLeases], WorkerStore):
    """The registry over a link: as much of it as decides who is a worker."""

    async def register(
        self, tenant_id: int, name: str, incarnation: str, offer: object, about: object
    ) -> bool:
        return await self._link.call(lambda: self._store.register(tenant_id, name, incarnation))

    async def is_current(self, tenant_id: int, name: str, incarnation: str) -> bool:
        return await self._link.call(lambda: self._store.is_current(tenant_id, name, incarnation))

    async def touch(self, touches: Sequence[Touch]) -> set[tuple[int, str]]:
        return await self._link.call(
            lambda: {touch[:2] for touch in touches if self._store.is_current(*touch[:3])}
        )

    async def note_held(self, node_id: UUID, held: Mapping[tuple[int, str], int]) -> None:
        await self._link.call(lambda: None)


class RemoteMessages(MessageStore):
    """Nodes' letters over a link. `hint` tells a node that something has come, if it arrives."""

    def __init__(self, store: MemoryStore, link: Link, hint: Callable[[UUID], None]) -> None:
        self._tables = store.tables
        self._link = link
        self._hint = hint

    async def post(self, letters: Sequence[tuple[UUID, bytes]]) -> None:
        def leave() -> None:
            for node_id, body in letters:
                self._tables.letters.setdefault(node_id, []).append(body)
            for node_id in dict(letters):
                self._hint(node_id)

        await self._link.call(leave)

    async def collect(self, node_id: UUID) -> list[bytes]:
        return await self._link.call(lambda: self._tables.letters.pop(node_id, []))
