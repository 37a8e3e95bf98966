"""Archiving: a command is run for each table of old history, and decides whether it is dropped."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from unittest import mock

import pytest
from structlog.testing import capture_logs

from mainspring.config import environment_of_programs
from mainspring.node import archiving
from mainspring.node.archiving import ArchiveCommand
from mainspring.node.housekeeping import Housekeeper
from mainspring.node.state import NodeState
from mainspring.postgres.database import Database, DatabaseOptions
from mainspring.store.upkeep.housekeeping import HousekeepingStore
from support.cluster import Cluster
from support.waiting import eventually

OLD = "task_history_d20200102"


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = Database(DatabaseOptions(database_url))
    await opened.open()
    await opened.fetch(
        f"CREATE TABLE public.{OLD} PARTITION OF task_history"
        " FOR VALUES FROM ('2020-01-02T00:00:00Z') TO ('2020-01-03T00:00:00Z')"
    )
    yield opened
    await opened.close()


def make_housekeeper(database: Database, command: str) -> Housekeeper:
    ours = {"PATH": os.environ["PATH"], "MAINSPRING_SECRETS_KEY": "x"}
    archive = ArchiveCommand(command, environment_of_programs(ours), "postgresql://somewhere")
    state = NodeState(mock.Mock(), mock.Mock())
    return Housekeeper(state, HousekeepingStore(database), archive)


async def is_there(database: Database) -> bool:
    return bool(await database.fetch("SELECT FROM pg_class WHERE relname = $1", OLD))


async def test_a_table_is_dropped_once_the_command_has_archived_it(
    database: Database, tmp_path: Path
) -> None:
    file = tmp_path / "archived"
    told = 'echo "$MAINSPRING_ARCHIVE_TABLE" "$DATABASE_URL" "$MAINSPRING_SECRETS_KEY"'
    housekeeper = make_housekeeper(database, f"{told} >> {file}")
    await housekeeper.retire()
    assert not await is_there(database)
    await housekeeper.retire()
    assert file.read_text() == f"public.{OLD} postgresql://somewhere \n", "once, and no secrets"


async def test_a_table_is_kept_until_the_command_succeeds(
    database: Database, tmp_path: Path
) -> None:
    room = tmp_path / "room"
    housekeeper = make_housekeeper(database, f"echo no room >&2; test -e {room}")
    with capture_logs() as lines:
        await housekeeper.retire()
    assert await is_there(database)
    [failure] = [line for line in lines if line["action"] == "house.archive_failed"]
    assert (failure["status"], failure["output"]) == (1, "no room")
    room.touch()
    await housekeeper.retire()
    assert not await is_there(database)


async def test_a_command_that_takes_too_long_is_ended(database: Database) -> None:
    with mock.patch.object(archiving, "_LONGEST", 0.2), capture_logs() as lines:
        await make_housekeeper(database, "sleep 1000; true").retire()
    assert await is_there(database)
    assert {line.get("status") for line in lines} >= {"not done after 0.2 s"}


async def test_one_node_archives_and_its_command_ends_with_it(
    database: Database, tmp_path: Path
) -> None:
    file, life = tmp_path / "runs", tmp_path / "life"
    os.mkfifo(life)
    command = f"exec 3> {life}; echo run >> {file}; sleep 1000; true"
    running = asyncio.create_task(make_housekeeper(database, command).run())
    ended = asyncio.create_task(asyncio.to_thread(life.read_bytes))

    async def runs() -> bool:
        return file.exists() and bool(file.read_text())

    await eventually(runs, within=10, what="the command runs")
    await make_housekeeper(database, command).retire()
    assert file.read_text() == "run\n", "another node leaves it to the first"
    assert not ended.done()
    running.cancel()
    await asyncio.wait_for(ended, 5)  # nobody is left who could write
    assert await is_there(database)


async def test_a_node_archives_by_the_command_of_its_settings(
    database: Database, cluster: Cluster, tmp_path: Path
) -> None:
    await cluster.start(archive_command=f'touch {tmp_path}/"$MAINSPRING_ARCHIVE_TABLE"')

    async def gone() -> bool:
        return not await is_there(database)

    await eventually(gone, within=20, what="the table is dropped")
    assert (tmp_path / f"public.{OLD}").exists()
