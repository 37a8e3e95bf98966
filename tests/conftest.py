"""What every kind of test shares: real servers, and a fresh database for each test."""

import atexit
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg
import pytest
import pytest_asyncio
import structlog

from mainspring.postgres.embedded import EmbeddedServer
from support.databases import TEMPLATE, DatabasePool

if TYPE_CHECKING:
    from support.cluster import Cluster

MISSING: pytest.StashKey[set[str]] = pytest.StashKey()


def pytest_configure() -> None:
    """Log tracebacks as Python writes them: with all variables, each would take a second."""
    renderer = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*structlog.get_config()["processors"][:-1], renderer])


@pytest.fixture
def restored_logging() -> Iterator[None]:
    """Let a test set up logging as it likes."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.fixture
def need_server(request: pytest.FixtureRequest) -> Callable[[str, Path | None], Path]:
    """Return a real server's program, or say by name what is missing: a failure where CI is set."""

    def need(name: str, found: Path | None) -> Path:
        if found is not None:
            return found
        request.config.stash.setdefault(MISSING, set()).add(name)
        if os.environ.get("CI"):
            pytest.fail(f"{name} is missing on this machine")
        pytest.skip(f"{name} is missing on this machine")

    return need


def pytest_sessionstart(session: pytest.Session) -> None:
    """Leave without taking the interpreter apart: msgspec's types do not survive that in every
    order, and a crash after the last test would count as a failure of them all."""

    def leave() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(session.exitstatus))

    atexit.register(leave)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that needs a real server takes its time: `./dev test --fast` leaves it out."""
    for item in items:
        fixtures: list[str] = getattr(item, "fixturenames", [])
        if not {"pg_server", "need_server"}.isdisjoint(fixtures):
            item.add_marker("server")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """A test that could not run for want of a server must not look like one that passed."""
    missing = config.stash.get(MISSING, None) or ()
    if missing:
        terminalreporter.section("missing real servers", yellow=True)
    for name in sorted(missing):
        terminalreporter.line(f"{name}: the tests that need it did not run")


@pytest.fixture(scope="session")
def pg_server() -> Iterator[str]:
    """The URL of one real PostgreSQL for all tests of this process.

    Tests that run side by side would wait for the disk, and none of them cuts the power; what is
    measured is measured with a server as durable as in production.
    """
    with tempfile.TemporaryDirectory(prefix="mainspring-tests-") as directory:
        # Under root the server may have to run as another user, who must get through to it.
        Path(directory).chmod(0o711)
        settings = {"shared_buffers": "64MB", "max_connections": "300"}
        if "PYTEST_XDIST_WORKER" in os.environ:
            settings |= {"fsync": "off", "full_page_writes": "off"}
        server = EmbeddedServer(Path(directory, "data"), settings=settings)
        try:
            yield server.start()
        finally:
            server.stop("immediate")  # nobody needs what it holds


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def migrated_server(pg_server: str) -> str:
    """The server with a migrated database to copy from: copying is far quicker than migrating."""
    from mainspring.postgres.migrate import migrate

    connection = await asyncpg.connect(pg_server)
    await connection.execute(f"CREATE DATABASE {TEMPLATE}")
    await connection.close()
    await migrate(DatabasePool(pg_server).url(TEMPLATE))
    return pg_server


@pytest.fixture(scope="session")
def databases(migrated_server: str) -> DatabasePool:
    return DatabasePool(migrated_server)


@pytest.fixture
async def database_url(databases: DatabasePool) -> AsyncIterator[str]:
    """The URL of an empty, migrated database that belongs to one test."""
    name = await databases.take()
    yield databases.url(name)
    await databases.give_back(name)


@pytest.fixture
async def cluster(database_url: str, tmp_path: Path) -> AsyncIterator["Cluster"]:
    """Real nodes on a database of their own; none runs yet. At the end all are gone, and a failed
    test shows what they said."""
    from support.cluster import Cluster  # here, for the same reason as above

    async with Cluster(database_url, tmp_path) as made:
        yield made
