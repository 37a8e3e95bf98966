"""The store of the engine's drivers: windows, claims, wake rows."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg
import msgspec

from mainspring.domain.execution import Execution
from mainspring.domain.lateness import Earlier, Waited
from mainspring.domain.partitions import Ownership
from mainspring.domain.rows import StreamKey, TaskRow
from mainspring.domain.task import Target, TaskSpec
from mainspring.postgres import named_sql as queries
from mainspring.postgres.database import sparse, transaction
from mainspring.postgres.rows import read_rows
from mainspring.store.outcomes import OutcomeStore
from mainspring.store.task_refs import (
    Seen,
    TaskRef,
    WorkerPick,
    node_of,
    owner_of,
    ref_columns,
    seen_in,
)

SQL = queries.load("claims")

_LONE_PARTITION_TIMEOUT = 60.0
NO_WAITS: Mapping[UUID, Waited] = {}
_spec_decoder = msgspec.json.Decoder(TaskSpec)


NO_SPEC = TaskSpec(Target("handler"))
"""Stands in for a spec that cannot be read."""
UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)
"""What reading a spec may raise."""


@lru_cache(maxsize=4096)
def read_spec(spec: bytes) -> tuple[TaskSpec, str | None]:
    """Return the spec, or one that does nothing and why it cannot be read: raising would lose the
    other tasks of the same claim. Cached, for most tasks are of few kinds: that saves a tenth of a
    claim."""
    try:
        return _spec_decoder.decode(spec), None
    except UNREADABLE as problem:
        return NO_SPEC, str(problem)[:300]


class ExtendedLease(NamedTuple):
    """A lease after an extension. Overdue: the hard timeout has passed, so it was not extended."""

    tenant_id: int
    id: UUID
    lease_end: float
    cancel_requested: bool
    overdue: bool = False


@dataclass(frozen=True, slots=True)
class Woken(Seen):
    """Tasks that other processes changed, and the wake rows that told of it."""

    wakes: list[int]


class EngineStore(OutcomeStore):
    """Tasks of the partitions of a node. Each call is one transaction."""

    # Reading ---------------------------------------------------------------------------------

    async def load_window(
        self, partitions: Collection[int], *, after: float, until: float, cap: int
    ) -> list[TaskRow]:
        """Return what is running, and what is due in (after, until]: the first `cap` of each
        stream."""
        rows = await self._database.fetch(
            *SQL["load_window"](partitions=list(partitions), after=after, until=until, cap=cap),
            # Of several one can ask for fewer; one alone has to be read, however much is in it.
            time_limit=_LONE_PARTITION_TIMEOUT if len(partitions) == 1 else None,
        )
        return read_rows(TaskRow, rows)

    async def load_more(
        self, stream: StreamKey, *, since: float, until: float, known: Collection[UUID], limit: int
    ) -> list[TaskRow]:
        """Return the next of a stream, earliest first, without those that are known already."""
        return await SQL["load_more"].rows(
            self._database,
            TaskRow,
            **stream._asdict(),
            since=since,
            until=until,
            known=list(known),
            limit=limit,
        )

    async def poll_wakes(
        self, ownership: Ownership, heard: Collection[int], *, limit: int
    ) -> Woken:
        """Return what others changed, by at most `limit` wake rows. A row stays until it is
        `heard`."""
        rows = await SQL["poll_wakes"].fetch(
            self._database, **owner_of(ownership), heard=list(heard), limit=limit
        )
        seen = seen_in(rows)
        return Woken(seen.rows, seen.gone, [wake for row in rows for wake in row["wakes"]])

    async def served_elsewhere(
        self, node_id: UUID, workers: Collection[tuple[int, str]]
    ) -> set[tuple[int, str]]:
        """Return those of these workers that have held tasks of other nodes' partitions."""
        rows = await SQL["served_elsewhere"].fetch(
            self._database,
            node_id=node_id,
            tenant_ids=[tenant for tenant, _ in workers],
            names=[name for _, name in workers],
        )
        return {(row["tenant_id"], row["name"]) for row in rows}

    async def look_at(self, tasks: Sequence[tuple[int, UUID]]) -> Seen:
        """Return how these tasks are now."""
        rows = await SQL["look_at"].fetch(
            self._database,
            tenant_ids=[tenant for tenant, _ in tasks],
            ids=[task for _, task in tasks],
        )
        return seen_in(rows)

    # Claims and leases -----------------------------------------------------------------------

    async def claim(
        self, ownership: Ownership, picks: Iterable[TaskRef], *, worker: str, lease: float
    ) -> list[Execution]:
        """Lease due tasks, guarded by rev. What is not in the answer was not leased."""
        ordered = sorted(picks)
        rows = await SQL["claim"].fetch(
            self._database,
            **node_of(ownership),
            lease=lease,
            worker=worker,
            **ref_columns(ordered, "revs"),
            waited=sparse([pick.waited for pick in ordered]),
        )
        return executions_of(rows, waits_of(ordered))

    @transaction
    async def claimed_by(
        self, connection: asyncpg.Connection, picks: Collection[TaskRef], *, worker: str
    ) -> list[Execution]:
        """Return what a claim leased whose answer was lost. What it did not lease, it will not
        lease any more, however late it arrives."""
        picked = ref_columns(picks, "revs")
        await SQL["void_claim"].run(connection, **picked)
        return executions_of(await SQL["claimed_by"].fetch(connection, **picked, worker=worker))

    async def leased_to(self, tasks: Sequence[tuple[int, UUID]], *, worker: str) -> list[Execution]:
        """Return those of these tasks that are leased to a worker."""
        refs = [TaskRef(tenant_id, task_id, 0) for tenant_id, task_id in tasks]
        call = SQL["claimed_by"](**ref_columns(refs, "revs"), worker=worker)
        rows = await self._database.fetch(*call)
        return executions_of(rows)

    async def extend(self, held: Iterable[TaskRef], *, lease: float) -> list[ExtendedLease]:
        """Extend leases, guarded by fence. What is not in the answer is no longer ours."""
        return await SQL["extend"].rows(
            self._database, ExtendedLease, lease=lease, **ref_columns(held, "fences")
        )


def waits_of(picks: Iterable[TaskRef | WorkerPick]) -> dict[UUID, Waited]:
    """Return what late picks waited for: a claim need not send it back."""
    return {pick.id: pick.waited for pick in picks if pick.waited is not None}


class LeasedRow(NamedTuple):
    """A leased task, as claims and their like return it."""

    tenant_id: int
    id: UUID
    fence: int
    partition: int
    attempts: int
    failures: int
    due: float
    picked: float
    lease_end: float
    spec: bytes
    payload: bytes
    run: float
    workflow_run_id: UUID | None = None
    step: str | None = None
    waited: Waited | None = None
    earlier: dict[str, Any] | None = None

    def execution(self, waits: Mapping[UUID, Waited] = NO_WAITS) -> Execution:
        """Return the execution; `waits` has what rows leave out."""
        spec, unreadable = read_spec(self.spec)
        return Execution(
            self.tenant_id, self.id, self.fence, self.partition, self.attempts, self.failures,
            self.due, self.picked, self.lease_end, spec, self.payload, self.run,
            self.workflow_run_id, self.step, waits.get(self.id, self.waited),
            Earlier.read(self.earlier), unreadable,
        )  # fmt: skip


def executions_of(
    rows: Sequence[asyncpg.Record], waits: Mapping[UUID, Waited] = NO_WAITS
) -> list[Execution]:
    """Return the executions that leased tasks are."""
    return [row.execution(waits) for row in read_rows(LeasedRow, rows)]
