"""The API in this process, over a real database, with a node that does nothing."""

from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from random import Random
from uuid import UUID

from mainspring.api.http.middleware import RequestMiddleware
from mainspring.config import Config
from mainspring.domain.execution import Execution, Report
from mainspring.domain.ids import TaskIds
from mainspring.domain.partitions import Ownership
from mainspring.domain.rows import TaskRow
from mainspring.engine.explain import Situation
from mainspring.node.workers.heartbeats_and_reports import HeartbeatAnswer, Verdict, WorkerReport
from mainspring.node.workers.lease_service import LeaseRequest
from mainspring.observe.metrics import Metrics
from mainspring.postgres.database import Database, DatabaseOptions
from mainspring.store.creation import NO_EAGER_LEASE, EagerLeaseOffer, NewTask
from mainspring.store.keys import KeyStore, NewKey
from mainspring.store.leases import HeldHeartbeat, LeasedTask
from mainspring.store.tasks import TaskStore
from mainspring.store.vault import Vault
from mainspring.store.workflows.step_rows import Moved
from mainspring.wiring.api import ApiDependencies, build_app
from support.asgi import AsgiClient
from support.manual_clock import ManualClock
from support.store import time_of

SCOPES = ("read", "write", "work", "admin")
NO_VAULT = Vault()


class IdleNode:
    """A node that owns everything and does nothing."""

    def ownership(self) -> Ownership:
        return Ownership(UUID(int=1), 1, frozenset(range(256)))

    def offer_eager_lease(self, tasks: Iterable[NewTask]) -> EagerLeaseOffer:
        return NO_EAGER_LEASE

    def end_eager_lease(
        self, offer: EagerLeaseOffer, leased: Sequence[tuple[TaskRow, Execution]] | None
    ) -> None:
        pass

    def announce(self, rows: Sequence[TaskRow] = (), changed: Collection[int] = ()) -> None:
        pass

    def announce_runs(self, moved: Moved) -> None:
        pass

    def mark_stale(self) -> None:
        pass

    def explain(self, row: TaskRow) -> Situation:
        return Situation()

    async def conclude(self, report: Report) -> bool:
        return False

    def ready(self) -> bool:
        return True


class IdleLeaseService:
    """A lease service at which workers find nothing to do."""

    async def lease(self, request: LeaseRequest) -> list[LeasedTask]:
        return []

    async def beat(
        self, holder: object, beats: Sequence[HeldHeartbeat], about: object = None
    ) -> list[HeartbeatAnswer]:
        return [HeartbeatAnswer(beat.id, None, "lost") for beat in beats]

    async def report(self, tenant_id: int, reports: Sequence[WorkerReport]) -> list[Verdict]:
        return ["unknown" for _ in reports]


@dataclass
class InProcessApi:
    """The application, two tenants with a key for each scope, and an operator."""

    deps: ApiDependencies
    app: RequestMiddleware
    tenants: dict[str, int] = field(default_factory=dict)

    @property
    def database(self) -> Database:
        return self.deps.database

    def client(self, key: str | None) -> AsgiClient:
        return AsgiClient(self.app, key)

    @property
    def admin(self) -> AsgiClient:
        """All scopes of tenant `a`."""
        return self.client("a:all")

    @property
    def other_tenant(self) -> AsgiClient:
        """All scopes of tenant `b`."""
        return self.client("b:all")

    @property
    def operator(self) -> AsgiClient:
        return self.client("operator")

    def another_node(self) -> "InProcessApi":
        """A second application over the same database, which shares no memory with the first."""
        deps = replace(self.deps, ids=TaskIds(Random(5)), metrics=Metrics())
        return InProcessApi(deps, build_app(deps), self.tenants)


@asynccontextmanager
async def open_api(
    database_url: str, config: Config, vault: Vault = NO_VAULT
) -> AsyncIterator[InProcessApi]:
    database = Database(DatabaseOptions(database_url, connections=5))
    await database.open()
    keys = KeyStore(database)
    deps = ApiDependencies(
        config=config,
        clock=ManualClock(await time_of(database)),
        tasks=TaskStore(database, near=config.near),
        keys=keys,
        ids=TaskIds(Random(1)),
        rng=Random(2),
        node=IdleNode(),
        metrics=Metrics(),
        database=database,
        lease_service=IdleLeaseService(),
        vault=vault,
    )
    api = InProcessApi(deps, build_app(deps))
    for name in ("a", "b"):
        tenant_id = api.tenants[name] = await keys.ensure_tenant(name)
        await keys.add(NewKey(f"{name}-all", f"{name}:all", tenant_id, frozenset(SCOPES)))
        for scope in SCOPES:
            secret = f"{name}:{scope}"
            await keys.add(NewKey(f"{name}-{scope}", secret, tenant_id, frozenset({scope})))
    await keys.add(NewKey("operator", "operator", None, frozenset(), operator=True))
    try:
        yield api
    finally:
        await database.close()
