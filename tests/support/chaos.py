"""Chaos among nodes: one after another is killed, and another takes its place."""

import asyncio

from support.cluster import Cluster, Node


async def kill_in_turns(
    cluster: Cluster, nodes: list[Node], *, seconds: float, between: float
) -> int:
    """Kill the older of two nodes and start a new one, for so many seconds; return how
    often. The list is kept up to date, for those who go on sending."""
    loop, kills = asyncio.get_running_loop(), 0
    end = loop.time() + seconds
    while loop.time() < end:
        nodes.pop(0).kill()
        kills += 1
        nodes.append(await cluster.start())
        await asyncio.sleep(between)
    return kills
