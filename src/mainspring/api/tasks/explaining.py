"""Why a task is not running, or where the seconds of its lateness went."""

from dataclasses import dataclass

from starlette.responses import Response

from mainspring.api.http.bodies import json_response
from mainspring.api.http.operations import TenantCall
from mainspring.api.node_ports import NodePort
from mainspring.api.tasks.reading import existing_task
from mainspring.api.views import instant_or_none
from mainspring.clock import Clock
from mainspring.domain.task import TaskState
from mainspring.engine.explain import Explanation, Situation, explain
from mainspring.store.explaining import Dependency, ExplainStore, WaitingTask
from mainspring.store.tasks import StoredTask, TaskStore
from mainspring.wire.tasks import ExplanationOut, GateOut


@dataclass(frozen=True, slots=True)
class TaskExplanation:
    """GET /v1/tasks/{id}/explain."""

    tasks: TaskStore
    store: ExplainStore
    node: NodePort
    clock: Clock

    async def one(self, call: TenantCall) -> Response:
        waiting = await self.store.waiting(call.tenant_id, call.task_id)
        if waiting is None:
            return json_response(_finished(await existing_task(self.tasks, call)))
        around = await self._around(waiting)
        told = explain(waiting.row, waiting.attempts, around, self.clock.now())
        return json_response(_unfinished(waiting, told, around))

    async def _around(self, waiting: WaitingTask) -> Situation:
        around = self.node.explain(waiting.row)._replace(waits_for=_waits_for(waiting.dependency))
        if around.owned:
            return around
        beside = await self.store.running_beside(waiting.row)
        return around._replace(
            tenant_running=beside.running,
            tenant_limit=waiting.tenant_limit,
            key_running=beside.under_key,
        )


def _waits_for(dependency: Dependency | None) -> str | None:
    if dependency is None:
        return None
    paused = "; its run is paused" if dependency.run_paused else ""
    count = f"{dependency.open} of {dependency.needed}"
    if dependency.has_items:
        return f"it waits for {count} items of its list{paused}"
    names = ", ".join(dependency.open_steps or ())
    more = ", …" if dependency.open > len(dependency.open_steps or ()) else ""
    return f"it waits for {count} steps before it: {names}{more}{paused}"


def _unfinished(waiting: WaitingTask, told: Explanation, around: Situation) -> ExplanationOut:
    return ExplanationOut(
        task_id=waiting.row.id,
        state=TaskState.RUNNING if around.started else waiting.row.state,
        verdict=told.verdict,
        gates=[GateOut(str(gate.gate), gate.passed, gate.detail) for gate in told.gates],
        position=told.position,
        estimated_start=instant_or_none(told.estimated_start),
        unblock=told.unblock,
        source="owner" if around.owned else "database",
    )


def _finished(task: StoredTask) -> ExplanationOut:
    return ExplanationOut(
        task_id=task.id,
        state=task.state,
        verdict="finished",
        unblock=f"The task is over: it is {task.state}.",
        source="database",
        sla_met=task.sla_met,
        blame=task.blame,
        lateness=task.lateness or {},
    )
