"""Settings turned into what they define: databases and connections, keys, TLS, egress rules. Each
function reports what is wrong with its own."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from random import SystemRandom
from typing import Self

import asyncpg

from mainspring import __version__, crash_points, tls
from mainspring.config import Config, environment_of_programs
from mainspring.domain import apikey
from mainspring.domain.apikey import KeyText
from mainspring.errors import ConfigError, MigrationError
from mainspring.execution import egress_guard
from mainspring.execution.http import HttpSettings
from mainspring.execution.send_queues import Caps
from mainspring.execution.transfers import SenderSettings
from mainspring.node.archiving import ArchiveCommand
from mainspring.postgres import migrate as migrations
from mainspring.postgres.database import Database, DatabaseOptions, connect
from mainspring.store.upkeep.table_changes import ArchiveHook
from mainspring.store.vault import Vault, parse_key

Connect = Callable[[], Awaitable[asyncpg.Connection]]


def database_options(config: Config) -> DatabaseOptions:
    """Return how to reach the database that the configuration names."""
    if config.database_url is None:
        raise ConfigError(["database_url is not set: set DATABASE_URL, or use `mainspring dev`"])
    return DatabaseOptions(
        url=config.database_url,
        connections=config.database_connections,
        acquire_timeout=config.acquire_timeout,
        prepared=not config.database_pooler,
        tls=tls.database_context(config),
    )


def direct_url(config: Config) -> str:
    """Return the URL of the database without a pooler between."""
    return config.direct_database_url or database_options(config).url


@dataclass(frozen=True, slots=True)
class Databases:
    """Two pools over one database, so that requests do not keep the engine waiting."""

    api: Database
    engine: Database

    @classmethod
    def of(cls, config: Config) -> Self:
        options = database_options(config)
        engine = replace(options, connections=config.engine_connections)
        return cls(Database(options), Database(engine))

    async def open(self) -> None:
        await self.api.open()
        await self.engine.open()

    async def close(self) -> None:
        await self.engine.close()
        await self.api.close()


def heartbeat_connection(config: Config) -> Connect:
    """Return how to connect for heartbeats alone, which end in time for others to take over."""
    options = replace(
        database_options(config), acquire_timeout=config.node_ttl, statement_timeout=config.node_ttl
    )
    return lambda: connect(options)


def listening_connection(config: Config) -> Connect | None:
    """Return how to connect for LISTEN; None behind a pooler, which cannot pass it on."""
    if config.database_pooler and config.direct_database_url is None:
        return None
    options = replace(database_options(config), url=direct_url(config), prepared=True)
    return lambda: connect(options)


async def check_schema(config: Config) -> None:
    """Raise MigrationError when the database lacks migrations of this version."""
    missing = await migrations.pending(direct_url(config), tls.database_context(config))
    if missing:
        names = ", ".join(f"{m.version} ({m.name})" for m in missing)
        raise MigrationError(
            f"the database lacks migrations: {names}; run `mainspring migrate` first"
        )


def vault_of(config: Config) -> Vault:
    """Return the keys that secrets are sealed with; an error does not show them."""
    old = [text for text in config.secrets_keys_old.split(",") if text.strip()]
    try:
        key = parse_key(config.secrets_key) if config.secrets_key else None
        return Vault(key, tuple(map(parse_key, old)))
    except ValueError as error:
        raise ConfigError([f"secrets_key or secrets_keys_old {error}"]) from None


def archive_of(config: Config) -> ArchiveHook | None:
    """Return the command that archives old history before it is dropped."""
    if not config.archive_command:
        return None
    environment = environment_of_programs()
    return ArchiveCommand(config.archive_command, environment, direct_url(config))


def egress_of(config: Config) -> egress_guard.EgressRules:
    """Return the installation's rules for what webhooks may call."""
    try:
        allow = egress_guard.parse_networks(config.egress_allow)
        deny = egress_guard.parse_networks(config.egress_deny)
        return egress_guard.EgressRules(allow, deny, config.egress_ports)
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


def crash_point(config: Config) -> tuple[str | None, int]:
    """Return the crash point that a test asked for, and at which pass of it; None: no point."""
    name, _, nth = (config.crash_at or "").partition(":")
    if not name:
        return None, 1
    if name not in crash_points.POINTS or not (nth or "1").isdecimal():
        raise ConfigError([f"crash_at: there is no crash point {config.crash_at!r}"])
    return name, int(nth or 1)


def new_key(config: Config) -> KeyText:
    """Return the text of a new API key."""
    return apikey.make(config.key_environment, SystemRandom())


def check(config: Config) -> None:
    """Raise ConfigError with everything that is wrong with the settings, before any start."""
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
