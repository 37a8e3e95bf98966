"""The worker protocol, in words and types."""

from mainspring.api.documentation import Body, Doc, Reply
from mainspring.api.lease_wire import (
    HeartbeatIn,
    JudgedListOut,
    LeaseIn,
    LeasesOut,
    PulsesOut,
    ReportIn,
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
    "free at once.",
    bodies=[
        Body(
            LeaseIn,
            examples={"handlers": {**_WORKER, "handlers": ["extract"], "max": 50, "wait": 20}},
        )
    ],
    replies=[Reply(200, "What it may run.", LeasesOut)],
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
    replies=[Reply(200, "What to do about each, in the order of the request.", PulsesOut)],
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
    replies=[Reply(200, "What became of each, in the order of the request.", JudgedListOut)],
)
