"""The options of a worker."""

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import uuid4


def _cores() -> int:
    return os.cpu_count() or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """All options of a worker. Durations in seconds."""

    name: str = field(default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}")
    incarnation: str = field(default_factory=lambda: uuid4().hex)
    """A new one for each process: a restarted worker revives nothing of the one before."""
    queues: Sequence[str] = ("default",)
    concurrency: int = 100
    """Handlers and commands at once, those in processes left out."""
    processes: int = field(default_factory=_cores)
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
    """A process that uses more is replaced when its execution has ended; one for CPU-bound tasks at
    once."""
