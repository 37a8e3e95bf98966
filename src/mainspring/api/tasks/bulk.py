"""Changes of many tasks at once."""

from dataclasses import dataclass

from starlette.responses import Response

from mainspring.api.http.bodies import json_response
from mainspring.api.http.decoding import decode_as
from mainspring.api.http.operations import TenantCall
from mainspring.api.ports import NodePort
from mainspring.api.tasks.filters import task_filter
from mainspring.wire.dead_letters import CancelIn, CancelledOut
from mainspring.workflows.bulk_cancel import BulkChanges, CancelCounts


@dataclass(frozen=True, slots=True)
class TaskBulk:
    """POST /v1/tasks/cancel."""

    bulk: BulkChanges
    node: NodePort

    async def cancel(self, call: TenantCall) -> Response:
        wanted = decode_as(CancelIn, await call.body())
        where = task_filter(wanted.filter)
        if wanted.dry_run or call.dry_run:
            total = await self.bulk.count_cancellable(call.tenant_id, where)
        else:
            total = CancelCounts()
            async for done in self.bulk.cancel(call.tenant_id, where, call.actor):
                total += done
                if done.partitions:
                    self.node.announce(changed=done.partitions)
        return json_response(CancelledOut(total.ended, total.asked))
