"""Tasks as the server leases them, and their reports, for tests of the worker's parts."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import msgspec

from mainspring.sdk.worker.execution import WorkerExecution
from mainspring.sdk.worker.outcomes import ReportedOutcome
from mainspring.sdk.worker.protocol import Leased
from mainspring.sdk.worker.reports import LogSender, Reporter
from mainspring.wire.tasks import TargetOut

EPOCH = datetime(2027, 1, 1, tzinfo=UTC)


def leased(
    at: float = 0.0, *, lease: float = 15.0, timeout: float = 30.0, **context: Any
) -> Leased:
    """A task that the server leased so many seconds after the epoch."""
    began = EPOCH + timedelta(seconds=at)
    deadline = (began + timedelta(seconds=timeout)).isoformat()
    return Leased(
        uuid4(),
        1,
        1,
        began + timedelta(seconds=lease),
        TargetOut(type="handler", name="x"),
        msgspec.Raw(b"{}"),
        timeout,
        {"deadline": deadline, **context},
    )


async def report_all(nodes: Any, executions: Sequence[WorkerExecution]) -> list[WorkerExecution]:
    """Report a success of each; return those that the reporter is done with."""
    done: list[WorkerExecution] = []
    reporter = Reporter(nodes, LogSender(nodes), done.append)
    work = asyncio.create_task(reporter.run())
    for one in executions:
        one.finish(ReportedOutcome("succeeded", b"1"))
        reporter.put(one)
    assert await reporter.flush(5)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    return done
