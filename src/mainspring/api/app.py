"""The API as one ASGI application: every route, and what stands behind it."""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware

from mainspring.api import operation_docs, task_docs
from mainspring.api.auth import Authenticator
from mainspring.api.idempotency import Idempotency
from mainspring.api.ingest import Ingest
from mainspring.api.middleware import Envelope, raise_http_error
from mainspring.api.operations import Operations
from mainspring.api.patching import TaskPatcher
from mainspring.api.ports import NodePort
from mainspring.api.routing import ForAll, ForOperators, ForTenants, Operation, Resource
from mainspring.api.task_changes import TaskChanges
from mainspring.api.task_creation import TaskCreation
from mainspring.api.task_reading import TaskReading
from mainspring.api.validation import TaskValidator
from mainspring.clock import Clock
from mainspring.config import Config
from mainspring.domain.ids import TaskIds
from mainspring.observe.metrics import Metrics
from mainspring.store.database import Database
from mainspring.store.keys import Keys
from mainspring.store.tasks import Tasks


@dataclass(frozen=True, slots=True)
class ApiDependencies:
    """What the API is built from."""

    config: Config
    clock: Clock
    tasks: Tasks
    keys: Keys
    ids: TaskIds
    rng: Random
    node: NodePort
    metrics: Metrics
    database: Database


def build_app(deps: ApiDependencies) -> Starlette:
    """The application. It has no lifespan of its own: who built the parts also ends them."""
    authenticator = Authenticator(deps.keys)
    # Routes are tried in this order: the busiest first, and fixed names before ids.
    paths = paths_of(deps)
    app = Starlette(
        routes=[Resource(path, known, authenticator).route() for path, known in paths.items()],
        middleware=[
            Middleware(Envelope, metrics=deps.metrics, rng=deps.rng, max_body=deps.config.max_body)
        ],
        exception_handlers={HTTPException: raise_http_error},
    )
    app.router.redirect_slashes = False
    return app


def paths_of(deps: ApiDependencies) -> dict[str, Mapping[str, Operation]]:
    """Every path with its operations, in the order in which they are tried."""
    return {**_task_paths(deps), **_operation_paths(deps)}


def _operation_paths(deps: ApiDependencies) -> dict[str, Mapping[str, Operation]]:
    operations = Operations(deps.node, deps.metrics)
    return {
        "/healthz": {"GET": ForAll(operations.healthz, operation_docs.HEALTHZ)},
        "/readyz": {"GET": ForAll(operations.readyz, operation_docs.READYZ)},
        "/metrics": {"GET": ForOperators(operations.metrics, operation_docs.METRICS)},
    }


def _task_paths(deps: ApiDependencies) -> dict[str, Mapping[str, Operation]]:
    config, tasks, node, clock = deps.config, deps.tasks, deps.node, deps.clock
    validator = TaskValidator(config, clock, deps.ids, deps.rng)
    ingest = Ingest(tasks, node, clock, deps.metrics, config.near)
    creation = TaskCreation(config, validator, ingest, Idempotency(tasks))
    reading = TaskReading(tasks)
    changes = TaskChanges(tasks, node, clock, TaskPatcher(validator, clock, config.max_payload))
    return {
        "/v1/tasks": {
            "GET": ForTenants("read", reading.page, task_docs.LIST),
            "POST": ForTenants("write", creation.one, task_docs.CREATE),
        },
        "/v1/tasks/batch": {"POST": ForTenants("write", creation.batch, task_docs.CREATE_BATCH)},
        "/v1/tasks/{id}": {
            "GET": ForTenants("read", reading.one, task_docs.READ),
            "PATCH": ForTenants("write", changes.edit, task_docs.EDIT),
            "DELETE": ForTenants("write", changes.delete, task_docs.DELETE),
        },
        "/v1/tasks/{id}/executions": {
            "GET": ForTenants("read", reading.executions, task_docs.EXECUTIONS)
        },
        "/v1/tasks/{id}/cancel": {"POST": ForTenants("write", changes.cancel, task_docs.CANCEL)},
        "/v1/tasks/{id}/pause": {"POST": ForTenants("write", changes.pause, task_docs.PAUSE)},
        "/v1/tasks/{id}/resume": {"POST": ForTenants("write", changes.resume, task_docs.RESUME)},
        "/v1/tasks/{id}/run": {"POST": ForTenants("write", changes.run, task_docs.RUN)},
    }
