"""The store as the engine's drivers use it: windows, claims, wakes, outcomes."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Protocol
from uuid import UUID

import asyncpg
import msgspec

from mainspring.domain.execution import Execution
from mainspring.domain.lateness import Earlier, EndedWaiting, Waited
from mainspring.domain.outcome_rules import Finish, RetryLater
from mainspring.domain.placement import Ownership
from mainspring.domain.rows import StreamKey, TaskRow
from mainspring.domain.task import Target, TaskSpec
from mainspring.postgres import named_sql as queries
from mainspring.postgres.database import Database, sparse
from mainspring.postgres.rows import read_rows

SQL = queries.load("engine") | queries.load("outcomes")

_LONE_PARTITION_PATIENCE = 60.0
NO_WAITS: Mapping[UUID, Waited] = {}
_spec_decoder = msgspec.json.Decoder(TaskSpec)


NO_SPEC = TaskSpec(Target("handler"))
"""In place of one that cannot be read."""
UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)
"""What reading a spec may raise."""


@lru_cache(maxsize=4096)
def read_spec(spec: bytes) -> tuple[TaskSpec, str | None]:
    """The spec, or one that does nothing and why it cannot be read. Nothing is raised: the task is
    leased already, together with others.

    Most tasks are one of few kinds: decoding each kind once saves a tenth of a claim."""
    try:
        return _spec_decoder.decode(spec), None
    except UNREADABLE as problem:
        return NO_SPEC, str(problem)[:300]


class TaskRef(NamedTuple):
    """Which task, and the number a change of it is guarded by: its rev or its fence."""

    tenant_id: int
    id: UUID
    guard: int
    waited: Waited | None = None
    """Of a pick: what it waited for since it was due."""


class Extended(NamedTuple):
    """A lease that was extended."""

    tenant_id: int
    id: UUID
    lease_end: float
    cancel_requested: bool


@dataclass(frozen=True, slots=True)
class Seen:
    """Tasks as they are now, and those that are no longer unfinished."""

    rows: list[TaskRow]
    gone: list[UUID]


@dataclass(frozen=True, slots=True)
class Woken(Seen):
    """The same of tasks that others changed, and the wake rows that told of it."""

    wakes: list[int]


class EngineStore:
    """Every call is one transaction; but for one they are one statement and one round trip."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # Reading ---------------------------------------------------------------------------------

    async def load_window(
        self, partitions: Collection[int], *, after: float, until: float, cap: int
    ) -> list[TaskRow]:
        """What is running in these partitions, and what is due in (after, until]: at most `cap`
        of each stream, earliest first."""
        rows = await self._database.fetch(
            *SQL["load_window"](partitions=list(partitions), after=after, until=until, cap=cap),
            # Of several one can ask for fewer; one alone has to be read, however much is in it.
            patience=_LONE_PARTITION_PATIENCE if len(partitions) == 1 else None,
        )
        return read_rows(TaskRow, rows)

    async def load_more(
        self, stream: StreamKey, *, since: float, until: float, known: Collection[UUID], limit: int
    ) -> list[TaskRow]:
        """The next of a stream, earliest first, without those that are known already."""
        rows = await self._database.fetch(
            *SQL["load_more"](
                partition=stream.partition,
                tenant_id=stream.tenant_id,
                since=since,
                until=until,
                queue=stream.queue,
                capability=stream.capability,
                concurrency_key=stream.concurrency_key,
                priority=stream.priority,
                known=list(known),
                limit=limit,
            ),
        )
        return read_rows(TaskRow, rows)

    async def poll_wakes(
        self, ownership: Ownership, heard: Collection[int], *, limit: int
    ) -> Woken:
        """What others changed in our partitions, by at most `limit` wake rows. They stay until a
        later call names them as heard."""
        rows = await self._database.fetch(
            *SQL["poll_wakes"](
                node_id=ownership.node_id,
                epoch=ownership.epoch,
                partitions=list(ownership.partitions),
                heard=list(heard),
                limit=limit,
            ),
        )
        seen = _seen(rows)
        return Woken(seen.rows, seen.gone, [wake for row in rows for wake in row["wakes"]])

    async def look_at(self, tasks: Sequence[tuple[int, UUID]]) -> Seen:
        """How these tasks are now."""
        rows = await self._database.fetch(
            *SQL["look_at"](
                tenant_ids=[tenant for tenant, _ in tasks], ids=[task for _, task in tasks]
            )
        )
        return _seen(rows)

    # Claims and leases -----------------------------------------------------------------------

    async def claim(
        self, ownership: Ownership, picks: Iterable[TaskRef], *, worker: str, lease: float
    ) -> list[Execution]:
        """Lease due tasks, guarded by rev. What is not in the answer was not leased."""
        ordered = sorted(picks)
        rows = await self._database.fetch(
            *SQL["claim"](
                node_id=ownership.node_id,
                epoch=ownership.epoch,
                lease=lease,
                worker=worker,
                **_columns(ordered, "revs"),
                waited=sparse([pick.waited for pick in ordered]),
            )
        )
        waited = waits_of(ordered)
        return executions_of(rows, waited)

    async def claimed_by(self, picks: Iterable[TaskRef], *, worker: str) -> list[Execution]:
        """After a claim whose answer was lost: what we got. What we did not get, that claim will
        not get any more, however late it arrives."""
        columns = _columns(picks, "revs")

        async def work(connection: asyncpg.Connection) -> Sequence[asyncpg.Record]:
            await connection.execute(*SQL["void_claim"](**columns))
            rows: Sequence[asyncpg.Record] = await connection.fetch(
                *SQL["claimed_by"](**columns, worker=worker)
            )
            return rows

        return executions_of(await self._database.transact(work))

    async def leased_to(self, tasks: Sequence[tuple[int, UUID]], *, worker: str) -> list[Execution]:
        """Those of these tasks that a worker of ours has."""
        refs = [TaskRef(tenant_id, task_id, 0) for tenant_id, task_id in tasks]
        call = SQL["claimed_by"](**_columns(refs, "revs"), worker=worker)
        rows = await self._database.fetch(*call)
        return executions_of(rows)

    async def extend(self, held: Iterable[TaskRef], *, lease: float) -> list[Extended]:
        """Keep leases, guarded by fence. What is not in the answer is no longer held."""
        rows = await self._database.fetch(*SQL["extend"](lease=lease, **_columns(held, "fences")))
        return read_rows(Extended, rows)

    async def expire_leases(
        self,
        held: Iterable[TaskRef],
        *,
        count_crash: Collection[UUID] = (),
        presumed: Collection[UUID] = (),
    ) -> Seen:
        """End leases that ran out by the database's clock, or whose worker has begun anew, guarded
        by fence. Those in `count_crash` count as lost with their worker; those in `presumed` count
        as begun, whatever their worker said."""
        call = SQL["expire_leases"](
            **_columns(held, "fences"), count_crash=list(count_crash), presumed=list(presumed)
        )
        return _seen(await self._database.fetch(*call))

    async def expire(self, ownership: Ownership, *, limit: int) -> list[UUID]:
        """End tasks of our partitions that were not started by their expiry, some at a time."""
        rows = await self._database.fetch(
            *SQL["expire"](
                node_id=ownership.node_id,
                epoch=ownership.epoch,
                partitions=list(ownership.partitions),
                limit=limit,
            )
        )
        return [row["id"] for row in rows]

    async def explain_ends(self, ended: Sequence[EndedWaiting]) -> None:
        """Put down to causes what nobody has accounted for, of tasks that ended as they waited."""
        ordered = sorted(ended, key=lambda one: (one.tenant_id, one.id))
        await self._database.fetch(
            *SQL["explain_ends"](
                tenant_ids=[one.tenant_id for one in ordered],
                ids=[one.id for one in ordered],
                waited=[one.waited for one in ordered],
            ),
        )

    # Outcomes --------------------------------------------------------------------------------

    async def finish(self, ownership: Ownership, finished: Iterable[Finish]) -> set[UUID]:
        """Move tasks to history, guarded by fence; answers which were accepted."""
        rows = await self._database.fetch(*SQL["finish"](**finish_arguments(ownership, finished)))
        return {row["id"] for row in rows}

    async def retry(self, ownership: Ownership, retries: Iterable[RetryLater]) -> list[TaskRow]:
        """Schedule tasks again, guarded by fence; answers those that were. A task that was asked
        to cancel is left as it is: finish it as cancelled."""
        ordered = sorted(retries, key=by_task)
        reports = [r.report for r in ordered]
        rows = await self._database.fetch(
            *SQL["retry"](
                node_id=ownership.node_id,
                epoch=ownership.epoch,
                partitions=list(ownership.partitions),
                tenant_ids=[r.execution.tenant_id for r in reports],
                ids=[r.execution.id for r in reports],
                fences=[r.execution.fence for r in reports],
                outcomes=[r.outcome for r in reports],
                started=[r.started for r in reports],
                finished=[r.finished for r in reports],
                errors=[r.error for r in reports],
                delays=[r.delay for r in ordered],
                status_codes=sparse([r.status_code for r in reports]),
                responses=sparse([r.response for r in reports]),
                run_ids=sparse([r.execution.workflow_run_id for r in reports]),
                own_lateness=[r.own_lateness or {} for r in ordered],
                earlier=sparse([r.earlier.stored() if r.earlier else None for r in ordered]),
            ),
        )
        return read_rows(TaskRow, rows)


def finish_arguments(ownership: Ownership, finished: Iterable[Finish]) -> dict[str, object]:
    """What the statement `finish` wants, rows in lock order."""
    ordered = sorted(finished, key=by_task)
    reports = [f.report for f in ordered]
    return {
        "node_id": ownership.node_id,
        "epoch": ownership.epoch,
        "partitions": list(ownership.partitions),
        "tenant_ids": [r.execution.tenant_id for r in reports],
        "ids": [r.execution.id for r in reports],
        "fences": [r.execution.fence for r in reports],
        "states": [f.state for f in ordered],
        "outcomes": [r.outcome for r in reports],
        "started": [r.started for r in reports],
        "finished": [r.finished for r in reports],
        "results": sparse([r.result for r in reports]),
        "errors": sparse([r.error for r in reports]),
        "dead_because": sparse([f.dead_because for f in ordered]),
        "sla_met": [f.sla_met for f in ordered],
        "blamed": sparse([f.blame for f in ordered]),
        "lateness": sparse([f.lateness for f in ordered]),
        "status_codes": sparse([r.status_code for r in reports]),
        "responses": sparse([r.response for r in reports]),
        # Of the try, where that of its task is another one.
        "own_lateness": sparse(
            [None if f.own_lateness is f.lateness else f.own_lateness or {} for f in ordered]
        ),
    }


def by_task(item: Finish | RetryLater) -> tuple[int, UUID]:
    """The order in which tasks are locked."""
    return item.report.execution.tenant_id, item.report.execution.id


def _columns(refs: Iterable[TaskRef], guards: str) -> dict[str, Sequence[object]]:
    """References in lock order, turned on their side."""
    ordered = sorted(refs)
    return {
        "tenant_ids": [r.tenant_id for r in ordered],
        "ids": [r.id for r in ordered],
        guards: [r.guard for r in ordered],
    }


class Pick(Protocol):
    """A task that was picked, and what it waited for."""

    @property
    def id(self) -> UUID: ...
    @property
    def waited(self) -> Waited | None: ...


def waits_of(picks: Iterable[Pick]) -> dict[UUID, Waited]:
    """What picks waited for, of those that are late: a claim need not send it back."""
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


def _seen(rows: Sequence[asyncpg.Record]) -> Seen:
    return Seen(
        read_rows(TaskRow, [row for row in rows if row["rev"] is not None]),
        [row["id"] for row in rows if row["rev"] is None],
    )
