"""A store in memory with the semantics of the SQL, one method per statement.

Every method is one transaction: it happens at one moment and either wholly or not at all. The
contract suite runs the same tests against this and against PostgreSQL, so that it cannot lie.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TypeVar
from uuid import UUID

from mainspring.domain.capability import ALONE
from mainspring.domain.execution import Execution, Report
from mainspring.domain.lateness import EndedWaiting, Moments, Waited
from mainspring.domain.outcome_rules import Finish, RetryLater
from mainspring.domain.partitions import Ownership, partition_of
from mainspring.domain.rows import StreamKey, TaskRow
from mainspring.domain.task import TaskState
from mainspring.domain.tenant import TenantLimits
from mainspring.store.claims import ExtendedLease, Woken, read_spec
from mainspring.store.creation import NO_EAGER_LEASE, Creation, EagerLeaseOffer, Made, NewTask
from mainspring.store.task_refs import Seen, TaskRef
from mainspring.store.tasks import LockedTask, TaskChange
from simulation.cluster import MemoryCluster
from simulation.tables import DeadLetter, ExecutionRow, Finished, KeyRow, Task

T = TypeVar("T")

_AN_HOUR = 3600.0
_FAILURES = ("failed", "timed_out")


class MemoryStore(MemoryCluster):
    """The statements about tasks and tenants, beside those about the cluster."""

    # Reading ---------------------------------------------------------------------------------

    def load_window(
        self, partitions: Collection[int], *, after: float, until: float, cap: int
    ) -> list[TaskRow]:
        running, streams = [], dict[StreamKey, list[TaskRow]]()
        for task in self._waiting_or_running(after, until):
            if task.partition not in partitions:
                continue
            if task.state == "running":
                running.append(task.row())
            else:
                streams.setdefault(task.stream(), []).append(task.row())
        return running + [row for rows in streams.values() for row in rows[:cap]]

    def load_more(
        self, stream: StreamKey, *, since: float, until: float, known: Collection[UUID], limit: int
    ) -> list[TaskRow]:
        rows = [
            task.row()
            for task in self._waiting_or_running(float("-inf"), until)
            if task.state == "scheduled" and task.due >= since and task.id not in known
            if task.stream() == stream
        ]
        return rows[:limit]

    def _waiting_or_running(self, after: float, until: float) -> Iterator[Task]:
        for task in sorted(self.tables.tasks.values(), key=lambda t: t.due):
            if not task.parked and after < task.due <= until:
                yield task

    def served_elsewhere(
        self, node_id: UUID, workers: Collection[tuple[int, str]]
    ) -> set[tuple[int, str]]:
        """Those that hold something there now: what they held before is not kept here."""
        held = {
            (task.tenant_id, task.worker or "")
            for task in self.tables.tasks.values()
            if task.state == "running" and self.tables.partitions[task.partition].owner != node_id
        }
        return held & set(workers)

    def look_at(self, tasks: Sequence[tuple[int, UUID]]) -> Seen:
        found = [(task_id, self._find(tenant, task_id)) for tenant, task_id in tasks]
        return Seen(
            [task.row() for _, task in found if task is not None],
            [task_id for task_id, task in found if task is None],
        )

    def poll_wakes(self, ownership: Ownership, heard: Collection[int], *, limit: int) -> Woken:
        if not self.is_valid(ownership):
            return Woken([], [], [])
        wakes = self.tables.wakes
        for wake in heard:
            wakes.pop(wake, None)
        mine = [wake for wake in wakes if wakes[wake][0] in ownership.partitions][:limit]
        seen = self.look_at(list(dict.fromkeys(wakes[wake][1:] for wake in mine)))
        self.committed("poll_wakes")
        return Woken(seen.rows, seen.gone, mine)

    # Claims and leases -----------------------------------------------------------------------

    def claim(
        self, ownership: Ownership, picks: Iterable[TaskRef], *, worker: str, lease: float
    ) -> list[Execution]:
        if not self.is_valid(ownership):
            return []
        begun = [self.begin_execution(pick, worker, None, lease) for pick in sorted(picks)]
        self.committed("claim")
        return [assignment_of(task) for task in begun if task is not None]

    def begin_execution(
        self, pick: TaskRef, worker: str, incarnation: str | None, lease: float
    ) -> Task | None:
        """A part of a transaction that claims, for a node or for a worker's incarnation."""
        now, task = self.now(), self._find(pick.tenant_id, pick.id)
        if task is None or task.rev != pick.guard or task.state != "scheduled":
            return None
        if task.due > now or (task.expires is not None and task.expires <= now):
            return None
        task.state, task.worker, task.incarnation = "running", worker, incarnation
        task.fence = self.next_fence(task.fence, task.made.created)
        task.rev, task.attempts = task.rev + 1, task.attempts + 1
        task.picked, task.lease_until, task.waited = now, now + lease, pick.waited
        task.began = task.began_alone = False
        return task

    def claimed_by(self, picks: Iterable[TaskRef], *, worker: str) -> list[Execution]:
        claimed = []
        for pick in sorted(picks):
            task = self._find(pick.tenant_id, pick.id)
            if task is None:
                continue
            if task.state == "running":
                if task.worker == worker and task.rev > pick.guard:
                    claimed.append(assignment_of(task))
            elif task.state == "scheduled" and task.rev == pick.guard:
                task.rev += 1  # a claim that is still on its way comes to nothing
        self.committed("claimed_by")
        return claimed

    def leased_to(self, tasks: Sequence[tuple[int, UUID]], *, worker: str) -> list[Execution]:
        found = [self._find(*name) for name in tasks]
        return [assignment_of(t) for t in found if t is not None and t.worker == worker]

    def extend(self, held: Iterable[TaskRef], *, lease: float) -> list[ExtendedLease]:
        extended = []
        for ref in sorted(held):
            task = self._current_try(ref.tenant_id, ref.id, ref.guard)
            if task is not None:
                end = task.lease_until = self.now() + lease
                extended.append(ExtendedLease(task.tenant_id, task.id, end, task.cancel_requested))
        self.committed("extend")
        return extended

    def expire_leases(
        self,
        held: Iterable[TaskRef],
        *,
        count_crash: Collection[UUID] = (),
        presumed: Collection[UUID] = (),
    ) -> Seen:
        now = self.now()
        rows, gone = [], []
        for ref in sorted(held):
            task = self._current_try(ref.tenant_id, ref.id, ref.guard)
            if task is None or not self._is_over(task, now):
                continue
            self._write_execution(task, "lost", ref.guard, _moments(task).until_picked())
            counted = task.incarnation is not None and task.id in count_crash
            began = task.began or task.id in presumed
            alone = task.began_alone or task.id in presumed
            again = task.losses >= 1 and task.losses + task.unproven_losses >= 2
            if task.cancel_requested:
                self._end(task, "cancelled", now)
                gone.append(task.id)
            elif counted and began and alone and again and task.capability.endswith(ALONE):
                self._add_dead_letter(task, "poison")
                self._end(task, "failed", now)
                gone.append(task.id)
            else:
                task.losses += counted and began
                task.unproven_losses += counted and not began
                lost_twice = task.losses + task.unproven_losses >= 2
                if counted and lost_twice and not task.capability.endswith(ALONE):
                    task.capability += ALONE
                task.waited = _moments(task).until_lost(now)
                task.back_to_scheduled()
                rows.append(task.row())
        self.committed("expire_leases")
        return Seen(rows, gone)

    def _is_over(self, task: Task, now: float) -> bool:
        present = self.tables.workers.get((task.tenant_id, task.worker or ""), task.incarnation)
        ran_out = task.lease_until is not None and task.lease_until <= now
        return ran_out or (task.incarnation is not None and present != task.incarnation)

    def expire(self, ownership: Ownership, *, limit: int) -> list[UUID]:
        if not self.is_valid(ownership):
            return []
        now = self.now()
        ended = [
            task
            for task in self.tables.tasks.values()
            if task.expires is not None and task.expires <= now
            if task.state != "running" and task.partition in ownership.partitions
        ][:limit]
        for task in ended:
            self._end(task, "expired", now)
        self.committed("expire")
        return [task.id for task in ended]

    def explain_ends(self, _ended: Sequence[EndedWaiting]) -> None:
        """Its history says nothing of lateness."""
        self.committed("explain_ends")

    # Outcomes --------------------------------------------------------------------------------

    def finish(self, ownership: Ownership, finished: Iterable[Finish]) -> set[UUID]:
        accepted = set()
        self.writer = ownership
        for finish in sorted(finished, key=_by_task):
            report = finish.report
            task = self._try_of(report)
            if task is None:
                continue
            own = finish.own_lateness
            self._write_execution(task, report.outcome.value, report.execution.fence, own)
            if finish.dead_because is not None:
                self._add_dead_letter(task, finish.dead_because)
            task.failures += report.outcome.value in _FAILURES
            self._end(task, finish.state.value, report.finished)
            self._wake_unless_owned(task, ownership)
            accepted.add(task.id)
        self.committed("finish")
        return accepted

    def retry(self, ownership: Ownership, retries: Iterable[RetryLater]) -> list[TaskRow]:
        rows = []
        self.writer = ownership
        for retry in sorted(retries, key=_by_task):
            report = retry.report
            task = self._try_of(report)
            if task is None or task.cancel_requested:
                continue
            own = retry.own_lateness
            self._write_execution(task, report.outcome.value, report.execution.fence, own)
            task.failures += report.outcome.value in _FAILURES
            task.earlier = retry.earlier
            task.waited = None if retry.delay is not None else _moments(task).until_lost(self.now())
            if report.outcome.value in _FAILURES:
                task.losses = task.unproven_losses = 0
                task.capability = task.capability.removesuffix(ALONE)
            task.error = report.error
            if retry.delay is not None:
                task.due = round(self.now() + retry.delay, 6)
            task.back_to_scheduled()
            self._wake_unless_owned(task, ownership)
            rows.append(task.row())
        self.committed("retry")
        return rows

    # Tasks as the API sees them --------------------------------------------------------------

    def create(
        self,
        creations: Sequence[Creation],
        ownership: Ownership,
        offer: EagerLeaseOffer = NO_EAGER_LEASE,
    ) -> Made:
        made = Made({}, [])
        self.writer = ownership
        for creation in creations:
            if creation.keyed is not None and not self._take_key(creation):
                continue
            for new in creation.tasks:
                task = self.add_task(new, ownership)
                if task is None:
                    continue
                made.partitions[new.id] = task.partition
                if new.id in offer.tasks and self._starts(task, ownership):
                    ref = TaskRef(task.tenant_id, task.id, task.rev)
                    if self.begin_execution(ref, offer.worker, None, offer.lease) is not None:
                        task.fence = 1  # nobody can have leased it before
                        made.leased.append((task.row(), assignment_of(task)))
        self.committed("create")
        return made

    def _starts(self, task: Task, ownership: Ownership) -> bool:
        unlimited = self.tables.tenants[task.tenant_id].max_running is None
        plain = task.key is None and task.expires is None
        return (
            unlimited
            and plain
            and self.is_valid(ownership)
            and task.partition in ownership.partitions
        )

    def add_task(self, new: NewTask, ownership: Ownership) -> Task | None:
        """A part of a transaction that creates tasks."""
        limits = self.tables.tenants.get(new.tenant_id)
        if limits is None:
            return None
        task = _fresh(new, limits.spread)
        self.tables.tasks[new.id] = task
        if task.due <= self.now() + self.near:
            self._wake_unless_owned(task, ownership)
        return task

    def tasks_of(self, schedule_id: UUID) -> list[Task]:
        """The unfinished tasks of a schedule, oldest first."""
        found = [t for t in self.tables.tasks.values() if t.made.schedule_id == schedule_id]
        return sorted(found, key=lambda task: task.id)

    def cancel(self, task: Task) -> None:
        """A part of a transaction that cancels a task: it ends at once, or is asked to stop."""
        if task.state == "running":
            task.cancel_requested, task.rev = True, task.rev + 1
        else:
            self._end(task, "cancelled", self.now())
        self._wake(task)

    def which_exist(self, tenant_id: int, ids: Sequence[UUID]) -> dict[UUID, int | None]:
        found: dict[UUID, int | None] = {}
        for task_id in ids:
            task = self._find(tenant_id, task_id)
            if task is not None:
                found[task_id] = task.partition
            elif task_id in self.tables.history:
                found[task_id] = None
        return found

    def change(
        self, tenant_id: int, task_id: UUID, decide: Callable[[LockedTask], TaskChange | T]
    ) -> T | bool | None:
        task = self._find(tenant_id, task_id)
        if task is None:
            return None
        chosen = decide(_locked(task))
        if not isinstance(chosen, TaskChange):
            return chosen
        if TaskState(chosen.state).final:
            assert task.state != "running", "a running task is ended by its executor"
            self._end(task, chosen.state, self.now())
        else:
            _apply(task, chosen)
        self._wake(task)
        self.committed("change")
        return True

    # Tenants ---------------------------------------------------------------------------------

    def limits(self, tenants: Collection[int] | None = None) -> dict[int, TenantLimits]:
        everyone = self.tables.tenants
        return {t: everyone[t] for t in everyone if tenants is None or t in tenants}

    def set_limits(self, tenant_id: int, limits: TenantLimits) -> None:
        if tenant_id not in self.tables.tenants:
            return
        self.tables.tenants[tenant_id] = limits
        for task in self.tables.tasks.values():
            placed_by = task.made.schedule_id or task.id
            new = partition_of(tenant_id, placed_by, task.key, limits.spread)
            if task.tenant_id == tenant_id and task.partition != new:
                old, task.partition, task.rev = task.partition, new, task.rev + 1
                if task.due <= self.now() + _AN_HOUR:
                    self._wake(task, old)
                    self._wake(task, new)
        self.committed("set_limits")

    # Details ---------------------------------------------------------------------------------

    def _find(self, tenant_id: int, task_id: UUID) -> Task | None:
        task = self.tables.tasks.get(task_id)
        return task if task is not None and task.tenant_id == tenant_id else None

    def _current_try(self, tenant_id: int, task_id: UUID, fence: int) -> Task | None:
        task = self._find(tenant_id, task_id)
        if task is None or task.fence != fence or task.state != "running":
            return None
        return task

    def _try_of(self, report: Report) -> Task | None:
        execution = report.execution
        return self._current_try(execution.tenant_id, execution.id, execution.fence)

    def _wake_unless_owned(self, task: Task, ownership: Ownership) -> None:
        if task.partition not in ownership.partitions or not self.is_valid(ownership):
            self._wake(task)

    def _wake(self, task: Task, partition: int | None = None) -> None:
        place = task.partition if partition is None else partition
        self.tables.wakes[next(self.tables.wake_ids)] = (place, task.tenant_id, task.id)

    def _end(self, task: Task, state: str, finished: float) -> None:
        del self.tables.tasks[task.id]
        self.tables.history[task.id] = Finished(
            task.tenant_id, task.id, task.rev + 1, task.fence, state, task.failures, finished
        )

    def _write_execution(
        self, task: Task, outcome: str, told_by: int, lateness: Waited | None = None
    ) -> None:
        self.tables.executions.append(
            ExecutionRow(
                task.tenant_id,
                task.id,
                task.fence,
                task.attempts,
                outcome,
                task.worker or "",
                told_by,
                lateness,
            )
        )

    def _add_dead_letter(self, task: Task, reason: str) -> None:
        executions = tuple(e.outcome for e in self.tables.executions if e.id == task.id)
        self.tables.dead_letters[task.id] = DeadLetter(reason, executions)

    def _take_key(self, creation: Creation) -> bool:
        keyed = creation.keyed
        assert keyed is not None
        before = self.tables.idempotency.get((creation.tenant_id, keyed.key))
        if before is not None and before.expires > self.now():
            return False
        row = KeyRow(keyed.answer, self.now() + keyed.ttl)
        self.tables.idempotency[creation.tenant_id, keyed.key] = row
        return True


def _by_task(item: Finish | RetryLater) -> tuple[int, UUID]:
    return item.report.execution.tenant_id, item.report.execution.id


def _fresh(new: NewTask, spread: int) -> Task:
    placed_by = new.schedule_id or new.id
    partition = partition_of(new.tenant_id, placed_by, new.concurrency_key, spread)
    return Task(
        new, partition, new.run, round(new.due, 6), new.expires, new.priority, new.queue,
        new.capability, new.name, new.labels, new.spec, new.payload,
    )  # fmt: skip


def assignment_of(task: Task) -> Execution:
    assert task.picked is not None
    assert task.lease_until is not None
    spec, unreadable = read_spec(task.spec)
    return Execution(
        task.tenant_id, task.id, task.fence, task.partition, task.attempts, task.failures, task.due,
        task.picked, task.lease_until, spec, task.payload, task.run, unreadable=unreadable,
        waited=task.waited, earlier=task.earlier,
    )  # fmt: skip


def _moments(task: Task) -> Moments:
    assert task.picked is not None
    return Moments(task.due, task.picked, task.waited)


def _locked(task: Task) -> LockedTask:
    return LockedTask(
        id=task.id,
        created_at=_moment(task.made.created),
        run_at=_moment(task.run),
        due_at=_moment(task.due),
        expires_at=None if task.expires is None else _moment(task.expires),
        rev=task.rev,
        fence=task.fence,
        attempts=task.attempts,
        concurrency_limit=task.made.concurrency_limit,
        partition=task.partition,
        priority=task.priority,
        cancel_requested=task.cancel_requested,
        state=task.state,
        queue=task.queue,
        capability=task.capability,
        concurrency_key=task.key,
        name=task.name,
        labels=None if task.labels is None else dict(task.labels),
        spec=task.spec,
        payload=task.payload,
    )


def _apply(task: Task, change: TaskChange) -> None:
    task.rev += 1
    if task.due != change.due:
        task.waited = None
    task.state, task.cancel_requested = change.state, change.cancel_requested
    task.run, task.due, task.expires = change.run, change.due, change.expires
    task.priority, task.queue, task.capability = change.priority, change.queue, change.capability
    task.name, task.labels = change.name, change.labels
    task.spec, task.payload = change.spec, change.payload


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
