"""Housekeeping: duties that one node of the cluster has at a time."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog

from mainspring.errors import StoreUnavailable
from mainspring.node.state import NodeState
from mainspring.store.upkeep.housekeeping import HousekeepingStore
from mainspring.store.upkeep.table_changes import ArchiveHook, Round

log = structlog.get_logger()

_TIDY_EVERY = 60.0
_LOOK_EVERY = 1.0
_LEASE = 150.0
# A version before this one does all under the first name, and archives nothing: it must not drop
# what is being archived.
_RETIRING, _TIDYING, _INDEXING = "housekeeping", "tidying", "indexing"
_OLD_TRANSACTION = 60.0

Job = Callable[[], Awaitable[object]]


@dataclass(eq=False)
class Housekeeper:
    """Runs the jobs of the duties that are ours, each duty in a loop of its own: to archive history
    may take long, and all else goes on. Every node watches the statistics of tables."""

    _state: NodeState
    _house: HousekeepingStore
    _archive: ArchiveHook | None = None

    async def run(self) -> None:
        async with asyncio.TaskGroup() as loops:
            loops.create_task(_repeat("tidy", self.tidy, _TIDY_EVERY))
            loops.create_task(_repeat("retire", self.retire, _TIDY_EVERY))
            loops.create_task(_repeat("build_indexes", self.build_indexes, _TIDY_EVERY))
            loops.create_task(_repeat("watch", self._watch, _LOOK_EVERY))

    async def leave(self) -> None:
        try:
            await self._house.drop_duties(self._state.node_id)
        except StoreUnavailable:
            log.info("the duty will pass on by itself", action="house.kept_duty")

    async def tidy(self) -> None:
        """Run a round of jobs, if the duty is ours; one that fails does not stop the others."""
        if not await self._holds(_TIDYING):
            return
        config, ledger = self._state.config, self._house.ledger
        days, ahead = config.retention_days, config.partitions_ahead
        jobs: dict[str, Job] = {
            "make_partitions": lambda: _log_round(
                "made partitions for history", self._house.make_partitions(ahead)
            ),
            "clear_defaults": partial(self._house.clear_defaults, days),
            "make_ledger_partitions": lambda: _log_round(
                "made partitions for the ledger", ledger.make_partitions(ahead)
            ),
            "clear_ledger": partial(ledger.clear, config.ledger_retention_days),
            "clear_deleted_schedules": ledger.clear_deleted,
            "forget_expired": self._house.forget_expired,
            "forget_gone": self._house.forget_gone,
            "forget_old_keys": partial(self._house.forget_old_keys, days),
            "forget_runs": partial(self._house.forget_runs, days),
            "clear_departed": self._clear_departed,
            "look_for_old_transactions": self._look_for_old_transactions,
        }
        for name, job in jobs.items():
            await _attempt(name, job)

    async def retire(self) -> None:
        """Retire old history, if the duty is ours: two nodes must not archive the same."""
        await self._while_held(_RETIRING, self._retire)

    async def _while_held(self, duty: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do work that takes long, for as long as its duty is ours."""
        if not await self._holds(duty):
            return
        working = asyncio.create_task(work())
        try:
            while not (await asyncio.wait([working], timeout=_LEASE / 3))[0]:
                if not await self._still_holds(duty):
                    return
            await working
        finally:
            working.cancel()
            await asyncio.wait([working])

    async def _retire(self) -> None:
        config, house = self._state.config, self._house
        history = house.retire_partitions(config.retention_days, self._archive)
        await _log_round("retired old history", history)
        decisions = house.ledger.retire_partitions(config.ledger_retention_days, self._archive)
        await _log_round("retired old decisions", decisions)

    async def build_indexes(self) -> None:
        """Build indexes that an upgrade declared, if the duty is ours."""
        await self._while_held(
            _INDEXING,
            lambda: _log_round("built indexes of history", self._house.build_indexes()),
        )

    async def _holds(self, duty: str) -> bool:
        return await self._house.hold_duty(self._state.node_id, _LEASE, duty)

    async def _still_holds(self, duty: str) -> bool:
        """Ask twice: without an answer the duty counts as lost."""
        for _ in range(2):
            with suppress(StoreUnavailable):
                return await self._holds(duty)
        return False

    async def _watch(self) -> None:
        """Let the planner know of a burst, which is over when autovacuum looks, once a minute."""
        with suppress(StoreUnavailable):  # others tell of it, and less often
            if await self._house.analyze_if_grown():
                log.info("told the planner of many new tasks", action="house.planner_told")

    async def _clear_departed(self) -> None:
        cleared = await self._house.clear_departed()
        if cleared:
            log.info("cleared departed tenants", action="house.cleared", rows=cleared)

    async def _look_for_old_transactions(self) -> None:
        oldest = await self._house.oldest_transaction()
        if oldest is not None and oldest.age > _OLD_TRANSACTION:
            log.warning(
                "a transaction is open for long: dead rows pile up and claims get slower",
                action="house.old_transaction",
                pid=oldest.pid,
                seconds=round(oldest.age),
                application=oldest.application,
            )


async def _repeat(name: str, job: Job, pause: float) -> None:
    while True:
        await _attempt(name, job)
        await asyncio.sleep(pause)


async def _attempt(name: str, job: Job) -> None:
    """Run a job; a failure is logged, and the next round retries it."""
    try:
        await job()
    except StoreUnavailable as problem:
        log.warning("a job failed", action="house.failed", job=name, problem=str(problem))
    except Exception:
        log.exception("a job failed", action="house.failed", job=name)


async def _log_round(what: str, work: Awaitable[Round]) -> None:
    tables = await work
    if tables.done:
        log.info(what, action="house.tidied", tables=len(tables.done))
    for table, reason in tables.postponed.items():
        log.warning(
            "a table has to wait for the next round",
            action="house.postponed",
            table=table,
            reason=reason,
        )
