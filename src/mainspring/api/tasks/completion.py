"""POST /v1/tasks/{id}/complete: a receiver reports the end of work it had accepted."""

from dataclasses import dataclass

import msgspec
from starlette.responses import Response

from mainspring.api.http.decoding import decode_as
from mainspring.api.http.operations import TenantCall, no_such_task
from mainspring.api.ports import NodePort
from mainspring.api.tasks.reading import existing_task, task_response
from mainspring.clock import Clock
from mainspring.domain.execution import Outcome, Report, TaskError
from mainspring.errors import Conflict
from mainspring.store.tasks import TaskStore
from mainspring.wire.tasks import CompleteIn


@dataclass(frozen=True, slots=True)
class Completion:
    """Records the outcome under the fence, on any node."""

    tasks: TaskStore
    node: NodePort
    clock: Clock

    async def complete(self, call: TenantCall) -> Response:
        sent = decode_as(CompleteIn, await call.body(), _payloads)
        running = await self.tasks.running(call.tenant_id, call.task_id)
        if running is None:
            await existing_task(self.tasks, call)
            raise Conflict("the task is not running: it ended, or waits for its next execution")
        if running.spec.target.type != "http":
            raise no_such_task(call.task_id)
        if running.fence != sent.fence:
            raise Conflict("there is a newer execution: the outcome of this one does not count")
        outcome = Outcome.SUCCEEDED if sent.status == "succeeded" else Outcome.FAILED
        error = None
        if outcome is Outcome.FAILED:
            error = TaskError("failed", sent.error or "the receiver reported a failure")
        result = bytes(sent.result) or None
        report = Report(
            running, outcome, running.picked, self.clock.now(), result, error, sent.retryable,
            status_code=202,
        )  # fmt: skip
        if not await self.node.conclude(report):
            raise Conflict("the execution has just ended: another outcome was recorded")
        return task_response(await existing_task(self.tasks, call))


def _payloads(sent: CompleteIn) -> list[msgspec.Raw]:
    return [sent.result] if bytes(sent.result) else []
