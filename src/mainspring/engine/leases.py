"""Running tasks: whom they count against, when their leases end, which leases are ours to keep."""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import UUID

from mainspring.engine.demand import LeaseHolder, WorkerSession
from mainspring.engine.timer import Timer

_NO_LATER_TRY = float("inf")


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
    taker: LeaseHolder | None = None
    confirmed: bool = True
    """Whether its worker was heard of since it is ours: if not, it may never have got the task."""
    presumed_begun: bool = False
    """Whether it counts as begun although its worker does not say so: one that never tells, and
    got this task as its only one."""
    over: bool = False
    slot: bool = True
    """Whether it counts for limits and shares; for its key it always does."""


class RunningTasks:
    """What is running in the partitions we own. When a lease ends, somebody must look."""

    # The lease is judged by the database; asking a moment late spares a useless question.
    _MARGIN = 0.05

    def __init__(self) -> None:
        self._tasks: dict[UUID, RunningTask] = {}
        self._ends: Timer[RunningTask] = Timer()
        self._of_worker: dict[tuple[int, str], dict[UUID, RunningTask]] = {}
        self._ended_during: list[dict[UUID, float]] = []
        """Of each read that is under way, the tries that ended since it began."""

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[RunningTask]:
        return iter(self._tasks.values())

    def get(self, task_id: UUID) -> RunningTask | None:
        return self._tasks.get(task_id)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """While rows are read, tasks may end that are unfinished in them: for the reader they must
        not begin again, and wait for ever or count until their lease is over."""
        ended: dict[UUID, float] = {}
        self._ended_during.append(ended)
        try:
            yield
        finally:
            self._ended_during = [other for other in self._ended_during if other is not ended]

    def note_end(self, task: RunningTask) -> None:
        """Its try is over for good; it is not that somebody else looks after it now."""
        self._note(task.id, task.fence)

    def note_gone(self, task_id: UUID) -> None:
        """It is finished: there will be no other try."""
        self._note(task_id, _NO_LATER_TRY)

    def _note(self, task_id: UUID, fence: float) -> None:
        for ended in self._ended_during:
            ended[task_id] = max(fence, ended.get(task_id, fence))

    def has_ended(self, task_id: UUID, fence: int) -> bool:
        """Whether this try, or a later one, ended since the rows were read that we hear of now."""
        return any(ended.get(task_id, -1) >= fence for ended in self._ended_during)

    def forget_ends(self) -> None:
        """What ended may not have ended: perhaps nothing is ours because the database was set back,
        and is read anew."""
        for ended in self._ended_during:
            ended.clear()

    def add(self, task: RunningTask, *, ours: bool) -> None:
        """Ours we keep alive, and they end with a report; of others' we watch the end."""
        self._tasks[task.id] = task
        if task.taker is not None:
            name = task.taker.holder[:2]
            self._of_worker.setdefault(name, {})[task.id] = task
        if not ours:
            self._ends.add(task.lease_end + self._MARGIN, task)

    def remove(self, task_id: UUID) -> RunningTask | None:
        task = self._tasks.pop(task_id, None)
        if task is not None:
            task.over = True
            if task.taker is not None:
                self._let_go(task.taker.holder, task_id)
        return task

    def remove_partitions(self, partitions: Collection[int]) -> list[RunningTask]:
        gone = [task for task in self._tasks.values() if task.partition in partitions]
        for task in gone:
            self.remove(task.id)
        return gone

    def of_former(self, current: WorkerSession) -> list[RunningTask]:
        """What earlier incarnations of a worker still hold."""
        tasks = self._of_worker.get(current[:2], {}).values()
        return [task for task in tasks if task.taker is not None and task.taker.holder != current]

    def by_worker(self) -> dict[tuple[int, str], int]:
        return {name: len(tasks) for name, tasks in self._of_worker.items()}

    def ended_leases(self, now: float, limit: int = 2000) -> list[RunningTask]:
        """Leases that seem to have ended. Each is watched again a moment later until it is gone."""
        ended: list[RunningTask] = []
        while len(ended) < limit and (task := self._ends.pop_one(now)) is not None:
            if task.over:
                continue
            self._ends.add(max(task.lease_end, now + 1.0) + self._MARGIN, task)
            if task.lease_end <= now:
                ended.append(task)
        return ended

    def next_end(self) -> float | None:
        return self._ends.next_at()

    def _let_go(self, holder: WorkerSession, task_id: UUID) -> None:
        of_worker = self._of_worker[holder[:2]]
        of_worker.pop(task_id, None)
        if not of_worker:
            del self._of_worker[holder[:2]]


@dataclass(slots=True)
class HeldLease:
    """A lease this node holds for one of its own executors, in whatever partition."""

    tenant_id: int
    id: UUID
    fence: int
    over: bool = False
    slot: bool = True


class HeldLeases:
    """The leases this node must extend: a queue, because every lease is equally long.

    Turns are counted by the node's steady clock, and from the first look after a lease was taken:
    they come also while the database's clock has jumped back and its time stands still for us. A
    short task is over before its turn comes, so it is never extended.
    """

    def __init__(self, lease: float) -> None:
        self._interval = lease / 3
        self._held: dict[UUID, HeldLease] = {}
        self._fresh: list[HeldLease] = []
        self._turns: deque[tuple[float, HeldLease]] = deque()
        self._to_cancel: dict[UUID, int] = {}
        """Tries, by task, that were asked to cancel while their claim is being answered."""
        self.by_tenant: Counter[int] = Counter()
        """How many slots each tenant has; tenants without any are left out."""
        self.slots = 0

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[HeldLease]:
        return iter(self._held.values())

    def has(self, task_id: UUID, fence: int) -> bool:
        held = self._held.get(task_id)
        return held is not None and held.fence == fence

    def find(self, ids: Iterable[UUID]) -> list[HeldLease]:
        return [held for task_id in ids if (held := self._held.get(task_id)) is not None]

    def cancel_when_taken(self, task_id: UUID, fence: int) -> None:
        self._to_cancel[task_id] = fence

    def cancelled_meanwhile(self, claimed: Iterable[UUID]) -> list[HeldLease]:
        """To be asked once a claim was answered, with all that it was about: which were taken, and
        should be cancelled."""
        if not self._to_cancel:
            return []
        asked = {task_id: self._to_cancel.pop(task_id, None) for task_id in claimed}
        return [held for held in self.find(asked) if held.fence == asked[held.id]]

    def take(self, held: HeldLease) -> None:
        before = self._held.get(held.id)
        if before is not None:
            self.drop(before.id, before.fence)
        self._held[held.id] = held
        self._count(held, 1)
        self._fresh.append(held)

    def drop(self, task_id: UUID, fence: int) -> None:
        held = self._held.get(task_id)
        if held is not None and held.fence == fence:
            held.over = True
            del self._held[task_id]
            self._count(held, -1)

    def to_extend(self, steady: float, limit: int) -> list[HeldLease]:
        """Whose turn it is; each gets its next turn a third of a lease later."""
        turn = steady + self._interval
        self._turns.extend((turn, held) for held in self._fresh if not held.over)
        self._fresh.clear()
        due: list[HeldLease] = []
        while self._turns and self._turns[0][0] <= steady and len(due) < limit:
            _, held = self._turns.popleft()
            if not held.over:
                due.append(held)
                self._turns.append((turn, held))
        return due

    def _count(self, held: HeldLease, change: int) -> None:
        if held.slot:
            self.slots += change
            self.by_tenant[held.tenant_id] += change
            if not self.by_tenant[held.tenant_id]:
                del self.by_tenant[held.tenant_id]

    def next_turn(self) -> float | None:
        return self._turns[0][0] if self._turns else None
