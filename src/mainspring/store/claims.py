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

SQL = queries.load("engine") | queries.load("outcomes")

_LONE_PARTITION_PATIENCE = 60.0
_NO_WAITS: Mapping[UUID, Waited] = {}
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
            SQL["load_window"],
            list(partitions),
            after,
            until,
            cap,
            # Of several one can ask for fewer; one alone has to be read, however much is in it.
            patience=_LONE_PARTITION_PATIENCE if len(partitions) == 1 else None,
        )
        return [TaskRow(*row) for row in rows]

    async def load_more(
        self, stream: StreamKey, *, since: float, until: float, known: Collection[UUID], limit: int
    ) -> list[TaskRow]:
        """The next of a stream, earliest first, without those that are known already."""
        rows = await self._database.fetch(
            SQL["load_more"],
            stream.partition,
            stream.tenant_id,
            since,
            until,
            stream.queue,
            stream.capability,
            stream.concurrency_key,
            stream.priority,
            list(known),
            limit,
        )
        return [TaskRow(*row) for row in rows]

    async def poll_wakes(
        self, ownership: Ownership, heard: Collection[int], *, limit: int
    ) -> Woken:
        """What others changed in our partitions, by at most `limit` wake rows. They stay until a
        later call names them as heard."""
        rows = await self._database.fetch(
            SQL["poll_wakes"],
            ownership.node_id,
            ownership.epoch,
            list(ownership.partitions),
            list(heard),
            limit,
        )
        return Woken(
            [TaskRow(*row[:-1]) for row in rows if row["rev"] is not None],
            [row["id"] for row in rows if row["rev"] is None],
            [wake for row in rows for wake in row["wakes"]],
        )

    async def look_at(self, tasks: Sequence[tuple[int, UUID]]) -> Seen:
        """How these tasks are now."""
        rows = await self._database.fetch(
            SQL["look_at"], [tenant for tenant, _ in tasks], [task for _, task in tasks]
        )
        return _seen(rows)

    # Claims and leases -----------------------------------------------------------------------

    async def claim(
        self, ownership: Ownership, picks: Iterable[TaskRef], *, worker: str, lease: float
    ) -> list[Execution]:
        """Lease due tasks, guarded by rev. What is not in the answer was not leased."""
        ordered = sorted(picks)
        rows = await self._database.fetch(
            SQL["claim"],
            ownership.node_id,
            ownership.epoch,
            lease,
            worker,
            *_columns(ordered),
            sparse([pick.waited for pick in ordered]),
        )
        waited = waits_of(ordered)
        return [assignment_of(row, waited) for row in rows]

    async def claimed_by(self, picks: Iterable[TaskRef], *, worker: str) -> list[Execution]:
        """After a claim whose answer was lost: what we got. What we did not get, that claim will
        not get any more, however late it arrives."""
        tenants, ids, revs = _columns(picks)

        async def work(connection: asyncpg.Connection) -> Sequence[asyncpg.Record]:
            await connection.execute(SQL["void_claim"], tenants, ids, revs)
            rows: Sequence[asyncpg.Record] = await connection.fetch(
                SQL["claimed_by"], tenants, ids, revs, worker
            )
            return rows

        return [assignment_of(row) for row in await self._database.transact(work)]

    async def leased_to(self, tasks: Sequence[tuple[int, UUID]], *, worker: str) -> list[Execution]:
        """Those of these tasks that a worker of ours has."""
        columns = _columns(TaskRef(tenant_id, task_id, 0) for tenant_id, task_id in tasks)
        rows = await self._database.fetch(SQL["claimed_by"], *columns, worker)
        return [assignment_of(row) for row in rows]

    async def extend(self, held: Iterable[TaskRef], *, lease: float) -> list[Extended]:
        """Keep leases, guarded by fence. What is not in the answer is no longer held."""
        rows = await self._database.fetch(SQL["extend"], lease, *_columns(held))
        return [Extended(*row) for row in rows]

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
        columns = (*_columns(held), list(count_crash), list(presumed))
        return _seen(await self._database.fetch(SQL["expire_leases"], *columns))

    async def expire(self, ownership: Ownership, *, limit: int) -> list[UUID]:
        """End tasks of our partitions that were not started by their expiry, some at a time."""
        rows = await self._database.fetch(
            SQL["expire"], ownership.node_id, ownership.epoch, list(ownership.partitions), limit
        )
        return [row["id"] for row in rows]

    async def explain_ends(self, ended: Sequence[EndedWaiting]) -> None:
        """Put down to causes what nobody has accounted for, of tasks that ended as they waited."""
        ordered = sorted(ended, key=lambda one: (one.tenant_id, one.id))
        await self._database.fetch(
            SQL["explain_ends"],
            [one.tenant_id for one in ordered],
            [one.id for one in ordered],
            [one.waited for one in ordered],
        )

    # Outcomes --------------------------------------------------------------------------------

    async def finish(self, ownership: Ownership, finished: Iterable[Finish]) -> set[UUID]:
        """Move tasks to history, guarded by fence; answers which were accepted."""
        rows = await self._database.fetch(SQL["finish"], *finish_arguments(ownership, finished))
        return {row["id"] for row in rows}

    async def retry(self, ownership: Ownership, retries: Iterable[RetryLater]) -> list[TaskRow]:
        """Schedule tasks again, guarded by fence; answers those that were. A task that was asked
        to cancel is left as it is: finish it as cancelled."""
        ordered = sorted(retries, key=by_task)
        reports = [r.report for r in ordered]
        rows = await self._database.fetch(
            SQL["retry"],
            ownership.node_id,
            ownership.epoch,
            list(ownership.partitions),
            [r.execution.tenant_id for r in reports],
            [r.execution.id for r in reports],
            [r.execution.fence for r in reports],
            [r.outcome for r in reports],
            [r.started for r in reports],
            [r.finished for r in reports],
            [r.error for r in reports],
            [r.delay for r in ordered],
            sparse([r.status_code for r in reports]),
            sparse([r.response for r in reports]),
            sparse([r.execution.workflow_run_id for r in reports]),
            [r.own_lateness or {} for r in ordered],
            sparse([r.earlier.stored() if r.earlier else None for r in ordered]),
        )
        return [TaskRow(*row) for row in rows]


def finish_arguments(ownership: Ownership, finished: Iterable[Finish]) -> tuple[object, ...]:
    """What the statement `finish` wants, rows in lock order."""
    ordered = sorted(finished, key=by_task)
    reports = [f.report for f in ordered]
    return (
        ownership.node_id,
        ownership.epoch,
        list(ownership.partitions),
        [r.execution.tenant_id for r in reports],
        [r.execution.id for r in reports],
        [r.execution.fence for r in reports],
        [f.state for f in ordered],
        [r.outcome for r in reports],
        [r.started for r in reports],
        [r.finished for r in reports],
        sparse([r.result for r in reports]),
        sparse([r.error for r in reports]),
        sparse([f.dead_because for f in ordered]),
        [f.sla_met for f in ordered],
        sparse([f.blame for f in ordered]),
        sparse([f.lateness for f in ordered]),
        sparse([r.status_code for r in reports]),
        sparse([r.response for r in reports]),
        # Of the try, where that of its task is another one.
        sparse([None if f.own_lateness is f.lateness else f.own_lateness or {} for f in ordered]),
    )


def by_task(item: Finish | RetryLater) -> tuple[int, UUID]:
    """The order in which tasks are locked."""
    return item.report.execution.tenant_id, item.report.execution.id


def _columns(refs: Iterable[TaskRef]) -> tuple[list[int], list[UUID], list[int]]:
    """References in lock order, turned on their side."""
    ordered = sorted(refs)
    return [r.tenant_id for r in ordered], [r.id for r in ordered], [r.guard for r in ordered]


class Pick(Protocol):
    """A task that was picked, and what it waited for."""

    @property
    def id(self) -> UUID: ...
    @property
    def waited(self) -> Waited | None: ...


def waits_of(picks: Iterable[Pick]) -> dict[UUID, Waited]:
    """What picks waited for, of those that are late: a claim need not send it back."""
    return {pick.id: pick.waited for pick in picks if pick.waited is not None}


def assignment_of(row: Iterable[Any], waits: Mapping[UUID, Waited] = _NO_WAITS) -> Execution:
    """A leased task, as claims and their like return it; `waits` has what a row leaves out."""
    (
        tenant_id, task_id, fence, partition, attempts, failures, due, picked, end, spec, payload,
        run, run_id, step, waited, earlier,
    ) = row  # fmt: skip
    read, unreadable = read_spec(spec)
    return Execution(
        tenant_id, task_id, fence, partition, attempts, failures, due, picked, end, read, payload,
        run, run_id, step, waits.get(task_id, waited), Earlier.read(earlier), unreadable,
    )  # fmt: skip


def _seen(rows: Sequence[asyncpg.Record]) -> Seen:
    return Seen(
        [TaskRow(*row) for row in rows if row["rev"] is not None],
        [row["id"] for row in rows if row["rev"] is None],
    )
