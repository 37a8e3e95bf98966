"""One interface to two stores, PostgreSQL and the simulation's, and shorthands for the tests."""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random
from typing import Protocol, cast
from uuid import UUID, uuid4

import asyncpg
import msgspec

from mainspring.domain.execution import (
    Execution,
    Outcome,
    Report,
    TaskError,
)
from mainspring.domain.ids import TaskIds
from mainspring.domain.lateness import Waited
from mainspring.domain.outcome_rules import DeathCause, Finish, RetryLater
from mainspring.domain.partitions import (
    NO_OWNERSHIP,
    PARTITIONS,
    Ownership,
    partition_of,
)
from mainspring.domain.rows import TaskRow
from mainspring.domain.schedules.definition import ScheduleDefinition
from mainspring.domain.task import Target, TaskSpec, TaskState
from mainspring.domain.tenant import TenantLimits
from mainspring.postgres.database import Database
from mainspring.schedules.occurrences import OccurrenceWriter
from mainspring.schedules.service import ScheduleService
from mainspring.store.claims import EngineStore
from mainspring.store.cluster import ClusterStore
from mainspring.store.creation import Creation, Keyed, NewTask
from mainspring.store.keys import KeyStore
from mainspring.store.leases import LeaseStore
from mainspring.store.schedules.schedules import Template
from mainspring.store.task_refs import TaskRef, WorkerPick
from mainspring.store.tasks import LockedTask, TaskChange, TaskStore
from mainspring.store.tenants import TenantStore
from mainspring.store.workers import WorkerStore
from mainspring.workflows.advancing import new_steps
from mainspring.workflows.task_changes import TaskChangeService
from simulation.leases import MemoryLeases, RemoteLeases, RemoteWorkers
from simulation.remote import (
    DirectLink,
    RemoteChanges,
    RemoteConnection,
    RemoteEngineStore,
    RemoteKeys,
    RemoteTasks,
    RemoteTenants,
)
from simulation.schedules import MemorySchedules, RemoteSchedules, new_schedule
from simulation.store import MemoryStore

NEAR = 30.0
SPEC = msgspec.json.encode(TaskSpec(Target("handler", name="work")).stored())
TEMPLATE = msgspec.json.encode(
    Template(msgspec.Raw(SPEC), msgspec.Raw(b"{}"), "handler:work", "default", 5)
)
EVERYWHERE = frozenset(range(PARTITIONS))


@dataclass(frozen=True, slots=True)
class End:
    """How a task ended, as far as both stores tell."""

    state: str
    rev: int
    fence: int
    failures: int


class Inspector(Protocol):
    """What the stores' own interfaces do not show."""

    async def add_tenant(self, limits: TenantLimits) -> int: ...

    async def wakes(self) -> list[tuple[int, UUID]]: ...

    async def end_of(self, task_id: UUID) -> End | None: ...

    async def executions_of(self, task_id: UUID) -> list[tuple[int, str]]: ...

    async def lateness_of(self, task_id: UUID) -> list[Waited | None]: ...

    async def dead_letter(self, task_id: UUID) -> tuple[str, list[str]] | None: ...

    async def losses_of(self, task_id: UUID) -> tuple[int, int]: ...

    async def owner(self, partition: int) -> tuple[UUID | None, int]: ...

    async def node(self, node_id: UUID) -> tuple[int, str]: ...

    async def restart_server(self) -> None:
        """As if the server had been started again since anybody joined."""
        ...

    async def answer_under(self, tenant: int, key: str) -> bytes: ...

    async def add_schedule(self, tenant: int, definition: ScheduleDefinition) -> UUID: ...

    async def ledger(self, schedule_id: UUID) -> list[tuple[float, float, int, str]]: ...


class MemoryInspector:
    """Looks into the simulation's tables."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._tables = store.tables
        self._tenants = count(1)

    async def add_tenant(self, limits: TenantLimits) -> int:
        tenant = next(self._tenants)
        self._tables.tenants[tenant] = limits
        return tenant

    async def wakes(self) -> list[tuple[int, UUID]]:
        return sorted((partition, task) for partition, _, task in self._tables.wakes.values())

    async def end_of(self, task_id: UUID) -> End | None:
        found = self._tables.history.get(task_id)
        return End(found.state, found.rev, found.fence, found.failures) if found else None

    async def executions_of(self, task_id: UUID) -> list[tuple[int, str]]:
        return [(e.fence, e.outcome) for e in self._tables.executions if e.id == task_id]

    async def lateness_of(self, task_id: UUID) -> list[Waited | None]:
        return [e.lateness for e in self._tables.executions if e.id == task_id]

    async def dead_letter(self, task_id: UUID) -> tuple[str, list[str]] | None:
        found = self._tables.dead_letters.get(task_id)
        return (found.reason, list(found.attempts)) if found else None

    async def losses_of(self, task_id: UUID) -> tuple[int, int]:
        found = self._tables.tasks[task_id]
        return found.losses, found.unproven_losses

    async def owner(self, partition: int) -> tuple[UUID | None, int]:
        row = self._tables.partitions[partition]
        return row.owner, row.epoch

    async def node(self, node_id: UUID) -> tuple[int, str]:
        row = self._tables.nodes[node_id]
        return row.epoch, row.state

    async def restart_server(self) -> None:
        self._store.server += 1

    async def answer_under(self, tenant: int, key: str) -> bytes:
        return self._tables.idempotency[tenant, key].answer

    async def add_schedule(self, tenant: int, definition: ScheduleDefinition) -> UUID:
        schedule_id = uuid4()
        partition = partition_of(tenant, schedule_id, None, PARTITIONS)
        row = new_schedule(tenant, schedule_id, partition, definition, TEMPLATE)
        self._tables.schedules[schedule_id] = row
        return schedule_id

    async def ledger(self, schedule_id: UUID) -> list[tuple[float, float, int, str]]:
        return [
            (line.first, line.last, line.count, line.decision)
            for line in self._tables.occurrences
            if line.schedule_id == schedule_id
        ]


class PostgresInspector:
    """Looks into the real tables."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection

    async def add_tenant(self, limits: TenantLimits) -> int:
        tenant: int = await self._connection.fetchval(
            "INSERT INTO tenants (name, weight, max_running, spread) VALUES ($1, $2, $3, $4) "
            "RETURNING id",
            str(uuid4()),
            limits.weight,
            limits.max_running,
            limits.spread,
        )
        return tenant

    async def wakes(self) -> list[tuple[int, UUID]]:
        rows = await self._connection.fetch("SELECT partition, task_id FROM wakes")
        return sorted((row["partition"], row["task_id"]) for row in rows)

    async def end_of(self, task_id: UUID) -> End | None:
        row = await self._connection.fetchrow(
            "SELECT state, rev, fence, failures FROM task_history WHERE id = $1", task_id
        )
        return End(*row) if row else None

    async def executions_of(self, task_id: UUID) -> list[tuple[int, str]]:
        rows = await self._connection.fetch(
            "SELECT fence, outcome FROM executions WHERE task_id = $1 ORDER BY fence", task_id
        )
        return [(row["fence"], row["outcome"]) for row in rows]

    async def lateness_of(self, task_id: UUID) -> list[Waited | None]:
        rows = await self._connection.fetch(
            "SELECT lateness::text FROM executions WHERE task_id = $1 ORDER BY fence", task_id
        )
        return [None if row[0] is None else msgspec.json.decode(row[0]) for row in rows]

    async def dead_letter(self, task_id: UUID) -> tuple[str, list[str]] | None:
        row = await self._connection.fetchrow(
            "SELECT reason, ARRAY(SELECT a->>'outcome' FROM jsonb_array_elements(attempts) a) "
            "FROM dead_letters WHERE id = $1",
            task_id,
        )
        return (row[0], row[1]) if row else None

    async def losses_of(self, task_id: UUID) -> tuple[int, int]:
        row = await self._connection.fetchrow(
            "SELECT losses, unproven_losses FROM tasks WHERE id = $1", task_id
        )
        assert row is not None
        return row[0], row[1]

    async def owner(self, partition: int) -> tuple[UUID | None, int]:
        row = await self._connection.fetchrow(
            "SELECT owner, epoch FROM partitions WHERE partition = $1", partition
        )
        assert row is not None
        return row["owner"], row["epoch"]

    async def node(self, node_id: UUID) -> tuple[int, str]:
        row = await self._connection.fetchrow(
            "SELECT epoch, state FROM nodes WHERE id = $1", node_id
        )
        assert row is not None
        return row["epoch"], row["state"]

    async def restart_server(self) -> None:
        # The server that all share stays as it is; they joined one that was started earlier.
        for table in ("nodes", "fence_floor"):
            await self._connection.execute(
                f"UPDATE {table} SET server_started = server_started - interval '1 second'"
            )

    async def answer_under(self, tenant: int, key: str) -> bytes:
        answer: bytes = await self._connection.fetchval(
            "SELECT answer FROM idempotency_keys WHERE tenant_id = $1 AND key = $2", tenant, key
        )
        return answer

    async def add_schedule(self, tenant: int, definition: ScheduleDefinition) -> UUID:
        schedule_id, first = uuid4(), definition.start_at
        await self._connection.execute(
            "INSERT INTO schedules (tenant_id, id, name, partition, timezone, tzdata, definition,"
            " template, decided_to, next_at, wake_at) VALUES ($1::integer, $2::uuid, $2::text,"
            " partition_of($1::integer, $2::uuid, NULL, 256), 'UTC', '9999z', $3, $4,"
            " to_timestamp($5::float8 - 1), to_timestamp($5), to_timestamp($5))",
            tenant,
            schedule_id,
            msgspec.json.encode(definition),
            TEMPLATE,
            first,
        )
        return schedule_id

    async def ledger(self, schedule_id: UUID) -> list[tuple[float, float, int, str]]:
        rows = await self._connection.fetch(
            "SELECT extract(epoch FROM nominal_at)::float8, extract(epoch FROM to_at)::float8,"
            " count, decision FROM occurrences WHERE schedule_id = $1 ORDER BY nominal_at",
            schedule_id,
        )
        return [tuple(row) for row in rows]


@dataclass
class StoreSet:
    """The stores under test, and shorthands for the tests."""

    engine: EngineStore
    tasks: TaskStore
    changes: TaskChangeService
    keys: KeyStore
    tenants: TenantStore
    cluster: ClusterStore
    inspect: Inspector
    schedules: ScheduleService
    leases: LeaseStore
    register: Callable[..., Awaitable[bool]]
    ids: TaskIds = field(default_factory=lambda: TaskIds(Random(1)))
    worker: str = "node:test"

    async def tenant(self, *, max_running: int | None = None, spread: int = 1) -> int:
        return await self.inspect.add_tenant(TenantLimits(1, max_running, spread))

    async def limit(self, tenant: int, limits: TenantLimits) -> None:
        await self.tenants.change(tenant, lambda _: limits, "test")

    async def join(self, partitions: frozenset[int] = EVERYWHERE) -> Ownership:
        """A living node with a right to act."""
        node_id = uuid4()
        epoch = await self.cluster.join(node_id, "test", None, "0")
        return Ownership(node_id, epoch, partitions)

    async def create(
        self,
        tenant: int,
        *,
        ownership: Ownership | None = None,
        due: float = -1.0,
        expires: float | None = None,
        key: str | None = None,
        priority: int = 5,
        queue: str = "default",
    ) -> TaskRow:
        """Insert a task that is due this many seconds from now, and read it."""
        new = self.new(tenant, due=due, expires=expires, key=key, priority=priority, queue=queue)
        await self.tasks.create([Creation(tenant, [new])], ownership or NO_OWNERSHIP)
        return await self.row(tenant, new.id)

    def new(
        self,
        tenant: int,
        *,
        due: float = -1.0,
        expires: float | None = None,
        key: str | None = None,
        priority: int = 5,
        queue: str = "default",
    ) -> NewTask:
        now = round(time.time(), 6)
        return NewTask(
            tenant_id=tenant,
            id=self.ids.make(now),
            created=now,
            run=now + due,
            due=round(now + due, 6),
            expires=None if expires is None else round(now + expires, 6),
            concurrency_key=key,
            concurrency_limit=None if key is None else 1,
            priority=priority,
            queue=queue,
            capability="handler:work",
            name=None,
            labels=None,
            spec=SPEC,
            payload=b"{}",
        )

    async def create_keyed(self, tenant: int, *, ttl: float) -> UUID | None:
        """Insert a task under the one idempotency key "k"; None when the key was taken."""
        new = self.new(tenant)
        keyed = Keyed("k", b"hash", str(new.id).encode(), ttl)
        made = await self.tasks.create([Creation(tenant, [new], keyed)], NO_OWNERSHIP)
        return new.id if new.id in made.partitions else None

    async def row(self, tenant: int, task_id: UUID) -> TaskRow:
        seen = await self.engine.look_at([(tenant, task_id)])
        return seen.rows[0]

    async def is_unfinished(self, row: TaskRow) -> bool:
        return bool((await self.engine.look_at([(row.tenant_id, row.id)])).rows)

    async def claim(
        self, ownership: Ownership, row: TaskRow, *, rev: int | None = None, lease: float = 60.0
    ) -> Execution | None:
        ref = TaskRef(row.tenant_id, row.id, row.rev if rev is None else rev)
        claimed = await self.engine.claim(ownership, [ref], worker=self.worker, lease=lease)
        return claimed[0] if claimed else None

    async def lease(
        self,
        ownership: Ownership,
        row: TaskRow,
        *,
        worker: str = "w",
        incarnation: str = "1",
        lease: float = 60.0,
    ) -> Execution | None:
        """Claim a task for a worker."""
        pick = WorkerPick(row.tenant_id, row.id, row.rev, worker, incarnation)
        leased = await self.leases.claim_for(ownership, [pick], lease=lease)
        return leased[0].execution if leased else None

    async def running(
        self, ownership: Ownership, tenant: int, *, lease: float = 60.0, key: str | None = None
    ) -> Execution:
        """A task that was created and claimed."""
        row = await self.create(tenant, ownership=ownership, key=key)
        execution = await self.claim(ownership, row, lease=lease)
        assert execution is not None
        return execution

    async def ask_to_cancel(self, execution: Execution) -> None:
        await self.move(execution.tenant_id, execution.id, "running", cancel=True)

    async def move(
        self, tenant: int, task_id: UUID, state: str, *, cancel: bool = False
    ) -> bool | None:
        """Change a task's state, as the API does."""

        def decide(locked: LockedTask) -> TaskChange | bool:
            return replace(TaskChange.of(locked), state=state, cancel_requested=cancel)

        return await self.changes.change(tenant, task_id, decide)

    async def partition_loader(
        self, partitions: Sequence[int], *, after: float = 0.0, until: float = 1e10, cap: int = 100
    ) -> list[TaskRow]:
        return await self.engine.load_window(partitions, after=after, until=until, cap=cap)


def finish(
    execution: Execution,
    *,
    fence: int | None = None,
    outcome: Outcome = Outcome.SUCCEEDED,
    state: TaskState = TaskState.COMPLETED,
    dead_because: DeathCause | None = None,
) -> Finish:
    return Finish(_report(execution, outcome, fence), state, dead_because)


def retry(
    execution: Execution,
    *,
    fence: int | None = None,
    outcome: Outcome = Outcome.FAILED,
    delay: float | None = 5.0,
) -> RetryLater:
    return RetryLater(_report(execution, outcome, fence), delay)


def held(execution: Execution, *, fence: int | None = None) -> TaskRef:
    return TaskRef(execution.tenant_id, execution.id, fence or execution.fence)


def _report(execution: Execution, outcome: Outcome, fence: int | None) -> Report:
    if fence is not None:
        execution = execution._replace(fence=fence)
    now = time.time()
    failed = outcome in (Outcome.FAILED, Outcome.TIMED_OUT)
    error = TaskError("test", "it failed") if failed else None
    return Report(execution, outcome, now, now, error=error)


def memory_stores() -> StoreSet:
    store = MemoryStore(time.time, range(PARTITIONS), near=NEAR)
    link = DirectLink()
    connection = cast(asyncpg.Connection, RemoteConnection(store, link))
    return StoreSet(
        RemoteEngineStore(store, link),
        RemoteTasks(store, link),
        RemoteChanges(store, link),
        RemoteKeys(store, link),
        RemoteTenants(store, link),
        ClusterStore(connection),
        MemoryInspector(store),
        RemoteSchedules(MemorySchedules(store), link, _occurrence_writer()),
        RemoteLeases(MemoryLeases(store), link),
        RemoteWorkers(MemoryLeases(store), link).register,
    )


def postgres_stores(database: Database, connection: asyncpg.Connection) -> StoreSet:
    return StoreSet(
        EngineStore(database),
        TaskStore(database, near=NEAR),
        TaskChangeService(database, new_steps(Random(3))),
        KeyStore(database),
        TenantStore(database),
        ClusterStore(connection),
        PostgresInspector(connection),
        ScheduleService(database, _occurrence_writer()),
        LeaseStore(database),
        WorkerStore(database).register,
    )


def _occurrence_writer() -> OccurrenceWriter:
    return OccurrenceWriter(TaskIds(Random(3)), Random(3), near=NEAR)
