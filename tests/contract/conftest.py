"""Both stores, one after the other, for every test that asks for `stores`."""

from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import asyncpg
import pytest
import pytest_asyncio

from contract.store_set import StoreSet, memory_stores, postgres_stores
from mainspring.postgres.database import Database, DatabaseOptions, connect

_EMPTY = """
TRUNCATE tenants, tasks, task_history, executions, dead_letters, idempotency_keys, nodes,
    partitions, wakes, audit, schedules, occurrences, workers, messages RESTART IDENTITY CASCADE;
INSERT INTO partitions (partition) SELECT generate_series(0, 255);
UPDATE fence_floor SET floor = 0, before = '-infinity', server_started = NULL;
"""


@pytest.fixture(params=["memory", pytest.param("postgres", marks=pytest.mark.server)])
def stores(request: pytest.FixtureRequest) -> StoreSet:
    if request.param == "memory":
        return memory_stores()
    # Asked for by name, so that the simulation's store needs no server.
    real: StoreSet = request.getfixturevalue("real_stores")
    return real


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def contract_url(migrated_server: str) -> str:
    """One database for all of these tests: emptying it is quicker than making one for each."""
    connection = await asyncpg.connect(migrated_server)
    await connection.execute("CREATE DATABASE contract TEMPLATE mainspring_template")
    await connection.close()
    return urlsplit(migrated_server)._replace(path="/contract").geturl()


@pytest.fixture
async def connection(contract_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await connect(DatabaseOptions(contract_url))
    await connection.execute(_EMPTY)
    yield connection
    await connection.close()


@pytest.fixture
async def real_stores(contract_url: str, connection: asyncpg.Connection) -> AsyncIterator[StoreSet]:
    database = Database(DatabaseOptions(contract_url, connections=2))
    await database.open()
    yield postgres_stores(database, connection)
    await database.close()
