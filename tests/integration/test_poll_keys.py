"""The turn of a poll under an Idempotency-Key, in the database."""

import asyncio
from dataclasses import replace

from mainspring.config import Config
from mainspring.node.workers.lease_service import LeaseRequest
from mainspring.store.leases import LeasedTask
from mainspring.wire.workers import LONGEST_WAIT
from mainspring.wiring.api import build_app
from support.http_server import SOON, open_http_server
from support.in_process_api import IdleLeaseService, open_api

POLL = b'{"worker": "w1", "incarnation": "i1", "handlers": ["extract"], "wait": 60}'
HEAD = (
    b"POST /v1/leases HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a:all\r\n"
    b"Idempotency-Key: k1\r\nContent-Length: %d\r\n\r\n" % len(POLL)
)


class WaitingLeaseService(IdleLeaseService):
    """A lease service where every poll waits until it is told to end."""

    def __init__(self) -> None:
        self.waiting = asyncio.Event()
        self.end = asyncio.Event()

    async def lease(self, request: LeaseRequest) -> list[LeasedTask]:
        self.waiting.set()
        await self.end.wait()
        return []


async def test_turn_of_a_poll_outlasts_its_wait(database_url: str) -> None:
    """Or another poll under the key would be served beside it, and lease other tasks."""
    async with open_api(database_url, Config()) as api:
        lease_service = WaitingLeaseService()
        async with open_http_server(
            build_app(replace(api.deps, lease_service=lease_service))
        ) as listener:
            connection = await listener.connect()
            connection.send(HEAD + POLL)
            async with asyncio.timeout(SOON):
                await lease_service.waiting.wait()
            turn = await api.database.fetch_row(
                "SELECT extract(epoch FROM expires_at - clock_timestamp())::float8 AS left"
                " FROM idempotency_keys WHERE key = 'k1'"
            )
            assert turn is not None
            assert turn["left"] > LONGEST_WAIT
            lease_service.end.set()
            assert (await connection.read_response())[0] == 200
