"""Every statement is one that PostgreSQL takes."""

import asyncpg
import pytest

from mainspring.postgres.named_sql import load
from mainspring.store.lists.index_paths import LIST_PATHS, SHORTCUTS
from support.queries import QUERIES

pytestmark = pytest.mark.server

TABLES = {
    "housekeeping": {
        "table": "executions_default",
        "column": "finished_at",
        "expiring": "effects",
    },
    "occurrence_retention": {"table": "occurrences_default"},
    "tenants": {"table": "tasks"},
}
"""Examples of what statements of these files are filled with."""


@pytest.mark.parametrize("file", [file.stem for file in QUERIES.glob("*.sql")])
async def test_every_statement_can_be_prepared(file: str, connection: asyncpg.Connection) -> None:
    for name, statement in load(file).items():
        paths = LIST_PATHS + SHORTCUTS if name == "list_tasks" else ()
        for filled in [path.of(statement) for path in paths] or [
            statement.filled(**TABLES.get(file, {}))
        ]:
            prepared = await connection.prepare(filled.sql)
            assert len(prepared.get_parameters()) == len(filled.parameters)
