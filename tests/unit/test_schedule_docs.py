"""The tables of docs/schedules.md are examples, and every one of them holds."""

import re
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from mainspring.domain.schedules import cron, misfire
from mainspring.domain.schedules.definition import (
    Backlog,
    ScheduleDefinition,
    timetable,
)
from mainspring.domain.schedules.policies import Misfire
from mainspring.domain.schedules.recurrence import ZonedRecurrence
from mainspring.domain.schedules.zones import DstPolicy, zone

DOCUMENT = Path(__file__).parents[2] / "docs" / "schedules.md"
NOON = datetime(2027, 6, 1, 12, tzinfo=UTC).timestamp()


def rows(name: str) -> list[tuple[Any, ...]]:
    """The lines of a table, without its head."""
    pattern = rf"<!-- checked: {name} -->(.*?)<!-- end -->"
    found = re.search(pattern, DOCUMENT.read_text(), re.DOTALL)
    assert found is not None
    lines = [line for line in found[1].splitlines() if line.startswith("|")]
    return [
        tuple(cell.strip().strip("`") for cell in line.strip("|").split("|")) for line in lines[2:]
    ]


def moment(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize("row", rows("dst"), ids=" ".join)
def test_changes_of_the_clock(row: tuple[Any, ...]) -> None:
    where, text, gap, repeat, after, times = row
    series = ZonedRecurrence(cron.parse(text), zone(where), DstPolicy(gap, repeat))
    at: float | None = moment(after)
    for expected in times.split(", "):
        assert at is not None
        at = series.next(at)
        assert at == moment(expected)


@pytest.mark.parametrize("row", rows("misfire"), ids=" ".join)
def test_outages(row: tuple[Any, ...]) -> None:
    text, policy, window, cap, outage, *expected = row
    definition = ScheduleDefinition(
        cron=text, overlap="allow", misfire=Misfire(policy, float(window), int(cap))
    )
    table, now = timetable(definition), NOON + float(outage)
    backlog = table.backlog(
        NOON, now, most=misfire.wanted(definition), cut=now - definition.misfire.window
    )
    following = table.next(now)
    assert following is not None
    tolerated = misfire.tolerance(following - backlog.recent[-1])
    verdict = misfire.rule(definition, backlog, now=now, tolerated=tolerated, unfinished=0)
    sizes: Counter[str] = Counter()
    for ruling in verdict.rulings:
        sizes[ruling.decision.value] += ruling.span.size
    names = ("fired", "coalesced", "skipped_misfire")
    assert [sizes[name] for name in names] == [int(number) for number in expected]


@pytest.mark.parametrize("row", rows("overlap"), ids=" ".join)
def test_unfinished_runs(row: tuple[Any, ...]) -> None:
    overlap, limit, unfinished, due, fired, skipped, cancelled = row
    definition = ScheduleDefinition(
        cron="* * * * * *", overlap=overlap, max_running=int(limit), misfire=Misfire("all")
    )
    backlog = Backlog((), (), [NOON + n for n in range(int(due))], NOON + 60)
    verdict = misfire.rule(
        definition, backlog, now=NOON + 60, tolerated=1, unfinished=int(unfinished)
    )
    assert len(verdict.fired) == int(fired)
    refused = [r.span.size for r in verdict.rulings if r.decision == "skipped_overlap"]
    assert sum(refused) == int(skipped)
    assert verdict.cancel == int(cancelled)
