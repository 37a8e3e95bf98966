"""Commands of the command line on an installation, besides running a server."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from mainspring import tls
from mainspring.config import Config
from mainspring.postgres import doctor
from mainspring.postgres import migrate as migrations
from mainspring.postgres.database import Database
from mainspring.postgres.doctor import Finding
from mainspring.postgres.embedded import EmbeddedServer
from mainspring.postgres.embedded_supervisor import EmbeddedSupervisor
from mainspring.postgres.migrate import Migration
from mainspring.store.cluster import Fenced, Topology
from mainspring.store.keys import KeyStore, NewKey, hash_secret
from mainspring.store.secrets import SecretStore
from mainspring.wiring.server import Server
from mainspring.wiring.settings import database_options, direct_url, new_key, vault_of


async def migrate(config: Config, tell: Callable[[str], None] = lambda _: None) -> list[Migration]:
    """Bring the database to this version's schema; return the steps that were applied."""
    return await migrations.migrate(direct_url(config), tls.database_context(config), tell=tell)


async def examine(config: Config) -> list[Finding]:
    """Check the database, and return the findings."""
    return await doctor.examine(database_options(config), pooler=config.database_pooler)


async def living_nodes(config: Config) -> list[str]:
    """Return the active nodes with a recent heartbeat, by name and address."""
    async with _opened(config) as database:
        found = await Topology(database).nodes()
    alive = [n for n in found if n.state == "active" and n.silent < config.node_ttl]
    return [f"{node.name} ({node.url or node.id})" for node in alive]


async def restore_fence(config: Config) -> Fenced:
    """Issue no fence and no epoch again, whatever the database was set back to."""
    async with _opened(config) as database:
        return await Topology(database).restore_fence()


async def reseal(config: Config) -> tuple[int, int]:
    """Seal every secret with the present key; return how many were moved, and how many wait."""
    async with _opened(config, config.database_connections) as database:
        return await SecretStore(database, vault_of(config)).renew()


async def create_operator_key(config: Config, name: str | None) -> str:
    """Create a key without a tenant in the database: with it all others can be made."""
    text = new_key(config)
    new = NewKey(text.id, text.secret, None, frozenset(), True, name, text.prefix)
    async with _opened(config) as database:
        await KeyStore(database).add_operator(new, "command line")
    return text.secret


async def revoke_operator_key(config: Config, key: str) -> bool:
    """End an operator's key, named by its id or by itself. False: there is none."""
    async with _opened(config) as database:
        return await KeyStore(database).revoke_operator(key, "command line")


@asynccontextmanager
async def _opened(config: Config, connections: int = 1) -> AsyncIterator[Database]:
    database = Database(replace(database_options(config), connections=connections))
    await database.open()
    try:
        yield database
    finally:
        await database.close()


async def add_development_key(server: Server, secret: str) -> None:
    """Add the key of `mainspring dev`: of tenant `default`, with all scopes, and an operator's."""
    scopes = frozenset({"read", "write", "work", "admin"})
    tenant_id = await server.keys.ensure_tenant("default")
    key_id = f"dev-{hash_secret(secret).hex()[:12]}"
    await server.keys.add(NewKey(key_id, secret, tenant_id, scopes, operator=True, name="dev"))


def embedded_server(data: Path) -> EmbeddedSupervisor:
    """Return the private PostgreSQL of `mainspring dev`."""
    return EmbeddedSupervisor(EmbeddedServer(data))
