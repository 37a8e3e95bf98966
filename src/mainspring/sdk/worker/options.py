"""The options of a worker, and its description for the registry of workers."""

import os
import platform
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from mainspring import __version__
from mainspring.clock import monotonic
from mainspring.wire.workers import AboutIn


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """All options of a worker. Durations in seconds."""

    name: str = field(default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}")
    incarnation: str = field(default_factory=lambda: uuid4().hex)
    """A new one for each process: a restarted worker revives nothing of the one before."""
    queues: Sequence[str] = ("default",)
    concurrency: int = 100
    """Handlers and commands at once, those in processes left out."""
    processes: int = field(default_factory=lambda: os.cpu_count() or 1)
    """CPU-bound handlers at once, each in a process of its own."""
    tags: Sequence[str] = ()
    memory_mb: int | None = None
    """Memory offered to tasks that require some."""
    cpu: float | None = None
    wait: float = 20.0
    grace: float = 20.0
    """Seconds that running executions may go on after SIGTERM, before they are released."""
    max_tasks: int | None = None
    """Executions after which a process is replaced."""
    max_memory_mb: int | None = None
    """Limit above which a process is replaced: after its execution, or at once if CPU-bound."""


class WorkerInfo:
    """Describes a worker as it is at the moment."""

    def __init__(self, options: WorkerOptions) -> None:
        self._options = options
        self._looked = monotonic()
        self._used = sum(os.times()[:2])
        self._next = self._looked

    def current(self, finished: int, running: int, heartbeat_errors: int) -> AboutIn | None:
        """Return the description, every 10 seconds; None in between."""
        now, used = monotonic(), sum(os.times()[:2])
        if now < self._next:
            return None
        self._next = now + 10.0
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
