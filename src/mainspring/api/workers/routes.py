"""The routes of the worker protocol, and of workers as people see them."""

from mainspring.api.http.operations import TenantOperation
from mainspring.api.openapi import operation as docs
from mainspring.api.routes import Routes, Tag, ok
from mainspring.api.workers.leases import LeaseResource
from mainspring.api.workers.registry import WorkerResource
from mainspring.errors import Conflict, NotReady
from mainspring.wire import workers as wire

_WORKERS = Tag("Workers")
_WORKER = {"worker": "w1", "incarnation": "b1946ac9"}
_EXECUTION = {"id": "01890a5d-ac96-774b-bcce-b302099a8057", "fence": 1}


def lease_routes(leases: LeaseResource) -> Routes:
    running = {**_WORKER, "running": [{**_EXECUTION, "progress": 0.5}]}
    outcomes = [{**_EXECUTION, "status": "succeeded", "result": {"n": 1}}]
    lines = [{**_EXECUTION, "message": "12 rows"}]
    return {
        "POST /v1/leases": _lease(leases),
        "POST /v1/leases/heartbeat": _WORKERS.tenant(
            "work", leases.heartbeat, "heartbeat", "Keep leases alive",
            "For executions that take longer than a third of their lease. `cancel` asks the worker "
            "to stop the execution and to report it, `lost` tells it that the execution is not its "
            "own any more.",
            ok("What to do about each, in the order of the request.", wire.PulsesOut),
            body=docs.Body(wire.HeartbeatIn, examples={"one": running}),
        ),
        "POST /v1/leases/report": _WORKERS.tenant(
            "work", leases.report, "reportOutcomes", "Report how executions ended",
            "`accepted`: it is recorded, or was. `fenced`: the execution is not the current one "
            "any more. `unknown`: there is no such task.",
            ok("What became of each, in the order of the request.", wire.JudgedListOut),
            body=docs.Body(wire.ReportIn, examples={"one": {"outcomes": outcomes}}),
        ),
        "POST /v1/leases/logs": _WORKERS.tenant(
            "work", leases.add_logs, "addLogs", "Add log lines",
            "Lines of executions, in batches; they are read with the task. A task keeps 1,000 "
            "lines of at most 4,000 characters; what is beyond is dropped, and counted in the "
            "answer.",
            ok("How many were kept.", wire.LogsTakenOut),
            body=docs.Body(wire.LogsIn, examples={"one": {"lines": lines}}),
        ),
    }  # fmt: skip


def worker_routes(workers: WorkerResource) -> Routes:
    return {
        "GET /v1/workers": _WORKERS.tenant(
            "work", workers.page, "listWorkers", "List workers",
            "The newest first, with what they offer, hold and did. One that was not heard of for "
            "half a minute is `silent`, after a day it is forgotten.",
            ok("A page of workers.", wire.WorkerPage), params=docs.NUMBERED, or_scope="read",
        ),
        "GET /v1/workers/nodes": _WORKERS.tenant(
            "work", workers.nodes, "listWorkerNodes", "List the nodes that workers may ask",
            "Any node serves any worker. One that splits its demand in proportion to `partitions` "
            "spares the nodes the forwarding.",
            ok("The nodes that are alive.", wire.NodeAddressList), or_scope="read",
        ),
    }  # fmt: skip


def _lease(leases: LeaseResource) -> TenantOperation:
    handlers = {"handlers": {**_WORKER, "handlers": ["extract"], "max": 50, "wait": 1}}
    doc = _WORKERS.doc(
        "leaseTasks", "Lease tasks",
        "Waits up to `wait` seconds until there is something this worker can run, then answers at "
        "once; with an empty list when nothing came. `max` is how many it can start now. A worker "
        "that is restarted comes with another `incarnation`: what the one before it held is free "
        "at once. A node that stops answers 503 (`not-ready`): ask another one.",
        ok("What it may run.", wire.LeasesOut),
        body=docs.Body(wire.LeaseIn, examples=handlers), problems=[Conflict, NotReady],
    )  # fmt: skip
    return TenantOperation("work", leases.lease, doc, waits=wire.LONGEST_WAIT)
