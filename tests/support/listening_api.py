"""The API over a real database, with a node that only listens."""

from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any
from uuid import UUID

from mainspring.config import Config
from mainspring.domain.execution import Execution
from mainspring.domain.ids import TaskIds
from mainspring.domain.partitions import Ownership
from mainspring.domain.rows import TaskRow
from mainspring.errors import StoreUnavailable
from mainspring.observe.metrics import Metrics
from mainspring.postgres.database import Database, DatabaseOptions
from mainspring.store.creation import NO_EAGER_LEASE, Creation, EagerLeaseOffer, Made, NewTask
from mainspring.store.keys import KeyStore, NewKey
from mainspring.store.tasks import TaskStore
from mainspring.store.workflows.step_rows import Moved
from mainspring.wiring.api import ApiDependencies, build_app
from support.asgi import AsgiClient
from support.in_process_api import IdleLeaseService, IdleNode
from support.manual_clock import ManualClock
from support.store import time_of

NOOP = {"type": "handler", "name": "mainspring.noop"}
ALL = frozenset({"read", "write"})


@dataclass
class ListeningNode(IdleNode):
    """A node that remembers what it was told."""

    owned: frozenset[int] = frozenset(range(256))
    is_ready: bool = True
    rows: list[TaskRow] = field(default_factory=list)
    hinted: set[int] = field(default_factory=set)
    changes: int = 0
    offers: bool = False
    """Whether it offers an eager lease for every new task."""
    leased: list[tuple[list[UUID], list[UUID] | None]] = field(default_factory=list)
    """Which it offered one, and which of them it was told were leased."""

    def ownership(self) -> Ownership:
        return Ownership(UUID(int=1), 1, self.owned)

    def offer_eager_lease(self, tasks: Iterable[NewTask]) -> EagerLeaseOffer:
        offered = {task.id: task for task in tasks}
        return EagerLeaseOffer(offered, "node:one", 15.0) if self.offers else NO_EAGER_LEASE

    def end_eager_lease(
        self, offer: EagerLeaseOffer, leased: Sequence[tuple[TaskRow, Execution]] | None
    ) -> None:
        ids = None if leased is None else [row.id for row, _ in leased]
        self.leased.append((list(offer.tasks), ids))

    def announce(self, rows: Sequence[TaskRow] = (), changed: Collection[int] = ()) -> None:
        self.rows.extend(rows)
        self.changes += bool(changed)
        self.hinted.update(set(changed) - self.owned)

    def announce_runs(self, moved: Moved) -> None:
        self.rows.extend(moved.rows)

    def ready(self) -> bool:
        return self.is_ready


class FragileTasks(TaskStore):
    """A store whose next insert can be made to fail around its commit."""

    statements = 0
    lose_answer = False
    lose_request = False

    async def create(
        self,
        creations: Sequence[Creation],
        ownership: Ownership,
        offer: EagerLeaseOffer = NO_EAGER_LEASE,
    ) -> Made:
        self.statements += 1
        if self.lose_request:
            raise StoreUnavailable("lost before")
        made = await super().create(creations, ownership, offer)
        if self.lose_answer:
            raise StoreUnavailable("lost after")
        return made


@dataclass
class ListeningApi:
    """The application under test and what stands around it."""

    deps: ApiDependencies
    database: Database
    tasks: FragileTasks
    node: ListeningNode
    clock: ManualClock
    a: AsgiClient
    b: AsgiClient
    reader: AsgiClient
    operator: AsgiClient
    stranger: AsgiClient

    def another_node(self) -> AsgiClient:
        """A second application over the same database, which shares no memory with the first."""
        return AsgiClient(build_app(replace(self.deps, ids=TaskIds(Random(3)))), "a")

    async def make(self, **fields: object) -> dict[str, Any]:
        answer = await self.a.post("/v1/tasks", {"target": NOOP, **fields})
        assert answer.status == 201, answer.body
        made: dict[str, Any] = answer.json()
        return made

    async def count(self, table: str = "tasks") -> int:
        rows = await self.database.fetch(f"SELECT count(*) AS n FROM {table}")
        return int(rows[0]["n"])

    async def start(self, task_id: str) -> None:
        """Put a task into the state that a claim leaves behind."""
        await self.database.fetch(
            "UPDATE tasks SET state = 'running', fence = 1, attempts = 1, worker = 'w',"
            " rev = rev + 1, picked_at = clock_timestamp(),"
            " lease_until = clock_timestamp() + interval '1 minute'"
            " WHERE id = $1::uuid",
            UUID(task_id),
        )


@asynccontextmanager
async def listening_api(database_url: str) -> AsyncIterator[ListeningApi]:
    database = Database(DatabaseOptions(database_url, connections=5))
    await database.open()
    keys = KeyStore(database)
    await _add_keys(keys)
    config = Config(max_batch=2000, max_payload=5000, max_body=2**20)
    clock = ManualClock(await time_of(database))
    node = ListeningNode()
    tasks = FragileTasks(database, near=config.near)
    ids = TaskIds(Random(1))
    deps = ApiDependencies(
        config, clock, tasks, keys, ids, Random(2), node, Metrics(), database, IdleLeaseService()
    )
    app = build_app(deps)
    clients = {k: AsgiClient(app, k) for k in ("a", "b", "reader", "operator", "stranger")}
    yield ListeningApi(deps, database, tasks, node, clock, **clients)
    await database.close()


async def _add_keys(keys: KeyStore) -> None:
    tenant_a, tenant_b = await keys.ensure_tenant("a"), await keys.ensure_tenant("b")
    await keys.add(NewKey("1", "a", tenant_a, ALL))
    await keys.add(NewKey("2", "b", tenant_b, ALL))
    await keys.add(NewKey("3", "reader", tenant_a, frozenset({"read"})))
    await keys.add(NewKey("4", "operator", None, frozenset(), operator=True))
