"""What a caller may do to a task in each state: the whole table."""

from collections.abc import Callable

import pytest

from mainspring.domain import transitions
from mainspring.domain.task import TaskState as S
from mainspring.domain.transitions import Move, TaskStanding
from mainspring.errors import Conflict

NOW = 1000.0
REFUSED = "refused"
FINAL = [S.COMPLETED, S.FAILED, S.CANCELLED, S.EXPIRED, S.SKIPPED]

RULES: dict[str, Callable[[TaskStanding], Move | None]] = {
    "cancel": transitions.cancel,
    "pause": transitions.pause,
    "resume": transitions.resume,
    "run": lambda task: transitions.run(task, NOW),
}

TABLE: dict[str, dict[S, Move | str | None]] = {
    "cancel": {
        S.SCHEDULED: Move(S.CANCELLED),
        S.BLOCKED: Move(S.CANCELLED),
        S.PAUSED: Move(S.CANCELLED),
        S.RUNNING: Move(S.RUNNING, cancel_requested=True),
        S.CANCELLED: None,
    },
    "pause": {S.SCHEDULED: Move(S.PAUSED), S.PAUSED: None},
    "resume": {S.SCHEDULED: None, S.RUNNING: None, S.PAUSED: Move(S.SCHEDULED)},
    "run": {
        S.SCHEDULED: Move(S.SCHEDULED, due=NOW),
        S.PAUSED: Move(S.SCHEDULED, due=NOW),
        S.RUNNING: None,
    },
}


@pytest.mark.parametrize("verb", TABLE)
@pytest.mark.parametrize("state", S)
def test_every_verb_in_every_state(verb: str, state: S) -> None:
    expected = TABLE[verb].get(state, REFUSED)
    task = TaskStanding(state, attempts=0, due=NOW + 60)
    if expected == REFUSED:
        with pytest.raises(Conflict, match=state):
            RULES[verb](task)
    else:
        assert RULES[verb](task) == expected


def test_asking_again_to_stop_changes_nothing() -> None:
    assert transitions.cancel(TaskStanding(S.RUNNING, 1, NOW, cancel_requested=True)) is None


def test_run_keeps_the_place_of_what_is_due_already() -> None:
    assert transitions.run(TaskStanding(S.SCHEDULED, 0, NOW - 5), NOW) is None
    assert transitions.run(TaskStanding(S.PAUSED, 0, NOW - 5), NOW) == Move(
        S.SCHEDULED, due=NOW - 5
    )


@pytest.mark.parametrize("state", [S.SCHEDULED, S.PAUSED])
def test_a_task_that_has_not_started_can_be_edited(state: S) -> None:
    transitions.check_editable(TaskStanding(state, 0, NOW))
    with pytest.raises(Conflict, match="this one was tried already"):
        transitions.check_editable(TaskStanding(state, 1, NOW))


@pytest.mark.parametrize("state", [S.RUNNING, *FINAL])
def test_a_task_that_has_started_cannot(state: S) -> None:
    with pytest.raises(Conflict, match=f"this one is {state}"):
        transitions.check_editable(TaskStanding(state, 0, NOW))


def test_only_fields_that_release_keeps_can_be_edited_in_a_step() -> None:
    blocked = TaskStanding(S.BLOCKED, 0, NOW)
    transitions.check_editable(blocked, ["priority", "queue"])
    with pytest.raises(Conflict, match="not delay, payload: all else comes from its workflow"):
        transitions.check_editable(blocked, ["priority", "payload", "delay"])


def test_a_step_that_is_done_item_by_item_cannot_be_edited() -> None:
    with pytest.raises(Conflict, match="the items of this step have begun"):
        transitions.check_editable(TaskStanding(S.BLOCKED, 0, NOW, expanded=True), ["priority"])
