"""Why a task is not running: the gates in the order in which it meets them, each passed or not.

The judge is one pure function. What it judges by comes from the owner's engine, or, on another
node, from the database, which knows less: what is not known is left out.
"""

from datetime import UTC, datetime
from typing import NamedTuple

from mainspring.domain.lateness import Cause
from mainspring.domain.rows import TaskRow
from mainspring.domain.task import TaskState

READY = "ready"
RUNNING = "running"
EXPIRY = "expiry"


class Situation(NamedTuple):
    """What surrounds a waiting task; None means that it is not known here."""

    owned: bool = False
    can_run: bool | None = None
    free_slots: int | None = None
    tenant_running: int | None = None
    tenant_limit: int | None = None
    key_running: int | None = None
    place: int | None = None
    crowded_out: bool = False
    started: bool = False
    waits_for: str | None = None
    held_back: str | None = None
    """What a claimed task waits for in the queue of its executor."""


class Gate(NamedTuple):
    """One question on the way to the start."""

    gate: str
    passed: bool
    detail: str


class Explanation(NamedTuple):
    """`verdict` is the first gate that says no, or how far the task has come."""

    verdict: str
    gates: tuple[Gate, ...]
    position: int | None
    estimated_start: float | None
    unblock: str


def explain(row: TaskRow, attempts: int, around: Situation, now: float) -> Explanation:
    """Judge an unfinished task."""
    if around.held_back is not None:
        gate = Gate(Cause.WORKER_QUEUE, False, around.held_back)
        return Explanation(Cause.WORKER_QUEUE, (gate,), None, None, _UNBLOCK[Cause.WORKER_QUEUE])
    if row.state == TaskState.RUNNING or around.started:
        note = "It was asked to cancel." if row.cancel_requested else "There is nothing to unblock."
        return Explanation(RUNNING, (), None, None, f"The task is running. {note}")
    gates = (
        *_of_the_task(row, attempts, around, now),
        *_of_the_limits(row, around),
        *_of_capacity(around),
    )
    verdict = next((gate.gate for gate in gates if not gate.passed), READY)
    return Explanation(
        verdict,
        gates,
        around.place if row.due <= now else None,
        _estimate(verdict, row, now),
        _UNBLOCK[verdict],
    )


def _of_the_task(row: TaskRow, attempts: int, around: Situation, now: float) -> list[Gate]:
    due = row.due <= now
    blocked = row.state == TaskState.BLOCKED
    waits_for = Cause.RETRY_BACKOFF if attempts else Cause.NOT_DUE
    since = f" after {attempts} executions" if attempts else ""
    steps = around.waits_for or "it waits for other steps" if blocked else "it waits for none"
    in_time = row.expires is None or row.expires > now
    expiry = "it does not expire" if row.expires is None else f"expires at {_instant(row.expires)}"
    return [
        Gate(Cause.PAUSED, row.state != TaskState.PAUSED, f"the state is {row.state}"),
        Gate(Cause.DEPENDENCY, not blocked, steps),
        Gate(waits_for, due, f"due{since} at {_instant(row.due)}"),
        Gate(EXPIRY, in_time, expiry),
    ]


def _of_the_limits(row: TaskRow, around: Situation) -> list[Gate]:
    gates = []
    running, limit = around.tenant_running, around.tenant_limit
    if limit is None:
        gates.append(Gate(Cause.TENANT_LIMIT, True, "the tenant has no limit"))
    elif running is not None:
        detail = f"{running} of {limit} are running in the task's partition"
        gates.append(Gate(Cause.TENANT_LIMIT, running < limit, detail))
    most = row.concurrency_limit
    if row.concurrency_key is None or most is None:
        gates.append(Gate(Cause.CONCURRENCY_KEY, True, "the task has no concurrency key"))
    elif around.key_running is not None:
        detail = f"{around.key_running} of {most} are running under {row.concurrency_key!r}"
        gates.append(Gate(Cause.CONCURRENCY_KEY, around.key_running < most, detail))
    return gates


def _of_capacity(around: Situation) -> list[Gate]:
    gates = []
    if around.can_run is not None:
        found = "something here can run it" if around.can_run else "nothing here can run it"
        gates.append(Gate(Cause.NO_WORKER, around.can_run, found))
    if around.crowded_out:
        detail = "more tasks of its kind are due before it than the owner keeps in view"
        gates.append(Gate(Cause.FAIR_SHARE, False, detail))
    elif around.free_slots is not None:
        slots = f"{around.free_slots} slots are free"
        gates.append(Gate(Cause.FAIR_SHARE, around.free_slots > 0, slots))
    return gates


def _estimate(verdict: str, row: TaskRow, now: float) -> float | None:
    if verdict in (Cause.NOT_DUE, Cause.RETRY_BACKOFF):
        return row.due
    return now if verdict == READY else None


def _instant(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


_UNBLOCK: dict[str, str] = {
    READY: "Nothing is in its way: it starts within moments.",
    EXPIRY: "It was not started by expires_at and is about to end as expired.",
    Cause.PAUSED: "Resume it, or run it now.",
    Cause.DEPENDENCY: "It starts when the steps before it have finished.",
    Cause.NOT_DUE: "It starts when it is due; run it now to make it due at once.",
    Cause.RETRY_BACKOFF: "It is tried again when it is due; run it now to shorten the wait.",
    Cause.TENANT_LIMIT: "A running task of the tenant has to end, or the tenant's limit to rise.",
    Cause.CONCURRENCY_KEY: "A running task under the same concurrency key has to end.",
    Cause.NO_WORKER: "Start a worker that offers what the task's target needs.",
    Cause.WORKER_QUEUE: "It is claimed; what its executor does before it has to end.",
    Cause.FAIR_SHARE: "A slot has to become free: running tasks have to end, or slots to be added.",
}
