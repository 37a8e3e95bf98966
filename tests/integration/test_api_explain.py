"""Explain, asked over the API: of waiting, running and finished tasks, owned here or elsewhere."""

from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

from mainspring.domain.execution import TaskError
from mainspring.domain.rows import TaskRow
from mainspring.domain.tenant import TenantLimits
from mainspring.engine.explain import Situation
from mainspring.store.tenants import TenantStore
from mainspring.wiring.api import build_app
from support.finished_tasks import TaskFinisher
from support.in_process_api import IdleNode, InProcessApi

FIELDS = [
    *("blame", "estimated_start", "gates", "lateness", "position", "sla_met", "source", "state"),
    *("task_id", "unblock", "verdict"),
]


class ExplainingNode(IdleNode):
    """A node that says about every task what the test lets it say."""

    def __init__(self, around: Situation) -> None:
        self.around = around
        self.asked: list[UUID] = []

    def explain(self, row: TaskRow) -> Situation:
        self.asked.append(row.id)
        return self.around


async def explained(api: InProcessApi, task: dict[str, Any]) -> dict[str, Any]:
    answer = await api.admin.get(f"/v1/tasks/{task['id']}/explain")
    assert answer.status == 200, answer.body
    told: dict[str, Any] = answer.json()
    assert sorted(told) == FIELDS
    assert told["task_id"] == task["id"]
    return told


def gate(told: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(g for g in told["gates"] if g["gate"] == name)
    return found


async def test_a_task_before_its_time(api: InProcessApi, tasks: TaskFinisher) -> None:
    task = await tasks.make(delay=3600)
    told = await explained(api, task)
    assert (told["verdict"], told["estimated_start"]) == ("not_due", task["due_at"])
    assert gate(told, "paused") == {
        "gate": "paused",
        "passed": True,
        "detail": "the state is scheduled",
    }
    await api.admin.post(f"/v1/tasks/{task['id']}/pause")
    assert (await explained(api, task))["verdict"] == "paused"


async def test_a_task_on_its_way(api: InProcessApi, tasks: TaskFinisher) -> None:
    task = await tasks.make()
    assert (await explained(api, task))["verdict"] == "ready"
    await tasks.start(task["id"])
    told = await explained(api, task)
    assert (told["verdict"], told["state"], told["gates"]) == ("running", "running", [])


async def test_a_finished_task_says_where_the_time_went(
    api: InProcessApi, tasks: TaskFinisher
) -> None:
    task = await tasks.make()
    await tasks.end(task["id"], TaskError("failed", "boom"))
    told = await explained(api, task)
    assert (told["verdict"], told["state"], told["sla_met"]) == ("finished", "failed", False)
    assert (told["blame"], told["lateness"]) == ("capacity", {"fair_share": 2.5})


async def test_the_database_counts_where_the_owner_is_elsewhere(
    api: InProcessApi, tasks: TaskFinisher
) -> None:
    tenant = api.tenants["a"]
    limits = TenantLimits(max_running=2, spread=1)
    await TenantStore(api.database).change(tenant, lambda _: limits, "test")
    concurrency = {"key": "k", "limit": 1}
    running = await tasks.make(concurrency=concurrency)
    waiting = await tasks.make(concurrency=concurrency)
    await tasks.start(running["id"])
    told = await explained(api, waiting)
    assert (told["verdict"], told["source"]) == ("concurrency_key", "database")
    assert gate(told, "concurrency_key")["detail"] == "1 of 1 are running under 'k'"
    assert gate(told, "tenant_limit")["detail"].startswith("1 of 2")
    other = await tasks.make()
    await tasks.start((await tasks.make())["id"])
    assert (await explained(api, other))["verdict"] == "tenant_limit"


async def test_the_owner_knows_best(api: InProcessApi, tasks: TaskFinisher) -> None:
    around = Situation(owned=True, can_run=True, free_slots=0, place=3, tenant_running=9)
    node = ExplainingNode(around)
    deps = replace(api.deps, node=node)
    owner = replace(api, deps=deps, app=build_app(deps))
    task = await tasks.make()
    told = await explained(owner, task)
    assert (told["verdict"], told["source"], told["position"]) == ("fair_share", "owner", 3)
    assert node.asked == [UUID(task["id"])]
    node.around = around._replace(can_run=False, free_slots=5)
    assert (await explained(owner, task))["verdict"] == "no_worker"


async def test_other_tenants_and_strange_ids(api: InProcessApi, tasks: TaskFinisher) -> None:
    task = await tasks.make()
    for shown in (task["id"], str(uuid4()), "x", "'%20OR%201=1"):
        answer = await api.other_tenant.get(f"/v1/tasks/{shown}/explain")
        assert answer.status == 404, shown
    assert (await api.client("a:write").get(f"/v1/tasks/{task['id']}/explain")).status == 403
