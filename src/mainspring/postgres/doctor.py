"""The doctor: looks at a database and says what would make Mainspring slow or unsafe on it."""

from collections.abc import Callable
from typing import NamedTuple

import asyncpg

from mainspring import clock, timezones
from mainspring.postgres.database import DatabaseOptions, connect
from mainspring.postgres.migrate import available


class Finding(NamedTuple):
    """One thing the doctor looked at: fine, or what to change."""

    subject: str
    ok: bool
    detail: str


# Settings, which values are good, and what to do about others.
_SETTINGS: tuple[tuple[str, Callable[[str], bool], str], ...] = (
    ("fsync", lambda v: v == "on", "must be on: else an acknowledged task can be lost"),
    (
        "synchronous_commit",
        lambda v: v != "off",
        "must not be off: an acknowledged task could be lost in a crash",
    ),
    ("full_page_writes", lambda v: v == "on", "must be on unless storage writes pages atomically"),
    ("autovacuum", lambda v: v == "on", "must be on: the hot table changes all the time"),
    (
        "autovacuum_naptime",
        lambda v: int(v) <= 5,
        "set it to 2s: with the default of 60s the hot table grows and the rate falls by a third",
    ),
    ("jit", lambda v: v == "off", "set it to off: our statements are short"),
    (
        "max_wal_size",
        lambda v: int(v) >= 2048,
        "set it to 2GB at least, better 4GB: checkpoints cost",
    ),
    (
        "shared_buffers",
        lambda v: int(v) >= 16384,
        "set it to 128MB at least, better 256MB: hot rows must fit",
    ),
    ("max_connections", lambda v: int(v) >= 50, "a node uses about 16 connections: allow for all"),
)
_OLD_TRANSACTION = 60.0
_SLOW_ANSWER = 0.02
_VACUUM_BLOCKERS = """
(SELECT format('process %s has one open for %s s: consider'
     ' idle_in_transaction_session_timeout, or pg_terminate_backend(%s)',
     pid, extract(epoch FROM clock_timestamp() - xact_start)::integer, pid) AS told
 FROM pg_stat_activity WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid()
   AND xact_start <= clock_timestamp() - $1 * interval '1 second'
 ORDER BY xact_start LIMIT 1)
UNION ALL
(SELECT format('%L was prepared %s s ago: COMMIT PREPARED or ROLLBACK PREPARED',
     gid, extract(epoch FROM clock_timestamp() - prepared)::integer)
 FROM pg_prepared_xacts WHERE prepared <= clock_timestamp() - $1 * interval '1 second'
 ORDER BY prepared LIMIT 1)
UNION ALL
(SELECT format('the replication slot %L is held for nobody: let its reader come back,'
     ' or pg_drop_replication_slot(%L)', slot_name, slot_name)
 FROM pg_replication_slots WHERE NOT active AND coalesce(xmin, catalog_xmin) IS NOT NULL
 ORDER BY slot_name LIMIT 1)
"""


async def examine(options: DatabaseOptions, *, pooler: bool) -> list[Finding]:
    """Look at everything. Raises StoreUnavailable when the database cannot be reached."""
    connection = await connect(options)
    try:
        return [
            await _version(connection),
            await _schema(connection),
            await _time_zones(connection),
            *[await _setting(connection, *advice) for advice in _SETTINGS],
            await _old_transactions(connection),
            await _clock(connection),
            await _pooler(connection, pooler=pooler),
        ]
    finally:
        await connection.close()


async def _version(connection: asyncpg.Connection) -> Finding:
    ok = connection.get_server_version() >= (15,)
    shown = f"PostgreSQL {await connection.fetchval('SHOW server_version')}"
    return Finding("server", ok, shown if ok else f"{shown} is too old: 15 or newer is needed")


async def _schema(connection: asyncpg.Connection) -> Finding:
    if await connection.fetchval("SELECT to_regclass('schema_migrations')") is None:
        return Finding("schema", False, "there is none: run `mainspring migrate`")
    rows = await connection.fetch("SELECT version FROM schema_migrations")
    applied = {row["version"] for row in rows}
    known = {migration.version for migration in available()}
    if known - applied:
        waiting = f"{len(known - applied)} migrations are to come"
        return Finding("schema", False, f"{waiting}: run `mainspring migrate`")
    if applied - known:
        detail = f"version {max(applied)}, but this version of Mainspring knows {max(known)}"
        return Finding("schema", False, f"{detail}: upgrade this node")
    return Finding("schema", True, f"version {max(known)}")


async def _time_zones(connection: asyncpg.Connection) -> Finding:
    ours = timezones.version()
    if await connection.fetchval("SELECT to_regclass('schedules')") is None:
        return Finding("time zones", True, f"tz database {ours}")
    newer = await connection.fetchval("SELECT max(tzdata) FROM schedules")
    if newer is not None and newer > ours:
        detail = f"{ours}, but schedules were computed with {newer}: upgrade this node"
        return Finding("time zones", False, detail)
    return Finding("time zones", True, f"tz database {ours}")


async def _setting(
    connection: asyncpg.Connection, name: str, good: Callable[[str], bool], advice: str
) -> Finding:
    row = await connection.fetchrow(
        "SELECT setting, unit, current_setting(name) AS shown FROM pg_settings WHERE name = $1",
        name,
    )
    assert row is not None, f"PostgreSQL has no setting {name}"
    ok = good(row["setting"])
    return Finding(name, ok, row["shown"] if ok else f"{row['shown']}: {advice}")


async def _old_transactions(connection: asyncpg.Connection) -> Finding:
    """Look for what keeps vacuum from removing dead rows; say what to do about it."""
    lasting = [row["told"] for row in await connection.fetch(_VACUUM_BLOCKERS, _OLD_TRANSACTION)]
    if not lasting:
        return Finding("long transactions", True, "none")
    detail = f"dead rows pile up until they end; {'; '.join(lasting)}"
    return Finding("long transactions", False, detail)


async def _clock(connection: asyncpg.Connection) -> Finding:
    fastest = float("inf")
    for _ in range(5):
        sent = clock.monotonic()
        await connection.fetchval("SELECT clock_timestamp()")
        fastest = min(fastest, clock.monotonic() - sent)
    detail = f"the database answers in {fastest * 1000:.1f} ms; its clock is the one that counts"
    if fastest > _SLOW_ANSWER:
        return Finding("clock", False, f"{detail}; that is far away: every start waits for it")
    return Finding("clock", True, detail)


async def _pooler(connection: asyncpg.Connection, *, pooler: bool) -> Finding:
    backends = set()
    for _ in range(4):
        async with connection.transaction():
            backends.add(await connection.fetchval("SELECT pg_backend_pid()"))
    if len(backends) > 1 and not pooler:
        return Finding(
            "pooler",
            False,
            "the database is behind a pooler in transaction mode: set "
            "MAINSPRING_DATABASE_POOLER=true, and MAINSPRING_DIRECT_DATABASE_URL for LISTEN and "
            "migrations",
        )
    return Finding("pooler", True, "configured" if pooler else "none")
