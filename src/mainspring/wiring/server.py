"""A server process: one node and its API, started and stopped in order."""

import socket
from random import Random, SystemRandom
from typing import NoReturn
from urllib.parse import urlsplit

from mainspring import crash_points, timezones, tls
from mainspring.api.http.connection import ConnectionLimits, HttpConfig
from mainspring.api.http.server import HttpServer, listen
from mainspring.clock import DatabaseClock
from mainspring.config import Config
from mainspring.lifecycle import Supervisor
from mainspring.observe.metrics import Metrics
from mainspring.observe.watchdog import LoopWatchdog
from mainspring.postgres.database import new_ids
from mainspring.store.keys import KeyStore
from mainspring.store.tasks import TaskStore
from mainspring.wiring.api import ApiDependencies, build_app
from mainspring.wiring.node import NodeParts
from mainspring.wiring.settings import Databases, check_schema, crash_point

_EVERYWHERE = frozenset({"0.0.0.0", "::"})


class Server:
    """One node with its API: everything that runs in a server process."""

    def __init__(self, config: Config) -> None:
        crash_points.arm(*crash_point(config))
        timezones.use_pinned()
        self.config = config
        self.metrics = Metrics()
        self._databases = Databases.of(config)
        self.keys = KeyStore(self._databases.api)
        self._clock = DatabaseClock()
        self._socket: socket.socket | None = None
        self._http: HttpServer | None = None
        self._tls = tls.server_context(config)
        self._background = Supervisor()
        exits = config.stall_action == "exit"
        self._watchdog = LoopWatchdog(config.loop_stall, self.metrics, exits=exits)
        parts = NodeParts(config, self._databases.engine, self._clock, self.metrics)
        self.node = parts.node
        dependencies = self._api(parts)
        self._authenticator = dependencies.authenticator
        parts.state.on_new_incarnation(self._authenticator.forget_all)
        self.app = build_app(dependencies)

    @property
    def url(self) -> str:
        assert self._socket is not None, "the server has not been started"
        host, port = self._socket.getsockname()[:2]
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    @property
    def advertised_url(self) -> str:
        """Return the URL at which others reach this node."""
        if self.config.advertise_url is not None:
            return self.config.advertise_url.rstrip("/")
        there = urlsplit(self.url)
        if there.hostname not in _EVERYWHERE:
            return self.url
        return f"{there.scheme}://{socket.gethostname()}:{there.port}"

    async def start(self) -> None:
        """Open the database, join the cluster, listen. Raises when any of it cannot be done."""
        self._watchdog.start()
        config = self.config
        await check_schema(config)
        self._socket = listen(config.host, config.port)
        await self._databases.open()
        await self.node.start(self.advertised_url)
        self._background.start("keys.touch", self._authenticator.keep_writing_uses)
        limits = ConnectionLimits(
            config.max_connections, config.max_headers, config.max_head, config.request_timeout
        )
        self._http = HttpServer(
            HttpConfig(
                self.app,
                limits,
                self.metrics,
                keep_alive=config.keep_alive,
                fast_path=self.app.compile_fast_path,
                tls=self._tls,
            )
        )
        try:
            await self._http.open(self._socket)
        except BaseException:
            await self.stop()  # others need not wait until they notice our silence
            raise

    async def ended(self) -> NoReturn:
        """Wait for what should not happen before `stop`, and raise: the API is served no more."""
        assert self._http is not None, "the server has not been started"
        await self._http.ended()

    async def stop(self) -> None:
        """Stop taking work, hand over, finish or release, then close all connections."""
        if self._http is not None:
            self._http.drain()
        await self.node.stop()
        if self._http is not None:
            await self._http.close()
        await self._background.stop()
        await self._authenticator.write_uses()
        await self._databases.close()
        self._watchdog.stop()

    def _api(self, parts: NodeParts) -> ApiDependencies:
        config, database, rng = self.config, self._databases.api, SystemRandom()
        return ApiDependencies(
            config=config,
            clock=self._clock,
            tasks=TaskStore(database, near=config.near),
            keys=self.keys,
            ids=new_ids(Random(rng.getrandbits(64))),
            rng=Random(rng.getrandbits(64)),
            node=parts.node,
            lease_service=parts.lease_service,
            metrics=self.metrics,
            database=database,
            vault=parts.vault,
            definitions=parts.definitions,
            profile_changed=parts.webhooks.forget,
            complaint=self._watchdog.complaint,
        )
