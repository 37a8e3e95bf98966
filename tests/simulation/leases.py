"""The statements about workers' leases, in memory: the contract suite binds them to the SQL."""

from collections.abc import Iterable, Sequence
from uuid import UUID

import msgspec

from mainspring.domain.capability import Offer
from mainspring.domain.placement import Tenure
from mainspring.domain.task import TaskSpec
from mainspring.store.leases import Beat, Beaten, HeldTry, Leased, WorkerPick
from simulation.store import MemoryStore, assignment_of
from simulation.tables import Task

_decode_spec = msgspec.json.Decoder(TaskSpec).decode


class MemoryLeases:
    """`LeaseStore` over the simulation's tables."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def claim_for(
        self, tenure: Tenure, picks: Iterable[WorkerPick], *, lease: float
    ) -> list[Leased]:
        leased = []
        for pick in sorted(picks):
            present = self._store.tables.workers.get((pick.tenant_id, pick.worker))
            if present not in (None, pick.incarnation):
                continue
            if self._store.claim(tenure, [pick.ref], worker=pick.worker, lease=lease):
                task = self._store.tables.tasks[pick.id]
                task.incarnation = pick.incarnation
                leased.append(_leased(task))
        return leased

    async def claimed_for(self, picks: Iterable[WorkerPick]) -> list[Leased]:
        found = []
        for pick in sorted(picks):
            self._store.claimed_by([pick.ref], worker=pick.worker)  # makes its rev stale
            task = self._store.tables.tasks.get(pick.id)
            if task is not None and (task.worker, task.incarnation) == pick[3:]:
                found.append(_leased(task))
        return found

    async def extend_for(
        self,
        tenant_id: int,
        worker: str,
        incarnation: str,
        beats: Iterable[Beat],
        *,
        lease: float,
        grace: float,
    ) -> list[Beaten]:
        beaten, now = [], self._store.now()
        for beat in beats:
            task = self._present(tenant_id, beat.id, beat.fence)
            if task is None or (task.worker, task.incarnation) != (worker, incarnation):
                continue
            assert task.picked is not None
            over = now >= task.picked + _decode_spec(task.spec).timeout + grace
            if not over:
                task.lease_until = now + lease
            end = task.lease_until or now
            beaten.append(Beaten(tenant_id, task.id, end, task.cancel_requested, over))
        return beaten

    async def held(self, tenant_id: int, tries: Sequence[tuple[UUID, int]]) -> list[HeldTry]:
        found = [self._present(tenant_id, id, fence) for id, fence in tries]
        return [
            HeldTry(assignment_of(task)._replace(payload=b""), task.cancel_requested)
            for task in found
            if task is not None and task.incarnation is not None
        ]

    async def register(
        self, tenant_id: int, name: str, incarnation: str, _offer: Offer, _about: object
    ) -> bool:
        tables = self._store.tables
        if (tenant_id, name, incarnation) in tables.former_workers:
            return False
        before = tables.workers.get((tenant_id, name))
        if before not in (None, incarnation):
            tables.former_workers.add((tenant_id, name, before))
        tables.workers[tenant_id, name] = incarnation
        return True

    def _present(self, tenant_id: int, task_id: UUID, fence: int) -> Task | None:
        task = self._store.tables.tasks.get(task_id)
        if task is None or task.tenant_id != tenant_id or task.state != "running":
            return None
        return task if task.fence == fence else None


def _leased(task: Task) -> Leased:
    return Leased(assignment_of(task), task.capability, None, task.queue, None, None, None)
