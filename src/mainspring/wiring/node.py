"""A node: the engine, and the drivers around it."""

from collections.abc import Sequence
from random import Random, SystemRandom

from mainspring import __version__
from mainspring.clock import DatabaseClock
from mainspring.config import Config
from mainspring.domain.capability import needs_worker, there_for
from mainspring.engine.core import Engine, EngineSettings
from mainspring.execution.builtin import BuiltInExecutor
from mainspring.execution.http import HttpExecutor
from mainspring.execution.port import Executor
from mainspring.node.deadlines import Deadlines
from mainspring.node.dispatcher import Dispatcher
from mainspring.node.housekeeping import Housekeeper
from mainspring.node.materializer import Materializer
from mainspring.node.membership import Membership
from mainspring.node.node import Node
from mainspring.node.partition_loader import PartitionLoader
from mainspring.node.recorder import Recorder
from mainspring.node.run_starter import RunStarter
from mainspring.node.signals import Announcer, Signals
from mainspring.node.state import NodeState
from mainspring.node.window_loader import Loader
from mainspring.node.workers.lease_service import LeaseService
from mainspring.node.workers.mailbox import Mailbox
from mainspring.observe.metrics import Metrics
from mainspring.postgres.database import Database, new_ids
from mainspring.schedules.occurrences import OccurrenceWriter
from mainspring.schedules.service import ScheduleService
from mainspring.store.claims import EngineStore
from mainspring.store.cluster import MessageStore
from mainspring.store.keys import KeyStore
from mainspring.store.leases import LeaseStore
from mainspring.store.secrets import SecretStore
from mainspring.store.upkeep.housekeeping import HousekeepingStore
from mainspring.store.workers import WorkerStore
from mainspring.store.workflows.definitions import Definitions
from mainspring.store.workflows.workflows import WorkflowStore
from mainspring.wiring.settings import (
    archive_of,
    heartbeat_connection,
    http_settings,
    listening_connection,
    vault_of,
)
from mainspring.workflows.advancing import new_steps
from mainspring.workflows.outcomes import StepOutcomes
from mainspring.workflows.runs import WorkflowRunService
from mainspring.workflows.task_runs import TaskRuns


class NodeParts:
    """The parts of one node, each built from those above it."""

    def __init__(
        self, config: Config, database: Database, clock: DatabaseClock, metrics: Metrics
    ) -> None:
        self._config = config
        self._database = database
        self._clock = clock
        self._rng = SystemRandom()
        self.vault = vault_of(config)
        self.definitions = Definitions()
        self.state = NodeState(_engine(config, metrics), clock, config, metrics)
        self._store = EngineStore(database)
        self._steps = new_steps(self._rng, config.max_payload, self.definitions)
        self._outcomes = StepOutcomes(database, self._steps)
        self._signals = Signals(self.state, database, listening_connection(config))
        self._announcer = Announcer(self.state, self._signals)
        self._recorder = Recorder(
            self.state, self._store, self._outcomes, self._announcer, self._rng
        )
        self._dispatcher = Dispatcher(self.state, self._store, self._recorder)
        self.lease_service = self._lease_service()
        self.webhooks = HttpExecutor(
            clock,
            self._recorder.report,
            http_settings(config),
            SecretStore(database, self.vault).profiles,
            self.vault.open_headers,
            metrics,
        )
        self.node = self._node()
        self.state.on_new_incarnation(self.definitions.forget)
        self.state.on_new_incarnation(self.webhooks.forget_all)

    def _node(self) -> Node:
        state, keys = self.state, KeyStore(self._database)
        partition_loader = PartitionLoader(state, self._store, self._dispatcher)
        loader = Loader(state, self._store, keys, self._dispatcher, partition_loader)
        housekeeping = HousekeepingStore(self._database)
        return Node(
            state,
            Membership(
                state,
                heartbeat_connection(self._config),
                self._clock,
                partition_loader,
                self._signals,
                __version__,
            ),
            loader,
            partition_loader,
            self._dispatcher,
            self._recorder,
            self._signals,
            self._announcer,
            Housekeeper(state, housekeeping, archive_of(self._config)),
            self._materializer(),
            Deadlines(state, self._outcomes, self._announcer),
            self._executors(),
            self.lease_service,
        )

    def _lease_service(self) -> LeaseService:
        database = self._database
        mailbox = Mailbox(self.state, MessageStore(database), self._config.wake_poll)
        self._signals.on_mail = mailbox.hint
        lease_service = LeaseService(
            self.state,
            LeaseStore(database),
            self._recorder,
            WorkerStore(database),
            mailbox,
            self._dispatcher.lease_maintenance.expire_leases,
        )
        self._dispatcher.serve_workers(lease_service)
        return lease_service

    def _executors(self) -> Sequence[Executor]:
        report = self._recorder.report
        ids = new_ids(Random(self._rng.getrandbits(64)))
        runs = WorkflowRunService(self._database, self._steps, self.definitions, ids)
        task_runs = TaskRuns(self._database, self._steps, runs, WorkflowStore(self._database))
        return [
            RunStarter(self._clock, self.state, task_runs, self._announcer, report),
            BuiltInExecutor(self._clock, report),
            self.webhooks,
        ]

    def _materializer(self) -> Materializer:
        ids = new_ids(Random(self._rng.getrandbits(64)))
        rng = Random(self._rng.getrandbits(64))
        writer = OccurrenceWriter(ids, rng, near=self._config.near)
        schedules = ScheduleService(self._database, writer)
        return Materializer(self.state, schedules, self._announcer)


def _engine(config: Config, metrics: Metrics) -> Engine:
    settings = EngineSettings(
        lease=config.lease,
        aging_step=config.aging_step,
        stream_cap=config.stream_cap,
        tenant_cap=config.tenant_cap,
        there_for=there_for(config.worker_lease),
    )
    engine = Engine(settings, needs_worker)
    metrics.window_entries.set_function(lambda: len(engine.window))
    metrics.running.set_function(lambda: len(engine.running))
    return engine
