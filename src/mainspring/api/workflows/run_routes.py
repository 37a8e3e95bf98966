"""The paths of runs of workflows, and what stands behind them."""

from collections.abc import Mapping

from mainspring.api.http.endpoint import Operation, TenantOperation
from mainspring.api.workflows import run_docs as docs
from mainspring.api.workflows.runs import RunResource


def run_paths(runs: RunResource) -> dict[str, Mapping[str, Operation]]:
    """Every path with its operations."""
    one = "/v1/workflow-runs/{id}"
    return {
        "/v1/workflows/{id}/runs": {
            "GET": TenantOperation("read", runs.page_of_workflow, docs.LIST_OF_WORKFLOW),
            "POST": TenantOperation("write", runs.create, docs.CREATE),
        },
        "/v1/workflows/{id}/runs/{run_id}/status": {
            "GET": TenantOperation("read", runs.status, docs.STATUS)
        },
        "/v1/workflow-runs": {"GET": TenantOperation("read", runs.page, docs.LIST)},
        one: {"GET": TenantOperation("read", runs.one, docs.READ)},
        f"{one}/graph": {"GET": TenantOperation("read", runs.graph, docs.GRAPH)},
        f"{one}/cancel": {"POST": TenantOperation("write", runs.cancel, docs.CANCEL)},
        f"{one}/pause": {"POST": TenantOperation("write", runs.pause, docs.PAUSE)},
        f"{one}/resume": {"POST": TenantOperation("write", runs.resume, docs.RESUME)},
        f"{one}/retry": {"POST": TenantOperation("write", runs.retry, docs.RETRY)},
        f"{one}/steps/{{step}}/retry": {
            "POST": TenantOperation("write", runs.retry_step, docs.RETRY_STEP)
        },
        f"{one}/steps/{{step}}/skip": {
            "POST": TenantOperation("write", runs.skip_step, docs.SKIP_STEP)
        },
    }
