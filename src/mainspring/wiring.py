"""The only place that builds concrete objects from a Config."""

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random, SystemRandom
from typing import NoReturn
from urllib.parse import urlsplit

import asyncpg

from mainspring import __version__, crash, tls
from mainspring.api.app import ApiDependencies, build_app
from mainspring.api.door import DoorConfig, DoorLimits, DoorServer, listen
from mainspring.api.key_activity import KeyActivity
from mainspring.clock import DatabaseClock
from mainspring.config import Config, environment_of_programs
from mainspring.domain import apikey
from mainspring.domain.apikey import KeyText
from mainspring.domain.capability import needs_worker, there_for
from mainspring.engine.core import Engine
from mainspring.engine.settings import EngineSettings
from mainspring.errors import ConfigError, MigrationError
from mainspring.execution import guard
from mainspring.execution.builtin import BuiltInExecutor
from mainspring.execution.http import HttpExecutor, HttpSettings
from mainspring.execution.lanes import Caps
from mainspring.execution.port import Executor
from mainspring.execution.transfers import SenderSettings
from mainspring.lifecycle import Supervisor
from mainspring.node.archiving import ArchiveCommand
from mainspring.node.deadlines import Deadlines
from mainspring.node.dispatcher import Dispatcher
from mainspring.node.housekeeping import Housekeeper
from mainspring.node.leasing import LeaseDesk
from mainspring.node.loader import Loader
from mainspring.node.materializer import Materializer
from mainspring.node.membership import Membership
from mainspring.node.node import Node
from mainspring.node.post import Post
from mainspring.node.recorder import Recorder
from mainspring.node.run_starter import RunStarter
from mainspring.node.signals import Signals
from mainspring.node.state import NodeState
from mainspring.node.stock import Stocktaker
from mainspring.observe.metrics import Metrics
from mainspring.observe.watchdog import LoopWatchdog
from mainspring.store import doctor, timezones
from mainspring.store import migrate as migrations
from mainspring.store.cluster import Fenced, Topology
from mainspring.store.database import Database, DatabaseOptions, connect, new_ids
from mainspring.store.definitions import Definitions
from mainspring.store.doctor import Finding
from mainspring.store.embedded import EmbeddedServer
from mainspring.store.embedded_keeper import Keeper
from mainspring.store.engine import EngineStore
from mainspring.store.firing import Firing
from mainspring.store.housekeeping import Housekeeping
from mainspring.store.keys import Keys, NewKey, hash_secret
from mainspring.store.leases import LeaseStore
from mainspring.store.messages import Messages
from mainspring.store.migrate import Migration
from mainspring.store.schedules import Schedules
from mainspring.store.secrets import WebhookSecrets
from mainspring.store.step_outcomes import StepOutcomes
from mainspring.store.steps import Steps, new_steps
from mainspring.store.table_changes import ArchiveHook
from mainspring.store.task_runs import TaskRuns
from mainspring.store.tasks import Tasks
from mainspring.store.vault import Vault, parse_key
from mainspring.store.workers import Workers
from mainspring.store.workflow_runs import WorkflowRuns

_EVERYWHERE = frozenset({"0.0.0.0", "::"})


def database_options(config: Config) -> DatabaseOptions:
    """How to reach the database that the configuration names."""
    if config.database_url is None:
        raise ConfigError(["database_url is not set: set DATABASE_URL, or use `mainspring dev`"])
    return DatabaseOptions(
        url=config.database_url,
        connections=config.database_connections,
        acquire_timeout=config.acquire_timeout,
        prepared=not config.database_pooler,
        tls=tls.database_context(config),
    )


def check(config: Config) -> None:
    """Make once all that a node makes of its settings, so that it is told at once, and before
    anything is started, what is wrong with any of them."""
    makers: tuple[Callable[[Config], object], ...] = (
        database_options,
        tls.server_context,
        vault_of,
        egress_of,
        crash_point,
    )
    problems: list[str] = []
    for make in makers:
        try:
            make(config)
        except ConfigError as error:
            problems.extend(error.problems)
    if problems:
        raise ConfigError(problems)


def direct_url(config: Config) -> str:
    """The database without a pooler between."""
    return config.direct_database_url or database_options(config).url


async def migrate(config: Config, tell: Callable[[str], None] = lambda _: None) -> list[Migration]:
    """Bring the database to this version's schema; answers the steps that were applied."""
    return await migrations.migrate(direct_url(config), tls.database_context(config), tell=tell)


async def examine(config: Config) -> list[Finding]:
    """What a doctor sees when looking at the database."""
    return await doctor.examine(database_options(config), pooler=config.database_pooler)


def vault_of(config: Config) -> Vault:
    """The keys that secrets are sealed with; what is wrong with one is said without showing it."""
    old = [text for text in config.secrets_keys_old.split(",") if text.strip()]
    try:
        key = parse_key(config.secrets_key) if config.secrets_key else None
        return Vault(key, tuple(map(parse_key, old)))
    except ValueError as error:
        raise ConfigError([f"secrets_key or secrets_keys_old {error}"]) from None


def archive_of(config: Config) -> ArchiveHook | None:
    """What is done with old history before it is dropped."""
    if not config.archive_command:
        return None
    environment = environment_of_programs()
    return ArchiveCommand(config.archive_command, environment, direct_url(config))


def egress_of(config: Config) -> guard.Egress:
    """The installation's rules for what webhooks may call."""
    try:
        allow = guard.parse_networks(config.egress_allow)
        deny = guard.parse_networks(config.egress_deny)
        return guard.Egress(allow, deny, config.egress_ports)
    except ValueError as error:
        raise ConfigError([f"egress_allow, egress_deny or egress_ports: {error}"]) from None


def http_settings(config: Config) -> HttpSettings:
    return HttpSettings(
        Caps(config.http_transfers, config.http_per_tenant, config.http_per_host),
        SenderSettings(
            max_response=config.max_response,
            read_limit=config.read_limit,
            connect_timeout=config.connect_timeout,
            idle_connections=config.http_per_tenant,
            ca_file=config.ca_file or tls.machine_authorities(),
        ),
        egress_of(config),
        f"Mainspring/{__version__}",
    )


async def living_nodes(config: Config) -> list[str]:
    """The nodes that were heard of lately, by name and address."""
    async with _opened(config) as database:
        found = await Topology(database).nodes()
    alive = [n for n in found if n.state == "active" and n.silent < config.node_ttl]
    return [f"{node.name} ({node.url or node.id})" for node in alive]


async def restore_fence(config: Config) -> Fenced:
    """Issue no fence and no epoch again, whatever the database was set back to."""
    async with _opened(config) as database:
        return await Topology(database).restore_fence()


async def reseal(config: Config) -> tuple[int, int]:
    """Bring every secret under the present key; answers how many were moved, and how many wait."""
    database = Database(database_options(config))
    await database.open()
    try:
        return await WebhookSecrets(database, vault_of(config)).renew()
    finally:
        await database.close()


def embedded_server(data: Path) -> Keeper:
    """The private PostgreSQL of `mainspring dev`."""
    return Keeper(EmbeddedServer(data))


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
        self.keys = Keys(self._api_database)
        self._clock = DatabaseClock()
        self._socket: socket.socket | None = None
        self._http: DoorServer | None = None
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
        self._http = DoorServer(self._door())
        try:
            await self._http.open(self._socket)
        except BaseException:
            await self.stop()  # others need not wait until they notice our silence
            raise

    async def ended(self) -> NoReturn:
        """Wait for what should not happen before `stop`, and raise: the API is served no more."""
        assert self._http is not None, "the server has not been started"
        await self._http.ended()

    def _door(self) -> DoorConfig:
        config = self.config
        limits = DoorLimits(
            config.max_connections, config.max_headers, config.max_head, config.request_timeout
        )
        return DoorConfig(
            self.app,
            limits,
            self.metrics,
            keep_alive=config.keep_alive,
            learner=self.app,
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
        state.when_renewed(definitions.forget)
        steps = new_steps(rng, config.max_payload, definitions)
        outcomes = StepOutcomes(self._engine_database, steps)
        recorder = Recorder(config, state, store, outcomes, signals, metrics, rng)
        dispatcher = Dispatcher(config, state, store, recorder, metrics)
        desk = self._desk(state, recorder, dispatcher, signals)
        stock = Stocktaker(config, state, store, dispatcher, metrics)
        keys = Keys(self._engine_database)
        loader = Loader(config, state, store, keys, dispatcher, stock, metrics)
        membership = self._membership(state, stock, signals)
        house = Housekeeping(self._engine_database)
        housekeeper = Housekeeper(config, state, house, archive_of(config))
        vault = vault_of(config)
        webhooks = HttpExecutor(
            self._clock,
            recorder.report,
            http_settings(config),
            WebhookSecrets(self._engine_database, vault),
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
            stock,
            dispatcher,
            recorder,
            signals,
            housekeeper,
            self._materializer(state, signals, rng),
            Deadlines(state, outcomes, recorder, metrics),
            executors,
            desk,
        )
        state.when_renewed(webhooks.forget_all)
        dependencies = self._api(desk, vault, webhooks, rng, definitions)
        state.when_renewed(dependencies.authenticator.forget_all)
        self.app = build_app(dependencies)

    def _api(
        self,
        desk: LeaseDesk,
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
            tasks=Tasks(self._api_database, near=config.near, steps=steps),
            keys=self.keys,
            ids=new_ids(Random(rng.getrandbits(64))),
            rng=Random(rng.getrandbits(64)),
            node=self.node,
            desk=desk,
            metrics=self.metrics,
            database=self._api_database,
            activity=self._activity,
            vault=vault,
            definitions=definitions,
            profile_changed=webhooks.forget,
            complaint=self._watchdog.complaint,
        )

    def _membership(self, state: NodeState, stock: Stocktaker, signals: Signals) -> Membership:
        return Membership(
            self.config,
            state,
            self._own_connection(),
            self._clock,
            stock,
            signals,
            self.metrics,
            __version__,
        )

    def _desk(
        self, state: NodeState, recorder: Recorder, dispatcher: Dispatcher, signals: Signals
    ) -> LeaseDesk:
        store = LeaseStore(self._engine_database)
        workers = Workers(self._engine_database)
        post = Post(state, Messages(self._engine_database), self.config.wake_poll)
        signals.when_mailed(post.hint)
        desk = LeaseDesk(
            self.config, state, store, recorder, self.metrics, workers, post, dispatcher.lose
        )
        dispatcher.serve_workers(desk)
        return desk

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
        runs = WorkflowRuns(database, steps, definitions, ids)
        task_runs = TaskRuns(database, steps, runs)
        return RunStarter(self._clock, state, task_runs, recorder, recorder.report)

    def _materializer(self, state: NodeState, signals: Signals, rng: Random) -> Materializer:
        ids = new_ids(Random(rng.getrandbits(64)))
        firing = Firing(ids, Random(rng.getrandbits(64)), near=self.config.near)
        schedules = Schedules(self._engine_database, firing)
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


def crash_point(config: Config) -> tuple[str | None, int]:
    """The crash point that a test asked for, and at which passing; None: at none."""
    name, _, nth = (config.crash_at or "").partition(":")
    if not name:
        return None, 1
    if name not in crash.POINTS or not (nth or "1").isdecimal():
        raise ConfigError([f"crash_at: there is no crash point {config.crash_at!r}"])
    return name, int(nth or 1)


def new_key(config: Config) -> KeyText:
    """The text of a key that nobody has yet."""
    return apikey.make(config.key_environment, SystemRandom())


async def create_operator_key(config: Config, name: str | None) -> str:
    """A key without a tenant, written straight to the database: with it all others can be made."""
    text = new_key(config)
    new = NewKey(text.id, text.secret, None, frozenset(), True, name, text.prefix)
    async with _opened(config) as database:
        await Keys(database).add_operator(new, "command line")
    return text.secret


async def revoke_operator_key(config: Config, key: str) -> bool:
    """End an operator's key, named by its id or by itself. False: there is none."""
    async with _opened(config) as database:
        return await Keys(database).revoke_operator(key, "command line")


@asynccontextmanager
async def _opened(config: Config) -> AsyncIterator[Database]:
    database = Database(replace(database_options(config), connections=1))
    await database.open()
    try:
        yield database
    finally:
        await database.close()


async def add_development_key(server: Server, secret: str, scopes: frozenset[str]) -> None:
    """The key that `mainspring dev` prints: tenant `default`, and an operator as well."""
    tenant_id = await server.keys.ensure_tenant("default")
    key_id = f"dev-{hash_secret(secret).hex()[:12]}"
    await server.keys.add(NewKey(key_id, secret, tenant_id, scopes, operator=True, name="dev"))
