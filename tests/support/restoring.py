"""A PostgreSQL that can be set back to an earlier state, by a restore or by a failover to a replica
that lagged behind: the nodes see another server at the same address."""

import asyncio
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import asyncpg

from mainspring.postgres.embedded import PORT, EmbeddedServer
from mainspring.postgres.embedded_programs import (
    ENVIRONMENT,
    find_binaries,
    give,
    tools_for,
)
from support.waiting import eventually

# The machine does not fail, only the server: no need to wait for its disk.
SETTINGS = {"shared_buffers": "64MB", "max_connections": "200", "fsync": "off"}


class SetBackServer(Protocol):
    """A server, earlier states of it, and its return to one of them, at the same address."""

    async def start(self) -> str: ...
    def stop(self) -> None: ...
    async def back_up(self) -> Path: ...
    async def set_back(self, backup: Path) -> None: ...


class RestorableServer:
    """A real server, backups of it while it runs, and its return to them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._server = EmbeddedServer(directory / "data", settings=SETTINGS)
        self.url = ""

    async def start(self) -> str:
        self.url = await asyncio.to_thread(self._server.start)
        return self.url

    def stop(self) -> None:
        self._server.stop("immediate")

    async def back_up(self) -> Path:
        """Copy the data directory without stopping the server, as `pg_basebackup` does."""
        made = Path(tempfile.mkdtemp(prefix="backup-", dir=self._directory)) / "postgres"
        connection = await asyncpg.connect(self.url)
        try:
            await connection.execute("SELECT pg_backup_start('test', true)")
            await asyncio.to_thread(_copy, self._directory / "data" / "postgres", made)
            label = await connection.fetchval("SELECT labelfile FROM pg_backup_stop(false)")
        finally:
            await connection.close()
        # What was written during the copy is in the log, which goes along.
        log = self._directory / "data" / "postgres" / "pg_wal"
        shutil.rmtree(made / "pg_wal")
        await asyncio.to_thread(_copy, log, made / "pg_wal")
        (made / "backup_label").write_text(label)
        return made

    async def set_back(self, backup: Path) -> None:
        """Lose everything since a backup, which is used up: the server ends as in a crash, and
        comes back with that."""
        assert await asyncio.to_thread(self._return_to, backup) == self.url

    def _return_to(self, backup: Path) -> str:
        self._server.stop("immediate")
        place = self._directory / "data" / "postgres"
        place.rename(backup.parent / "lost")
        backup.rename(place)
        return self._server.start()


class ReplicatedServer:
    """A server at an address of its own, which a failover gives to a replica that lagged behind."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._primary = RestorableServer(directory)
        self._address = directory / "address"
        self._replica: subprocess.Popen[bytes] | None = None

    async def start(self) -> str:
        primary = await self._primary.start()
        self._address.symlink_to(self._directory / "data" / "run")
        return primary.replace(str(self._directory / "data" / "run"), str(self._address))

    def stop(self) -> None:
        self._primary.stop()
        if self._replica is not None:
            self._replica.send_signal(signal.SIGQUIT)
            self._replica.wait()

    async def back_up(self) -> Path:
        """Start a replica, let it catch up, and cut it off: it has what was until now."""
        place = await self._primary.back_up()
        (place / "standby.signal").touch()
        await asyncio.to_thread(self._launch, place)
        connection = await asyncpg.connect(self._primary.url)
        try:
            reached = await connection.fetchval("SELECT pg_current_wal_lsn()::text")
        finally:
            await connection.close()
        caught_up = f"SELECT pg_last_wal_replay_lsn() >= '{reached}' FROM pg_stat_wal_receiver"

        async def has_caught_up() -> bool:
            try:
                return bool(await self._ask(place, caught_up))
            except (OSError, asyncpg.PostgresError):
                return False  # it is starting

        async def is_cut_off() -> bool:
            return not await self._ask(place, "SELECT count(*) FROM pg_stat_wal_receiver")

        await eventually(has_caught_up, within=30, what="the replica follows")
        await self._ask(place, "ALTER SYSTEM SET primary_conninfo = ''")
        await self._ask(place, "SELECT pg_reload_conf()")
        await eventually(is_cut_off, within=30, what="the replica is cut off")
        return place

    async def set_back(self, backup: Path) -> None:
        """Lose the primary as in a crash, promote the replica, and give it the address."""
        await asyncio.to_thread(self._primary.stop)
        moved = self._directory / "moved"
        moved.symlink_to(_run_of(backup))
        moved.rename(self._address)
        assert await self._ask(backup, "SELECT pg_promote()")

    async def _ask(self, place: Path, statement: str) -> object:
        url = self._primary.url.replace(str(self._directory / "data" / "run"), str(_run_of(place)))
        connection = await asyncpg.connect(url)
        try:
            return await connection.fetchval(statement)
        finally:
            await connection.close()

    def _launch(self, place: Path) -> None:
        binaries = find_binaries((place / "PG_VERSION").read_text().strip())
        assert binaries is not None
        tools, run = tools_for(binaries), _run_of(place)
        run.mkdir(mode=0o700)
        place.parent.chmod(0o711)
        give(run, tools.owner)
        give(place, tools.owner)
        options = {
            **SETTINGS,
            "listen_addresses": "",
            "port": str(PORT),
            "unix_socket_directories": f'"{run}"',
        }
        with (place / "postgresql.auto.conf").open("a") as settings:
            settings.write(f"primary_conninfo = '{self._primary.url}'\n")
        words = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        with (place.parent / "server.log").open("wb") as log:
            self._replica = subprocess.Popen(
                tools.command("postgres", "-D", place, *words),
                stdout=log,
                stderr=log,
                env=ENVIRONMENT,
            )


def _run_of(place: Path) -> Path:
    return place.parent / "run"


def _copy(source: Path, target: Path) -> None:
    # Files may go away meanwhile: they are of no use then. The socket's lock is not data.
    subprocess.run(["cp", "-a", str(source), str(target)], check=False, capture_output=True)
    (target / "postmaster.pid").unlink(missing_ok=True)


@contextmanager
def set_back_server(
    kind: type[RestorableServer] | type[ReplicatedServer] = RestorableServer,
) -> Iterator[SetBackServer]:
    with tempfile.TemporaryDirectory(prefix="mainspring-tests-") as directory:
        Path(directory).chmod(0o711)
        server = kind(Path(directory))
        try:
            yield server
        finally:
            server.stop()
