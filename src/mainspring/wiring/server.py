"""A server process: one node and its API, built from settings, started and stopped in order."""

import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from random import Random, SystemRandom
from typing import NoReturn
from urllib.parse import urlsplit

import asyncpg

from mainspring import __version__, crash, timezones, tls
from mainspring.api.app import ApiDependencies, build_app
from mainspring.api.http.key_activity import KeyActivity
from mainspring.api.http.server import (
    ConnectionLimits,
    HttpConfig,
    HttpServer,
    listen,
)
from mainspring.clock import DatabaseClock
from mainspring.config import Config
from mainspring.domain.capability import needs_worker, there_for
from mainspring.engine.core import Engine
from mainspring.engine.settings import EngineSettings
from mainspring.errors import MigrationError
from mainspring.execution.builtin import BuiltInExecutor
from mainspring.execution.http import HttpExecutor
from mainspring.execution.port import Executor
from mainspring.lifecycle import Supervisor
from mainspring.node.deadlines import Deadlines
from mainspring.node.dispatcher import Dispatcher
from mainspring.node.housekeeping import Housekeeper
from mainspring.node.loader import Loader
from mainspring.node.materializer import Materializer
from mainspring.node.membership import Membership
from mainspring.node.node import Node
from mainspring.node.partition_loader import PartitionLoader
from mainspring.node.recorder import Recorder
from mainspring.node.run_starter import RunStarter
from mainspring.node.signals import Signals
from mainspring.node.state import NodeState
from mainspring.node.workers.lease_service import LeaseService
from mainspring.node.workers.mailbox import Mailbox
from mainspring.observe.metrics import Metrics
from mainspring.observe.watchdog import LoopWatchdog
from mainspring.postgres import migrate as migrations
from mainspring.postgres.database import (
    Database,
    connect,
    new_ids,
)
from mainspring.schedules.occurrences import OccurrenceWriter
from mainspring.schedules.service import ScheduleService
from mainspring.store.claims import EngineStore
from mainspring.store.keys import KeyStore
from mainspring.store.leases import LeaseStore
from mainspring.store.messages import MessageStore
from mainspring.store.secrets import SecretStore
from mainspring.store.tasks import TaskStore
from mainspring.store.upkeep.housekeeping import HousekeepingStore
from mainspring.store.vault import Vault
from mainspring.store.workers import WorkerStore
from mainspring.wiring.settings import (
    archive_of,
    crash_point,
    database_options,
    direct_url,
    http_settings,
    vault_of,
)
from mainspring.workflows.advancing import Steps, new_steps
from mainspring.workflows.definitions import Definitions
from mainspring.workflows.outcomes import StepOutcomes
from mainspring.workflows.runs import WorkflowRunService
from mainspring.workflows.task_runs import TaskRuns

_EVERYWHERE = frozenset({"0.0.0.0", "::"})


class Server:
    """One node with its API: everything that runs in a server process."""

    def __init__(self, config: Config) -> None:
        crash.arm(*crash_point(config))
        timezones.use_pinned()
        self.config = config
        self.metrics = Metrics()
        self._api_database = Database(database_options(config))
        self._engine_database = Database(
            replace(database_options(config), connections=config.engine_connections)
        )
        self.keys = KeyStore(self._api_database)
        self._clock = DatabaseClock()
        self._socket: socket.socket | None = None
        self._http: HttpServer | None = None
        self._tls = tls.server_context(config)
        self._activity = KeyActivity()
        self._background = Supervisor()
        exits = config.stall_action == "exit"
        self._watchdog = LoopWatchdog(config.loop_stall, self.metrics, exits=exits)
        self._build()

    @property
    def url(self) -> str:
        assert self._socket is not None, "the server has not been started"
        host, port = self._socket.getsockname()[:2]
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    @property
    def advertised_url(self) -> str:
        """Where others reach this node."""
        if self.config.advertise_url is not None:
            return self.config.advertise_url.rstrip("/")
        there = urlsplit(self.url)
        if there.hostname not in _EVERYWHERE:
            return self.url
        return f"{there.scheme}://{socket.gethostname()}:{there.port}"

    async def start(self) -> None:
        """Open the database, join the cluster, listen. Raises when any of it cannot be done."""
        self._watchdog.start()
        await self._check_schema()
        self._socket = listen(self.config.host, self.config.port)
        await self._api_database.open()
        await self._engine_database.open()
        await self.node.start(self.advertised_url)
        self._background.start("keys.touch", lambda: self._activity.keep_writing(self.keys))
        self._http = HttpServer(self._door())
        try:
            await self._http.open(self._socket)
        except BaseException:
            await self.stop()  # others need not wait until they notice our silence
            raise

    async def ended(self) -> NoReturn:
        """Wait for what should not happen before `stop`, and raise: the API is served no more."""
        assert self._http is not None, "the server has not been started"
        await self._http.ended()

    def _door(self) -> HttpConfig:
        config = self.config
        limits = ConnectionLimits(
            config.max_connections, config.max_headers, config.max_head, config.request_timeout
        )
        return HttpConfig(
            self.app,
            limits,
            self.metrics,
            keep_alive=config.keep_alive,
            compiler=self.app,
            tls=self._tls,
        )

    async def stop(self) -> None:
        """Stop taking work, hand over, finish or release, then close the doors."""
        if self._http is not None:
            self._http.drain()
        await self.node.stop()
        if self._http is not None:
            await self._http.close()
        await self._background.stop()
        await self._activity.write(self.keys)
        await self._engine_database.close()
        await self._api_database.close()
        self._watchdog.stop()

    async def _check_schema(self) -> None:
        missing = await migrations.pending(
            direct_url(self.config), tls.database_context(self.config)
        )
        if missing:
            names = ", ".join(f"{m.version} ({m.name})" for m in missing)
            raise MigrationError(
                f"the database lacks migrations: {names}; run `mainspring migrate` first"
            )

    def _build(self) -> None:
        config, metrics = self.config, self.metrics
        state = NodeState(self._engine(), self._clock)
        store = EngineStore(self._engine_database)
        rng = SystemRandom()
        signals = Signals(state, self._engine_database, self._listener())
        definitions = Definitions()
        state.on_new_incarnation(definitions.forget)
        steps = new_steps(rng, config.max_payload, definitions)
        outcomes = StepOutcomes(self._engine_database, steps)
        recorder = Recorder(config, state, store, outcomes, signals, metrics, rng)
        dispatcher = Dispatcher(config, state, store, recorder, metrics)
        lease_service = self._lease_service(state, recorder, dispatcher, signals)
        partition_loader = PartitionLoader(config, state, store, dispatcher, metrics)
        keys = KeyStore(self._engine_database)
        loader = Loader(config, state, store, keys, dispatcher, partition_loader, metrics)
        membership = self._membership(state, partition_loader, signals)
        house = HousekeepingStore(self._engine_database)
        housekeeper = Housekeeper(config, state, house, archive_of(config))
        vault = vault_of(config)
        webhooks = HttpExecutor(
            self._clock,
            recorder.report,
            http_settings(config),
            SecretStore(self._engine_database, vault),
            vault.open_headers,
            metrics,
        )
        executors: list[Executor] = [
            self._run_starter(state, recorder, steps, definitions),
            BuiltInExecutor(self._clock, recorder.report),
            webhooks,
        ]
        self.node = Node(
            config,
            state,
            membership,
            loader,
            partition_loader,
            dispatcher,
            recorder,
            signals,
            housekeeper,
            self._materializer(state, signals, rng),
            Deadlines(state, outcomes, recorder, metrics),
            executors,
            lease_service,
        )
        state.on_new_incarnation(webhooks.forget_all)
        dependencies = self._api(lease_service, vault, webhooks, rng, definitions)
        state.on_new_incarnation(dependencies.authenticator.forget_all)
        self.app = build_app(dependencies)

    def _api(
        self,
        lease_service: LeaseService,
        vault: Vault,
        webhooks: HttpExecutor,
        rng: Random,
        definitions: Definitions,
    ) -> ApiDependencies:
        config = self.config
        steps = new_steps(rng, definitions=definitions)
        return ApiDependencies(
            config=config,
            clock=self._clock,
            tasks=TaskStore(self._api_database, near=config.near, steps=steps),
            keys=self.keys,
            ids=new_ids(Random(rng.getrandbits(64))),
            rng=Random(rng.getrandbits(64)),
            node=self.node,
            lease_service=lease_service,
            metrics=self.metrics,
            database=self._api_database,
            activity=self._activity,
            vault=vault,
            definitions=definitions,
            profile_changed=webhooks.forget,
            complaint=self._watchdog.complaint,
        )

    def _membership(
        self, state: NodeState, partition_loader: PartitionLoader, signals: Signals
    ) -> Membership:
        return Membership(
            self.config,
            state,
            self._own_connection(),
            self._clock,
            partition_loader,
            signals,
            self.metrics,
            __version__,
        )

    def _lease_service(
        self, state: NodeState, recorder: Recorder, dispatcher: Dispatcher, signals: Signals
    ) -> LeaseService:
        store = LeaseStore(self._engine_database)
        workers = WorkerStore(self._engine_database)
        post = Mailbox(state, MessageStore(self._engine_database), self.config.wake_poll)
        signals.when_mailed(post.hint)
        lease_service = LeaseService(
            self.config,
            state,
            store,
            recorder,
            self.metrics,
            workers,
            post,
            dispatcher.expire_leases,
        )
        dispatcher.serve_workers(lease_service)
        return lease_service

    def _engine(self) -> Engine:
        config = self.config
        settings = EngineSettings(
            lease=config.lease,
            aging_step=config.aging_step,
            stream_cap=config.stream_cap,
            tenant_cap=config.tenant_cap,
            there_for=there_for(config.worker_lease),
        )
        engine = Engine(settings, needs_worker)
        self.metrics.window_entries.set_function(lambda: engine.waiting)
        self.metrics.running.set_function(lambda: engine.running)
        return engine

    def _run_starter(
        self, state: NodeState, recorder: Recorder, steps: Steps, definitions: Definitions
    ) -> RunStarter:
        database = self._engine_database
        ids = new_ids(Random(SystemRandom().getrandbits(64)))
        runs = WorkflowRunService(database, steps, definitions, ids)
        task_runs = TaskRuns(database, steps, runs)
        return RunStarter(self._clock, state, task_runs, recorder, recorder.report)

    def _materializer(self, state: NodeState, signals: Signals, rng: Random) -> Materializer:
        ids = new_ids(Random(rng.getrandbits(64)))
        occurrence_writer = OccurrenceWriter(
            ids, Random(rng.getrandbits(64)), near=self.config.near
        )
        schedules = ScheduleService(self._engine_database, occurrence_writer)
        return Materializer(self.config, state, schedules, signals, self.metrics)

    def _own_connection(self) -> Callable[[], Awaitable[asyncpg.Connection]]:
        options = replace(
            database_options(self.config),
            acquire_timeout=self.config.node_ttl,
            statement_timeout=self.config.node_ttl,
        )
        return lambda: connect(options)

    def _listener(self) -> Callable[[], Awaitable[asyncpg.Connection]] | None:
        if self.config.database_pooler and self.config.direct_database_url is None:
            return None
        options = replace(database_options(self.config), url=direct_url(self.config), prepared=True)
        return lambda: connect(options)
