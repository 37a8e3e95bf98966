"""One life of a small cluster: tenants, clients and faults, drawn from a seed."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any
from unittest import mock
from uuid import UUID

import msgspec
import structlog

from mainspring.api.tasks.changes import change_by
from mainspring.config import Config
from mainspring.domain import transitions
from mainspring.domain.ids import TaskIds
from mainspring.domain.partitions import partition_of
from mainspring.domain.retry import RetryPolicy
from mainspring.domain.schedules.definition import ScheduleDefinition
from mainspring.domain.schedules.policies import Misfire
from mainspring.domain.task import Target, TaskSpec
from mainspring.domain.tenant import TenantLimits
from mainspring.errors import Conflict, StoreUnavailable
from mainspring.node.workers.heartbeats_and_reports import Verdict, WorkerReport
from mainspring.store.creation import Creation, NewTask
from mainspring.store.schedules.schedules import Template
from simulation import worker
from simulation.invariants import Invariants
from simulation.node import CAPABILITY, SimNode
from simulation.schedules import new_schedule
from simulation.store import MemoryStore
from simulation.worker import SimWorker
from simulation.world import EPOCH, NO_FAULTS, SimulationFailed, World

TROUBLE = 25.0
"""Seconds of faults; then they end."""
SECONDS_TO_RECOVER = 90.0
"""Seconds after which everything must be done."""

_RETRY = RetryPolicy(max_attempts=3, initial=0.5, factor=2.0, max_delay=3.0)
_SPEC = msgspec.json.encode(
    TaskSpec(Target("handler", name="mainspring.work"), retry=_RETRY).stored()
)
_FAR_SPEC = msgspec.json.encode(
    TaskSpec(Target("handler", name=worker.HANDLER), timeout=6.0, retry=_RETRY).stored()
)
_TEMPLATE = msgspec.json.encode(
    Template(msgspec.Raw(_SPEC), msgspec.Raw(b"{}"), CAPABILITY, "default", 5)
)


class Scenario:
    """Builds the world and lets it run."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        rng = self.rng = Random(self.world.rng.getrandbits(64))
        self.config = _draw_config(rng)
        if self.config.reload_every > 1e6:
            # A statement that takes effect after its sender gave up needs the net.
            self.world.faults = replace(self.world.faults, late=0.0)
        limits = {tenant: _draw_limits(rng) for tenant in range(1, rng.randint(1, 3) + 1)}
        self.store = MemoryStore(
            self.world.database_clock,
            _partitions(limits),
            # Statements are late by seconds here: so much is far enough, and leaves some far away.
            near=3 * self.config.look_ahead,
        )
        self.store.tables.tenants.update(limits)
        self.invariants = Invariants(self.store)
        self.invariants.may_lose = self._may_lose
        self.invariants.may_blame = lambda: self.disturbed
        self.store.committed = self._committed
        self.nodes: list[SimNode] = []
        self.fallen: set[str] = set()
        self.workers: dict[tuple[int, str], SimWorker] = {}
        """The latest process under each name. A tenant may have none, or one, or two."""
        faults = self.world.faults
        self.disturbed = any((faults.request_lost, faults.answer_lost, faults.slow > 0.1))
        """Whether anything was ever cut off: then workers may be blamed for what they lose."""
        self.ids = TaskIds(Random(rng.getrandbits(64)))
        for _ in range(rng.choice((0, 1, 3))):
            self._make_schedule()
        self.size = rng.randint(1, 4)
        self.poison = rng.choice((0.0, 0.0, 0.05))
        """The share of tasks that kill their worker."""
        self.problem: BaseException | None = None
        self.fate = Random(f"set back {seed}")

    def run(self) -> None:
        with _in_virtual_time(self.world, self._logged):
            try:
                self._trouble()
                self._recover()
            finally:
                for node in self.nodes:
                    node.crash()
                for found in self.workers.values():
                    found.crash()

    # The two halves of a life ----------------------------------------------------------------

    def _trouble(self) -> None:
        for _ in range(self.size):
            self._start_node()
        for tenant in sorted(self.store.tables.tenants):
            for name in ("ann", "bob")[: self.rng.choice((0, 1, 2))]:
                self._start_worker(tenant, name)
        for _ in range(self.rng.randint(20, 60)):
            self.world.at(self.rng.uniform(0.5, TROUBLE), self._client_creates)
        for _ in range(self.rng.randint(0, 40)):
            self.world.at(self.rng.uniform(0.5, TROUBLE), self._client_changes)
        self._plan_faults()
        self._plan_restores()
        while self.world.now < TROUBLE:
            self._step()

    def _step(self) -> None:
        self.world.step()
        if self.world.begun_twice:
            raise SimulationFailed(f"a node began an execution twice: {self.world.begun_twice[0]}")
        if self.problem is not None:
            raise SimulationFailed(f"a driver failed: {self.problem!r}") from self.problem

    def _recover(self) -> None:
        self.world.faults = NO_FAULTS
        for node in self.nodes:
            node.resume()
        for found in self.workers.values():
            found.resume()
        while sum(node.alive for node in self.nodes) < self.size:
            self._start_node()
        deadline = self.world.now + SECONDS_TO_RECOVER
        next_look = 0.0
        while self.world.now < deadline:
            self._step()
            if self.world.now >= next_look:
                next_look = self.world.now + 0.5
                if not self.store.tables.tasks and self.invariants.schedules_are_over:
                    break
                self._resume_paused()
        self.invariants.check_end()

    def _resume_paused(self) -> None:
        for task in self.store.tables.tasks.values():
            if task.state == "paused":
                node = self._some_node()
                if node is not None:
                    self._ask(node, task.id, transitions.resume)

    # Faults ----------------------------------------------------------------------------------

    def _plan_faults(self) -> None:
        faults = self.world.faults
        for rate, fault in (
            (faults.crash_rate, self._crash),
            (faults.pause_rate, self._pause),
            (faults.clock_jump_rate, self._jump),
            (faults.crash_rate / 2, self._leave),
            (faults.crash_rate, self._crash_worker),
            (faults.crash_rate / 2, self._replace_worker),
            (faults.pause_rate, self._pause_worker),
            (0.1, self._change_limits),
        ):
            moment = self.rng.expovariate(rate) if rate else TROUBLE
            while moment < TROUBLE:
                self.world.at(moment, fault)
                moment += self.rng.expovariate(rate)

    def _plan_restores(self) -> None:
        """In some worlds the database is set back, by much or by little, once or twice. Not where
        clocks jump: what no restore repeats follows the clock."""
        if self.world.faults.clock_jump_rate:
            return
        for _ in range(self.fate.choice((0, 0, 1, 2))):
            lost = self.fate.choice((0.05, 0.9, 5.0))
            self.world.at(self.fate.uniform(1.0, TROUBLE - lost), partial(self._back_up, lost))

    def _back_up(self, lost: float) -> None:
        saved, known, life = self.store.save(), self.invariants.save(), self.world.life

        def restore() -> None:
            if self.world.life != life:
                return  # this backup is of a life that was lost itself
            self.world.note(f"the database is set back by {lost} s")
            self.world.life += 1
            self.world.down_until = self.world.now + 2.0
            self.disturbed = True
            for node in self.nodes:
                node.blemished = True
            self.store.set_back(saved)
            self.invariants.set_back(known)

        self.world.later(lost, restore)

    def _crash_worker(self) -> None:
        if (found := self._some_worker()) is not None:
            self.world.note(f"crash {found.holder}")
            found.crash()

    def _pause_worker(self) -> None:
        if (found := self._some_worker()) is not None:
            self.disturbed = True
            self.world.note(f"pause {found.holder}")
            found.pause(self.rng.choice((0.5, 3.0, 15.0)))

    def _replace_worker(self) -> None:
        """A process begins under the name of another, which does not know of it yet."""
        if (found := self._some_worker()) is not None:
            self._start_worker(*found.holder[:2])

    def _crash(self) -> None:
        node = self._some_node()
        if node is not None:
            self.world.note(f"crash {node.state.node_id}")
            self._fall(node)
            self.disturbed = True
            node.crash()
            self.world.later(self.rng.uniform(0.1, 5.0), self._start_node)

    def _pause(self) -> None:
        node = self._some_node()
        if node is not None:
            self.disturbed = True
            self.world.note(f"pause {node.state.node_id}")
            node.pause(self.rng.choice((0.5, 3.0, 10.0)))

    def _leave(self) -> None:
        node = self._some_node()
        if node is None:
            return
        self.disturbed = True
        self.world.note(f"leave {node.state.node_id}")
        self._fall(node)

        def gone() -> None:
            self.world.later(0.0, node.crash)
            self.world.later(self.rng.uniform(0.1, 3.0), self._start_node)

        node.leave(gone)

    def _jump(self) -> None:
        self.disturbed = True
        self.world.note("the database's clock jumps")
        for node in self.nodes:
            node.blemished = True
        self.world.jump_database_clock(self.rng.uniform(-3.0, 3.0))

    def _change_limits(self) -> None:
        """Weights and limits change; the spread stays, for exactness rests on it."""
        tenant = self.rng.choice(sorted(self.store.tables.tenants))
        before = self.store.tables.tenants[tenant]
        most = None if before.max_running is None else self.rng.randint(1, 3) * before.spread
        limits = TenantLimits(self.rng.randint(1, 3), most, before.spread)
        self.store.set_limits(tenant, limits)

    # Nodes -----------------------------------------------------------------------------------

    def _start_node(self) -> None:
        self.nodes.append(SimNode(self.world, self.store, self.config, self._living))

    def _living(self) -> list[SimNode]:
        return [node for node in self.nodes if node.alive]

    def _some_node(self) -> SimNode | None:
        staying = [n for n in self._living() if n.started and n.state.worker not in self.fallen]
        return self.rng.choice(staying) if staying else None

    def _fall(self, node: SimNode) -> None:
        self.fallen.add(node.state.worker)

    def _may_lose(self, worker: str) -> bool:
        """Only who was cut off may lose a lease; a name nobody bears any more was fenced."""
        if not worker.startswith("node:"):
            return True  # what was granted too late runs out, and nobody is blamed for it
        bearers = [node for node in self._living() if node.state.worker == worker]
        return not bearers or worker in self.fallen or any(node.blemished for node in bearers)

    # Workers ---------------------------------------------------------------------------------

    def _start_worker(self, tenant: int, name: str) -> None:
        judged, died = self._judged, self._worker_died
        self.disturbed |= (tenant, name) in self.workers
        self.workers[tenant, name] = SimWorker(self.world, tenant, name, self._living, judged, died)

    def _worker_died(self, worker: SimWorker) -> None:
        """What a supervisor does, unless there is another process under its name."""
        self.disturbed = True
        name = worker.holder[:2]
        if self.workers[name] is worker:
            self.world.later(self.rng.uniform(0.1, 3.0), partial(self._begin_anew, name, worker))

    def _begin_anew(self, name: tuple[int, str], dead: SimWorker) -> None:
        if self.workers[name] is dead:
            self._start_worker(*name)

    def _some_worker(self) -> SimWorker | None:
        living = [found for found in self.workers.values() if found.alive]
        return self.rng.choice(living) if living else None

    # Clients ---------------------------------------------------------------------------------

    def _client_creates(self) -> None:
        node = self._some_node()
        if node is not None:
            count = self.rng.choice((1, 1, 1, 2, 12))
            tenant = self.rng.choice(sorted(self.store.tables.tenants))
            tasks = [self._new_task(tenant) for _ in range(count)]
            node.process.spawn(partial(self._create, node, Creation(tenant, tasks)))

    def _judged(self, report: WorkerReport, verdict: Verdict) -> None:
        """What a worker was told before the database was set back may be so no more."""
        if not self.world.life:
            self.invariants.check_verdict(report, verdict)

    async def _create(self, node: SimNode, creation: Creation) -> None:
        life = self.world.life
        try:
            created = await node.ingest.create(creation)
        except StoreUnavailable:
            return
        if created and life == self.world.life:
            self.invariants.acknowledge(task.id for task in creation.tasks)

    def _new_task(self, tenant: int) -> NewTask:
        rng, now = self.rng, round(self.world.database_clock(), 6)
        key = rng.choice((None, None, None, "red", "blue"))
        due = round(now + rng.choice((-0.2, 0.0, rng.uniform(0, 3), rng.uniform(0, 15))), 6)
        stranger = rng.random() < 0.05
        far = not stranger and any(t == tenant for t, _ in self.workers) and rng.random() < 0.5
        payload = worker.POISON if far and rng.random() < self.poison else b""
        hurry = rng.random() < 0.15 or stranger
        return NewTask(
            tenant, self.ids.make(now),
            created=now, run=due, due=due,
            expires=round(due + rng.uniform(0.0, 6.0), 6) if hurry else None,
            concurrency_key=key,
            concurrency_limit=None if key is None else rng.choice((1, 1, 2)),
            priority=rng.choice((0, 5, 5, 9)), queue=rng.choice(("default", "default", "mail")),
            capability=_capability(stranger, far), name=None, labels=None,
            spec=_FAR_SPEC if far else _SPEC, payload=payload,
        )  # fmt: skip

    def _make_schedule(self) -> None:
        """One that recurs every few seconds until the faults end."""
        rng = self.rng
        start = EPOCH + rng.randint(1, 5)
        definition = ScheduleDefinition(
            interval=rng.choice((1.0, 1.0, 2.5, 7.0)),
            anchor=start,
            start_at=start,
            end_at=EPOCH + TROUBLE,
            jitter=rng.choice((0.0, 0.0, 1.5)),
            spread=rng.choice((0.0, 0.0, 3.0)),
            misfire=Misfire(
                rng.choice(("skip", "latest", "all")),
                rng.choice((2.0, 3600.0)),
                rng.choice((2, 100)),
            ),
            overlap=rng.choice(("allow", "skip", "queue", "cancel_running")),
            max_running=rng.choice((1, 2)),
        )
        tenant = rng.choice(sorted(self.store.tables.tenants))
        partition = rng.choice(sorted(self.store.tables.partitions))
        made = new_schedule(tenant, self.world.uuid(), partition, definition, _TEMPLATE)
        self.store.tables.schedules[made.id] = made

    def _client_changes(self) -> None:
        node = self._some_node()
        waiting = list(self.store.tables.tasks)
        if node is None or not waiting:
            return
        now = round(self.world.database_clock(), 6)
        rules = (
            transitions.cancel,
            transitions.pause,
            transitions.resume,
            partial(transitions.run, now=now),
        )
        self._ask(node, self.rng.choice(waiting), self.rng.choice(rules))

    def _ask(self, node: SimNode, task_id: UUID, rule: Any) -> None:
        tenant = self.store.tables.tasks[task_id].tenant_id

        async def ask() -> None:
            try:
                decided = await node.changes.change(tenant, task_id, partial(change_by, rule))
            except (StoreUnavailable, Conflict):
                return
            if decided is True:
                node.node.woken()

        node.process.spawn(ask)

    # Watching --------------------------------------------------------------------------------

    def _committed(self, statement: str) -> None:
        self.world.note(statement)
        self.invariants.check(statement)

    def _logged(self, _logger: Any, _method: str, event: Any) -> Any:
        if event.get("action") in ("loop.crashed", "dispatch.failed"):
            problem = sys.exc_info()[1] or event.get("exc_info")
            # Its supervisor starts a loop again that found no database when it began.
            if not isinstance(problem, StoreUnavailable):
                self.problem = problem
        self.world.note(f"{event['event']} {event}")
        raise structlog.DropEvent


def _capability(stranger: bool, far: bool) -> str:
    if stranger:
        return "handler:nobody"
    return worker.CAPABILITY if far else CAPABILITY


def _draw_config(rng: Random) -> Config:
    """Everything small and quick. In half of the worlds there is no net: no reload ever helps."""
    return Config(
        node_name="sim",
        slots=rng.choice((1, 3, 20)),
        lease=5.0,
        worker_lease=5.0,
        heartbeat=0.6,
        node_ttl=2.0,
        look_ahead=4.0,
        stream_cap=rng.choice((1, 2, 8)),
        tenant_cap=rng.choice((2, 8, 24)),
        claim_batch=rng.choice((1, 4, 50)),
        record_batch=rng.choice((1, 4, 50)),
        wake_poll=0.5,
        reload_every=rng.choice((100.0, 1e9)),
        aging_step=rng.choice((0.0, 1.0, 60.0)),
        grace=2.0,
    )


def _draw_limits(rng: Random) -> TenantLimits:
    weight = rng.randint(1, 3)
    if rng.random() < 0.5:
        return TenantLimits(weight, None, rng.choice((1, 2, 4)))
    return TenantLimits(weight, rng.randint(1, 3), 1)


def _partitions(limits: dict[int, TenantLimits]) -> set[int]:
    """Only those that the tenants use: the others would be empty."""
    return {
        partition_of(tenant, UUID(int=last_byte), None, found.spread)
        for tenant, found in limits.items()
        for last_byte in range(256)
    }


@contextmanager
def _in_virtual_time(world: World, logged: Any) -> Iterator[None]:
    before = structlog.get_config()
    structlog.configure(processors=[logged], cache_logger_on_first_use=False)
    with (
        mock.patch("mainspring.clock.monotonic", world.monotonic),
        mock.patch("mainspring.api.tasks.ingest.monotonic", world.monotonic),
        mock.patch("mainspring.node.state.uuid4", world.uuid),
    ):
        try:
            yield
        finally:
            structlog.configure(**before)
