"""The databases of a node, and its connections outside their pools."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Self

import asyncpg

from mainspring import tls
from mainspring.config import Config
from mainspring.errors import MigrationError
from mainspring.postgres import migrate as migrations
from mainspring.postgres.database import Database, connect
from mainspring.wiring.settings import database_options, direct_url

Connect = Callable[[], Awaitable[asyncpg.Connection]]


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
