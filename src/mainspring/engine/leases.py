"""Leases of a node's own executors, which it has to extend."""

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from uuid import UUID


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

    Turns are counted by the node's steady clock, from the first look after a lease was added: the
    database's clock may have jumped back, and its time stands still for us then. A short task is
    over before its turn comes, so it is never extended.
    """

    def __init__(self, lease: float) -> None:
        self._interval = lease / 3
        self._held: dict[UUID, HeldLease] = {}
        self._fresh: list[HeldLease] = []
        self._turns: deque[tuple[float, HeldLease]] = deque()
        self._to_cancel: dict[UUID, int] = {}
        """Executions, by task, that were asked to cancel before their claim was answered."""
        self.by_tenant: Counter[int] = Counter()
        """How many slots each tenant has; tenants without any are left out."""
        self.slots = 0
        """How many slots of our own executors are taken."""

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[HeldLease]:
        return iter(self._held.values())

    # For the drivers -------------------------------------------------------------------------

    def has(self, task_id: UUID, fence: int) -> bool:
        """Whether an executor of ours has this execution, as far as we know."""
        held = self._held.get(task_id)
        return held is not None and held.fence == fence

    def drop(self, task_id: UUID, fence: int) -> None:
        """Stop extending a lease: its executor is done, the outcome is about to be recorded."""
        held = self._held.get(task_id)
        if held is not None and held.fence == fence:
            held.over = True
            del self._held[task_id]
            self._count(held, -1)

    def due_for_extension(self, steady: float, limit: int) -> list[HeldLease]:
        """Return the leases whose turn it is, and give each its next turn a third of a lease later.
        To be called at every look, for the turns of new leases count from it."""
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

    def next_extension(self) -> float | None:
        """Return when the next turn comes, by the steady clock."""
        return self._turns[0][0] if self._turns else None

    def cancelled_during_claim(self, claimed: Iterable[UUID]) -> list[HeldLease]:
        """Return the leases that were asked to cancel before their claim was answered. To be called
        once it is, with all tasks of the claim."""
        if not self._to_cancel:
            return []
        asked = {task_id: self._to_cancel.pop(task_id, None) for task_id in claimed}
        return [held for held in self.find(asked) if held.fence == asked[held.id]]

    # For the engine --------------------------------------------------------------------------

    def find(self, ids: Iterable[UUID]) -> list[HeldLease]:
        return [held for task_id in ids if (held := self._held.get(task_id)) is not None]

    def add(self, held: HeldLease) -> None:
        before = self._held.get(held.id)
        if before is not None:
            self.drop(before.id, before.fence)
        self._held[held.id] = held
        self._count(held, 1)
        self._fresh.append(held)

    def cancel_once_claimed(self, task_id: UUID, fence: int) -> None:
        self._to_cancel[task_id] = fence

    def _count(self, held: HeldLease, change: int) -> None:
        if held.slot:
            self.slots += change
            self.by_tenant[held.tenant_id] += change
            if not self.by_tenant[held.tenant_id]:
                del self.by_tenant[held.tenant_id]
