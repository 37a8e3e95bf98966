"""Programs that this process starts, and that must not outlive it."""

import shutil
import subprocess
from functools import cache


@cache
def killed_with_parent() -> tuple[str, ...]:
    """Return the prefix of a command that makes the system kill it with this process, if it can."""
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        return ()
    prefix = (setpriv, "--pdeathsig", "KILL", "--")
    # Some systems have one of this name that knows less.
    known = subprocess.run([*prefix, setpriv, "--version"], capture_output=True, check=False)
    return prefix if known.returncode == 0 else ()
