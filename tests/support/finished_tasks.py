"""Tasks that are made through the API and end as a node would end them."""

from typing import Any
from uuid import UUID

from mainspring.domain.execution import Outcome, Report, TaskError
from mainspring.domain.outcome_rules import Finish
from mainspring.domain.partitions import PARTITIONS, Ownership
from mainspring.domain.task import TaskState
from mainspring.store.claims import EngineStore
from mainspring.store.task_refs import TaskRef
from support.asgi import AsgiClient
from support.in_process_api import InProcessApi

NOOP = {"type": "handler", "name": "mainspring.noop"}
# What is meant to be more than a value, wherever a value can be given.
INJECTIONS = [
    "' OR 1=1 --",
    "'; DROP TABLE dead_letters; --",
    '" OR ""="',
    "1) UNION SELECT secret_hash FROM api_keys --",
    "\\'; SELECT pg_sleep(5) --",
    "$1",
    "%(id)s {0} ${jndi:x}",
    "' || (SELECT version()) || '",
]


class TaskFinisher:
    """Makes tasks of one tenant and ends them."""

    def __init__(self, api: InProcessApi, tenant: str = "a") -> None:
        self.api = api
        self.client: AsgiClient = api.client(f"{tenant}:all")
        self.tenant_id = api.tenants[tenant]
        self.engine = EngineStore(api.database)
        self.ownership = Ownership(UUID(int=1), 1, frozenset(range(PARTITIONS)))

    async def make(self, **fields: object) -> dict[str, Any]:
        answer = await self.client.post("/v1/tasks", {"target": NOOP, **fields})
        assert answer.status == 201, answer.body
        made: dict[str, Any] = answer.json()
        return made

    async def start(self, task_id: str) -> Report:
        """Claim a task; what comes back reports its success."""
        await self.api.database.fetch(
            "INSERT INTO nodes (id, name, version) VALUES ($1, 'one', '0') ON CONFLICT DO NOTHING",
            self.ownership.node_id,
        )
        seen = await self.engine.look_at([(self.tenant_id, UUID(task_id))])
        picks = [TaskRef(row.tenant_id, row.id, row.rev) for row in seen.rows]
        [claimed] = await self.engine.claim(self.ownership, picks, worker="w", lease=60)
        return Report(claimed, Outcome.SUCCEEDED, claimed.picked, claimed.picked)

    async def end(self, task_id: str, error: TaskError | None = None) -> None:
        """Run a task to its end: it succeeds, or fails for good with the error."""
        report = await self.start(task_id)
        finish = Finish(report, TaskState.COMPLETED)
        if error is not None:
            report = report._replace(outcome=Outcome.FAILED, error=error)
            lateness = {"fair_share": 2.5}
            finish = Finish(report, TaskState.FAILED, "exhausted", False, "capacity", lateness)
        assert await self.engine.finish(self.ownership, [finish]) == {UUID(task_id)}

    async def make_dead_letter(self, message: str = "boom", **fields: object) -> dict[str, Any]:
        """Make a task that failed for good."""
        task = await self.make(**fields)
        await self.end(task["id"], TaskError("failed", message))
        return task

    async def count(self, table: str = "tasks") -> int:
        rows = await self.api.database.fetch(f"SELECT count(*) AS n FROM {table}")
        return int(rows[0]["n"])
