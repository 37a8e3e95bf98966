"""TypeScript tools of the versions that tests/typescript names, installed once for all runs."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "typescript"
_MANIFEST = ("package.json", "package-lock.json")


def installed_tools() -> Path | None:
    """Return the folder of the tools' programs; None where npm is missing, or cannot install them.

    They are kept in the user's cache under a digest of the lock, so that only the first run needs
    the network.
    """
    digest = hashlib.sha256((FOLDER / _MANIFEST[1]).read_bytes()).hexdigest()[:16]
    folder = _cache() / f"typescript-{digest}"
    if not folder.exists() and not _install(folder):
        return None
    return folder / "node_modules" / ".bin"


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "mainspring-tests"


def _install(folder: Path) -> bool:
    """Install beside the folder and rename: another run at the same time finds all or nothing."""
    npm = shutil.which("npm")
    if npm is None:
        return False
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as place:
        made = Path(place, "made")
        made.mkdir()
        for name in _MANIFEST:
            shutil.copy(FOLDER / name, made)
        options = ("--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier")
        if subprocess.run([npm, "ci", *options], cwd=made, check=False).returncode:
            return False
        try:
            made.rename(folder)
        except OSError:  # another run was quicker
            return folder.exists()
    return True
