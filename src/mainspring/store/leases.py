"""Leases of workers: claims on their behalf, heartbeats, and checks of their reports."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

import asyncpg

from mainspring.domain.execution import Execution, Outcome
from mainspring.domain.lateness import Waited
from mainspring.domain.partitions import Ownership
from mainspring.postgres import named_sql as queries
from mainspring.postgres.database import Store, columns_of, transaction
from mainspring.store.claims import NO_WAITS, ExtendedLease, executions_of, waits_of
from mainspring.store.claims import SQL as CLAIMS
from mainspring.store.task_refs import WorkerPick, node_of, ref_columns

SQL = queries.load("leases")


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
    """Whether a lease of it ended unreported: then the worker reports the start first."""


class HeldHeartbeat(NamedTuple):
    """An execution that a worker says it runs."""

    id: UUID
    fence: int
    progress: bytes | None = None
    started: bool = True
    """Whether it has begun."""
    alone: bool = False
    """Whether nothing else runs in the worker."""


class HeldExecution(NamedTuple):
    """The present execution of a task that is leased to a worker."""

    execution: Execution
    cancel_requested: bool


class Judged(NamedTuple):
    """Why a report changed nothing."""

    id: UUID
    fence: int
    outcome: str
    recorded: bool
    known: bool


class LeaseStore(Store):
    """Every call is one transaction."""

    async def claim_for(
        self, ownership: Ownership, picks: Iterable[WorkerPick], *, lease: float
    ) -> list[LeasedTask]:
        """Lease due tasks to workers, guarded by rev. What is not in the answer was not leased."""
        ordered = sorted(picks)
        rows = await SQL["claim_for_workers"].fetch(
            self._database,
            **node_of(ownership),
            lease=lease,
            **columns_of(WorkerPick._fields, ordered),
        )
        return _leased(rows, waits_of(ordered))

    @transaction
    async def claimed_for(
        self, connection: asyncpg.Connection, picks: Collection[WorkerPick]
    ) -> list[LeasedTask]:
        """Return what a claim leased whose answer was lost, and void the rest of it."""
        refs = ref_columns([pick.ref for pick in picks], "revs")
        await CLAIMS["void_claim"].run(connection, **refs)
        claims = columns_of(("tenant_id", "id", "rev", "worker", "incarnation"), sorted(picks))
        return _leased(await SQL["claimed_for_workers"].fetch(connection, **claims))

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
        """Extend a worker's leases, guarded by fence and incarnation. A lease that is `grace`
        seconds past its timeout is not extended; one that is not returned is no longer the
        worker's."""
        ordered = sorted(beats, key=lambda beat: beat.id)
        return await SQL["extend_for_worker"].rows(
            self._database,
            ExtendedLease,
            tenant_id=tenant_id,
            worker=worker,
            incarnation=incarnation,
            lease=lease,
            grace=grace,
            **columns_of(HeldHeartbeat._fields, ordered),
        )

    async def leased(
        self, tenant_id: int, executions: Sequence[tuple[UUID, int]]
    ) -> list[LeasedTask]:
        """Return tasks that another node leased, as its claim returned them."""
        rows = await SQL["leased_tasks"].fetch(
            self._database, tenant_id=tenant_id, **_keys(executions)
        )
        return _leased(rows)

    async def held(
        self, tenant_id: int, executions: Sequence[tuple[UUID, int]]
    ) -> list[HeldExecution]:
        """Return those of these executions that are current; without payloads."""
        rows = await SQL["held_by_workers"].fetch(
            self._database, tenant_id=tenant_id, **_keys(executions)
        )
        asked = (row["cancel_requested"] for row in rows)
        return list(map(HeldExecution, executions_of(rows), asked))

    async def judge(
        self, tenant_id: int, executions: Sequence[tuple[UUID, int, Outcome]]
    ) -> list[Judged]:
        """Return why reports of these executions, with these outcomes, changed nothing."""
        return await SQL["judge_reports"].rows(
            self._database,
            Judged,
            tenant_id=tenant_id,
            ids=[task_id for task_id, _, _ in executions],
            fences=[fence for _, fence, _ in executions],
            outcomes=[outcome.value for _, _, outcome in executions],
        )


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


def _keys(executions: Sequence[tuple[UUID, int]]) -> dict[str, object]:
    return {"ids": [id for id, _ in executions], "fences": [fence for _, fence in executions]}
