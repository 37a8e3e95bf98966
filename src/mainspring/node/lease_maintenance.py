"""Leases: ours are extended while their executions last; those that nobody extends are ended."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from mainspring import crash_points
from mainspring.engine.demand import WorkerSession
from mainspring.engine.leases import HeldLease
from mainspring.engine.running import RunningTask
from mainspring.lifecycle import BackgroundTasks
from mainspring.node.recorder import Recorder
from mainspring.node.retrying import until_answered
from mainspring.node.state import NodeState
from mainspring.store.claims import EngineStore
from mainspring.store.task_refs import Seen, TaskRef

# Few enough that nobody's start waits for the handling of one batch.
_EXTEND_BATCH = 500


@dataclass(eq=False)
class LeaseMaintenance:
    """Extends our leases and ends those of others, side by side: to end a lease of a step takes the
    lock of its run, which another may hold for long, and meanwhile our own leases would end."""

    _state: NodeState
    _store: EngineStore
    _recorder: Recorder
    _cancel: Callable[[Sequence[HeldLease]], None]
    _interrupt_polls: Callable[[Collection[WorkerSession]], None]
    _background_tasks: BackgroundTasks = field(
        default_factory=lambda: BackgroundTasks(of="lease"), init=False
    )
    _extending: asyncio.Task[None] | None = field(default=None, init=False)
    _expiring: asyncio.Task[None] | None = field(default=None, init=False)

    def next_turn(self) -> float | None:
        """Return when to extend, by the steady clock; None while that is under way."""
        return self._state.engine.leases.next_extension() if _is_over(self._extending) else None

    def turn(self) -> None:
        """Begin to extend and to end what is due."""
        engine = self._state.engine
        batch = _EXTEND_BATCH if _is_over(self._extending) else 0
        if due := engine.leases.due_for_extension(self._state.clock.steady(), batch):
            self._extending = self._background_tasks.start(self._extend(due))
        # Leases are dated by the database, whose clock may have jumped back behind ours.
        ended_by = self._state.clock.measured()
        if _is_over(self._expiring) and (ended := engine.running.expired_leases(ended_by)):
            self._expiring = self._background_tasks.start(self.expire_leases(ended))

    async def _extend(self, due: Sequence[HeldLease]) -> None:
        refs = [TaskRef(held.tenant_id, held.id, held.fence) for held in due]
        extended = await until_answered(
            lambda: self._store.extend(refs, lease=self._state.config.lease), self._state.metrics
        )
        crash_points.reach("lease.extended")
        kept = {item.id: item for item in extended}
        for held in due:
            item = kept.get(held.id)
            if item is not None:
                self._state.engine.running.confirm(held.id, held.fence, item.lease_end)
        # An execution that is not ours any more would be refused at its end: spare the effort.
        self._cancel([h for h in due if h.id not in kept or kept[h.id].cancel_requested])
        self._state.request_dispatch()

    async def expire_leases(self, ended: Sequence[RunningTask]) -> None:
        """End leases that seem to have ended; the database decides."""
        refs = [TaskRef(task.tenant_id, task.id, task.fence) for task in ended]
        # If a node died between the claim and the worker, that is not the worker's doing.
        count_crash = [task.id for task in ended if task.holder is not None and task.confirmed]
        presumed = await self._presumed_started(ended)
        lost = await until_answered(
            lambda: self._store.expire_leases(refs, count_crash=count_crash, presumed=presumed),
            self._state.metrics,
        )
        self._state.metrics.executions.labels("lost").inc(len(lost.rows) + len(lost.gone))
        gone = set(lost.gone)
        found = {row.id for row in lost.rows} | gone
        self._note_losses((task for task in ended if task.id in found), gone)
        self._apply(lost)
        others = [(task.tenant_id, task.id) for task in ended if task.id not in found]
        if others:
            await self._expire_steps(others, count_crash, presumed)
            with self._state.engine.running.reading():
                self._apply(await self._look_at(others))

    async def _presumed_started(self, ended: Sequence[RunningTask]) -> list[UUID]:
        """Return the executions that count as started without word of their worker. One that other
        nodes give tasks, too, may have got another one there, and died of that."""
        alone = self._state.engine.running.presumed_started(ended)
        workers = {task.holder.session[:2] for task in alone if task.holder is not None}
        if not workers:
            return []
        elsewhere = await until_answered(
            lambda: self._store.served_elsewhere(self._state.node_id, workers),
            self._state.metrics,
        )
        return [
            task.id for task in alone if task.holder and task.holder.session[:2] not in elsewhere
        ]

    async def _expire_steps(
        self,
        tasks: Sequence[tuple[int, UUID]],
        count_crash: Sequence[UUID],
        presumed: Sequence[UUID],
    ) -> None:
        """End leases of steps that the others' statement leaves out: their runs must hear of it."""
        unheard = [
            TaskRef(row.tenant_id, row.id, row.fence)
            for row in (await self._look_at(tasks)).rows
            if row.state == "running" and (row.cancel_requested or row.id in count_crash)
        ]
        if unheard:
            await until_answered(
                lambda: self._recorder.expire_step_leases(unheard, count_crash, presumed),
                self._state.metrics,
            )

    async def _look_at(self, tasks: Sequence[tuple[int, UUID]]) -> Seen:
        return await until_answered(lambda: self._store.look_at(tasks), self._state.metrics)

    def _apply(self, seen: Seen) -> None:
        self._cancel(self._state.apply(seen.rows, seen.gone))

    def _note_losses(self, lost: Iterable[RunningTask], gone: Collection[UUID]) -> None:
        """Count losses of workers, and end their polls before the engine hears that the tasks wait:
        a silent worker may be frozen with an open poll, and must not get them back unasked."""
        holders = set[WorkerSession]()
        for task in lost:
            if task.holder is not None:
                holders.add(task.holder.session)
                self._state.metrics.worker_losses.inc()
                if task.holder.alone and task.confirmed and task.id in gone:
                    self._state.metrics.poisoned.inc()
        self._interrupt_polls(holders)


def _is_over(task: asyncio.Task[None] | None) -> bool:
    return task is None or task.done()
