"""The watchdog of the event loop: what it notices, tells and leaves alone."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import IO

import pytest
from structlog.testing import capture_logs

from mainspring.observe import watchdog
from mainspring.observe.metrics import Metrics
from mainspring.observe.watchdog import EXIT_STALLED, LoopWatchdog
from support.waiting import eventually

LIMIT = 0.2


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def watched(metrics: Metrics) -> Iterator[LoopWatchdog]:
    made = LoopWatchdog(LIMIT, metrics)
    yield made
    made.stop()


def sample(metrics: Metrics, name: str) -> float:
    return metrics.registry.get_sample_value(f"mainspring_{name}") or 0.0


def block_the_loop(seconds: float = 4 * LIMIT) -> None:
    time.sleep(seconds)


async def test_a_blocked_loop_is_logged_with_its_stack(
    watched: LoopWatchdog, metrics: Metrics
) -> None:
    with capture_logs() as lines:
        watched.start()
        assert watched.complaint() is None
        block_the_loop()

        async def told() -> bool:
            return "loop.recovered" in [line["action"] for line in lines]

        await eventually(told, within=5, what="the loop goes on, and that is told")
    stalled, *_ = lines
    assert (stalled["action"], stalled["log_level"]) == ("loop.stalled", "error")
    assert "block_the_loop (" in stalled["frames"]
    assert sample(metrics, "loop_stalls_total") == 1
    assert LIMIT <= sample(metrics, "loop_longest_stall_seconds") <= 5


async def test_health_fails_at_once_after_a_stall_and_heals(
    watched: LoopWatchdog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "_UNHEALTHY_FOR", 0.1)
    watched.start()
    block_the_loop()
    assert "stood still" in (watched.complaint() or "")

    async def healed() -> bool:
        return watched.complaint() is None

    await eventually(healed, within=5, what="it is healthy again")


async def test_a_busy_loop_is_left_alone(watched: LoopWatchdog, metrics: Metrics) -> None:
    with capture_logs() as lines:
        watched.start()
        until = time.monotonic() + 4 * LIMIT
        while time.monotonic() < until:
            block_the_loop(LIMIT / 20)
            await asyncio.sleep(0)
    assert lines == []
    assert sample(metrics, "loop_stalls_total") == 0


async def test_zero_turns_it_off(metrics: Metrics) -> None:
    off = LoopWatchdog(0, metrics)
    with capture_logs() as lines:
        off.start()
        block_the_loop(LIMIT)
        off.stop()
    assert lines == []
    assert off.complaint() is None


SCRIPT = """
import asyncio, sys, time, uvloop
from mainspring.observe.logging import set_up_logging
from mainspring.observe.metrics import Metrics
from mainspring.observe.watchdog import LoopWatchdog

async def main():
    set_up_logging("info", "json")
    LoopWatchdog(0.5, Metrics(), exits=True).start()
    await asyncio.sleep(0.2)
    print("runs", flush=True)
    {rest}

uvloop.run(main())
"""


def started(rest: str, stderr: IO[bytes] | int = subprocess.PIPE) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(rest=rest)], stdout=subprocess.PIPE, stderr=stderr
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"runs\n"
    return process


def test_exit_ends_the_process_after_a_log_line() -> None:
    process = started("while True: pass")
    _, told = process.communicate(timeout=20)
    assert process.returncode == EXIT_STALLED
    assert b"loop.stalled" in told


def test_exit_does_not_wait_for_who_reads_the_log() -> None:
    """The loop stands still because nobody reads what it writes; nor will anybody read this."""
    reading, writing = os.pipe()
    with os.fdopen(reading), os.fdopen(writing, "wb") as log:
        process = started("[sys.stderr.write('x' * 2**20) for _ in range(9)]", stderr=log)
        process.communicate(timeout=20)
    assert process.returncode == EXIT_STALLED


def test_a_stopped_process_is_no_stalled_loop() -> None:
    process = started("await asyncio.sleep(1.5); sys.exit(7)")
    for _ in range(3):
        process.send_signal(signal.SIGSTOP)
        time.sleep(1.0)  # longer than the limit: the clock goes on, the process does not
        process.send_signal(signal.SIGCONT)
    _, told = process.communicate(timeout=20)
    assert process.returncode == 7, told
    assert b"loop.stalled" not in told
