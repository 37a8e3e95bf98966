"""Starts happen at the right moment, by the database's clock and by no other."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.client import noop
from support.cluster import Cluster

AN_HOUR = 3600
SPREAD = 20.0
SPARSE_TASKS = 2000
MEDIAN, NEARLY_ALL = 0.003, 0.020

_LYING_CLOCK = """
import os, time
from pathlib import Path
_lie, _time, _time_ns = Path(os.environ["LIE"]), time.time, time.time_ns
def _shift():
    return int(_lie.read_text() or 0)
time.time = lambda: _time() + _shift()
time.time_ns = lambda: _time_ns() + _shift() * 10**9
"""

pytestmark = pytest.mark.slow


async def test_a_jump_of_a_nodes_wall_clock_changes_nothing(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Two nodes whose wall clocks are an hour ahead and an hour behind, and then the reverse."""
    tenant = await cluster.tenant()
    clocks = [SkewedClock(tmp_path / name) for name in ("ahead", "behind")]
    nodes = [await cluster.start(clock.environment()) for clock in clocks]
    await cluster.balanced(*nodes)
    ids = []
    for sign in (1, -1):
        clocks[0].jump(sign * AN_HOUR)
        clocks[1].jump(-sign * AN_HOUR)
        for node in nodes:
            tasks = [noop(delay=tenth / 10) for tenth in range(20)]
            ids += await node.client(tenant).batch(tasks)
    await cluster.evidence.all_finished(ids, within=10)
    await cluster.evidence.sound(ids)
    delays = await cluster.evidence.delays(ids)
    assert len(delays) == len(ids)
    assert max(delays) < 1.0


class SkewedClock:
    """Makes a node's Python see another wall clock, which may jump at any moment."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        (directory / "sitecustomize.py").write_text(_LYING_CLOCK)
        self._directory = directory
        self._lie = directory / "seconds"
        self.jump(0)

    def jump(self, seconds: int) -> None:
        fresh = self._directory / "next"
        fresh.write_text(str(seconds))
        fresh.replace(self._lie)

    def environment(self) -> dict[str, str]:
        paths = [str(self._directory), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {"PYTHONPATH": os.pathsep.join(paths), "LIE": str(self._lie)}


@pytest.mark.alone
async def test_sparse_tasks_start_within_milliseconds(cluster: Cluster) -> None:
    """An idle node, two thousand tasks over twenty seconds. A busy machine, or one whose
    disk stands still for a moment, gets two more chances."""
    tenant = await cluster.tenant()
    node = await cluster.start(heartbeat=0.5, node_ttl=2, lease=15)
    for chance in (1, 2, 3):
        spread = [noop(delay=2 + SPREAD * number / SPARSE_TASKS) for number in range(SPARSE_TASKS)]
        ids = await node.client(tenant).batch(spread)
        await cluster.evidence.all_finished(ids, within=SPREAD + 10)
        await cluster.evidence.sound(ids)
        delays = await cluster.evidence.delays(ids)
        median, nearly_all = quantile(delays, 0.5), quantile(delays, 0.99)
        print(
            f"start - due of {len(delays)} tasks: p50 {median * 1000:.2f} ms,"
            f" p99 {nearly_all * 1000:.2f} ms, most {delays[-1] * 1000:.2f} ms"
        )
        if median <= MEDIAN and nearly_all <= NEARLY_ALL:
            return
        assert chance < 3, f"p50 {median:.4f} s, p99 {nearly_all:.4f} s"


def quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
