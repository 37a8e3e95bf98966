"""Filters of tasks, in queries and in bodies, as the store knows them."""

from datetime import datetime

from starlette.datastructures import QueryParams

from mainspring.api.http.parameters import ListQuery, Parameters, read_one
from mainspring.api.http.problems import raise_if
from mainspring.domain.execution import Outcome
from mainspring.domain.task import TaskState
from mainspring.errors import Problem
from mainspring.store.lists.index_paths import TaskFilter
from mainspring.wire.dead_letters import LetterFilterIn, TaskFilterIn

_PARAMETERS = {
    *("state", "queue", "name", "label", "due_after", "due_before", "schedule_id"),
    *("workflow_run_id", "limit", "cursor", "payload"),
}


def task_query(params: QueryParams) -> ListQuery[TaskFilter]:
    """Return the query of a list of tasks; raise all of its problems together."""
    given = Parameters(params, _PARAMETERS)
    where = TaskFilter(
        state=given.choice("state", TaskState),
        queue=given.text("queue"),
        name=given.text("name"),
        labels=given.labels(),
        due_after=given.instant("due_after"),
        due_before=given.instant("due_before"),
        schedule_id=given.uuid("schedule_id"),
        workflow_run_id=given.uuid("workflow_run_id"),
    )
    return given.list_query(where, payloads=given.flag("payload"))


def outcome_query(params: QueryParams) -> Outcome | None:
    """Return the outcome that a list of executions is filtered by."""
    outcome = read_one(params, lambda given: given.choice("outcome", Outcome))
    return Outcome(outcome) if outcome else None


def task_filter(given: TaskFilterIn) -> TaskFilter:
    """Return the filter in a body; raise all of its problems together."""
    problems: list[Problem] = []
    found = TaskFilter(
        state=given.state,
        queue=given.queue,
        name=given.name,
        labels=labels_in(given, problems),
        due_after=instant_in(given.due_after, "due_after", problems),
        due_before=instant_in(given.due_before, "due_before", problems),
        schedule_id=given.schedule_id,
        workflow_run_id=given.workflow_run_id,
    )
    raise_if(problems, "the filter does not make sense")
    return found


def labels_in(
    given: TaskFilterIn | LetterFilterIn, problems: list[Problem]
) -> dict[str, str] | None:
    """Return the labels of a filter, which come in two forms."""
    labels = dict(given.labels or {})
    for pair in [given.label] if isinstance(given.label, str) else given.label or []:
        name, _, value = pair.partition(":")
        if labels.setdefault(name, value) != value:
            problems.append(Problem("/filter/label", f"asks for two values of {name!r} at once"))
    return labels or None


def instant_in(given: datetime | None, name: str, problems: list[Problem]) -> datetime | None:
    """Return a time in a filter, checked."""
    if given is not None and not 1 < given.year < 9999:
        problems.append(Problem(f"/filter/{name}", "is out of range: the year is one of 2 to 9998"))
        return None
    return given
