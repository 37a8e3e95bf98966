"""Housekeeping: a duty that one node of the cluster has at a time."""

import asyncio

import structlog

from mainspring.config import Config
from mainspring.errors import StoreUnavailable
from mainspring.node.state import NodeState
from mainspring.store.housekeeping import ArchiveHook, Housekeeping

log = structlog.get_logger()

_TIDY_EVERY = 60.0
_LOOK_EVERY = 1.0
_LEASE = 150.0
_OLD_TRANSACTION = 60.0


class Housekeeper:
    """Tidies up every minute if the duty is ours, and always keeps an eye on the planner."""

    def __init__(
        self,
        config: Config,
        state: NodeState,
        house: Housekeeping,
        archive: ArchiveHook | None = None,
    ) -> None:
        self._config = config
        self._state = state
        self._house = house
        self._archive = archive

    async def run(self) -> None:
        while True:
            try:
                if await self._house.hold_duty(self._state.node_id, _LEASE):
                    await self._tidy()
                await self._watch(_TIDY_EVERY)
            except StoreUnavailable as problem:
                log.warning("housekeeping failed", action="house.failed", problem=str(problem))
                await asyncio.sleep(_TIDY_EVERY)

    async def leave(self) -> None:
        try:
            await self._house.drop_duties(self._state.node_id)
        except StoreUnavailable:
            log.info("the duty will pass on by itself", action="house.kept_duty")

    async def _watch(self, seconds: float) -> None:
        """The database looks at its tables once a minute; a burst is over by then."""
        until = self._state.clock.steady() + seconds
        while self._state.clock.steady() < until:
            if await self._house.tell_the_planner():
                log.info("told the planner of many new tasks", action="house.planner_told")
            await asyncio.sleep(_LOOK_EVERY)

    async def _tidy(self) -> None:
        made = await self._house.make_partitions(self._config.partitions_ahead)
        retired = await self._house.retire_partitions(self._config.retention_days, self._archive)
        await self._house.clear_defaults(self._config.retention_days)
        await self._house.forget_expired()
        await self._house.forget_old_keys(self._config.retention_days)
        await self._house.forget_runs(self._config.retention_days)
        cleared = await self._house.clear_departed()
        if cleared:
            log.info("cleared departed tenants", action="house.cleared", rows=cleared)
        if made or retired:
            log.info("kept house", action="house.tidied", made=len(made), retired=len(retired))
        oldest = await self._house.oldest_transaction()
        if oldest is not None and oldest[1] > _OLD_TRANSACTION:
            log.warning(
                "a transaction is open for long: dead rows pile up and claims get slower",
                action="house.old_transaction",
                pid=oldest[0],
                seconds=round(oldest[1]),
                application=oldest[2],
            )
