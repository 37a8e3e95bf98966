"""Leasing: a worker's free slots become demand, split among the nodes it knows.

A request stays open until tasks come (long poll). Slots that an open request asked for are not
offered a second time, so a worker never gets more than it can run at once.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Sequence
from random import random
from typing import Any, Protocol, TypeVar
from uuid import UUID

from mainspring.clock import monotonic
from mainspring.errors import MainspringError, NotReady, RequestError, Unavailable
from mainspring.sdk.worker.nodes import Nodes
from mainspring.sdk.worker.options import WorkerOptions
from mainspring.sdk.worker.protocol import Leases
from mainspring.wire.workers import MOST_LEASES, AboutIn, HeldIn, LeaseIn, ResourcesIn

log = logging.getLogger("mainspring.worker")
T = TypeVar("T")

_PER_NODE = 2
"""Requests to a node at a time: while one brings tasks, the other waits for more."""
_GATHER = 0.005
_FIRST_PAUSE = 0.2
_LONGEST_PAUSE = 5.0
_MARGIN = 10.0
_MOST_LISTED = 200
_OVERFULL = 1.0
"""Seconds between polls of a worker that holds more than it may list."""
_BUSY_WAIT = 2.0
_TOO_SOON = 0.9
_LASTED = 1.0
"""Seconds after which a poll counts as long enough not to be part of a hot loop."""
_SHORTEST_POLL = 0.1
_AT_ONCE = 2
"""Number of polls sent at once after answers that came too soon: a node may want to be asked."""
_SHORT_PAUSE = 0.05
_LONG_PAUSE = 2.0


class Lane:
    """Slots for handlers of one kind."""

    def __init__(self, slots: int, handlers: Sequence[str], commands: bool) -> None:
        self.slots = slots
        self.handlers = sorted(handlers)
        self.commands = commands
        self.running = 0
        self.asked = 0
        """Slots that open requests asked to fill."""
        self.polls = 0
        self.closed = False
        """Whether nothing is asked for, however many slots are free."""
        self.room = asyncio.Event()
        self.room.set()

    @property
    def open_slots(self) -> int:
        return 0 if self.closed else self.slots - self.running - self.asked

    def take(self) -> None:
        self.running += 1

    def free(self) -> None:
        self.running -= 1
        self.room.set()

    def reopen(self) -> None:
        self.closed = False
        self.room.set()


class LeaseErrors:
    """The last error of each node, logged once until the node answers or the error changes."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[str, float]] = {}

    def failed(self, url: str, problem: MainspringError) -> None:
        text = str(problem)
        before, _ = self._last.get(url, ("", 0.0))
        self._last[url] = (text, monotonic())
        if text != before:
            stops = isinstance(problem, Unavailable) and problem.reason == NotReady.code
            where = "" if url in text else f"{url}: "
            log.log(logging.INFO if stops else logging.WARNING, "%s%s", where, text)

    def answered(self, url: str, asked: float) -> None:
        """Note an answered poll. One that began before another failed changes nothing."""
        last = self._last.get(url)
        if last is not None and asked > last[1]:
            del self._last[url]
            log.info("%s answers again", url)


class LeasingWorker(Protocol):
    """The worker that a leaser belongs to."""

    nodes: Nodes
    options: WorkerOptions
    lease_errors: LeaseErrors

    async def ask(self, url: str, body: LeaseIn, lane: Lane, within: float) -> tuple[Leases, int]:
        """Ask a node for tasks and start them; return the answer and how many leases are new."""

    def leased_executions(self, most: int) -> list[tuple[UUID, int]] | None:
        """Return all executions it holds, which shows lost answers; None for too many to list."""

    def about(self) -> AboutIn | None:
        """Return its description for the registry, from time to time."""

    def polls_interrupted(self) -> None:
        """Ask for news of the executions it holds: a poll was interrupted."""


class Pace:
    """How long a poller rests after answers in a row that came soon and started nothing."""

    def __init__(self) -> None:
        self._empty_polls = 0

    def rest(self, lasted: float, wanted: float, *, began: bool) -> float:
        """Return the seconds to rest after an answer."""
        if began or lasted >= max(_SHORTEST_POLL, min(_LASTED, wanted)) * _TOO_SOON:
            self._empty_polls = 0
            return 0.0
        self._empty_polls += 1
        doublings = self._empty_polls - _AT_ONCE - 1
        return 0.0 if doublings < 0 else min(_LONG_PAUSE, _SHORT_PAUSE * 2.0 ** min(doublings, 16))


class Leaser:
    """Keeps requests open at every node as long as there are free slots."""

    def __init__(self, lane: Lane, worker: LeasingWorker) -> None:
        self._lane = lane
        self._worker = worker
        self._pollers: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._closing = False

    async def run(self) -> None:
        """Keep pollers for each node; the nodes may change."""
        try:
            while True:
                urls = self._worker.nodes.urls
                wanted = {(url, number) for url in urls for number in range(_PER_NODE)}
                for name in wanted - set(self._pollers):
                    self._pollers[name] = asyncio.create_task(self._poll(name[0], len(urls)))
                for name in set(self._pollers) - wanted:
                    self._pollers.pop(name).cancel()
                for name, task in list(self._pollers.items()):
                    if task.done():
                        del self._pollers[name]
                        task.result()
                await asyncio.sleep(0.5)
        finally:
            await self.close()

    async def close(self) -> None:
        """Stop asking. The server notices that open requests are abandoned."""
        self._closing = True
        for task in self._pollers.values():
            task.cancel()
        await asyncio.gather(*self._pollers.values(), return_exceptions=True)

    async def _poll(self, url: str, count: int) -> None:
        pause = _FIRST_PAUSE
        pace = Pace()
        busy = False
        while not self._closing:
            want = await self._demand(count, busy)
            self._lane.polls += 1
            try:
                came = await self._ask(url, want, pace)
                if came is None:
                    # Meanwhile its slots are for the other nodes.
                    await asyncio.sleep(pause * (0.5 + random()))
                    pause = min(pause * 2, _LONGEST_PAUSE)
                else:
                    busy, pause = came, _FIRST_PAUSE
            finally:
                self._lane.polls -= 1

    async def _ask(self, url: str, want: int, pace: Pace) -> bool | None:
        """Return whether tasks came; None where no node answered."""
        lane, lease_errors = self._lane, self._worker.lease_errors
        lane.asked += want
        asked = monotonic()
        try:
            came, rest = await self._lease(url, want, pace)
        except RequestError as refused:
            log.error("the server refuses to lease: %s", refused)
            raise
        except MainspringError as problem:
            lease_errors.failed(url, problem)
            return None
        finally:
            lane.asked -= want
            lane.room.set()
        lease_errors.answered(url, asked)
        if rest:
            await asyncio.sleep(rest * (0.5 + random()))
        return came

    async def _demand(self, count: int, busy: bool) -> int:
        """Return how many tasks to ask for: a share of the free slots."""
        lane = self._lane
        if busy and lane.open_slots * 4 < lane.slots:
            # Slots become free one after the other: gather some, rather than ask for each.
            await asyncio.sleep(_GATHER)
        while lane.open_slots <= 0:
            lane.room.clear()
            await lane.room.wait()
        idle = max(1, count * _PER_NODE - lane.polls)
        return min(-(-lane.open_slots // idle), MOST_LEASES)

    async def _lease(self, url: str, want: int, pace: Pace) -> tuple[bool, float]:
        """Return whether tasks came, and how long to rest before the next request."""
        options, lane = self._worker.options, self._lane
        held = self._worker.leased_executions(_MOST_LISTED)
        body = LeaseIn(
            options.name,
            options.incarnation,
            tuple(options.queues),
            tuple(lane.handlers),
            lane.commands,
            tuple(options.tags),
            want,
            # A task that killed workers before goes to one that says it holds nothing: do not go on
            # saying the contrary for long.
            min(options.wait, _BUSY_WAIT) if held is None or held else options.wait,
            None if held is None else tuple(HeldIn(*key) for key in held),
            ResourcesIn(options.memory_mb, options.cpu),
            self._worker.about(),
            announces_starts=True,
        )
        asked_at = monotonic()
        answer, new = await self._worker.ask(url, body, lane, options.wait + _MARGIN)
        lasted = monotonic() - asked_at
        wait = body.wait if answer.wait is None else answer.wait
        if not answer.tasks and lasted < wait * _TOO_SOON:
            self._worker.polls_interrupted()
        if held is None and any(task.alone for task in answer.tasks):
            # With more executions than it may list it looks idle: the same task comes again.
            await asyncio.sleep(_OVERFULL)
        return bool(answer.tasks), pace.rest(lasted, wait, began=new > 0)


class LeaseReader(threading.Thread):
    """A thread with an event loop of its own, on which lease requests are sent and answers read.

    No handler runs here, so none can hold up an answer: what it brings is known, and its leases are
    kept, while a handler blocks the worker's own event loop. `start` it before anything is asked.
    """

    def __init__(self, new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        super().__init__(name="mainspring-leases", daemon=True)
        self._new_loop = new_loop
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        self._loop = self._new_loop()
        super().start()

    def run(self) -> None:
        assert self._loop is not None
        self._loop.run_forever()

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it on this thread's loop and wait for it; cancelling here cancels it there."""
        assert self._loop is not None, "it has not been started"
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def barrier(self) -> None:
        """Wait until all that was cancelled before is over and handed over."""
        for _ in range(2):
            await self.call(asyncio.sleep(0))

    def stop(self) -> None:
        if self._loop is None:
            return
        if self.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self.join(5.0)
        if not self.is_alive():
            self._loop.close()
