"""What must be true of lateness, as callers read it."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pytest

ROUNDING = 0.02

Json = dict[str, Any]


def moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def check_sums(task: Json, executions: Sequence[Json]) -> None:
    """An execution's lateness sums to its started − due, the task's to last started − first due,
    and the first start decides about the SLA."""
    for one in executions:
        until = moment(one["started_at"] or one["picked_at"])
        late = until - moment(one["due_at"])
        assert sum(one["lateness"].values()) == pytest.approx(late, abs=ROUNDING), one
        assert moment(one["due_at"]) <= moment(one["picked_at"]) <= moment(one["finished_at"])
    first_due = moment(executions[0]["due_at"])
    late = moment(task["started_at"]) - first_due
    assert sum(task["lateness"].values()) == pytest.approx(late, abs=ROUNDING), (task, executions)
    first = next(one for one in executions if one["started_at"] is not None)
    assert task["sla_met"] is (moment(first["started_at"]) - first_due <= task["sla"])
    assert (task["blame"] is None) is task["sla_met"]


def check_causes(lateness: dict[str, float], **least: float) -> None:
    """These causes are there with about so much or more, and nothing else but moments: a busy
    machine takes some time to hear of a task."""
    for cause, seconds in least.items():
        assert lateness.get(cause, 0.0) >= 0.5 * seconds, lateness
    others = {cause: spent for cause, spent in lateness.items() if cause not in least}
    assert sum(others.values()) < 1.0, lateness
    assert "unattributed" not in others, lateness
