"""Messages between nodes of different versions."""

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import msgspec

from mainspring.engine.demand import WorkerSession
from mainspring.node.workers.mailbox import Mailbox, NodeMessage, WorkerRestarted


async def test_an_unreadable_message_does_not_spoil_the_others() -> None:
    message = WorkerRestarted(WorkerSession(1, "w", "1"))
    delivered: asyncio.Queue[NodeMessage] = asyncio.Queue()

    class Messages:
        async def collect(self, _node: Any) -> list[bytes]:
            return [b'{"type": "Newfangled"}', b"\xff", msgspec.json.encode(message)]

    state = SimpleNamespace(owners={}, node_id=uuid4(), metrics=None)
    mailbox = Mailbox(state, Messages(), look_every=3600)  # type: ignore[arg-type]
    mailbox.deliver_to(delivered.put_nowait)
    collecting = asyncio.create_task(mailbox.loops()["mailbox.collect"]())
    mailbox.hint()
    async with asyncio.timeout(5):
        assert await delivered.get() == message
    collecting.cancel()
