"""`mainspring dev` from end to end: it says how to use it, and what it says works."""

import asyncio
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest

from support.process import START_WITHIN, MainspringProcess
from support.waiting import eventually

pytestmark = pytest.mark.slow


class Dev:
    """A running `mainspring dev`."""

    def __init__(self, data: Path, log: Path, **environment: str) -> None:
        arguments = ("dev", "--port", "0", "--data", str(data))
        self.process = MainspringProcess(log, *arguments, environment=environment)
        self._data = data

    async def greeted(self) -> "Dev":
        await eventually(self._has_greeted, within=START_WITHIN, what="it says that it runs")
        return self

    @property
    def url(self) -> str:
        return self._shown(r"API +(http://\S+)")

    @property
    def key(self) -> str:
        return self._shown(r"API key +(\S+)")

    @property
    def curl_commands(self) -> list[str]:
        """The examples it prints, with their continued lines."""
        joined = self.process.output().replace("\\\n", " ")
        return [line.strip() for line in joined.splitlines() if line.strip().startswith("curl")]

    @property
    def database_pid(self) -> int:
        return int((self._data / "postgres" / "postmaster.pid").read_text().splitlines()[0])

    def _shown(self, pattern: str) -> str:
        found = re.search(pattern, self.process.output())
        assert found is not None, self.process.output()
        return found[1]

    async def _has_greeted(self) -> bool:
        output = self.process.output()
        assert self.process.alive, output
        return "Ctrl-C stops it" in output


StartDev = Callable[..., Dev]


@pytest.fixture
def data() -> Iterator[Path]:
    """A directory that is not there yet."""
    with tempfile.TemporaryDirectory(prefix="mainspring-tests-") as directory:
        # Under root the server may have to run as another user, who must get through to it.
        Path(directory).chmod(0o711)
        yield Path(directory, "data")


@pytest.fixture
async def start_dev(
    data: Path, tmp_path: Path, need_server: Callable[[str, Path | None], Path]
) -> AsyncIterator[StartDev]:
    """Starts it on one data directory, again and again; at the end nothing is left running."""
    curl = shutil.which("curl")
    need_server("curl", Path(curl) if curl else None)
    started: list[Dev] = []

    def start(**environment: str) -> Dev:
        started.append(Dev(data, tmp_path / f"dev-{len(started)}.log", **environment))
        return started[-1]

    yield start
    for dev in started:
        if dev.process.alive:
            dev.process.signal(signal.SIGTERM)
            await dev.process.ended(within=30)
        print(dev.process.output())


async def test_the_printed_commands_work(start_dev: StartDev) -> None:
    dev = await start_dev().greeted()
    create, read = dev.curl_commands
    made = await shell(create)
    assert made["state"] == "scheduled"
    assert [task["id"] for task in (await shell(read))["items"]] == [made["id"]]


async def test_it_stops_cleanly_and_keeps_key_and_data(start_dev: StartDev) -> None:
    first = await start_dev().greeted()
    made = await shell(first.curl_commands[0])
    server = first.database_pid
    first.process.signal(signal.SIGTERM)
    assert await first.process.ended(within=20) == 0
    assert not is_running(server)
    second = await start_dev().greeted()
    assert second.key == first.key
    server = second.database_pid
    assert [task["id"] for task in (await shell(second.curl_commands[1]))["items"]] == [made["id"]]
    second.process.signal(signal.SIGINT)
    assert await second.process.ended(within=20) == 0
    assert not is_running(server)


async def test_the_key_can_be_chosen(start_dev: StartDev) -> None:
    chosen = {"MAINSPRING_API_KEY": "ms_chosen_by_the_user", "MAINSPRING_API_KYE": "mistyped"}
    dev = await start_dev(**chosen).greeted()
    assert (
        "MAINSPRING_API_KYE is not a setting; is MAINSPRING_API_KEY meant?" in dev.process.output()
    )
    assert dev.key == "ms_chosen_by_the_user"
    assert (await shell(dev.curl_commands[1]))["items"] == []


async def test_settings_for_another_database_are_left_alone(
    start_dev: StartDev, database_url: str
) -> None:
    other = {
        "MAINSPRING_DIRECT_DATABASE_URL": database_url,
        "MAINSPRING_DATABASE_POOLER": "true",
        "MAINSPRING_DATABASE_CA": "/no/such/file.pem",
    }
    dev = await start_dev(DATABASE_URL=database_url, **other).greeted()
    assert (await shell(dev.curl_commands[1]))["items"] == []
    connection = await asyncpg.connect(database_url)
    assert await connection.fetchval("SELECT count(*) FROM api_keys") == 0
    await connection.close()


@pytest.mark.parametrize("whole_group", [False, True])
async def test_it_starts_again_after_kill_9(start_dev: StartDev, *, whole_group: bool) -> None:
    first = await start_dev().greeted()
    made = await shell(first.curl_commands[0])
    if whole_group:
        os.killpg(first.process.pid, signal.SIGKILL)
        os.kill(first.database_pid, signal.SIGKILL)
    first.process.kill()
    second = await start_dev().greeted()
    assert [task["id"] for task in (await shell(second.curl_commands[1]))["items"]] == [made["id"]]


async def test_its_database_is_started_again(start_dev: StartDev) -> None:
    dev = await start_dev().greeted()
    made = await shell(dev.curl_commands[0])
    server = dev.database_pid
    os.kill(server, signal.SIGKILL)

    async def answers() -> bool:
        with suppress(KeyError, FileNotFoundError):  # 503 meanwhile
            return [t["id"] for t in (await shell(dev.curl_commands[1]))["items"]] == [made["id"]]
        return False

    await eventually(answers, within=30, what="the data is there again")
    assert dev.database_pid != server
    dev.process.signal(signal.SIGTERM)
    assert await dev.process.ended(within=20) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_the_start(
    start_dev: StartDev, data: Path, number: signal.Signals
) -> None:
    dev = start_dev()

    async def has_begun() -> bool:
        return (data / "mainspring.lock").exists()

    await eventually(has_begun, within=START_WITHIN, what="it takes the directory")
    dev.process.signal(number)
    # The making of a cluster is not interrupted, and ends with syncing it to disk.
    assert await dev.process.ended(within=60) == 0
    assert dev.process.output() == ""
    assert not found(data, "postgres/postmaster.pid")


async def test_an_empty_key_is_none(start_dev: StartDev, data: Path) -> None:
    touch(data / "api-key", data / "secrets-key")
    dev = await start_dev().greeted()
    assert dev.key.startswith("ms_dev_")
    assert (data / "api-key").read_text() == dev.key
    assert len((data / "secrets-key").read_text()) == 64
    assert {(data / name).stat().st_mode & 0o777 for name in ("api-key", "secrets-key")} == {0o600}


async def test_problems_are_reported_before_anything_is_started(
    start_dev: StartDev, data: Path
) -> None:
    wrong = {"SECRETS_KEY": "short", "EGRESS_PORTS": "many", "TLS_CERTIFICATE": "/no/such.pem"}
    settings = {f"MAINSPRING_{name}": value for name, value in wrong.items()}
    dev = start_dev(MAINSPRING_CRASH_AT="nowhere", **settings)
    assert await dev.process.ended(within=20) == 2
    for name in ("secrets_key", "egress_ports", "tls_certificate", "crash_at"):
        assert name in dev.process.output()
    assert not found(data.parent, "*")


async def test_a_file_holds_no_data(start_dev: StartDev, data: Path) -> None:
    touch(data)
    dev = start_dev()
    assert await dev.process.ended(within=20) == 1
    assert dev.process.output() == (
        f"mainspring: {data} is not a directory: name another for the data.\n"
    )


async def test_a_directory_has_one_owner_at_a_time(start_dev: StartDev) -> None:
    first = await start_dev().greeted()
    second = start_dev()
    assert await second.process.ended(within=20) == 1
    assert "is in use by another Mainspring" in second.process.output()
    assert (await shell(first.curl_commands[1]))["items"] == []


async def shell(command: str) -> Any:
    """What a command answers, run as a user would."""
    done = await asyncio.to_thread(
        subprocess.run, ["bash", "-c", command], capture_output=True, timeout=20, check=True
    )
    return msgspec.json.decode(done.stdout)


def touch(*files: Path) -> None:
    for file in files:
        file.parent.mkdir(exist_ok=True)
        file.touch()


def found(directory: Path, pattern: str) -> list[Path]:
    return list(directory.glob(pattern))


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
