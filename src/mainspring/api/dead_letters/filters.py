"""Filters of requests about many tasks or dead letters, as the store knows them."""

from datetime import datetime

from mainspring.errors import InvalidRequest, Problem
from mainspring.store.dead_letters import LetterFilter
from mainspring.store.tasks import TaskFilter
from mainspring.wire.dead_letters import LetterFilterIn, TaskFilterIn


def task_filter(given: TaskFilterIn) -> TaskFilter:
    """The filter as the store knows it; everything that is wrong is reported together."""
    problems: list[Problem] = []
    found = TaskFilter(
        state=given.state,
        queue=given.queue,
        name=given.name,
        labels=_labels(given, problems),
        due_after=_instant(given.due_after, "due_after", problems),
        due_before=_instant(given.due_before, "due_before", problems),
        schedule_id=given.schedule_id,
        workflow_run_id=given.workflow_run_id,
    )
    _raise_if(problems)
    return found


def letter_filter(given: LetterFilterIn) -> LetterFilter:
    """The filter as the store knows it; everything that is wrong is reported together."""
    problems: list[Problem] = []
    if given.resolved:
        problems.append(Problem("/filter/resolved", "only unresolved ones can be replayed"))
    found = LetterFilter(
        name=given.name,
        queue=given.queue,
        labels=_labels(given, problems),
        fingerprint=given.fingerprint,
        died_after=_instant(given.died_after, "died_after", problems),
        died_before=_instant(given.died_before, "died_before", problems),
        resolved=False,
    )
    _raise_if(problems)
    return found


def _labels(given: TaskFilterIn | LetterFilterIn, problems: list[Problem]) -> dict[str, str] | None:
    labels = dict(given.labels or {})
    for pair in [given.label] if isinstance(given.label, str) else given.label or []:
        name, _, value = pair.partition(":")
        if labels.setdefault(name, value) != value:
            problems.append(Problem("/filter/label", f"asks for two values of {name!r} at once"))
    return labels or None


def _instant(given: datetime | None, name: str, problems: list[Problem]) -> datetime | None:
    if given is not None and not 1 < given.year < 9999:
        problems.append(Problem(f"/filter/{name}", "is out of range: the year is one of 2 to 9998"))
        return None
    return given


def _raise_if(problems: list[Problem]) -> None:
    if problems:
        raise InvalidRequest("the filter does not make sense", problems)
