"""Processes that do not outlive their worker, however it ends."""

import shutil
import subprocess
from functools import cache


@cache
def guarded() -> tuple[str, ...]:
    """What to put before a command so that the system kills it with this process; nothing where the
    system cannot."""
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        return ()
    prefix = (setpriv, "--pdeathsig", "KILL", "--")
    # Some systems have one of this name that knows less.
    known = subprocess.run([*prefix, setpriv, "--version"], capture_output=True, check=False)
    return prefix if known.returncode == 0 else ()
