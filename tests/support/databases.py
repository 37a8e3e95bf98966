"""Databases for tests: emptied and used again, because making one takes longer than most tests.

Emptying goes by what PostgreSQL knows, so that no test has to say what it wrote: a table that was
written to has pages. A database whose schema a test has changed is dropped instead.
"""

from dataclasses import dataclass
from itertools import count
from typing import Any, Self
from urllib.parse import urlsplit

import asyncpg

TEMPLATE = "mainspring_template"

_END_OTHERS = (
    "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = '{name}'"
)

_TABLES = """
SELECT c.relname::text AS name, pg_relation_size(c.oid) > 0 AS written, c.relispartition AS part
FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p')
"""

_SEQUENCES = """
SELECT sequencename::text AS name, last_value, start_value FROM pg_sequences
WHERE schemaname = 'public'
"""

_SET_SEQUENCE = "SELECT setval($1::text::regclass, $2, $3)"

# Everything that a test could have changed about tables, indexes, functions and triggers.
_SCHEMA = """
WITH relations AS (
    SELECT * FROM pg_class WHERE relnamespace = 'public'::regnamespace
)
SELECT md5(concat_ws('|',
    (SELECT string_agg(concat_ws(',', relname, relkind, relispartition, reloptions::text), ';'
        ORDER BY relname) FROM relations),
    (SELECT string_agg(concat_ws(',', r.relname, attname, atttypid, attnotnull, attisdropped), ';'
        ORDER BY r.relname, attnum)
        FROM pg_attribute a JOIN relations r ON r.oid = a.attrelid),
    (SELECT string_agg(concat_ws(',', proname, prosrc), ';' ORDER BY proname, prosrc)
        FROM pg_proc WHERE pronamespace NOT IN
            ('pg_catalog'::regnamespace, 'information_schema'::regnamespace)),
    (SELECT string_agg(concat_ws(',', r.relname, tgname, tgenabled), ';' ORDER BY relname, tgname)
        FROM pg_trigger t JOIN relations r ON r.oid = t.tgrelid),
    (SELECT string_agg(concat_ws(',', r.relname, conname, pg_get_constraintdef(k.oid)), ';'
        ORDER BY relname, conname) FROM pg_constraint k JOIN relations r ON r.oid = k.conrelid),
    (SELECT string_agg(concat_ws(',', i.indexrelid::regclass, indisvalid, indisready), ';'
        ORDER BY i.indexrelid::regclass::text)
        FROM pg_index i JOIN relations r ON r.oid = i.indexrelid),
    (SELECT string_agg(nspname, ';' ORDER BY nspname) FROM pg_namespace
        WHERE nspname !~ '^pg_(toast_)?temp'),
    (SELECT string_agg(setconfig::text, ';') FROM pg_db_role_setting
        WHERE setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database())))
))
"""


@dataclass(frozen=True, slots=True)
class _Original:
    """What a database looks like before its first test."""

    schema: str
    tables: frozenset[str]
    rows: dict[str, list[tuple[Any, ...]]]
    sequences: dict[str, int | None]

    @classmethod
    async def read(cls, connection: asyncpg.Connection) -> Self:
        tables = await connection.fetch(_TABLES)
        seeded = [table["name"] for table in tables if table["written"]]
        return cls(
            await connection.fetchval(_SCHEMA),
            frozenset(table["name"] for table in tables),
            {name: [tuple(r) for r in await connection.fetch(f"TABLE {name}")] for name in seeded},
            {row["name"]: row["last_value"] for row in await connection.fetch(_SEQUENCES)},
        )


class DatabasePool:
    """Copies of the template, handed out to one test at a time."""

    def __init__(self, server_url: str) -> None:
        self._server = server_url
        self._names = (f"test_{number}" for number in count(1))
        self._free: list[str] = []
        self._original: _Original | None = None

    def url(self, name: str) -> str:
        return urlsplit(self._server)._replace(path=f"/{name}").geturl()

    async def take(self) -> str:
        """Return the name of an empty, migrated database."""
        if self._free:
            return self._free.pop()
        name = next(self._names)
        await self._execute(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
        if self._original is None:
            connection = await asyncpg.connect(self.url(name))
            self._original = await _Original.read(connection)
            await connection.close()
        return name

    async def give_back(self, name: str) -> None:
        if await self._is_as_new(name):
            self._free.append(name)
        else:
            await self._execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    async def _is_as_new(self, name: str) -> bool:
        assert self._original is not None
        await self._end_connections(name)
        try:
            connection = await asyncpg.connect(self.url(name))
        except asyncpg.PostgresError:
            return False  # the test has dropped it, or made it refuse connections
        try:
            return await _empty(connection, self._original)
        finally:
            await connection.close()

    async def _end_connections(self, name: str) -> None:
        """End what the test's processes left behind: killed ones cannot say goodbye."""
        await self._execute(_END_OTHERS.format(name=name))

    async def _execute(self, statement: str) -> None:
        connection = await asyncpg.connect(self._server)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()


async def _empty(connection: asyncpg.Connection, original: _Original) -> bool:
    """Bring back the state before the test, if its schema is still the same."""
    await connection.execute("SET session_replication_role = replica")  # no trigger forbids it
    tables = await connection.fetch(_TABLES)
    partitions = [t["name"] for t in tables if t["part"] and t["name"] not in original.tables]
    if partitions:  # a node makes those of the next days
        await connection.execute(f"DROP TABLE {', '.join(partitions)}")
    if await connection.fetchval(_SCHEMA) != original.schema:
        return False
    written = [t["name"] for t in tables if t["written"] and t["name"] in original.tables]
    await connection.execute(f"TRUNCATE {', '.join(written)} CASCADE")
    for name, rows in original.rows.items():
        await connection.copy_records_to_table(name, records=rows)
    for row in await connection.fetch(_SEQUENCES):
        if row["last_value"] != (last := original.sequences[row["name"]]):
            value = row["start_value"] if last is None else last
            await connection.execute(_SET_SEQUENCE, row["name"], value, last is not None)
    # Plans go by statistics; truncating leaves those of the columns behind.
    await connection.execute(
        "DELETE FROM pg_statistic WHERE starelid IN"
        " (SELECT oid FROM pg_class WHERE relnamespace = 'public'::regnamespace)"
    )
    await connection.execute(f"ANALYZE {', '.join(written)}")
    return True
