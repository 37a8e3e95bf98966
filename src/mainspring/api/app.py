"""The API as one ASGI application: every route, and what stands behind it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

from mainspring.api.admin import operation_docs, secret_docs
from mainspring.api.admin.egress import EgressResource
from mainspring.api.admin.operations import Operations
from mainspring.api.admin.routes import admin_paths
from mainspring.api.admin.secrets import SecretResource
from mainspring.api.dead_letters import docs as bulk_docs
from mainspring.api.dead_letters.letters import DeadLetterResource
from mainspring.api.dead_letters.replaying import Replayer
from mainspring.api.http.auth import Authenticator
from mainspring.api.http.endpoint import (
    Endpoint,
    OpenOperation,
    Operation,
    OperatorOperation,
    TenantOperation,
)
from mainspring.api.http.idempotency import Idempotency
from mainspring.api.http.key_activity import KeyActivity
from mainspring.api.http.key_watch import KeyWatch
from mainspring.api.http.middleware import RequestMiddleware
from mainspring.api.http.rate_limits import RateLimits
from mainspring.api.http.router import Router
from mainspring.api.openapi.endpoints import described
from mainspring.api.ports import LeasePort, NodePort
from mainspring.api.schedules.routes import schedule_paths
from mainspring.api.tasks import docs as task_docs
from mainspring.api.tasks.bulk import TaskBulk
from mainspring.api.tasks.changes import TaskChangeResource
from mainspring.api.tasks.completion import Completion
from mainspring.api.tasks.creation import TaskCreation
from mainspring.api.tasks.effects import EffectLog
from mainspring.api.tasks.explaining import TaskExplanation
from mainspring.api.tasks.ingest import Ingest
from mainspring.api.tasks.patching import TaskPatcher
from mainspring.api.tasks.reading import TaskReading
from mainspring.api.tasks.validation import TaskValidator
from mainspring.api.workers import docs as lease_docs
from mainspring.api.workers.leases import LeaseResource
from mainspring.api.workers.registry import LogResource, WorkerResource
from mainspring.api.workflows.routes import workflow_paths
from mainspring.api.workflows.run_routes import run_paths
from mainspring.api.workflows.runs import RunResource
from mainspring.clock import Clock
from mainspring.config import Config
from mainspring.domain.ids import TaskIds
from mainspring.observe.metrics import Metrics
from mainspring.postgres.database import Database
from mainspring.schedules.occurrences import OccurrenceWriter
from mainspring.schedules.service import ScheduleService
from mainspring.store.answers import AnswerStore, EffectStore
from mainspring.store.dead_letters import DeadLetterStore
from mainspring.store.explaining import ExplainStore
from mainspring.store.keys import KeyStore
from mainspring.store.schedule.calendars import CalendarStore
from mainspring.store.secrets import SecretStore
from mainspring.store.tasks import TaskStore
from mainspring.store.tenants import Administration
from mainspring.store.vault import Vault
from mainspring.store.workers import WorkerStore
from mainspring.store.workflow.workflows import WorkflowStore
from mainspring.wire.workers import LONGEST_WAIT
from mainspring.workflows.advancing import Steps, new_steps
from mainspring.workflows.bulk_cancel import BulkChanges
from mainspring.workflows.definitions import Definitions
from mainspring.workflows.runs import WorkflowRunService


@dataclass(frozen=True, slots=True)
class ApiDependencies:
    """What the API is built from."""

    config: Config
    clock: Clock
    tasks: TaskStore
    keys: KeyStore
    ids: TaskIds
    rng: Random
    node: NodePort
    metrics: Metrics
    database: Database
    lease_service: LeasePort
    activity: KeyActivity = field(default_factory=KeyActivity)
    vault: Vault = field(default_factory=Vault)
    definitions: Definitions = field(default_factory=Definitions)
    profile_changed: Callable[[int], None] = lambda _tenant: None
    complaint: Callable[[], str | None] = lambda: None
    authenticator: Authenticator = field(init=False)
    idempotency: Idempotency = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "authenticator", Authenticator(self.keys, self.activity))
        answers = AnswerStore(self.database)
        idempotency = Idempotency(answers, self.config.idempotency_ttl, self.rng)
        object.__setattr__(self, "idempotency", idempotency)


def build_app(deps: ApiDependencies) -> RequestMiddleware:
    """The application. It has no lifespan of its own: who built the parts also ends them."""
    limits = RateLimits(deps.config.requests_per_second)
    resources = {
        path: Endpoint(path, known, deps.authenticator, limits, deps.idempotency)
        for path, known in paths_of(deps).items()
    }
    return RequestMiddleware(
        Router(resources),
        {path: resource.compile_fast_path for path, resource in resources.items()},
        metrics=deps.metrics,
        rng=deps.rng,
        max_body=deps.config.max_body,
    )


def paths_of(deps: ApiDependencies) -> dict[str, Mapping[str, Operation]]:
    """Every path with its operations, and those that describe them."""
    paths = {
        **_task_paths(deps),
        **_letter_paths(deps),
        **_schedule_paths(deps),
        **_workflow_paths(deps),
        **_run_paths(deps),
        **_secret_paths(deps),
        **_worker_paths(deps),
        **_admin_paths(deps),
        **_operation_paths(deps),
    }
    return {**paths, **described(paths)}


def _secret_paths(deps: ApiDependencies) -> dict[str, Mapping[str, Operation]]:
    store = SecretStore(deps.database, deps.vault)
    secrets, egress = (
        SecretResource(store, deps.profile_changed),
        EgressResource(store, deps.profile_changed),
    )
    return {
        "/v1/secrets": {
            "GET": TenantOperation("admin", secrets.list, secret_docs.LIST),
            "POST": TenantOperation("admin", secrets.create, secret_docs.CREATE, secret=True),
        },
        "/v1/secrets/{id}": {
            "DELETE": TenantOperation("admin", secrets.delete, secret_docs.DELETE)
        },
        "/v1/secrets/{id}/rotate": {
            "POST": TenantOperation("admin", secrets.rotate, secret_docs.ROTATE, secret=True)
        },
        "/v1/tenants/{id}/egress": {
            "GET": OperatorOperation(egress.read, secret_docs.READ_EGRESS),
            "PUT": OperatorOperation(egress.change, secret_docs.CHANGE_EGRESS),
        },
    }


def _worker_paths(deps: ApiDependencies) -> dict[str, Mapping[str, Operation]]:
    leases = LeaseResource(deps.config, deps.lease_service, KeyWatch(deps.authenticator))
    registry = WorkerStore(deps.database)
    workers = WorkerResource(deps.config, registry, deps.clock)
    logs = LogResource(registry, deps.tasks, deps.clock)
    return {
        "/v1/leases": {
            "POST": TenantOperation("work", leases.lease, lease_docs.LEASE, waits=LONGEST_WAIT)
        },
        "/v1/leases/heartbeat": {
            "POST": TenantOperation("work", leases.heartbeat, lease_docs.HEARTBEAT)
        },
        "/v1/leases/report": {"POST": TenantOperation("work", leases.report, lease_docs.REPORT)},
        "/v1/leases/logs": {"POST": TenantOperation("work", logs.add, lease_docs.LOGS)},
        "/v1/tasks/{id}/logs": {"GET": TenantOperation("read", logs.page, lease_docs.TASK_LOGS)},
        "/v1/workers": {
            "GET": TenantOperation("work", workers.page, lease_docs.LIST, or_scope="read")
        },
        "/v1/workers/nodes": {
            "GET": TenantOperation("work", workers.nodes, lease_docs.NODES, or_scope="read")
        },
    }


def _admin_paths(deps: ApiDependencies) -> dict[str, Mapping[str, Operation]]:
    books = Administration.over(deps.database)
    return admin_paths(deps.config, deps.clock, books, deps.activity)


def _letter_paths(deps: ApiDependencies) -> dict[str, Mapping[str, Operation]]:
    store = DeadLetterStore(deps.database, near=deps.config.near)
    replayer = Replayer(store, deps.ids, deps.clock, deps.node)
    letters = DeadLetterResource(store, deps.tasks, replayer)
    effects = EffectLog(EffectStore(deps.database), deps.config.max_payload)
    return {
        "/v1/dead-letters": {"GET": TenantOperation("read", letters.page, bulk_docs.LIST)},
        "/v1/dead-letters/replay": {
            "POST": TenantOperation("write", letters.replay_many, bulk_docs.REPLAY_MANY)
        },
        "/v1/dead-letters/{id}": {
            "GET": TenantOperation("read", letters.one, bulk_docs.READ),
            "DELETE": TenantOperation("write", letters.delete, bulk_docs.DELETE),
        },
        "/v1/dead-letters/{id}/replay": {
            "POST": TenantOperation("write", letters.replay, bulk_docs.REPLAY)
        },
        "/v1/dead-letters/{id}/archive": {
            "POST": TenantOperation("write", letters.archive, bulk_docs.ARCHIVE)
        },
        "/v1/effects": {
            "POST": TenantOperation("write", effects.note, bulk_docs.EFFECT, or_scope="work")
        },
    }


def _schedule_paths(deps: ApiDependencies) -> dict[str, Mapping[str, Operation]]:
    occurrence_writer = OccurrenceWriter(deps.ids, deps.rng, near=deps.config.near)
    return schedule_paths(
        deps.config,
        deps.clock,
        deps.ids,
        ScheduleService(deps.database, occurrence_writer),
        CalendarStore(deps.database),
        WorkflowStore(deps.database),
        TaskValidator(deps.config, deps.clock, deps.ids, deps.rng, deps.vault.seal_headers),
        deps.node,
    )


def _workflow_paths(deps: ApiDependencies) -> dict[str, Mapping[str, Operation]]:
    return workflow_paths(
        deps.config,
        deps.clock,
        WorkflowStore(deps.database),
        TaskValidator(deps.config, deps.clock, deps.ids, deps.rng, deps.vault.seal_headers),
    )


def _run_paths(deps: ApiDependencies) -> dict[str, Mapping[str, Operation]]:
    steps = Steps(deps.definitions, deps.ids, deps.rng, deps.config.max_payload)
    runs = WorkflowRunService(deps.database, steps, deps.definitions, deps.ids)
    return run_paths(
        RunResource(
            deps.config,
            deps.clock,
            deps.ids,
            WorkflowStore(deps.database),
            runs,
            deps.node,
            deps.metrics,
        )
    )


def _operation_paths(deps: ApiDependencies) -> dict[str, Mapping[str, Operation]]:
    operations = Operations(deps.node, deps.metrics, deps.complaint)
    return {
        "/healthz": {"GET": OpenOperation(operations.healthz, operation_docs.HEALTHZ)},
        "/readyz": {"GET": OpenOperation(operations.readyz, operation_docs.READYZ)},
        "/metrics": {"GET": OperatorOperation(operations.metrics, operation_docs.METRICS)},
    }


def _task_paths(deps: ApiDependencies) -> dict[str, Mapping[str, Operation]]:
    config, tasks, node, clock = deps.config, deps.tasks, deps.node, deps.clock
    seal = deps.vault.seal_headers
    validator = TaskValidator(config, clock, deps.ids, deps.rng, seal)
    ingest = Ingest(tasks, node, clock, deps.metrics, config.near)
    creation = TaskCreation(config, validator, ingest, deps.idempotency)
    reading = TaskReading(tasks)
    completion = Completion(tasks, node, clock)
    changes = TaskChangeResource(
        tasks, node, clock, TaskPatcher(validator, clock, config.max_payload)
    )
    steps = new_steps(deps.rng, definitions=deps.definitions)
    bulk = TaskBulk(BulkChanges(deps.database, steps=steps), node)
    explanation = TaskExplanation(tasks, ExplainStore(deps.database), node, clock)
    return {
        "/v1/tasks": {
            "GET": TenantOperation("read", reading.page, task_docs.LIST),
            "POST": TenantOperation(
                "write",
                creation.one,
                task_docs.CREATE,
                remembers_answers=True,
                fast=creation.create_fast,
            ),
        },
        "/v1/tasks/batch": {
            "POST": TenantOperation(
                "write", creation.batch, task_docs.CREATE_BATCH, remembers_answers=True
            )
        },
        "/v1/tasks/cancel": {"POST": TenantOperation("write", bulk.cancel, bulk_docs.CANCEL_MANY)},
        "/v1/tasks/{id}": {
            "GET": TenantOperation("read", reading.one, task_docs.READ),
            "PATCH": TenantOperation("write", changes.edit, task_docs.EDIT),
            "DELETE": TenantOperation("write", changes.delete, task_docs.DELETE),
        },
        "/v1/tasks/{id}/executions": {
            "GET": TenantOperation("read", reading.executions, task_docs.EXECUTIONS)
        },
        "/v1/tasks/{id}/explain": {
            "GET": TenantOperation("read", explanation.one, bulk_docs.EXPLAIN)
        },
        "/v1/tasks/{id}/cancel": {
            "POST": TenantOperation("write", changes.cancel, task_docs.CANCEL)
        },
        "/v1/tasks/{id}/pause": {"POST": TenantOperation("write", changes.pause, task_docs.PAUSE)},
        "/v1/tasks/{id}/resume": {
            "POST": TenantOperation("write", changes.resume, task_docs.RESUME)
        },
        "/v1/tasks/{id}/run": {"POST": TenantOperation("write", changes.run, task_docs.RUN)},
        "/v1/tasks/{id}/complete": {
            "POST": TenantOperation("work", completion.complete, secret_docs.COMPLETE)
        },
    }
