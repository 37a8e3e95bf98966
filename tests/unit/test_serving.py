"""Servers in the foreground: what ends them, and what is done about a database that ended."""

import asyncio
import socket
from pathlib import Path

import pytest

from mainspring.api.http.server import listen
from mainspring.cli import developing, serving
from mainspring.config import Config
from mainspring.errors import ConfigError, ServerError
from mainspring.postgres.embedded_supervisor import EmbeddedSupervisor


class CrashingServer:
    """A private PostgreSQL that ends as soon as it was started."""

    pid: int | None = None

    def __init__(self, ends: int | None = None) -> None:
        self.restarts = 0
        self.steady = asyncio.Event()
        self._ends = ends
        self._loop = asyncio.get_running_loop()

    def start(self) -> str:
        return "postgresql:///"

    def restart(self) -> None:
        self.restarts += 1
        if self.restarts == self._ends:
            self.pid = 1
            self._loop.call_soon_threadsafe(self.steady.set)

    def stop(self) -> None:
        pass

    def give_up(self) -> None:
        pass


async def test_a_database_that_ends_is_started_again() -> None:
    server = CrashingServer(ends=3)
    keeping = asyncio.create_task(EmbeddedSupervisor(server).keep(look_every=0))
    await asyncio.wait_for(server.steady.wait(), 5)
    assert server.restarts == 3
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)


async def test_a_database_that_ends_again_and_again_is_given_up() -> None:
    server = CrashingServer()
    with pytest.raises(ServerError, match=r"ended 6 times within 60 s: see server.log"):
        await asyncio.wait_for(EmbeddedSupervisor(server).keep(look_every=0), 5)
    assert server.restarts == 5


async def test_a_start_that_nobody_waits_for_gives_up() -> None:
    begun, given_up = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    class Slow(CrashingServer):
        def start(self) -> str:
            loop.call_soon_threadsafe(begun.set)
            asyncio.run_coroutine_threadsafe(given_up.wait(), loop).result(5)
            raise ServerError("not wanted any more")

        def give_up(self) -> None:
            given_up.set()

    starting = asyncio.create_task(EmbeddedSupervisor(Slow()).start())
    await begun.wait()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert given_up.is_set()


class StoppedServer:
    """A server whose API is served no more."""

    url = "http://nowhere"
    stopped = False

    async def ended(self) -> None:
        raise ServerError("the API is served no more")

    async def stop(self) -> None:
        self.stopped = True


async def test_a_node_without_its_api_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    server = StoppedServer()

    async def start(_config: Config) -> StoppedServer:
        return server

    monkeypatch.setattr(serving, "set_up", lambda _config: asyncio.Event())
    monkeypatch.setattr(serving, "start", start)
    with pytest.raises(ServerError, match="served no more"):
        await serving.serve(Config())
    assert server.stopped


def test_one_of_two_that_are_bound_to_a_port_listens() -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        with (
            listen("127.0.0.1", port),
            pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1 port {port}"),
        ):
            listen("127.0.0.1", port)


def test_a_kept_secret_is_made_once_and_appears_whole(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.touch()  # as a full disk leaves it
    (tmp_path / "key.new").write_text("hal")  # as a kill leaves it
    assert developing.kept(file, lambda: "whole") == "whole"
    assert developing.kept(file, lambda: "another") == "whole"
    assert file.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [file]


def test_without_a_home_directory_one_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nowhere)
    with pytest.raises(ConfigError, match="--data"):
        developing.default_data()
