"""The commands around a server, run as processes: what they print and how they exit."""

import asyncio
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest
import typer

from mainspring import __version__
from mainspring.cli.running import reporting
from mainspring.errors import InvalidRequest, Problem
from mainspring.postgres import doctor
from mainspring.postgres.database import DatabaseOptions
from mainspring.postgres.embedded import EmbeddedServer
from mainspring.postgres.migrate import available
from mainspring.sdk.worker.heartbeat_thread import EXIT_BLOCKED
from support.process import run
from support.waiting import eventually
from support.workers import open_local_node

pytestmark = pytest.mark.slow


@pytest.fixture
async def empty_database(pg_server: str) -> AsyncIterator[str]:
    """A database without a schema."""
    await _execute(pg_server, "CREATE DATABASE cli_empty")
    yield urlsplit(pg_server)._replace(path="/cli_empty").geturl()
    await _execute(pg_server, "DROP DATABASE cli_empty WITH (FORCE)")


async def test_version() -> None:
    done = await mainspring("--version")
    assert (done.returncode, done.stdout) == (0, f"mainspring {__version__}\n")


async def test_migrate_and_then_again(empty_database: str) -> None:
    first = await mainspring("migrate", DATABASE_URL=empty_database)
    assert first.returncode == 0, first.stderr
    assert first.stdout.startswith("applied 0001 ")
    second = await mainspring("migrate", DATABASE_URL=empty_database)
    assert second.stdout == "nothing to do: the schema is up to date\n"


async def test_restore_fence_raises_what_no_restore_may_repeat(database_url: str) -> None:
    """As often as it is asked to."""
    await _execute(database_url, "UPDATE partitions SET epoch = 7 WHERE partition = 3")
    for _ in range(2):
        done = await mainspring("restore-fence", DATABASE_URL=database_url)
        assert done.returncode == 0, done.stderr
        assert "are leased\nwith fences from " in done.stdout
        assert "declared dead" not in done.stdout
    (floor, before_now, epoch) = await _fetch_row(
        database_url,
        "SELECT f.floor, f.before < now(), (SELECT min(epoch) FROM partitions) FROM fence_floor f",
    )
    assert floor > 50_000_000
    assert epoch >= floor
    assert not before_now  # the clock may have been set back, too


async def test_restore_fence_makes_running_nodes_join_anew(database_url: str) -> None:
    async with open_local_node(database_url) as local_node:
        known = local_node.server.node.ownership().node_id
        refused = await mainspring("restore-fence", DATABASE_URL=database_url)
        assert refused.returncode == 1
        assert "nodes are running: " in refused.stderr
        assert "--force" in refused.stderr
        assert local_node.server.node.ownership().node_id == known
        done = await mainspring("restore-fence", "--force", DATABASE_URL=database_url)
        assert "nodes declared dead: 1; " in done.stdout

        async def anew() -> bool:
            ownership = local_node.server.node.ownership()
            return ownership.node_id != known and len(ownership.partitions) == 256

        await eventually(anew, within=10, what="the node has joined anew")


async def test_a_server_refuses_a_database_without_schema(empty_database: str) -> None:
    done = await mainspring("server", DATABASE_URL=empty_database, MAINSPRING_PORT="0")
    assert done.returncode == 1
    assert "run `mainspring migrate` first" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["listen", "server"])
async def test_a_taken_port_is_reported_in_one_line(command: str, database_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = await mainspring(command, "--port", str(port), DATABASE_URL=database_url)
    assert done.returncode == 1
    told = f"mainspring: cannot listen on 127.0.0.1 port {port}: Address already in use\n"
    assert done.stderr == told


async def test_a_port_that_cannot_be_is_refused() -> None:
    done = await mainspring("listen", "--port", "99999")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


async def test_a_server_without_database_says_what_to_set() -> None:
    done = await mainspring("server")
    assert done.returncode != 0
    assert "DATABASE_URL" in done.stderr
    assert "Traceback" not in done.stderr


async def test_a_database_that_cannot_be_reached(tmp_path: Path) -> None:
    url = f"postgresql://nobody@/none?host={tmp_path}&port=5432"
    for done in await all_of(["migrate"], ["doctor"], ["server"], DATABASE_URL=url):
        assert done.returncode == 1
        assert "cannot be reached" in done.stderr, done.stderr
        assert "Traceback" not in done.stderr


async def test_a_database_that_does_not_let_us_in(pg_server: str) -> None:
    there = urlsplit(pg_server)
    wrong = {
        there._replace(netloc="mainspring:wrong@").geturl(): "password authentication failed",
        there._replace(path="/nosuch").geturl(): 'database "nosuch" does not exist',
    }
    for url, reason in wrong.items():
        commands = ["migrate"], ["doctor"], ["server"], ["operator-key", "create"]
        for done in await all_of(*commands, DATABASE_URL=url):
            assert done.returncode == 1
            assert done.stderr.startswith(f"mainspring: the database cannot be reached: {reason}")
            assert len(done.stderr.splitlines()) == 1, done.stderr


async def test_all_problems_of_the_settings_are_reported_together() -> None:
    done = await mainspring(
        "server", MAINSPRING_LEASE="soon", MAINSPRING_PORT="99999", MAINSPRING_LOG_LEVEL="loud"
    )
    assert done.returncode == 2
    for setting in ("lease", "port", "log_level"):
        assert setting in done.stderr


async def test_a_port_that_is_taken(database_url: str) -> None:
    taken = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)
    port = taken.sockets[0].getsockname()[1]
    done = await mainspring("server", DATABASE_URL=database_url, MAINSPRING_PORT=str(port))
    taken.close()
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1 port {port}" in done.stderr


async def test_the_help_of_a_worker_names_each_exit_status() -> None:
    told = " ".join((await mainspring("worker", "--help")).stdout.split())
    exits = told.partition("Exit status: ")[2].partition(".")[0]
    assert [int(word) for word in exits.split() if word.isdigit()] == [0, 1, 2, EXIT_BLOCKED]


def test_all_that_is_wrong_with_a_request_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    refused = InvalidRequest("no", [Problem(f"/{n}", "is wrong") for n in range(5)])
    refused.add_note("think again")
    with pytest.raises(typer.Exit), reporting():
        raise refused
    lines = [f"  /{n}: is wrong" for n in range(5)]
    told = ["mainspring: The request is not valid: no", *lines, "  think again"]
    assert capsys.readouterr().err.splitlines() == told


@pytest.mark.alone
async def test_the_doctor_finds_a_well_set_up_database_healthy(database_url: str) -> None:
    # The tests' server has small buffers: the one thing there is to find.
    findings = await doctor.examine(DatabaseOptions(database_url), pooler=False)
    wanting = {finding.subject for finding in findings if not finding.ok}
    assert wanting <= {"shared_buffers", "clock"}
    looked_at = {finding.subject for finding in findings}
    assert {"server", "schema", "fsync", "long transactions", "pooler"} <= looked_at


@pytest.mark.alone
async def test_the_doctor_sees_a_missing_schema_and_bad_settings(empty_database: str) -> None:
    await _execute(empty_database, "ALTER DATABASE cli_empty SET synchronous_commit = off")
    done = await mainspring("doctor", DATABASE_URL=empty_database)
    assert done.returncode == 1
    assert "look  schema: there is none: run `mainspring migrate`" in done.stdout
    assert "look  synchronous_commit: off: must not be off" in done.stdout
    assert "ok    fsync: on" in done.stdout


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            "DELETE FROM schema_migrations WHERE version > (SELECT max(version) - 2 FROM"
            " schema_migrations)",
            "2 migrations are to come: run `mainspring migrate`",
        ),
        (
            "INSERT INTO schema_migrations (version, name, checksum) VALUES (9999, 'later', '')",
            f"version 9999, but this version of Mainspring knows {len(available())}:"
            " upgrade this node",
        ),
    ],
)
async def test_the_doctor_compares_the_schema_with_its_own(
    database_url: str, change: str, told: str
) -> None:
    assert (await _finding(database_url, "schema")).ok
    await _execute(database_url, change)
    assert await _finding(database_url, "schema") == doctor.Finding("schema", False, told)


@pytest.fixture
def odd_server() -> Iterator[str]:
    """A server on which transactions can be prepared and changes can be subscribed to."""
    settings = {"max_prepared_transactions": "2", "wal_level": "logical"}
    with tempfile.TemporaryDirectory(prefix="mainspring-tests-") as directory:
        Path(directory).chmod(0o711)
        server = EmbeddedServer(Path(directory, "data"), settings=settings)
        try:
            yield server.start()
        finally:
            server.stop()


async def test_the_doctor_names_what_keeps_dead_rows(
    odd_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await _finding(odd_server, "long transactions")).ok
    await _execute(odd_server, "SELECT pg_create_logical_replication_slot('left', 'pgoutput')")
    slot = (await _finding(odd_server, "long transactions")).detail
    await _execute(odd_server, "BEGIN; SELECT txid_current(); PREPARE TRANSACTION 'forgotten'")
    monkeypatch.setattr(doctor, "_OLD_TRANSACTION", 0.0)
    sleeper = await asyncpg.connect(odd_server)
    await sleeper.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
    finding = await _finding(odd_server, "long transactions")
    await sleeper.close()
    assert not finding.ok
    assert "pg_drop_replication_slot('left')" in slot
    for part in ("pg_terminate_backend(", "'forgotten' was prepared 0 s ago", slot[-40:]):
        assert part in finding.detail


async def _finding(url: str, subject: str) -> doctor.Finding:
    findings = await doctor.examine(DatabaseOptions(url), pooler=False)
    return next(finding for finding in findings if finding.subject == subject)


async def mainspring(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(run, *arguments, environment=environment)


async def all_of(
    *commands: Sequence[str], **environment: str
) -> list[subprocess.CompletedProcess[str]]:
    """Run commands at the same time, those that serve on any port."""
    environment["MAINSPRING_PORT"] = "0"
    return await asyncio.gather(*(mainspring(*command, **environment) for command in commands))


async def _fetch_row(url: str, statement: str) -> asyncpg.Record:
    connection = await asyncpg.connect(url)
    row = await connection.fetchrow(statement)
    await connection.close()
    assert row is not None
    return row


async def _execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(statement)
    await connection.close()
