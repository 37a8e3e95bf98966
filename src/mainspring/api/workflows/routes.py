"""The paths of workflows, and what stands behind them."""

from collections.abc import Mapping

from mainspring.api.http.endpoint import Operation, TenantOperation
from mainspring.api.tasks.validation import TaskValidator
from mainspring.api.workflows import docs
from mainspring.api.workflows.definitions import WorkflowResource
from mainspring.api.workflows.validation import WorkflowValidator
from mainspring.clock import Clock
from mainspring.config import Config
from mainspring.store.workflow.workflows import WorkflowStore


def workflow_paths(
    config: Config, clock: Clock, workflows: WorkflowStore, tasks: TaskValidator
) -> dict[str, Mapping[str, Operation]]:
    """Every path with its operations."""
    validator = WorkflowValidator(tasks, config.max_payload, config.horizon)
    resource = WorkflowResource(workflows, validator, clock)
    one = "/v1/workflows/{id}"
    return {
        "/v1/workflows": {
            "GET": TenantOperation("read", resource.page, docs.LIST),
            "POST": TenantOperation("write", resource.create, docs.CREATE),
        },
        one: {
            "GET": TenantOperation("read", resource.one, docs.READ),
            "PUT": TenantOperation("write", resource.put, docs.PUT),
            "DELETE": TenantOperation("write", resource.delete, docs.DELETE),
        },
        f"{one}/versions": {"GET": TenantOperation("read", resource.versions, docs.VERSIONS)},
        f"{one}/graph": {"GET": TenantOperation("read", resource.graph, docs.GRAPH)},
    }
