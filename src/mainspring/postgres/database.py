"""Connections to PostgreSQL: pools, JSON, and which errors allow a retry."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial, wraps
from operator import attrgetter
from ssl import SSLContext
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

import asyncpg
import asyncpg.protocol.protocol as driver
import msgspec
import structlog
from asyncpg.pgproto import pgproto
from asyncpg.pool import PoolConnectionProxy

from mainspring.config import STATEMENT_TIMEOUT
from mainspring.domain.ids import TaskIds
from mainspring.errors import NothingSent, StoreUnavailable

log = structlog.get_logger()

T = TypeVar("T")
P = ParamSpec("P")
Owner = TypeVar("Owner", bound="_HasDatabase")

new_ids = partial(TaskIds, of_bytes=pgproto.UUID)
"""Ids of the kind that comes back from the database: those of a task are looked up dozens of times
in its life, and this kind is hashed and compared without running Python."""

CONNECTION_LOST = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # the driver found out while it was about to send
    asyncpg.OperatorInterventionError,  # admin shutdown, crash shutdown, database dropped
    asyncpg.InsufficientResourcesError,  # too many connections, disk full, out of memory
    asyncpg.ReadOnlySQLTransactionError,  # a failover has not come to its end
    asyncpg.CannotConnectNowError,
    asyncpg.InvalidAuthorizationSpecificationError,  # a password that is wrong, or has changed
    asyncpg.InvalidCatalogNameError,  # no such database
    asyncpg.QueryCanceledError,
    asyncpg.IdleInTransactionSessionTimeoutError,  # we stood still inside of a transaction
    OSError,
    TimeoutError,
)
REFUSED = (
    asyncpg.CardinalityViolationError,
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.InvalidObjectDefinitionError,  # a partition that would overlap another
    asyncpg.PLPGSQLError,  # a trigger of ours says no
    asyncpg.ProgramLimitExceededError,
    ValueError,
)
"""The database, or the encoding for it, does not accept the values: a retry is of no use. Only what
values can cause is here: after an error like a full disk or a missing right, outcomes can still be
written as soon as an operator has corrected it."""
CLASHES = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)

_CLASH_RETRIES = 5
_CLOSE_TIMEOUT = 5.0
# Every statement of ours looks rows up by key or walks an index. A plan made while a table was
# small would scan it, also when it has grown: so scans are off, look-ups are declared cheap (else
# reading a whole small index seems cheaper than a few look-ups), and no call is planned anew.
_PLANNER = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "random_page_cost": "0.1",
}
_IDLE = "idle_in_transaction_session_timeout"
_encoder = msgspec.json.Encoder()

# To tell arrays from scalars the driver asks of every element of every array parameter whether it
# is an instance of two abstract classes, which is answered in Python and took a seventh of a node's
# time. Asking for the containers that we pass as arrays comes to the same and is answered at once.
CONTAINERS = (list, tuple, set, frozenset)
for _abstract in ("IterableABC", "SizedABC"):
    if hasattr(driver, _abstract):
        setattr(driver, _abstract, CONTAINERS)


@dataclass(frozen=True, slots=True)
class DatabaseOptions:
    """How to reach the database and how many connections to keep."""

    url: str
    connections: int = 8
    acquire_timeout: float = 5.0
    statement_timeout: float = STATEMENT_TIMEOUT
    idle_timeout: float = 5.0
    """After so long between two statements of a transaction the server ends it: its client is
    frozen or cut off, and others wait for its locks."""
    prepared: bool = True
    tls: SSLContext | None = None


class Database:
    """A pool of connections. A call either succeeds, is REFUSED, or raises StoreUnavailable; no
    retries hide here except for deadlocks, where PostgreSQL guarantees that nothing happened."""

    def __init__(self, options: DatabaseOptions) -> None:
        self._options = options
        self._end_if_idle = f"SET LOCAL {_IDLE} = {_milliseconds(options.idle_timeout)}"
        self._pool: asyncpg.Pool | None = None

    async def open(self) -> None:
        try:
            self._pool = await asyncpg.create_pool(
                min_size=self._options.connections,
                max_size=self._options.connections,
                init=_prepare_connection,
                reset=_keep_as_is,
                **_arguments(self._options),
            )
        except CONNECTION_LOST as error:
            raise StoreUnavailable(f"the database cannot be reached: {error}") from error

    async def close(self) -> None:
        if self._pool is None:
            return
        try:
            await asyncio.wait_for(self._pool.close(), 5)
        except TimeoutError:
            self._pool.terminate()

    async def fetch(
        self, sql: str, *args: object, time_limit: float | None = None
    ) -> Sequence[asyncpg.Record]:
        """Run one statement, in a transaction of its own, for at most `time_limit` seconds, or the
        statement timeout."""

        async def run(connection: asyncpg.Connection) -> Sequence[asyncpg.Record]:
            rows: Sequence[asyncpg.Record]
            if time_limit is None:
                rows = await connection.fetch(sql, *args)
                return rows
            async with connection.transaction():
                limit = f"SET LOCAL statement_timeout = {_milliseconds(time_limit)}"
                await connection.execute(limit)  # the server has a limit of its own
                rows = await connection.fetch(sql, *args, timeout=time_limit)
                return rows

        return await self._with_connection(run)

    async def fetch_row(self, sql: str, *args: object) -> asyncpg.Record | None:
        rows = await self.fetch(sql, *args)
        return rows[0] if rows else None

    async def fetchval(self, sql: str, *args: object) -> Any:
        """Run one statement, and return the first value of its first row."""
        row = await self.fetch_row(sql, *args)
        return None if row is None else row[0]

    async def run_alone(self, sql: str, time_limit: float) -> None:
        """Run a long statement that allows no transaction, on a connection outside the pool."""
        connection = await connect(replace(self._options, statement_timeout=time_limit))
        try:
            await connection.execute(sql)
        except CONNECTION_LOST as error:
            raise StoreUnavailable(f"the database was lost: {error!r}") from error
        finally:
            await connection.close(timeout=_CLOSE_TIMEOUT)

    async def transact(self, work: Callable[[asyncpg.Connection], Awaitable[T]]) -> T:
        """Run several statements as one transaction; `work` may be called again after a clash."""

        async def run(connection: asyncpg.Connection) -> T:
            async with connection.transaction():
                if not self._options.prepared:
                    # The pooler's connections do not have it, and belong to others in between.
                    await connection.execute(self._end_if_idle)
                return await work(connection)

        return await self._with_connection(run)

    async def _with_connection(self, work: Callable[[asyncpg.Connection], Awaitable[T]]) -> T:
        if self._pool is None:
            raise NothingSent("the database is not open")
        for attempt in range(_CLASH_RETRIES + 1):
            connection = await self._acquire(self._pool)
            try:
                try:
                    return await work(cast(asyncpg.Connection, connection))
                finally:
                    await self._pool.release(connection)
            except REFUSED:
                raise
            except CLASHES as error:
                if attempt == _CLASH_RETRIES:
                    raise StoreUnavailable(f"the database is too busy: {error!r}") from error
                await asyncio.sleep(0.01 * 2**attempt)
            except CONNECTION_LOST as error:
                raise StoreUnavailable(f"the database was lost: {error!r}") from error
            except asyncpg.PostgresError as error:
                # An operator must act, or it is a bug: the caller, who only retries, is not enough.
                log.error("the database failed", action="database.failed", exc_info=error)
                raise StoreUnavailable(f"the database failed: {error!r}") from error
        raise AssertionError("unreachable")

    async def _acquire(self, pool: asyncpg.Pool) -> PoolConnectionProxy:
        try:
            return await pool.acquire(timeout=self._options.acquire_timeout)
        except (asyncpg.PostgresError, *CONNECTION_LOST) as error:
            raise NothingSent(f"no connection to the database is to be had: {error!r}") from error


class _HasDatabase(Protocol):
    """An object whose methods can be transactions."""

    _database: Database


class Store:
    """Base of what reads and writes the database by named statements."""

    def __init__(self, database: Database) -> None:
        self._database = database


def transaction(
    method: Callable[Concatenate[Owner, asyncpg.Connection, P], Awaitable[T]],
) -> Callable[Concatenate[Owner, P], Coroutine[Any, Any, T]]:
    """Run a method as one transaction: it gets the connection, and may run again after a deadlock.
    An exception rolls everything back."""

    @wraps(method)
    async def run(owner: Owner, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await owner._database.transact(lambda c: method(owner, c, *args, **kwargs))

    return run


def sparse(column: list[T]) -> list[T]:
    """Return a column for unnest(), which fills a shorter array up with NULLs: of a column without
    values, the empty array."""
    if column and column[0] is not None:
        return column
    return column if column.count(cast(T, None)) < len(column) else []


def columns_of(fields: tuple[str, ...], rows: Sequence[object]) -> dict[str, list[Any]]:
    """Return one array per field of these rows, under its name, as unnest() of several arrays wants
    them: one of nulls only is empty, and would not do for `= ANY`."""
    return {field: sparse(list(map(get, rows))) for field, get in _getters(fields)}


@cache
def _getters(fields: tuple[str, ...]) -> list[tuple[str, Callable[[object], Any]]]:
    return [(field, attrgetter(field)) for field in fields]


async def connect(options: DatabaseOptions) -> asyncpg.Connection:
    """Return a connection outside the pool, for a caller that must never wait for others."""
    try:
        connection: asyncpg.Connection = await asyncpg.connect(**_arguments(options))
    except CONNECTION_LOST as error:
        raise StoreUnavailable(f"the database cannot be reached: {error}") from error
    await _prepare_connection(connection)
    return connection


def _arguments(options: DatabaseOptions) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "dsn": options.url,
        "timeout": options.acquire_timeout,
        "command_timeout": options.statement_timeout,
        "statement_cache_size": 200 if options.prepared else 0,
        "server_settings": {"application_name": "mainspring"},
    }
    if options.prepared:
        # A pooler would refuse these; all works without them, only with plans that can go wrong.
        arguments["server_settings"] |= _PLANNER | {
            # A client that is frozen cannot give up in time, and its locks would last as long.
            "statement_timeout": _milliseconds(options.statement_timeout),
            _IDLE: _milliseconds(options.idle_timeout),
        }
    if options.tls is not None:
        arguments["ssl"] = options.tls
    return arguments


def _milliseconds(seconds: float) -> str:
    return str(round(seconds * 1000))


async def _prepare_connection(connection: asyncpg.Connection) -> None:
    await connection.set_type_codec(
        "jsonb",
        schema="pg_catalog",
        encoder=lambda value: b"\x01" + _encoder.encode(value),
        decoder=lambda data: msgspec.json.decode(data[1:]),
        format="binary",
    )


async def _keep_as_is(_connection: asyncpg.Connection) -> None:
    """Skip the reset of a connection, a round trip: no session state is left behind."""
