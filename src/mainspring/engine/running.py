"""Running tasks of the partitions a node owns, whoever runs them, and the ends of their leases."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from uuid import UUID

from mainspring.engine.demand import LeaseHolder, WorkerSession
from mainspring.engine.timer import Timer


@dataclass(slots=True)
class RunningTask:
    """A running task of a partition we own, whoever runs it."""

    tenant_id: int
    id: UUID
    partition: int
    concurrency_key: str | None
    rev: int
    fence: int
    lease_end: float
    holder: LeaseHolder | None = None
    confirmed: bool = True
    """Whether its worker was heard of since it is ours: if not, it may never have got the task."""
    presumed_started: bool = False
    """Whether it counts as started although its worker does not say so."""
    over: bool = False
    slot: bool = True
    """Whether it counts for limits and shares; for its key it always does."""


class RunningTasks:
    """The running tasks of our partitions."""

    # The lease is judged by the database; asking a moment late spares a useless question.
    _MARGIN = 0.05

    def __init__(self) -> None:
        self._tasks: dict[UUID, RunningTask] = {}
        self._ends: Timer[RunningTask] = Timer()
        self._of_worker: dict[tuple[int, str], dict[UUID, RunningTask]] = {}
        self._ended_during: list[dict[UUID, float]] = []
        """Of each read that is under way, the executions that ended since it began."""

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[RunningTask]:
        return iter(self._tasks.values())

    # For the drivers -------------------------------------------------------------------------

    def in_partition(self, partition: int) -> list[tuple[int, UUID]]:
        """Return what we believe to be running there, for comparing with the database."""
        return [(t.tenant_id, t.id) for t in self if t.partition == partition]

    def expired_leases(self, now: float, limit: int = 2000) -> list[RunningTask]:
        """Return leases of others that seem to have ended; each comes again until it is removed."""
        ended: list[RunningTask] = []
        while len(ended) < limit and (task := self._ends.pop_one(now)) is not None:
            if task.over:
                continue
            self._ends.add(max(task.lease_end, now + 1.0) + self._MARGIN, task)
            if task.lease_end <= now:
                ended.append(task)
        return ended

    def confirm(self, task_id: UUID, fence: int, lease_end: float = -inf) -> None:
        """Note that a lease was extended, or that a task claimed for a worker of another node has
        reached that node."""
        task = self._tasks.get(task_id)
        if task is not None and task.fence == fence:
            task.lease_end = max(task.lease_end, lease_end)
            task.confirmed = True

    def by_worker(self) -> dict[tuple[int, str], int]:
        """Return how many tasks each worker, by tenant and name, holds."""
        return {name: len(tasks) for name, tasks in self._of_worker.items()}

    def of_former_sessions(self, current: WorkerSession) -> list[RunningTask]:
        """Return what earlier incarnations of a worker still hold."""
        tasks = self._of_worker.get(current[:2], {}).values()
        return [
            task for task in tasks if task.holder is not None and task.holder.session != current
        ]

    def presumed_started(self, ended: Collection[RunningTask]) -> list[RunningTask]:
        """Return those that count as started although their worker does not say so: it was given
        nothing else meanwhile, as far as we know."""
        return [task for task in ended if task.presumed_started and self._is_only_one(task)]

    def _is_only_one(self, task: RunningTask) -> bool:
        if task.holder is None:
            return False
        session = task.holder.session
        others = self._of_worker.get(session[:2], {}).values()
        return all(o is task or o.holder is None or o.holder.session != session for o in others)

    # For the engine --------------------------------------------------------------------------

    def get(self, task_id: UUID) -> RunningTask | None:
        return self._tasks.get(task_id)

    def add(self, task: RunningTask, *, ours: bool) -> None:
        """Add a task. Leases of ours are extended until a report; of others the end is watched."""
        self._tasks[task.id] = task
        if task.holder is not None:
            name = task.holder.session[:2]
            self._of_worker.setdefault(name, {})[task.id] = task
        if not ours:
            self._ends.add(task.lease_end + self._MARGIN, task)

    def remove(self, task_id: UUID) -> RunningTask | None:
        task = self._tasks.pop(task_id, None)
        if task is not None:
            task.over = True
            if task.holder is not None:
                name = task.holder.session[:2]
                del self._of_worker[name][task_id]
                if not self._of_worker[name]:
                    del self._of_worker[name]
        return task

    def remove_partitions(self, partitions: Collection[int]) -> list[RunningTask]:
        removed = [task for task in self._tasks.values() if task.partition in partitions]
        for task in removed:
            self.remove(task.id)
        return removed

    def next_end(self) -> float | None:
        return self._ends.next_at()

    # Reads that are under way ----------------------------------------------------------------

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Return a context to enter before rows are read, and leave once they are passed on.

        Tasks that are unfinished in these rows may end meanwhile: they must not start again, and
        wait for ever or count until their lease is over."""
        ended: dict[UUID, float] = {}
        self._ended_during.append(ended)
        try:
            yield
        finally:
            self._ended_during = [other for other in self._ended_during if other is not ended]

    def note_end(self, task_id: UUID, fence: float = inf) -> None:
        """Note that an execution is over for good; without a fence, that the task is finished."""
        for ended in self._ended_during:
            ended[task_id] = max(fence, ended.get(task_id, fence))

    def has_ended(self, task_id: UUID, fence: int) -> bool:
        """Whether this execution, or a later one, ended since the rows at hand were read."""
        return any(ended.get(task_id, -1) >= fence for ended in self._ended_during)

    def forget_ends(self) -> None:
        """Forget which executions ended: the database may have been set back, and is read anew."""
        for ended in self._ended_during:
            ended.clear()
