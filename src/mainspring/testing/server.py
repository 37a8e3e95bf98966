"""A whole Mainspring for tests: `mainspring dev` in a process of its own, on a free port."""

import os
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


class _Process:
    """A `mainspring` command in a process of its own, with its output in a file."""

    process: "subprocess.Popen[bytes]"
    _log: Path

    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def _run(
        self,
        arguments: list[str],
        environment: dict[str, str],
        ready: Callable[[], bool],
        cwd: str | Path | None = None,
    ) -> None:
        """Start the command, and wait until it is ready."""
        command = [sys.executable, "-m", "mainspring", *arguments]
        with self._log.open("wb") as out:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=cwd,
            )
        deadline = monotonic() + _START_WITHIN
        while not ready():
            if self.process.poll() is not None or monotonic() > deadline:
                self.process.kill()
                what = "the worker" if arguments[0] == "worker" else "Mainspring"
                raise ServerError(f"{what} did not start:\n{self.said()[-4000:]}")
            time.sleep(0.02)

    def _end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(_STOP_WITHIN)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class MainspringServer(_Process):
    """Started by `with`, or by the fixture `mainspring_server`; gone at its end, its data too."""

    def __init__(self, settings: Mapping[str, object] | None = None) -> None:
        self.api_key = f"ms_dev_{secrets.token_urlsafe(24)}"
        self.url = ""
        self._settings = {k.upper(): str(v) for k, v in (settings or {}).items()}
        self._directory = tempfile.TemporaryDirectory(prefix="mainspring-server-")

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

    def start(self) -> Self:
        home = Path(self._directory.name)
        home.chmod(0o711)  # under root its PostgreSQL may run as another user
        self._log = home / "server.log"
        named = {f"MAINSPRING_{name}": value for name, value in self._settings.items()}
        environment = {**child_environment(Address("", self.api_key)), **named}
        environment.pop("MAINSPRING_URL")
        command = ["dev", "--port", "0", "--data", str(home / "data")]
        self._run(command, environment, self._listens)
        return self

    def stop(self) -> None:
        if hasattr(self, "process"):
            self._end()
        self._directory.cleanup()

    def _listens(self) -> bool:
        for line in self.said().splitlines():
            if line.strip().startswith("API") and "http" in line:
                self.url = line.split()[-1]
                return True
        return False

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_raised: object) -> None:
        self.stop()


class WorkerProcess(_Process):
    """`mainspring worker` in a process of its own; it is taking tasks when `with` begins."""

    def __init__(
        self, server: MainspringServer, app: str, options: tuple[str, ...], cwd: str | Path | None
    ) -> None:
        self._server = server
        self._arguments = ["worker", app, *options]
        self._cwd = cwd

    def __enter__(self) -> Self:
        handle, name = tempfile.mkstemp(prefix="mainspring-worker-", suffix=".log")
        os.close(handle)
        self._log = Path(name)
        self._run(self._arguments, self._server.environment, self._takes_tasks, self._cwd)
        return self

    def _takes_tasks(self) -> bool:
        return "takes tasks from" in self.said()

    def __exit__(self, *_raised: object) -> None:
        self._end()
        self._log.unlink(missing_ok=True)
