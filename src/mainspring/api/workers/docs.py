"""The worker protocol, in words and types."""

from mainspring.api.openapi.operation import (
    LIMIT,
    NUMBER_CURSOR,
    Body,
    Doc,
    ResponseDoc,
)
from mainspring.errors import Conflict, NotReady
from mainspring.wire.workers import (
    HeartbeatIn,
    JudgedListOut,
    LeaseIn,
    LeasesOut,
    LogPage,
    LogsIn,
    LogsTakenOut,
    NodeAddressList,
    PulsesOut,
    ReportIn,
    WorkerPage,
)

TAG = "Workers"

_WORKER = {"worker": "w1", "incarnation": "b1946ac9"}
_TRY = {"id": "01890a5d-ac96-774b-bcce-b302099a8057", "fence": 1}

LEASE = Doc(
    id="leaseTasks",
    tag=TAG,
    summary="Lease tasks",
    description="Waits up to `wait` seconds until there is something this worker can run, then "
    "answers at once; with an empty list when nothing came. `max` is how many it can start now. "
    "A worker that is restarted comes with another `incarnation`: what the one before it held is "
    "free at once. A node that stops answers 503 (`not-ready`): ask another one.",
    bodies=[
        Body(
            LeaseIn,
            examples={"handlers": {**_WORKER, "handlers": ["extract"], "max": 50, "wait": 1}},
        )
    ],
    replies=[ResponseDoc(200, "What it may run.", LeasesOut)],
    problems=[Conflict, NotReady],
)
HEARTBEAT = Doc(
    id="heartbeat",
    tag=TAG,
    summary="Keep leases alive",
    description="For tries that take longer than a third of their lease. `cancel` asks the worker "
    "to stop the try and to report it, `lost` tells it that the try is not its own any more.",
    bodies=[
        Body(HeartbeatIn, examples={"one": {**_WORKER, "running": [{**_TRY, "progress": 0.5}]}})
    ],
    replies=[ResponseDoc(200, "What to do about each, in the order of the request.", PulsesOut)],
)
REPORT = Doc(
    id="reportOutcomes",
    tag=TAG,
    summary="Report how tries ended",
    description="`accepted`: it is recorded, or was. `fenced`: the try is not the current one "
    "any more. `unknown`: there is no such task.",
    bodies=[
        Body(
            ReportIn,
            examples={"one": {"outcomes": [{**_TRY, "status": "succeeded", "result": {"n": 1}}]}},
        )
    ],
    replies=[ResponseDoc(200, "What became of each, in the order of the request.", JudgedListOut)],
)
LOGS = Doc(
    id="addLogs",
    tag=TAG,
    summary="Add log lines",
    description="Lines of tries, in batches; they are read with the task. A task keeps 1,000 lines "
    "of at most 4,000 characters; what is beyond is dropped, and counted in the answer.",
    bodies=[Body(LogsIn, examples={"one": {"lines": [{**_TRY, "message": "12 rows"}]}})],
    replies=[ResponseDoc(200, "How many were kept.", LogsTakenOut)],
)
TASK_LOGS = Doc(
    id="listLogs",
    tag="Tasks",
    summary="Read a task's log lines",
    description="In the order in which they came, over all tries.",
    params=[LIMIT, NUMBER_CURSOR],
    replies=[ResponseDoc(200, "A page of lines.", LogPage)],
)
LIST = Doc(
    id="listWorkers",
    tag=TAG,
    summary="List workers",
    description="The newest first, with what they offer, hold and did. One that was not heard of "
    "for half a minute is `silent`, after a day it is forgotten.",
    params=[LIMIT, NUMBER_CURSOR],
    replies=[ResponseDoc(200, "A page of workers.", WorkerPage)],
)
NODES = Doc(
    id="listWorkerNodes",
    tag=TAG,
    summary="List the nodes that workers may ask",
    description="Any node serves any worker. One that splits its demand in proportion to "
    "`partitions` spares the nodes the forwarding.",
    replies=[ResponseDoc(200, "The nodes that are alive.", NodeAddressList)],
)
