"""Eager leases: tasks that are leased to this node by the statement that creates or releases them.

An offer says what may be leased, and keeps slots for it until it is ended. Half of the slots are
never offered, so that no queued task has to wait because of it.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import nsmallest
from typing import Protocol
from uuid import UUID

from mainspring.domain.capability import takes_slot
from mainspring.domain.execution import Execution
from mainspring.domain.rows import TaskRow
from mainspring.lifecycle import BackgroundTasks
from mainspring.node.retrying import until_answered
from mainspring.node.state import NodeState
from mainspring.store.claims import EngineStore
from mainspring.store.creation import NO_EAGER_LEASE, EagerLeaseOffer, NewTask, started_task
from mainspring.store.workflows.step_rows import NO_STEP_LEASES, StepLeaseOffer

_CLOCK_ERROR = 0.01
# Of one transaction; enough for a fan-out that is not shared among the nodes.
_MOST_STEPS = 64

EagerLease = tuple[TaskRow, Execution]
"""A task that was leased by the statement that created or released it."""


class Slots(Protocol):
    """The slots of this node's executors: the dispatcher."""

    @property
    def free_slots(self) -> int: ...

    @property
    def closed(self) -> bool: ...

    def accepts(self, capability: str) -> bool: ...

    def give_out(self, leased: Iterable[tuple[str, Execution]]) -> None: ...


@dataclass(eq=False)
class EagerLeases:
    """Offers eager leases, and starts what was leased."""

    _state: NodeState
    _store: EngineStore
    _slots: Slots
    reserved: int = field(default=0, init=False)
    """Slots that are kept for offers."""
    _unknown: dict[str, dict[UUID, NewTask]] = field(default_factory=dict, init=False)
    """New tasks that may have been leased or not, by the worker's name; their slots are kept."""
    _resolving: asyncio.Task[None] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._config, self._metrics = self._state.config, self._state.metrics
        self._background_tasks = BackgroundTasks(of="dispatch")

    # Steps that are released -----------------------------------------------------------------

    def offer_steps(self) -> StepLeaseOffer:
        """Offer to run steps that a transaction releases; `end_steps` must follow."""
        most = min(_MOST_STEPS, self._spare_slots)
        if most <= 0:
            return NO_STEP_LEASES
        self.reserved += most
        return StepLeaseOffer(most, self._state.worker, self._config.lease)

    def end_steps(self, offer: StepLeaseOffer, leased: Sequence[EagerLease]) -> None:
        self.reserved -= offer.most
        self._start(leased)

    # Tasks that are created ------------------------------------------------------------------

    def offer_tasks(self, tasks: Iterable[NewTask]) -> EagerLeaseOffer:
        """Offer to run new tasks; `end_tasks` must follow. No task of their tenant waits, and where
        slots are short the most urgent get them."""
        # What is due is for the database to say; our clock may be a little slow.
        spare, soon = self._spare_slots, self._state.clock.now() + _CLOCK_ERROR
        engine = self._state.engine
        free: dict[tuple[int, str], bool] = {}
        chosen: list[NewTask] = []
        for task in tasks if spare > 0 else ():
            if task.due > soon or task.expires is not None or task.concurrency_key is not None:
                continue
            kind = (task.tenant_id, task.capability)
            if kind not in free:
                accepted = takes_slot(task.capability) and self._slots.accepts(task.capability)
                free[kind] = accepted and engine.may_skip_queue(task.tenant_id)
            if free[kind]:
                chosen.append(task)
        if not chosen:
            return NO_EAGER_LEASE
        if len(chosen) > spare:
            chosen = nsmallest(spare, chosen, key=lambda t: engine.deadline(t.due, t.priority))
        self.reserved += len(chosen)
        engine.reserve(task.tenant_id for task in chosen)
        return EagerLeaseOffer({t.id: t for t in chosen}, self._state.worker, self._config.lease)

    def end_tasks(self, offer: EagerLeaseOffer, leased: Sequence[EagerLease] | None) -> None:
        """Start what was leased; None when that is not known, for the answer was lost."""
        if not offer.tasks:
            return
        if leased is None:
            self._unknown.setdefault(offer.worker, {}).update(offer.tasks)
            if self._resolving is None or self._resolving.done():
                self._resolving = self._background_tasks.start(self._resolve_unknown())
            return
        self._free(offer.tasks)
        self._start(leased)

    def forget(self, tasks: Sequence[UUID]) -> None:
        """Note that these tasks were claimed: they were not leased eagerly."""
        for worker in list(self._unknown):
            self._take_unknown(worker, tasks)

    async def _resolve_unknown(self) -> None:
        """Start what was leased after all, and tell the engine about what was not. All of it is
        asked at once, however many answers get lost while the database is away."""
        while self._unknown:
            worker, unknown = next(iter(self._unknown.items()))
            tasks = dict(unknown)
            names = [(new.tenant_id, new.id) for new in tasks.values()]
            ask = partial(self._store.leased_to, names, worker=worker)
            found = await until_answered(ask, self._metrics)
            seen = await until_answered(partial(self._store.look_at, names), self._metrics)
            engine = self._state.engine
            leased = [
                started_task(tasks[a.id], a.partition, a.picked, a.lease_end)
                for a in found
                # Else it was not leased then: it was found, and claimed like any other.
                if a.fence == 1 and a.id in unknown and not engine.window.is_claiming(a.id)
            ]
            self._take_unknown(worker, tasks)
            self._start(leased)
            engine.update(seen.rows, self._state.clock.now())

    def _take_unknown(self, worker: str, tasks: Iterable[UUID]) -> None:
        unknown = self._unknown.get(worker, {})
        taken = {i: task for i in tasks if (task := unknown.pop(i, None)) is not None}
        if not unknown:
            self._unknown.pop(worker, None)
        self._free(taken)

    def _free(self, tasks: Mapping[UUID, NewTask]) -> None:
        """Free the slots that were kept for these tasks."""
        self.reserved -= len(tasks)
        self._state.engine.unreserve(task.tenant_id for task in tasks.values())
        self._state.request_dispatch()

    @property
    def _spare_slots(self) -> int:
        """Slots beyond the half that is kept for queued tasks."""
        return 0 if self._slots.closed else self._slots.free_slots - self._config.slots // 2

    def _start(self, leased: Sequence[EagerLease]) -> None:
        now = self._state.clock.now()
        for row, _ in leased:
            self._state.engine.add_eager_lease(row, now)
        self._slots.give_out((row.capability, execution) for row, execution in leased)
        self._metrics.tasks_claimed.inc(len(leased))
