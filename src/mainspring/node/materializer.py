"""The materializer: turns occurrences of schedules into tasks at their time.

It asks the database for what is due soon, and decides when the time has come; it remembers nothing
that matters. Whether a schedule is still ours, still due and still the same is checked where it
counts, in the transaction that decides.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

import structlog

from mainspring import crash_points, timezones
from mainspring.errors import NothingSent, StoreUnavailable
from mainspring.node.retrying import repeat, wait_at_most, write_in_parts
from mainspring.node.signals import Announcer
from mainspring.node.state import NodeState
from mainspring.schedules.service import DueSchedule, ScheduleService
from mainspring.store.creation import window_row

log = structlog.get_logger()

_AHEAD = 1.0
_BATCHES = 10
_WATCH_EVERY = 5.0
_REST = 0.02
"""Seconds until undecided schedules are looked at again: they are being changed, or not due yet."""
_ASIDE = 30.0
_RETIME_CHUNK = 1000
_MOST_TOLD = 100
"""Maximum of overdue schedules that are reported at a look: after an outage all of them may be."""


@dataclass(eq=False)
class Materializer:
    """Looks for due schedules, waits for their time, and decides on them."""

    _state: NodeState
    _schedules: ScheduleService
    _announcer: Announcer
    _hinted: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _watch_at: float = field(default=0.0, init=False)
    _set_aside: dict[UUID, float] = field(default_factory=dict, init=False)
    """Schedules that could not be decided on, and when they are looked at again."""

    def hint(self) -> None:
        """Look for due schedules now."""
        self._hinted.set()

    async def run(self) -> None:
        await repeat(self._turn, self._state.metrics, "deciding failed", action="schedule.failed")

    async def _turn(self) -> None:
        self._hinted.clear()
        partitions = self._state.engine.partitions
        await self._look_after(partitions)
        now, config = self._state.clock.now(), self._state.config
        poll, batch = config.wake_poll, config.schedule_batch
        due = await self._schedules.due(partitions, until=now + _AHEAD, limit=_BATCHES * batch)
        if not due:
            # Nothing for a while, unless somebody hints: no need to look so often.
            await wait_at_most(self._hinted, max(poll, _AHEAD / 2))
        elif due[0].wake > now:
            # What comes in between is found by looking again, at the latest when the first is due.
            await wait_at_most(self._hinted, min(due[0].wake - self._state.clock.now(), poll))
        else:
            ready = [s for s in due if s.wake <= now and self._set_aside.get(s.id, 0.0) <= now]
            for start in range(0, len(ready), batch):
                part = ready[start : start + batch]
                await write_in_parts(part, self._decide, self._set_aside_undecidable, (Exception,))
            if not ready:
                await wait_at_most(self._hinted, poll)

    async def _set_aside_undecidable(self, schedule: DueSchedule, problem: Exception) -> None:
        """Skip a schedule that cannot be decided on, by a mistake of ours; the watch reports it."""
        log.error(
            "a schedule cannot be decided on",
            action="schedule.undecidable",
            schedule=str(schedule.id),
            exc_info=problem,
        )
        now = self._state.clock.now()
        self._set_aside = {s: until for s, until in self._set_aside.items() if until > now}
        self._set_aside[schedule.id] = now + _ASIDE

    async def _decide(self, due: Sequence[DueSchedule]) -> None:
        crash_points.reach("schedule.before_commit")
        ownership = self._state.ownership()
        try:
            decisions = await self._schedules.fire(ownership, due)
        except NothingSent:
            raise
        except StoreUnavailable:
            # It may have been written all the same, without a word about its tasks to our engine.
            self._state.mark_stale(ownership.partitions)
            raise
        crash_points.reach("schedule.committed")
        now = self._state.clock.now()
        near = now + self._state.config.near
        made = [window_row(m.task, m.partition) for m in decisions.made if m.task.due <= near]
        self._announcer.announce(made, decisions.cancelled_in)
        for decision, count in decisions.counts.items():
            self._state.metrics.occurrences.labels(decision).inc(count)
        self._state.metrics.tasks_created.inc(len(decisions.made))
        self._state.metrics.decision_delay.observe(max(0.0, now - due[0].wake))
        if not decisions.decided:
            await asyncio.sleep(_REST)

    async def _look_after(self, partitions: frozenset[int]) -> None:
        now = self._state.clock.now()
        if now >= self._watch_at:
            self._watch_at = now + _WATCH_EVERY
            await self._retime(partitions)
            await self._watch()

    async def _watch(self) -> None:
        """Report schedules that are overdue, whichever node should have decided on them."""
        overdue, since = await self._schedules.overdue(self._state.config.overdue_after)
        self._state.metrics.schedules_overdue.set(overdue)
        if overdue:
            log.warning(
                "schedules are overdue",
                action="schedule.overdue",
                schedules=overdue,
                since=since.isoformat() if since else None,
            )
            await self._schedules.report_overdue(self._state.config.overdue_after, limit=_MOST_TOLD)

    async def _retime(self, partitions: frozenset[int]) -> None:
        """Compute next times anew after a change of the tz database, repeatedly: a node of an older
        version may have computed some meanwhile."""
        while count := await self._schedules.retime(partitions, limit=_RETIME_CHUNK):
            log.info(
                "computed next times anew",
                action="schedule.retimed",
                schedules=count,
                tzdata=timezones.version(),
            )
