"""The API of a node, built over a database."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random, SystemRandom

from mainspring.api.admin.egress import EgressResource
from mainspring.api.admin.installation import AuditResource, ClusterResource
from mainspring.api.admin.keys import KeyResource
from mainspring.api.admin.operations import Operations
from mainspring.api.admin.routes import (
    egress_routes,
    health_routes,
    installation_routes,
    key_routes,
    secret_routes,
    tenant_routes,
)
from mainspring.api.admin.secrets import SecretResource
from mainspring.api.admin.tenants import TenantResource
from mainspring.api.dead_letters.replaying import Replayer
from mainspring.api.dead_letters.resource import DeadLetterResource
from mainspring.api.dead_letters.routes import dead_letter_routes
from mainspring.api.http.auth import Authenticator
from mainspring.api.http.endpoint import Endpoint, Router
from mainspring.api.http.idempotency import Idempotency
from mainspring.api.http.middleware import RequestMiddleware
from mainspring.api.http.operations import Operation
from mainspring.api.http.rate_limits import RateLimits
from mainspring.api.node_ports import LeasePort, NodePort
from mainspring.api.openapi.endpoints import description_paths
from mainspring.api.routes import Routes, by_path
from mainspring.api.schedules.calendars import CalendarResource
from mainspring.api.schedules.changes import ScheduleChangeResource
from mainspring.api.schedules.reading import ScheduleReading
from mainspring.api.schedules.routes import calendar_routes, schedule_routes
from mainspring.api.schedules.validation import ScheduleValidator
from mainspring.api.tasks.changes import TaskBulk, TaskChangeResource
from mainspring.api.tasks.creation import TaskCreation
from mainspring.api.tasks.effects import EffectLog
from mainspring.api.tasks.ingest import Ingest
from mainspring.api.tasks.patching import TaskPatcher
from mainspring.api.tasks.reading import TaskExplanation, TaskReading
from mainspring.api.tasks.routes import effect_routes, task_routes
from mainspring.api.tasks.validation import TaskValidator
from mainspring.api.workers.key_watch import KeyWatch
from mainspring.api.workers.leases import LeaseResource
from mainspring.api.workers.registry import WorkerResource
from mainspring.api.workers.routes import lease_routes, worker_routes
from mainspring.api.workflows.definitions import WorkflowResource
from mainspring.api.workflows.routes import run_routes, workflow_routes
from mainspring.api.workflows.runs import RunResource
from mainspring.api.workflows.validation import WorkflowValidator
from mainspring.clock import Clock
from mainspring.config import Config
from mainspring.domain.ids import TaskIds
from mainspring.observe.metrics import Metrics
from mainspring.postgres.database import Database
from mainspring.schedules.occurrences import OccurrenceWriter
from mainspring.schedules.service import ScheduleService
from mainspring.store.answers import AnswerStore, EffectStore
from mainspring.store.audit import AuditStore
from mainspring.store.cluster import Topology
from mainspring.store.dead_letters import DeadLetterStore
from mainspring.store.explaining import ExplainStore
from mainspring.store.keys import KeyRing, KeyStore
from mainspring.store.schedules.calendars import CalendarStore
from mainspring.store.secrets import SecretStore
from mainspring.store.tasks import TaskStore
from mainspring.store.tenants import TenantStore
from mainspring.store.vault import Vault
from mainspring.store.workers import WorkerStore
from mainspring.store.workflows.definitions import Definitions
from mainspring.store.workflows.workflows import WorkflowStore
from mainspring.workflows.advancing import Steps, new_steps
from mainspring.workflows.runs import WorkflowRunService
from mainspring.workflows.task_changes import TaskChangeService


@dataclass(slots=True)
class ApiDependencies:
    """The parts that the API is built from."""

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
    vault: Vault = field(default_factory=Vault)
    definitions: Definitions = field(default_factory=Definitions)
    profile_changed: Callable[[int], None] = lambda _tenant: None
    complaint: Callable[[], str | None] = lambda: None
    authenticator: Authenticator = field(init=False)
    idempotency: Idempotency = field(init=False)

    def __post_init__(self) -> None:
        self.authenticator = Authenticator(self.keys)
        answers = AnswerStore(self.database)
        self.idempotency = Idempotency(answers, self.config.idempotency_ttl, self.rng)

    @property
    def task_validator(self) -> TaskValidator:
        """Return the rules of new tasks."""
        seal = self.vault.seal_headers
        return TaskValidator(self.config, self.clock, self.ids, self.rng, seal)


def build_app(deps: ApiDependencies) -> RequestMiddleware:
    """Return the application over these dependencies. It has no lifespan: the server starts and
    ends the parts."""
    limits = RateLimits(deps.config.requests_per_second)
    endpoints = {
        path: Endpoint(path, known, deps.authenticator, limits, deps.idempotency)
        for path, known in paths_of(deps).items()
    }
    return RequestMiddleware(
        Router(endpoints),
        {path: endpoint.compile_fast_path for path, endpoint in endpoints.items()},
        metrics=deps.metrics,
        rng=deps.rng,
        max_body=deps.config.max_body,
    )


def paths_of(deps: ApiDependencies) -> dict[str, Mapping[str, Operation]]:
    """Return every path with its operations, and those that describe them."""
    paths = by_path(_routes(deps))
    return {**paths, **description_paths(paths)}


def _routes(deps: ApiDependencies) -> Iterator[Routes]:
    """Yield the routes of all resources, in the order of the document."""
    yield _task_routes(deps)
    yield _dead_letter_routes(deps)
    yield effect_routes(EffectLog(EffectStore(deps.database), deps.config.max_payload))
    yield _schedule_routes(deps)
    yield from _workflow_routes(deps)
    yield from _webhook_routes(deps)
    yield from _worker_routes(deps)
    yield from _admin_routes(deps)
    yield health_routes(Operations(deps.node, deps.metrics, deps.complaint))


def _task_routes(deps: ApiDependencies) -> Routes:
    config, tasks, node, clock = deps.config, deps.tasks, deps.node, deps.clock
    validator = deps.task_validator
    ingest = Ingest(tasks, node, clock, deps.metrics, config.near)
    patcher = TaskPatcher(validator, clock, config.max_payload)
    steps = new_steps(deps.rng, definitions=deps.definitions)
    changes = TaskChangeService(deps.database, steps)
    return task_routes(
        TaskReading(tasks, WorkerStore(deps.database)),
        TaskCreation(config, validator, ingest, deps.idempotency),
        TaskChangeResource(tasks, changes, node, clock, patcher),
        TaskBulk(changes, node),
        TaskExplanation(tasks, ExplainStore(deps.database), node, clock),
    )


def _dead_letter_routes(deps: ApiDependencies) -> Routes:
    store = DeadLetterStore(deps.database, near=deps.config.near)
    replayer = Replayer(store, deps.ids, deps.clock, deps.node)
    return dead_letter_routes(DeadLetterResource(store, deps.tasks, replayer))


def _schedule_routes(deps: ApiDependencies) -> Routes:
    config, clock = deps.config, deps.clock
    writer = OccurrenceWriter(deps.ids, deps.rng, near=config.near)
    schedules = ScheduleService(deps.database, writer)
    calendars = CalendarStore(deps.database)
    workflows = WorkflowStore(deps.database)
    validator = ScheduleValidator(deps.task_validator, calendars, workflows, config.max_payload)
    reading = ScheduleReading(config, clock, schedules, validator)
    changes = ScheduleChangeResource(
        config, clock, deps.ids, schedules, validator, reading, deps.node
    )
    return {**schedule_routes(reading, changes), **calendar_routes(CalendarResource(calendars))}


def _workflow_routes(deps: ApiDependencies) -> Iterator[Routes]:
    config, clock, workflows = deps.config, deps.clock, WorkflowStore(deps.database)
    validator = WorkflowValidator(deps.task_validator, config.max_payload, config.horizon)
    yield workflow_routes(WorkflowResource(workflows, validator, clock))
    steps = Steps(deps.definitions, deps.ids, deps.rng, config.max_payload)
    runs = WorkflowRunService(deps.database, steps, deps.definitions, deps.ids)
    yield run_routes(RunResource(config, clock, deps.ids, workflows, runs, deps.node, deps.metrics))


def _webhook_routes(deps: ApiDependencies) -> Iterator[Routes]:
    store = SecretStore(deps.database, deps.vault)
    yield secret_routes(SecretResource(store, deps.profile_changed))
    yield egress_routes(EgressResource(store, deps.profile_changed))


def _worker_routes(deps: ApiDependencies) -> Iterator[Routes]:
    registry = WorkerStore(deps.database)
    config, clock, watch = deps.config, deps.clock, KeyWatch(deps.authenticator)
    yield lease_routes(LeaseResource(config, deps.lease_service, watch, registry, clock))
    yield worker_routes(WorkerResource(config, registry, clock))


def _admin_routes(deps: ApiDependencies) -> Iterator[Routes]:
    config, database = deps.config, deps.database
    unpredictable = SystemRandom()
    keys = KeyResource(
        KeyRing(database), deps.authenticator, deps.clock, config.key_environment, unpredictable
    )
    tenants = TenantResource(TenantStore(database), deps.authenticator, config, unpredictable)
    yield key_routes(keys)
    yield tenant_routes(tenants)
    cluster = ClusterResource(Topology(database), config.overdue_after)
    yield installation_routes(AuditResource(AuditStore(database)), cluster)
