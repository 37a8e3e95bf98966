"""The store as workers' leases use it: claims on their behalf, heartbeats, what reports need."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

import asyncpg

from mainspring.domain.execution import Execution, Outcome
from mainspring.domain.lateness import Waited
from mainspring.domain.placement import Ownership
from mainspring.postgres import named_sql as queries
from mainspring.postgres.database import Database, sparse
from mainspring.postgres.rows import read_rows
from mainspring.store.claims import NO_WAITS, executions_of, waits_of
from mainspring.store.claims import SQL as CLAIMS
from mainspring.store.task_refs import TaskRef

SQL = queries.load("leases")


class WorkerPick(NamedTuple):
    """A task that was picked for a worker, and the rev its claim is guarded by."""

    tenant_id: int
    id: UUID
    rev: int
    worker: str
    incarnation: str
    waited: Waited | None = None
    """What it waited for since it was due."""

    @property
    def ref(self) -> TaskRef:
        return TaskRef(self.tenant_id, self.id, self.rev, self.waited)


class LeasedTask(NamedTuple):
    """A task that was leased to a worker, with what its handler may want to know."""

    execution: Execution
    capability: str
    name: str | None
    queue: str
    labels: dict[str, str] | None
    schedule_id: UUID | None
    nominal_at: datetime | None
    suspect: bool = False
    """Whether a lease of it ended unreported: its worker says that it begins, before it does."""


class HeldHeartbeat(NamedTuple):
    """A try that a worker says it holds."""

    id: UUID
    fence: int
    progress: bytes | None = None
    started: bool = True
    """Whether it has begun."""
    alone: bool = False
    """Whether nothing else runs in the worker."""


class ExtendedLease(NamedTuple):
    """A lease after a heartbeat. Overdue: the hard timeout has passed, so it is not extended."""

    tenant_id: int
    id: UUID
    lease_end: float
    cancel_requested: bool
    overdue: bool


class HeldExecution(NamedTuple):
    """The present try of a task that a worker holds."""

    execution: Execution
    cancel_requested: bool


class Judged(NamedTuple):
    """Why a report changed nothing."""

    id: UUID
    fence: int
    outcome: str
    recorded: bool
    known: bool


class LeaseStore:
    """Every call is one transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def claim_for(
        self, ownership: Ownership, picks: Iterable[WorkerPick], *, lease: float
    ) -> list[LeasedTask]:
        """Lease due tasks to workers, guarded by rev. What is not in the answer was not leased."""
        ordered = sorted(picks)
        rows = await self._database.fetch(
            *SQL["claim_for_workers"](
                node_id=ownership.node_id,
                epoch=ownership.epoch,
                lease=lease,
                **_refs(ordered),
                **_holders(ordered),
                waited=sparse([pick.waited for pick in ordered]),
            )
        )
        waited = waits_of(ordered)
        return _leased(rows, waited)

    async def claimed_for(self, picks: Iterable[WorkerPick]) -> list[LeasedTask]:
        """After a claim whose answer was lost: what came of it, once it can come late no more."""
        ordered = sorted(picks)

        async def work(connection: asyncpg.Connection) -> Sequence[asyncpg.Record]:
            await connection.execute(*CLAIMS["void_claim"](**_refs(ordered)))
            rows: Sequence[asyncpg.Record] = await connection.fetch(
                *SQL["claimed_for_workers"](**_refs(ordered), **_holders(ordered))
            )
            return rows

        return _leased(await self._database.transact(work))

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
        """Keep a worker's leases, guarded by fence and incarnation. What is not in the answer is
        no longer held; what is `grace` seconds past its timeout is not extended."""
        ordered = sorted(beats, key=lambda beat: beat.id)
        rows = await self._database.fetch(
            *SQL["extend_for_worker"](
                tenant_id=tenant_id,
                worker=worker,
                incarnation=incarnation,
                lease=lease,
                ids=[beat.id for beat in ordered],
                fences=[beat.fence for beat in ordered],
                progress=sparse([beat.progress for beat in ordered]),
                grace=grace,
                started=[beat.started for beat in ordered],
                alone=[beat.alone for beat in ordered],
            )
        )
        return read_rows(ExtendedLease, rows)

    async def leased(self, tenant_id: int, tries: Sequence[tuple[UUID, int]]) -> list[LeasedTask]:
        """Tasks that another node leased, as its claim returned them."""
        rows = await self._database.fetch(
            *SQL["leased_tasks"](
                tenant_id=tenant_id, ids=[id for id, _ in tries], fences=[f for _, f in tries]
            )
        )
        return _leased(rows)

    async def held(self, tenant_id: int, tries: Sequence[tuple[UUID, int]]) -> list[HeldExecution]:
        """Those of these tries that are the present ones of their tasks; without payloads."""
        rows = await self._database.fetch(
            *SQL["held_by_workers"](
                tenant_id=tenant_id, ids=[id for id, _ in tries], fences=[f for _, f in tries]
            )
        )
        return [
            HeldExecution(execution, row["cancel_requested"])
            for execution, row in zip(executions_of(rows), rows, strict=True)
        ]

    async def judge(
        self, tenant_id: int, tries: Sequence[tuple[UUID, int, Outcome]]
    ) -> list[Judged]:
        """Why reports of these tries, with these outcomes, changed nothing."""
        rows = await self._database.fetch(
            *SQL["judge_reports"](
                tenant_id=tenant_id,
                ids=[task_id for task_id, _, _ in tries],
                fences=[fence for _, fence, _ in tries],
                outcomes=[outcome.value for _, _, outcome in tries],
            )
        )
        return read_rows(Judged, rows)


def _leased(
    rows: Sequence[asyncpg.Record], waits: Mapping[UUID, Waited] = NO_WAITS
) -> list[LeasedTask]:
    return [
        LeasedTask(
            execution, row["capability"], row["name"], row["queue"], row["labels"],
            row["schedule_id"], row["nominal_at"], row["suspect"],
        )
        for execution, row in zip(executions_of(rows, waits), rows, strict=True)
    ]  # fmt: skip


def _refs(picks: Sequence[WorkerPick]) -> dict[str, object]:
    """Picks, turned on their side."""
    return {
        "tenant_ids": [p.tenant_id for p in picks],
        "ids": [p.id for p in picks],
        "revs": [p.rev for p in picks],
    }


def _holders(picks: Sequence[WorkerPick]) -> dict[str, object]:
    return {
        "workers": [p.worker for p in picks],
        "incarnations": [p.incarnation for p in picks],
    }
