"""The only place that builds concrete objects from a Config."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from random import Random, SystemRandom

import asyncpg
import uvicorn

from mainspring import __version__, crash
from mainspring.api.app import ApiDependencies, build_app
from mainspring.clock import DatabaseClock
from mainspring.config import Config
from mainspring.domain.ids import TaskIds
from mainspring.engine.core import Engine, EngineSettings
from mainspring.errors import ConfigError, MigrationError
from mainspring.execution.builtin import BuiltInExecutor
from mainspring.node.dispatcher import Dispatcher
from mainspring.node.housekeeping import Housekeeper
from mainspring.node.loader import Loader
from mainspring.node.materializer import Materializer
from mainspring.node.membership import Membership
from mainspring.node.node import Node
from mainspring.node.recorder import Recorder
from mainspring.node.signals import Signals
from mainspring.node.state import NodeState
from mainspring.observe.metrics import Metrics
from mainspring.store import doctor, timezones
from mainspring.store import migrate as migrations
from mainspring.store.database import Database, DatabaseOptions, connect
from mainspring.store.doctor import Finding
from mainspring.store.embedded import EmbeddedServer
from mainspring.store.engine import EngineStore
from mainspring.store.firing import Firing
from mainspring.store.housekeeping import Housekeeping
from mainspring.store.keys import Keys, NewKey, hash_secret
from mainspring.store.migrate import Migration
from mainspring.store.schedules import Schedules
from mainspring.store.tasks import Tasks


def database_options(config: Config) -> DatabaseOptions:
    """How to reach the database that the configuration names."""
    if config.database_url is None:
        raise ConfigError(["database_url is not set: set DATABASE_URL, or use `mainspring dev`"])
    return DatabaseOptions(
        url=config.database_url,
        connections=config.database_connections,
        acquire_timeout=config.acquire_timeout,
        prepared=not config.database_pooler,
    )


def direct_url(config: Config) -> str:
    """The database without a pooler between."""
    return config.direct_database_url or database_options(config).url


async def migrate(config: Config) -> list[Migration]:
    """Bring the database to this version's schema; answers the steps that were applied."""
    return await migrations.migrate(direct_url(config))


async def examine(config: Config) -> list[Finding]:
    """What a doctor sees when looking at the database."""
    return await doctor.examine(database_options(config), pooler=config.database_pooler)


def embedded_server(data: Path) -> EmbeddedServer:
    """The private PostgreSQL of `mainspring dev`."""
    return EmbeddedServer(data)


class Server:
    """One node with its API: everything that runs in a server process."""

    def __init__(self, config: Config) -> None:
        crash.arm(*_crash_point(config.crash_at))
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
        self._http: _HttpServer | None = None
        self._serving: asyncio.Task[None] | None = None
        self._build()

    @property
    def url(self) -> str:
        assert self._socket is not None, "the server has not been started"
        host, port = self._socket.getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    async def start(self) -> None:
        """Open the database, join the cluster, listen. Raises when any of it cannot be done."""
        await self._check_schema()
        self._socket = _listen(self.config.host, self.config.port)
        await self._api_database.open()
        await self._engine_database.open()
        await self.node.start(self.url)
        self._http = _HttpServer(
            uvicorn.Config(
                self.app,
                loop="none",
                http="httptools",
                lifespan="off",
                access_log=False,
                log_config=None,
                server_header=False,
                timeout_graceful_shutdown=5,
            )
        )
        self._serving = asyncio.create_task(self._http.serve(sockets=[self._socket]))

    async def stop(self) -> None:
        """Stop taking work, hand over, finish or release, then close the doors."""
        await self.node.stop()
        if self._http is not None and self._serving is not None:
            self._http.should_exit = True
            await self._serving
        await self._engine_database.close()
        await self._api_database.close()

    async def _check_schema(self) -> None:
        missing = await migrations.pending(direct_url(self.config))
        if missing:
            names = ", ".join(f"{m.version} ({m.name})" for m in missing)
            raise MigrationError(
                f"the database lacks migrations: {names}; run `mainspring migrate` first"
            )

    def _build(self) -> None:
        config, metrics = self.config, self.metrics
        settings = EngineSettings(
            lease=config.lease,
            aging_step=config.aging_step,
            stream_cap=config.stream_cap,
            tenant_cap=config.tenant_cap,
        )
        state = NodeState(Engine(settings), self._clock)
        store = EngineStore(self._engine_database)
        rng = SystemRandom()
        signals = Signals(state, self._engine_database, self._listener())
        recorder = Recorder(config, state, store, signals, metrics, rng)
        dispatcher = Dispatcher(config, state, store, recorder, metrics)
        loader = Loader(config, state, store, Keys(self._engine_database), dispatcher, metrics)
        membership = Membership(
            config,
            state,
            self._own_connection(),
            self._clock,
            loader,
            signals,
            metrics,
            __version__,
        )
        housekeeper = Housekeeper(config, state, Housekeeping(self._engine_database))
        ids = TaskIds(Random(rng.getrandbits(64)))
        firing = Firing(ids, Random(rng.getrandbits(64)), near=config.near)
        schedules = Schedules(self._engine_database, firing)
        materializer = Materializer(config, state, schedules, signals, metrics)
        executors = [BuiltInExecutor(self._clock, recorder.report)]
        self.node = Node(
            config,
            state,
            membership,
            loader,
            dispatcher,
            recorder,
            signals,
            housekeeper,
            materializer,
            executors,
        )
        self.app = build_app(
            ApiDependencies(
                config=config,
                clock=self._clock,
                tasks=Tasks(self._api_database, near=config.near),
                keys=self.keys,
                ids=TaskIds(Random(rng.getrandbits(64))),
                rng=Random(rng.getrandbits(64)),
                node=self.node,
                metrics=metrics,
                database=self._api_database,
            )
        )

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


class _HttpServer(uvicorn.Server):
    """uvicorn without its own handling of signals: the process stops in our order."""

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as problem:
        listening.close()
        raise ConfigError([f"cannot listen on {host} port {port}: {problem.strerror}"]) from problem
    listening.set_inheritable(False)
    return listening


def _crash_point(setting: str | None) -> tuple[str | None, int]:
    if setting is None:
        return None, 1
    name, _, nth = setting.partition(":")
    return name, int(nth or 1)


async def add_development_key(server: Server, secret: str, scopes: frozenset[str]) -> None:
    """The key that `mainspring dev` prints: tenant `default`, and an operator as well."""
    tenant_id = await server.keys.ensure_tenant("default")
    key_id = f"dev-{hash_secret(secret).hex()[:12]}"
    await server.keys.add(NewKey(key_id, secret, tenant_id, scopes, operator=True, name="dev"))
