"""What tests of several modules start: an API in this process, a node, a pool of connections."""

import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from mainspring.config import Config
from mainspring.postgres.database import Database, DatabaseOptions
from mainspring.store.vault import Vault
from support.finished_tasks import TaskFinisher
from support.in_process_api import NO_VAULT, InProcessApi, open_api
from support.runs import RunWorld
from support.workers import LocalNode, open_local_node


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = Database(DatabaseOptions(database_url))
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
async def world(database: Database) -> RunWorld:
    """Runs of workflows, whose steps are claimed and reported by the test."""
    made = RunWorld(database)
    await made.open()
    return made


@pytest.fixture
def api_config() -> Config:
    """The settings of `api`; a module may have its own."""
    return Config()


@pytest.fixture
def api_vault() -> Vault:
    """The vault of `api`: without a key, unless a module has its own."""
    return NO_VAULT


@pytest.fixture
async def api(
    database_url: str, api_config: Config, api_vault: Vault
) -> AsyncIterator[InProcessApi]:
    async with open_api(database_url, api_config, api_vault) as opened:
        yield opened


@pytest.fixture
def tasks(api: InProcessApi) -> TaskFinisher:
    """Tasks of tenant `a`, which end as the test has it."""
    return TaskFinisher(api)


@pytest.fixture
async def local_node(database_url: str) -> AsyncIterator[LocalNode]:
    """A node whose workers lose their leases after a second of silence."""
    async with open_local_node(database_url, worker_lease=1.0) as opened:
        yield opened


@pytest.fixture
async def patient_node(database_url: str) -> AsyncIterator[LocalNode]:
    """A node whose workers keep their leases for minutes."""
    async with open_local_node(database_url, worker_lease=300.0) as opened:
        yield opened


@pytest.fixture
def openssl(need_server: Callable[[str, Path | None], Path]) -> Path:
    found = shutil.which("openssl")
    return need_server("openssl", Path(found) if found else None)
