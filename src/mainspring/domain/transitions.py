"""Rules of what a caller may do to a task, by the state it is in.

Each rule returns the move to make, None when there is nothing to do (calling twice is harmless), or
raises Conflict when the state does not allow it. The engine's own moves (claim, outcome) are
elsewhere: these are the moves people and programs ask for through the API.
"""

from collections.abc import Collection
from typing import NamedTuple

from mainspring.domain.task import TaskState
from mainspring.errors import Conflict

_WHILE_BLOCKED = ("priority", "queue")
"""What a step does not take from its workflow when its turn comes."""


class TaskStanding(NamedTuple):
    """What the rules need to know of a task."""

    state: TaskState
    attempts: int
    due: float
    cancel_requested: bool = False
    expanded: bool = False
    """Whether it is a step that is being done, item by item."""


class Move(NamedTuple):
    """What the task becomes; a due time of None stays as it is."""

    state: TaskState
    cancel_requested: bool = False
    due: float | None = None


def cancel(task: TaskStanding) -> Move | None:
    """Cancel a task. A running one is only asked to stop: its executor ends it."""
    if task.state is TaskState.CANCELLED or task.cancel_requested:
        return None
    if task.state is TaskState.RUNNING:
        return Move(TaskState.RUNNING, cancel_requested=True)
    if task.state.final:
        raise _refused(task, "cancelled")
    return Move(TaskState.CANCELLED)


def pause(task: TaskStanding) -> Move | None:
    """Pause a task; only what waits for its time can be held back."""
    if task.state is TaskState.PAUSED:
        return None
    if task.state is not TaskState.SCHEDULED:
        raise _refused(task, "paused")
    return Move(TaskState.PAUSED)


def resume(task: TaskStanding) -> Move | None:
    """Let a task wait for its due time again, which did not move meanwhile."""
    if task.state in (TaskState.SCHEDULED, TaskState.RUNNING):
        return None
    if task.state is not TaskState.PAUSED:
        raise _refused(task, "resumed")
    return Move(TaskState.SCHEDULED)


def run(task: TaskStanding, now: float) -> Move | None:
    """Make a task due now. One that is due already keeps its place in the queue."""
    if task.state is TaskState.RUNNING:
        return None
    if task.state is TaskState.SCHEDULED:
        return None if task.due <= now else Move(TaskState.SCHEDULED, due=now)
    if task.state is not TaskState.PAUSED:
        raise _refused(task, "run")
    return Move(TaskState.SCHEDULED, due=min(task.due, now))


def check_editable(task: TaskStanding, sent: Collection[str] = ()) -> None:
    """Raise Conflict unless a task may be edited, because its first execution has not started. Of a
    blocked step only members may be `sent` that its workflow does not set."""
    if task.state is TaskState.BLOCKED:
        _check_blocked(task, sent)
        return
    waiting = (TaskState.SCHEDULED, TaskState.PAUSED)
    if task.state not in waiting or task.attempts > 0:
        now = "was tried already" if task.state in waiting else f"is {task.state}"
        raise Conflict(f"a task can be changed only while it has not started: this one {now}")


def _check_blocked(task: TaskStanding, sent: Collection[str]) -> None:
    if task.expanded:
        raise Conflict(
            "a task can be changed only while it has not started: the items of this step have begun"
        )
    if others := sorted(set(sent).difference(_WHILE_BLOCKED)):
        raise Conflict(
            f"of a step that waits for others only {' and '.join(_WHILE_BLOCKED)} can be changed, "
            f"not {', '.join(others)}: all else comes from its workflow when its turn comes"
        )


def _refused(task: TaskStanding, participle: str) -> Conflict:
    return Conflict(f"a task that is {task.state} cannot be {participle}")
