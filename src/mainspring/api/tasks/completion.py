"""POST /v1/tasks/{id}/complete: a receiver reports the end of work it had accepted."""

import msgspec
from starlette.responses import Response

from mainspring.api.http.decoding import decode_as
from mainspring.api.http.endpoint import TenantCall, no_such_task
from mainspring.api.ports import NodePort
from mainspring.api.tasks.reading import existing_task, task_response
from mainspring.clock import Clock
from mainspring.domain.execution import Outcome, Report, TaskError
from mainspring.errors import Conflict
from mainspring.store.tasks import TaskStore
from mainspring.wire.tasks import CompleteIn

_COMPLETE = msgspec.json.Decoder(CompleteIn)


class Completion:
    """Writes the outcome under the fence, on whichever node the report arrives."""

    def __init__(self, tasks: TaskStore, node: NodePort, clock: Clock) -> None:
        self._tasks = tasks
        self._node = node
        self._clock = clock

    async def complete(self, call: TenantCall) -> Response:
        said = decode_as(_COMPLETE, await call.body(), _payloads)
        running = await self._tasks.running(call.tenant_id, call.task_id)
        if running is None:
            await existing_task(self._tasks, call.tenant_id, call.task_id)
            raise Conflict("the task is not running: it ended, or waits for its next try")
        if running.spec.target.type != "http":
            raise no_such_task(call.task_id)
        if running.fence != said.fence:
            raise Conflict("there is a newer try: what came of this one does not count any more")
        outcome = Outcome.SUCCEEDED if said.status == "succeeded" else Outcome.FAILED
        error = None
        if outcome is Outcome.FAILED:
            error = TaskError("failed", said.error or "the receiver reported a failure")
        result = bytes(said.result) or None
        report = Report(
            running, outcome, running.picked, self._clock.now(), result, error, said.retryable,
            status_code=202,
        )  # fmt: skip
        if not await self._node.conclude(report):
            raise Conflict("the try ended in this very moment: another outcome was recorded")
        return task_response(await existing_task(self._tasks, call.tenant_id, call.task_id))


def _payloads(said: CompleteIn) -> list[msgspec.Raw]:
    return [said.result] if bytes(said.result) else []
