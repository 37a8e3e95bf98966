"""A Mainspring process of its own: started, watched, killed and always cleaned up."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from support.waiting import eventually

START_WITHIN = 30.0


class MainspringProcess:
    """`python -m mainspring …`, with everything it says in a log file."""

    def __init__(self, log: Path, *arguments: str, environment: Mapping[str, str]) -> None:
        self._log = log
        with log.open("wb") as out:
            self._process = _start(out, arguments, environment)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def output(self) -> str:
        """Everything it has printed and logged so far."""
        return self._log.read_text(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self._process.kill()
        self._process.wait(10)

    async def ended(self, within: float) -> int:
        """Wait for its end; return the exit code, negative for a signal."""
        await eventually(self._has_ended, within=within, what="the process ends")
        return self._process.wait()

    async def _has_ended(self) -> bool:
        return not self.alive


def run(*arguments: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command of Mainspring's to its end."""
    return subprocess.run(
        [sys.executable, "-m", "mainspring", *arguments],
        env={**_inherited(), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def _start(
    out: IO[bytes], arguments: tuple[str, ...], environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    # Should the test run itself be killed, its processes must not stay behind.
    setpriv = shutil.which("setpriv")
    guard = [setpriv, "--pdeathsig", "KILL"] if setpriv else []
    return subprocess.Popen(
        [*guard, sys.executable, "-m", "mainspring", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=subprocess.STDOUT,
        env={**_inherited(), **environment},
        start_new_session=True,
    )


def _inherited() -> dict[str, str]:
    """Our environment without any settings for Mainspring."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("MAINSPRING_")}
    kept.pop("DATABASE_URL", None)
    return kept


def is_running(pid: int) -> bool:
    """Whether there is such a process, and not only a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
