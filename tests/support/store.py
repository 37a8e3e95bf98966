"""A database with nodes and tasks in it, for tests that speak to the store itself."""

from collections.abc import Sequence
from random import Random
from uuid import UUID, uuid4

import msgspec

from mainspring.domain.execution import Execution, Outcome, Report
from mainspring.domain.ids import TaskIds
from mainspring.domain.outcome_rules import Finish
from mainspring.domain.partitions import PARTITIONS, Ownership
from mainspring.domain.task import Target, TaskSpec, TaskState
from mainspring.postgres.database import Database
from mainspring.store.claims import EngineStore
from mainspring.store.creation import Creation, NewTask
from mainspring.store.keys import KeyStore
from mainspring.store.task_refs import TaskRef
from mainspring.store.tasks import TaskStore

SPEC = TaskSpec(Target("handler", name="mainspring.noop"))


async def time_of(database: Database) -> float:
    """Return the time by the database's clock."""
    row = await database.fetch_row("SELECT extract(epoch FROM clock_timestamp())::float8 AS now")
    assert row is not None
    return float(row["now"])


class OwnerWorld:
    """One tenant, and one node that owns everything."""

    def __init__(self, database: Database, seed: int = 7) -> None:
        self.database = database
        self.engine = EngineStore(database)
        self.ownership = Ownership(uuid4(), 1, frozenset(range(PARTITIONS)))
        self._ids = TaskIds(Random(seed))

    async def open(self) -> None:
        self.tenant_id = await KeyStore(self.database).ensure_tenant("acme")
        await self.database.fetch(
            "INSERT INTO nodes (id, name, version) VALUES ($1, $2, '0')",
            self.ownership.node_id,
            str(self.ownership.node_id),
        )

    async def now(self) -> float:
        return await time_of(self.database)


class StoreWorld(OwnerWorld):
    """An owner's world, and tasks in it that are due."""

    async def due_tasks(self, count: int) -> list[UUID]:
        """Insert tasks that may start at once."""
        now = await self.now()
        tasks = [self._task(now) for _ in range(count)]
        await TaskStore(self.database, near=30).create(
            [Creation(self.tenant_id, tasks)], self.ownership
        )
        return [task.id for task in tasks]

    async def claim(
        self, ids: Sequence[UUID], *, lease: float, worker: str = "node:one"
    ) -> list[Execution]:
        """Lease tasks at their present rev."""
        seen = await self.engine.look_at([(self.tenant_id, task_id) for task_id in ids])
        picks = [TaskRef(row.tenant_id, row.id, row.rev) for row in seen.rows]
        return await self.engine.claim(self.ownership, picks, worker=worker, lease=lease)

    def _task(self, now: float) -> NewTask:
        return NewTask(
            self.tenant_id, self._ids.make(now),
            created=now, run=now, due=now, expires=None,
            concurrency_key=None, concurrency_limit=None, priority=5, queue="default",
            capability=SPEC.target.capability, name=None, labels=None,
            spec=msgspec.json.encode(SPEC.stored()), payload=b"{}",
        )  # fmt: skip


def success(execution: Execution) -> Finish:
    """The outcome of an execution that went well."""
    moment = execution.picked
    return Finish(Report(execution, Outcome.SUCCEEDED, moment, moment), TaskState.COMPLETED)
