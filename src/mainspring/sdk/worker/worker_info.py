"""The description of a worker for the registry of workers."""

import os
import platform
import socket
from pathlib import Path

from mainspring import __version__
from mainspring.clock import monotonic
from mainspring.sdk.worker.options import WorkerOptions
from mainspring.wire.workers import AboutIn


class WorkerInfo:
    """Describes a worker as it is at the moment."""

    def __init__(self, options: WorkerOptions) -> None:
        self._options = options
        self._looked = monotonic()
        self._used = sum(os.times()[:2])

    def current(self, finished: int, running: int, heartbeat_errors: int) -> AboutIn:
        now, used = monotonic(), sum(os.times()[:2])
        share = (used - self._used) / max(now - self._looked, 0.001)
        self._looked, self._used = now, used
        return AboutIn(
            host=socket.gethostname(),
            pid=os.getpid(),
            slots=self._options.concurrency,
            versions={"mainspring": __version__, "python": platform.python_version()},
            cpu_percent=round(100 * share, 1),
            memory_bytes=memory_mb_of(os.getpid()) * 2**20,
            statistics={
                "finished": finished,
                "running": running,
                "heartbeat_errors": heartbeat_errors,
            },
        )


def memory_mb_of(pid: int) -> float:
    """Return the resident memory of a process; 0 where it is not known."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
