"""A whole Mainspring for tests: `mainspring dev` in a process of its own, on a free port."""

import contextlib
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

from mainspring.clock import monotonic
from mainspring.errors import ServerError
from mainspring.sdk.client import Client
from mainspring.sdk.environment import Address, child_environment

_START_WITHIN = 60.0
_STOP_WITHIN = 20.0
_MARK = "API       "


class MainspringServer:
    """Started by `with`, or by the fixture `mainspring_server`; gone at its end, its data too."""

    def __init__(self, settings: Mapping[str, object] | None = None) -> None:
        self.api_key = f"ms_dev_{secrets.token_urlsafe(24)}"
        self.url = ""
        self._settings = {k.upper(): str(v) for k, v in (settings or {}).items()}
        self._directory = tempfile.TemporaryDirectory(prefix="mainspring-server-")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> Address:
        return Address(self.url, self.api_key)

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of a process that shall find this server."""
        return child_environment(self.address)

    def client(self) -> Client:
        return Client(self.url, self.api_key)

    def worker(self, app: str, *options: str, cwd: str | Path | None = None) -> "WorkerProcess":
        """Run `mainspring worker` against it; use it with `with`."""
        return WorkerProcess(self, app, options, cwd)

    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def start(self) -> Self:
        home = Path(self._directory.name)
        home.chmod(0o711)  # under root its PostgreSQL may run as another user
        self._log = home / "server.log"
        named = {f"MAINSPRING_{name}": value for name, value in self._settings.items()}
        environment = {**child_environment(Address("", self.api_key)), **named}
        environment.pop("MAINSPRING_URL")
        command = ["dev", "--port", "0", "--data", str(home / "data")]
        self._process = _start(self._log, command, environment)
        _until(self._listens, self._process, self._log, "Mainspring")
        return self

    def stop(self) -> None:
        if self._process is not None:
            _stop(self._process)
        self._directory.cleanup()

    def _listens(self) -> bool:
        for line in self.said().splitlines():
            if line.strip().startswith(_MARK.strip()) and "http" in line:
                self.url = line.split()[-1]
                return True
        return False

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_raised: object) -> None:
        self.stop()


class WorkerProcess:
    """`mainspring worker` in a process of its own; it is taking tasks when `with` begins."""

    def __init__(
        self, server: MainspringServer, app: str, options: tuple[str, ...], cwd: str | Path | None
    ) -> None:
        self._server = server
        self._arguments = ["worker", app, *options]
        self._cwd = cwd

    def __enter__(self) -> Self:
        handle, name = tempfile.mkstemp(prefix="mainspring-worker-", suffix=".log")
        with open(handle, "wb"):
            self._log = Path(name)
        self.process = _start(self._log, self._arguments, self._server.environment, self._cwd)
        _until(lambda: "takes tasks from" in self.said(), self.process, self._log, "the worker")
        return self

    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def __exit__(self, *_raised: object) -> None:
        _stop(self.process)
        self._log.unlink(missing_ok=True)


def _start(
    log: Path, arguments: list[str], environment: dict[str, str], cwd: str | Path | None = None
) -> "subprocess.Popen[bytes]":
    with log.open("wb") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "mainspring", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=cwd,
        )


def _until(
    reached: Callable[[], bool], process: "subprocess.Popen[bytes]", log: Path, what: str
) -> None:
    deadline = monotonic() + _START_WITHIN
    while not reached():
        if process.poll() is not None or monotonic() > deadline:
            process.kill()
            said = log.read_text(errors="replace")
            raise ServerError(f"{what} did not start:\n{said[-4000:]}")
        time.sleep(0.02)


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_STOP_WITHIN)
        return
    process.kill()
    process.wait()
