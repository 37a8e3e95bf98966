"""What must be true after every transaction, judged by the store's own truth.

Liveness (nothing is stuck) is judged at the end, when the faults have stopped.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from typing import NamedTuple
from uuid import UUID

from mainspring.domain.capability import ALONE
from mainspring.domain.tenant import TenantLimits
from mainspring.node.workers.heartbeats_and_reports import Verdict, WorkerReport
from simulation.store import MemoryStore
from simulation.tables import Finished, NodeRow, ScheduleRow, Task
from simulation.world import SimulationFailed


class _Past(NamedTuple):
    """A task as it was after the transaction before."""

    rev: int
    fence: int
    state: str
    due: float
    partition: int
    cancel_requested: bool


def _state_of(task: Task) -> tuple[int, int, str, float, int, bool]:
    return task.rev, task.fence, task.state, task.due, task.partition, task.cancel_requested


_OF_THE_TABLES = (
    "_tasks", "_before", "_created", "_history", "_executions", "_fences", "_node_epochs",
    "_owners", "_most", "_wakes", "_lines", "_expected",
)  # fmt: skip


class Invariants:
    """Looks at the tables after every transaction and compares them with what they were."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._tables = store.tables
        self._now = store.now
        self._tasks: dict[UUID, tuple[int, int, str, float, int, bool]] = {}
        self._before: dict[UUID, tuple[int, int, str, float, int, bool]] = {}
        self._created = 0
        self._history: dict[UUID, Finished] = {}
        self._executions = 0
        self._fences: set[tuple[UUID, int]] = set()
        self._issued: set[tuple[UUID, int]] = set()
        """Every lease that there ever was, also in lives of the database that are lost."""
        self._node_epochs: dict[UUID, int] = {}
        self._owners: dict[int, tuple[UUID | None, int]] = {}
        self._most: dict[int, int | None] = {}
        self._wakes: Counter[tuple[int, int, UUID]] = Counter()
        self._lines = 0
        self._expected: dict[UUID, float] = {}
        self.may_lose: Callable[[str], bool] = lambda _worker: True
        self.may_blame: Callable[[], bool] = lambda: True

    def save(self) -> dict[str, object]:
        """What is known of the tables, for a backup of them."""
        return {name: copy(getattr(self, name)) for name in _OF_THE_TABLES}

    def set_back(self, saved: Mapping[str, object]) -> None:
        """The tables are those of the backup again; what was issued was issued."""
        for name, value in saved.items():
            setattr(self, name, value)

    def check(self, statement: str) -> None:
        self._check_partitions()
        self._check_nodes()
        self._note_limits()
        self._before.clear()
        for task in self._tables.tasks.values():
            past = task.past
            if past is not None and past != _state_of(task):
                self._before[task.id] = past
            if past is None:
                self._require(task.id not in self._history, "a finished task came back", task.id)
                self._created += 1
                if task.state == "running":
                    self._check_issue(task)
            elif past == _state_of(task):
                continue
            else:
                self._check_change(task, _Past(*past), statement)
            lost = task.losses + task.unproven_losses
            count_crash = lost > 0 or task.capability.endswith(ALONE)
            self._require(
                self.may_blame() or not count_crash, "a worker was blamed for nothing", task
            )
            task.past = self._tasks[task.id] = _state_of(task)
            if (
                statement in ("create", "retry", "fire")
                and task.due <= self._now() + self._store.near
            ):
                self._check_told(task.partition, task.tenant_id, task.id)
        self._check_history(statement)
        self._check_executions()
        self._check_wakes(statement)
        self._check_occurrences(statement)
        self._check_nothing_lost()

    def check_end(self) -> None:
        """Everything could finish, and has."""
        for letter in self._tables.dead_letters.values():
            harmless = letter.reason == "poison" and letter.attempts.count("lost") < 3
            self._require(not harmless, "buried too early", letter)
        stuck = list(self._tables.tasks.values())
        if stuck:
            raise SimulationFailed(f"{len(stuck)} tasks are stuck, such as {stuck[0]}")
        for schedule in self._tables.schedules.values():
            self._require(schedule.state == "ended", "a schedule stands still", schedule)
            end = schedule.definition.end_at or 0.0
            self._require(self._next_of(schedule) > end, "occurrences are undecided", schedule)

    @property
    def schedules_are_over(self) -> bool:
        return all(schedule.state == "ended" for schedule in self._tables.schedules.values())

    # Schedules -------------------------------------------------------------------------------

    def _next_of(self, schedule: ScheduleRow) -> float:
        """The nominal time that must be decided on next: counted here, from the start."""
        return self._expected.get(schedule.id, schedule.definition.start_at or 0.0)

    def _check_occurrences(self, statement: str) -> None:
        """Each nominal time once, in order, none left out; what is fired has its one task."""
        for line in self._tables.occurrences[self._lines :]:
            schedule = self._tables.schedules[line.schedule_id]
            step = schedule.definition.interval or 0.0
            expected = self._next_of(schedule)
            self._require(abs(line.first - expected) < 1e-5, f"not {expected}", line)
            last = line.first + (line.count - 1) * step
            self._require(abs(line.last - last) < 1e-5, "a range that counts wrongly", line)
            self._require(line.last <= self._now(), "decided before its time", line)
            writer, owner = self._store.writer, self._tables.partitions[schedule.partition].owner
            ours = writer is not None and self._store.is_valid(writer) and writer.node_id == owner
            self._require(ours, "decided by another than the owner", line)
            self._expected[schedule.id] = line.last + step
            task = self._tables.tasks.get(line.task_id) if line.task_id else None
            fired = line.decision == "fired"
            self._require(fired == (task is not None), "a task without its line", line)
            if task is not None:
                whose = (task.made.schedule_id, task.made.nominal)
                self._require(whose == (line.schedule_id, line.first), "another's task", line)
        self._lines = len(self._tables.occurrences)
        if statement == "fire":
            made = sum(t.made.schedule_id is not None for t in self._tables.tasks.values())
            fired_ids = {o.task_id for o in self._tables.occurrences if o.task_id}
            known = sum(t in fired_ids for t in self._tables.tasks)
            self._require(made == known, "a task that no line tells of", None)

    # Tasks -----------------------------------------------------------------------------------

    def _check_change(self, task: Task, past: _Past, statement: str) -> None:
        self._require(task.rev > past.rev, "a change did not raise the rev", task)
        self._require(task.fence >= past.fence, "the fence fell", task)
        if task.state == "running" and (past.state != "running" or task.fence != past.fence):
            self._check_start(task, past)
        elif past.state == "running" and task.state != "running":
            self._require(
                statement in ("retry", "expire_leases"), f"{statement} took a running task", task
            )

    def _check_start(self, task: Task, past: _Past) -> None:
        now = self._now()
        self._require(past.state == "scheduled", f"started while {past.state}", task)
        self._require(task.fence > past.fence, "started without a new fence", task)
        self._check_issue(task)
        self._require(past.due <= now, "started before its due time", task)
        self._require(task.expires is None or task.expires > now, "started when expired", task)
        self._require(task.cancel_requested is False, "started though cancelled", task)
        node = self._node_of(task)
        self._require(node is not None and node.state == "active", "started by a dead node", task)
        owner = self._tables.partitions[task.partition].owner
        self._require(node is not None and owner == node.id, "started by another's node", task)
        here = node is not None and node.server == self._store.server
        self._require(here, "started by who joined another server", task)
        if task.incarnation is not None:
            present = self._tables.workers.get((task.tenant_id, task.worker or ""))
            # A registry that was set back may not know the worker until it asks again.
            known = present is None or present == task.incarnation
            self._require(known, "leased to a former process", task)
        self._check_limits(task)

    def _check_issue(self, task: Task) -> None:
        lease = (task.id, task.fence)
        self._require(lease not in self._issued, "a fence was issued twice", task)
        self._issued.add(lease)

    def _check_limits(self, task: Task) -> None:
        running = [t for t in self._tables.tasks.values() if t.state == "running"]
        tenants = [t for t in running if t.tenant_id == task.tenant_id]
        most = self._most[task.tenant_id]
        self._require(most is None or len(tenants) <= most, "a tenant's limit was exceeded", task)
        if task.key is not None:
            # Tasks picked together may be written in another order: what counts is that there is
            # an order in which each of them found fewer than its own limit running.
            limits = sorted(t.made.concurrency_limit or 0 for t in tenants if t.key == task.key)
            fits = all(place <= limit for place, limit in enumerate(limits, 1))
            self._require(fits, "a concurrency key's limit was exceeded", task)

    def _node_of(self, task: Task) -> NodeRow | None:
        """Who claimed it, for itself or for a worker."""
        if task.incarnation is None:
            return self._tables.nodes.get(UUID((task.worker or "").removeprefix("node:")))
        writer = self._store.writer
        return None if writer is None else self._tables.nodes.get(writer.node_id)

    def _note_limits(self) -> None:
        """A lowered limit holds for what starts later, once the owner has heard of it: what is
        judged is the highest that was ever set."""
        for tenant_id, limits in self._tables.tenants.items():
            self._most[tenant_id] = _higher(self._most.get(tenant_id, 0), limits)

    # What was recorded -----------------------------------------------------------------------

    def _check_history(self, statement: str) -> None:
        history = self._tables.history
        if len(history) == len(self._history):
            return
        for task_id, finished in history.items():
            before = self._history.get(task_id)
            if before is None:
                self._check_end_of(task_id, finished)
                if statement == "finish" and task_id in self._tasks:
                    self._check_told(self._tasks[task_id][4], finished.tenant_id, task_id)
                self._history[task_id] = finished
            self._require(before in (None, finished), "history changed", finished)
        self._require(len(history) == len(self._history), "history was deleted", None)

    def _check_end_of(self, task_id: UUID, finished: Finished) -> None:
        if task_id not in self._tasks:
            return
        past = _Past(*self._tasks[task_id])
        self._require(finished.rev > past.rev, "the end did not raise the rev", finished)
        self._require(finished.fence == past.fence, "ended by a stale execution", finished)
        tried = finished.state in ("completed", "failed")
        self._require(not tried or past.state == "running", "ended without an execution", finished)
        expired = finished.state == "expired"
        self._require(not expired or past.state != "running", "expired while running", finished)

    def _was_running(self, task_id: UUID) -> int | None:
        """The fence of the execution that was running before this transaction."""
        past = self._before.get(task_id) or self._tasks.get(task_id)
        return past[1] if past is not None and past[2] == "running" else None

    def _check_executions(self) -> None:
        for execution in self._tables.executions[self._executions :]:
            name = (execution.id, execution.fence)
            self._require(name not in self._fences, "an execution ended twice", execution)
            self._fences.add(name)
            self._require(
                self._was_running(execution.id) == execution.fence == execution.told_by,
                "a stale execution was accepted",
                execution,
            )
            if execution.outcome == "lost" and execution.id not in self._store.begun_unheard:
                self._require(
                    self.may_lose(execution.worker), "a living execution was lost", execution
                )
        self._executions = len(self._tables.executions)

    def _check_nothing_lost(self) -> None:
        """Every task that was ever there is in exactly one place: history only grows, so it is
        enough to count."""
        there = len(self._tables.tasks) + len(self._tables.history)
        self._require(there == self._created, f"{self._created} tasks are {there}", None)

    def acknowledge(self, task_ids: Iterable[UUID]) -> None:
        """A client was told that these are durable."""
        for task_id in task_ids:
            places = (task_id in self._tables.tasks) + (task_id in self._tables.history)
            self._require(places == 1, f"an acknowledged task is in {places} places", task_id)

    def check_verdict(self, report: WorkerReport, verdict: Verdict) -> None:
        """What a worker is told about its report is so."""
        recorded = self._tables.outcome_of(report.id, report.fence)
        self._require(verdict != "unknown", "a task is forgotten", report)
        if verdict == "accepted":
            self._require(recorded not in (None, "lost"), "accepted and not recorded", report)
        else:
            self._require(recorded != report.outcome.value, "fenced and recorded", report)

    # The cluster -----------------------------------------------------------------------------

    def _check_partitions(self) -> None:
        for number, row in self._tables.partitions.items():
            owner, epoch = self._owners.get(number, (None, 0))
            self._require(row.epoch >= epoch, "a partition's epoch fell", number)
            moved = row.owner != owner
            self._require(not moved or row.epoch > epoch, "an owner without an epoch", number)
            self._owners[number] = (row.owner, row.epoch)

    def _check_nodes(self) -> None:
        for node in self._tables.nodes.values():
            before = self._node_epochs.get(node.id, 0)
            self._require(node.epoch >= before, "a node's epoch fell", node)
            dead = node.state != "active"
            self._require(not dead or node.epoch > 1, "a node died without a new epoch", node)
            self._node_epochs[node.id] = node.epoch

    def _check_wakes(self, statement: str) -> None:
        """A wake row goes only when an owner takes it."""
        woken = Counter(self._tables.wakes.values())
        if statement != "poll_wakes":
            missing = self._wakes - woken
            self._require(not missing, "a wake was lost", missing)
        self._wakes = woken

    def _check_told(self, partition: int, tenant_id: int, task_id: UUID) -> None:
        """Who writes is the owner by the tables and knows, or there is a wake for the owner."""
        writer = self._store.writer
        assert writer is not None
        node = self._tables.nodes.get(writer.node_id)
        valid = node is not None and node.epoch == writer.epoch
        owner = self._tables.partitions[partition].owner
        told = (partition, tenant_id, task_id) in self._tables.wakes.values()
        knows = valid and owner == writer.node_id
        self._require(told or knows, "the owner was not told", task_id)

    def _require(self, holds: bool, broken: str, about: object) -> None:
        if not holds:
            raise SimulationFailed(f"{broken}: {about}")


def _higher(most: int | None, limits: TenantLimits) -> int | None:
    if most is None or limits.max_running is None:
        return None
    return max(most, limits.max_running)
