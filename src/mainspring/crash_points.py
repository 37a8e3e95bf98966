"""Named crash points: every step around a commit or a send, where tests kill the process.

`reach(name)` costs a comparison; it does something only in a process that was armed for that name.
"""

import os
import signal

POINTS = {
    "create.before_commit": "a task was validated, nothing is written",
    "create.committed": "tasks are durable, the client has not heard of it",
    "create.told_engine": "the engine knows, the client does not",
    "post.served": "what a POST asked for is done, the client has not heard of it",
    "claim.before_commit": "tasks were picked, the claim is not written",
    "claim.committed": "tasks are leased, no executor has them",
    "claim.handed_out": "executors have them, nothing is reported",
    "report.received": "an executor is done, its outcome is not written",
    "record.committed": "outcomes are written, the engine does not know",
    "step.before_commit": "a step is over, nothing of its run is written",
    "step.committed": "its end and what it releases are written, the engine does not know",
    "run.committed": "a run is durable, the client has not heard of it",
    "retry.committed": "a task was scheduled again, the engine does not know",
    "schedule.before_commit": "schedules are due, nothing is decided",
    "schedule.committed": "occurrences and their tasks are durable, the engine does not know",
    "wake.read": "wake rows are read and still there, the engine has not heard of them",
    "lease.before_commit": "tasks were picked for workers, the claim is not written",
    "lease.committed": "tasks are leased to workers, nobody has heard of it",
    "lease.answered": "a worker is about to be told what it leased",
    "forward.claimed": "tasks are leased to a worker of another node, which does not know",
    "lease.extended": "leases were extended, the node does not know",
    "takeover.committed": "partitions are ours, nothing is loaded",
    "handover.committed": "partitions are another's, that one does not know",
}
"""Every crash point, and what is done by then."""


class _Armed:
    """The point at which this process dies, and how often it still passes before."""

    name: str | None = None
    passes = 0


def arm(name: str | None, nth: int = 1) -> None:
    """Make this process die, by SIGKILL, when it reaches the point for the nth time."""
    if name is not None and name not in POINTS:
        raise ValueError(f"there is no crash point {name!r}")
    _Armed.name, _Armed.passes = name, nth - 1


def reach(name: str) -> None:
    """Pass a crash point."""
    if name != _Armed.name:
        return
    if _Armed.passes == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    _Armed.passes -= 1
