"""The pool: what its errors say about what was done."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from mainspring.errors import NothingSent, StoreUnavailable
from mainspring.postgres.database import Database, DatabaseOptions


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    options = DatabaseOptions(
        database_url, connections=1, acquire_timeout=0.2, statement_timeout=0.2
    )
    database = Database(options)
    await database.open()
    yield database
    await database.close()


async def test_whoever_got_no_connection_knows_that_nothing_was_sent(database: Database) -> None:
    taken, done = asyncio.Event(), asyncio.Event()

    async def hold(_connection: asyncpg.Connection) -> None:
        taken.set()
        await done.wait()

    holder = asyncio.create_task(database.transact(hold))
    await taken.wait()
    with pytest.raises(NothingSent):
        await database.fetch("SELECT 1")
    done.set()
    await holder
    assert await database.fetch("SELECT 1")


async def test_a_statement_that_took_too_long_was_sent(database: Database) -> None:
    with pytest.raises(StoreUnavailable) as told:
        await database.fetch("SELECT pg_sleep(60)")
    assert not isinstance(told.value, NothingSent)
    assert await database.fetch("SELECT pg_sleep(0.3)", time_limit=5.0)
