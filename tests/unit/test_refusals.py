"""What the database refuses because of the values, and what it cannot do at the moment."""

from typing import Any, cast

import asyncpg
import pytest
from asyncpg.exceptions._base import DataError as ClientDataError

from mainspring.errors import StoreUnavailable
from mainspring.postgres.database import REFUSED, Database, DatabaseOptions


class _Pool:
    """Connections of which none is used."""

    async def acquire(self, **_how: float) -> None: ...

    async def release(self, _connection: object) -> None: ...


async def raising(error: Exception) -> None:
    """Let a statement fail so."""
    database = Database(DatabaseOptions("postgresql:///x"))
    database._pool = cast(Any, _Pool())

    async def work(_connection: object) -> None:
        raise error

    await database._with_connection(work)


@pytest.mark.parametrize(
    "kind",
    [
        asyncpg.CharacterNotInRepertoireError,
        asyncpg.CheckViolationError,
        asyncpg.ProgramLimitExceededError,
        asyncpg.RaiseError,
        ClientDataError,
        ValueError,
    ],
)
async def test_what_the_values_cause_is_refused(kind: type[Exception]) -> None:
    with pytest.raises(kind) as caught:
        await raising(kind("no"))
    assert isinstance(caught.value, REFUSED)


@pytest.mark.parametrize(
    "kind",
    [
        asyncpg.InternalServerError,
        asyncpg.PostgresIOError,
        asyncpg.InsufficientPrivilegeError,
        asyncpg.UndefinedTableError,
        asyncpg.LockNotAvailableError,
        asyncpg.DiskFullError,
        asyncpg.InterfaceError,
        ConnectionResetError,
    ],
)
async def test_a_database_fault_shows_no_values(
    kind: type[Exception],
) -> None:
    with pytest.raises(StoreUnavailable):
        await raising(kind("no"))
