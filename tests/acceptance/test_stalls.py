"""A node whose event loop stands still: it is told, seen from outside, and ended if so set."""

import asyncio
import subprocess
import sys
import time

import aiohttp
from structlog.testing import capture_logs

from mainspring.config import Config
from mainspring.observe.watchdog import EXIT_STALLED
from mainspring.wiring.server import Server
from support.cluster import Cluster
from support.process import START_WITHIN
from support.waiting import eventually

STUCK = """
import asyncio
from mainspring import config
from mainspring.wiring.server import Server

async def main():
    server = Server(config.load())
    await server.start()
    print(server.url, flush=True)
    while True:
        pass

asyncio.run(main())
"""


async def test_a_node_reports_that_it_was_frozen(database_url: str) -> None:
    server = Server(Config(database_url=database_url, port=0, loop_stall=1.0, grace=0))
    with capture_logs() as lines:
        await server.start()
        try:
            async with aiohttp.ClientSession() as session:
                async with session.get(f"{server.url}/healthz") as answer:
                    assert answer.status == 200
                time.sleep(3)  # noqa: ASYNC251 - this is what is tested
                async with session.get(f"{server.url}/healthz") as answer:
                    problem = await answer.json(content_type=None)
            assert (answer.status, problem["type"].rpartition(":")[2]) == (503, "not-ready")
            assert "stood still" in problem["detail"]
            assert b"mainspring_loop_stalls_total 1.0" in server.metrics.exposition()
        finally:
            await server.stop()
    assert "loop.stalled" in [line["action"] for line in lines]


async def test_a_node_that_is_to_exit_does_so(database_url: str) -> None:
    settings = {"DATABASE_URL": database_url, "MAINSPRING_PORT": "0"}
    settings |= {"MAINSPRING_LOOP_STALL": "0.5", "MAINSPRING_STALL_ACTION": "exit"}
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", STUCK],
        env=settings,
        capture_output=True,
        text=True,
        timeout=START_WITHIN,
        check=False,
    )
    assert done.returncode == EXIT_STALLED, done.stderr
    assert "loop.stalled" in done.stdout


async def test_a_frozen_node_goes_on(cluster: Cluster) -> None:
    """It was stopped as a whole: its loop did not stand still."""
    node = await cluster.start(loop_stall=1.0, stall_action="exit")
    node.freeze()

    async def silent() -> bool:
        rows = await cluster.evidence.rows(
            "SELECT 1 FROM nodes WHERE heartbeat_at < clock_timestamp() - interval '2 seconds'"
        )
        return bool(rows)

    await eventually(silent, within=START_WITHIN, what="it is silent for long enough")
    node.thaw()

    async def beats() -> bool:
        return not await silent()

    await eventually(beats, within=START_WITHIN, what="it sends heartbeats again")
    await node.ready()
    assert await cluster.metric(node, "loop_stalls_total") == 0
    node.terminate()
    assert await node.ended() == 0
