"""Tasks as the server leases them, for tests of the worker's parts."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import msgspec

from mainspring.sdk.worker.protocol import Leased
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
