"""Steady creates of every kind, and a list of what was acknowledged."""

import asyncio
from collections.abc import Callable, Sequence
from itertools import count
from uuid import UUID

from support.client import Client, Task, Unacknowledged, fail, noop, sleep

_numbers = count(1)


def mixed() -> list[Task]:
    """One of each kind: at once, in a moment, failing and tried again, longer than a third of a
    lease of three seconds."""
    return [noop(), noop(delay=0.5), noop(delay=2), fail(), fail(attempts=2, delay=0.4), sleep(1.3)]


class Traffic:
    """Creates tasks through clients that may go away, and keeps what was acknowledged.

    Every other create carries an idempotency key. One of those that got no answer is sent again
    under its key, as a careful client would.
    """

    def __init__(self) -> None:
        self.acknowledged: set[UUID] = set()
        self.unanswered: dict[str, Task] = {}
        self.keys_used: set[str] = set()

    async def send(self, client: Client, tasks: Sequence[Task]) -> None:
        """Create these, half of them under a key."""
        await asyncio.gather(*(self._create(client, task) for task in tasks))

    async def send_again(self, client: Client) -> None:
        """Repeat what got no answer, under the same keys."""
        for key, task in list(self.unanswered.items()):
            self.acknowledged.add(await client.create(task, key=key))
            del self.unanswered[key]

    async def flow(
        self, clients: Callable[[], Sequence[Client]], *, pause: float, stop: asyncio.Event
    ) -> None:
        """Send a mixed handful to each client again and again, until told to stop."""
        while not stop.is_set():
            await asyncio.gather(*(self.send(client, mixed()) for client in clients()))
            try:
                async with asyncio.timeout(pause):
                    await stop.wait()
            except TimeoutError:
                pass

    async def _create(self, client: Client, task: Task) -> None:
        number = next(_numbers)
        key = f"key-{number}" if number % 2 else None
        if key:
            self.keys_used.add(key)
            task = {**task, "labels": {"sent-as": key}}
        try:
            self.acknowledged.add(await client.create(task, key=key))
        except Unacknowledged:
            if key:
                self.unanswered[key] = task
