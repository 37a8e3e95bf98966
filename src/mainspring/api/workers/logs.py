"""Log lines of executions, as workers add them."""

from collections.abc import Sequence

from mainspring.store.workers import NewLogLine, WorkerStore
from mainspring.wire.workers import LogLineIn

_MOST_LINES = 1000
"""Maximum lines of a task."""
_MORE_ERRORS = 100
"""Errors that are kept beyond that."""
_LONGEST_LINE = 4000
"""Characters after which a line is cut."""


async def keep_lines(
    workers: WorkerStore, tenant_id: int, lines: Sequence[LogLineIn], now: float
) -> int:
    """Store the lines of a tenant's executions; return how many of them were kept."""
    if not lines:
        return 0
    new = [_new_line(line, now) for line in lines]
    return await workers.add_logs(tenant_id, new, most=_MOST_LINES, more_errors=_MORE_ERRORS)


def _new_line(line: LogLineIn, now: float) -> NewLogLine:
    # The database cannot store a NUL in a text, but programs may print one.
    message = line.message[:_LONGEST_LINE].replace("\x00", "\ufffd")
    at = line.at.timestamp() if line.at is not None else now
    return NewLogLine(line.id, line.fence, at, line.level, message)
