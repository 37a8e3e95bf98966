"""Migrations: numbered plain SQL, forward only, applied once each, in order, by one node at a time.

Every file names its own way back. A file that was applied may not change afterwards: its hash is
kept and compared.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from importlib import resources
from ssl import SSLContext

import asyncpg

from mainspring.errors import MigrationError
from mainspring.postgres.database import CONNECTION_LOST, DatabaseOptions, connect

_ADVISORY_LOCK = 0x6D61696E  # "main": any number will do that nobody else in the database uses

_LONGEST_WAIT = "1s"
_PAUSE = 1.0

# A schema by the name of our role, which one of the steps makes, would draw all later tables.
_KEEP_SCHEMA = """
SELECT set_config('search_path', quote_ident(coalesce(
    (SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE c.oid = to_regclass('schema_migrations')), current_schema())), true)
"""
_LEDGER = """
CREATE TABLE IF NOT EXISTS schema_migrations (
    version    integer PRIMARY KEY,
    name       text NOT NULL,
    checksum   text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
)
"""
# A guess, but a good one: locks are held until a transaction ends.
_OLDEST_TRANSACTION = """
SELECT format('%s (process %s), whose transaction is open for %s s',
    coalesce(nullif(application_name, ''), 'a program without a name'), pid,
    round(extract(epoch FROM clock_timestamp() - xact_start)))
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
ORDER BY xact_start LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered step."""

    version: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return sha256(self.sql.encode()).hexdigest()


def available() -> list[Migration]:
    """Return the steps this version of Mainspring knows, oldest first."""
    found = []
    for file in resources.files("mainspring.store").joinpath("migrations").iterdir():
        if file.name.endswith(".sql"):
            number, _, name = file.name.removesuffix(".sql").partition("_")
            found.append(Migration(int(number), name, file.read_text("utf-8")))
    return sorted(found, key=lambda migration: migration.version)


async def migrate(
    url: str,
    tls: SSLContext | None = None,
    *,
    tell: Callable[[str], None] = lambda _: None,
    timeout: float = 600.0,
) -> list[Migration]:
    """Bring the database to this version's schema; return the steps that were applied.

    While somebody else uses the tables it waits, for `timeout` seconds at most, and passes what it
    waits for to `tell`.
    """
    with _as_migration_errors("migrating"):
        connection = await connect(
            DatabaseOptions(url, statement_timeout=3600, prepared=False, tls=tls)
        )
        try:
            if connection.get_server_version() < (15,):
                raise MigrationError("PostgreSQL 15 or newer is needed")
            applied = await _apply_when_free(connection, tell, timeout)
            if applied:
                # A fresh table without statistics can get a bad plan.
                await connection.execute("ANALYZE")
        finally:
            await connection.close()
    return applied


async def pending(url: str, tls: SSLContext | None = None) -> list[Migration]:
    """Return the steps that `migrate` would apply."""
    with _as_migration_errors("reading its schema"):
        connection = await connect(DatabaseOptions(url, prepared=False, tls=tls))
        try:
            if await connection.fetchval("SELECT to_regclass('schema_migrations')") is None:
                return available()
            return await _missing(connection)
        finally:
            await connection.close()


@contextmanager
def _as_migration_errors(doing: str) -> Iterator[None]:
    """Turn errors of the database into MigrationError."""
    try:
        yield
    except CONNECTION_LOST as error:
        raise MigrationError(f"the database was lost while {doing}: {error}") from error
    except asyncpg.PostgresError as error:
        raise MigrationError(f"the database refused while {doing}: {error}") from error


async def _apply_when_free(
    connection: asyncpg.Connection, tell: Callable[[str], None], timeout: float
) -> list[Migration]:
    """Apply them once nobody else uses the tables. Whoever waits for a lock blocks all who come
    later, so each attempt waits for a second only."""
    now = asyncio.get_running_loop().time
    deadline = now() + timeout
    while True:
        try:
            async with connection.transaction():
                await connection.execute(f"SET LOCAL lock_timeout = '{_LONGEST_WAIT}'")
                await connection.execute("SELECT pg_advisory_xact_lock($1)", _ADVISORY_LOCK)
                await connection.execute(_KEEP_SCHEMA)
                await connection.execute(_LEDGER)
                return await _apply_missing(connection)
        except asyncpg.LockNotAvailableError:
            user = await connection.fetchval(_OLDEST_TRANSACTION) or "another transaction"
        if now() >= deadline:
            raise MigrationError(
                f"the tables were in use for {timeout:g} s, and nothing was changed: by {user}; "
                "end that, or migrate later"
            )
        tell(f"waiting for {user}")
        await asyncio.sleep(_PAUSE)


async def _apply_missing(connection: asyncpg.Connection) -> list[Migration]:
    missing = await _missing(connection)
    for migration in missing:
        await connection.execute(migration.sql)
        await connection.execute(
            "INSERT INTO schema_migrations (version, name, checksum) VALUES ($1, $2, $3)",
            migration.version,
            migration.name,
            migration.checksum,
        )
    return missing


async def _missing(connection: asyncpg.Connection) -> list[Migration]:
    known = {migration.version: migration for migration in available()}
    for row in await connection.fetch(
        "SELECT version, name, checksum FROM schema_migrations ORDER BY version"
    ):
        migration = known.pop(row["version"], None)
        if migration is None:
            # Expand and contract: an older node keeps working beside a newer schema.
            continue
        if migration.checksum != row["checksum"]:
            raise MigrationError(
                f"migration {row['version']} ({row['name']}) was changed after it was applied"
            )
    return list(known.values())
