"""Real workers that are killed, frozen, blocked and cut off: nothing is lost or counts twice."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from mainspring.sdk.resources.tasks import Task
from support import worker_app as tasks
from support.cluster import Cluster, Node
from support.process import is_running
from support.sdk_workers import Workers, workers_at
from support.waiting import eventually

pytestmark = pytest.mark.slow

LEASE = 3.0
MEMORY = 512 * 2**20
"""Address space of a worker that shall run out of it: four times what it begins with."""


@pytest.fixture
async def node(cluster: Cluster) -> Node:
    return await cluster.start(worker_lease=LEASE)


@pytest.fixture
async def workers(cluster: Cluster, node: Node, tmp_path: Path) -> AsyncIterator[Workers]:
    async with workers_at(cluster, node, tmp_path) as made:
        yield made


async def test_what_a_killed_worker_ran_runs_elsewhere(workers: Workers) -> None:
    """13: counted as a loss, not as a failure."""
    first = await workers.start("--name", "one")
    held = [await workers.send(tasks.nap, 60.0, retry={"max_attempts": 1}, timeout=90)]
    began = await workers.until(held[0], "begin")
    second = await workers.start("--name", "two")
    first.kill()
    again = await workers.until(held[0], "begin", times=2)
    assert again.pid != began.pid
    assert again.attempt == 2
    await workers.client.tasks.cancel(held[0].id)
    assert (await workers.ended(held[0])).state == "cancelled"
    assert await workers.outcomes(held[0]) == ["lost", "cancelled"]
    assert second.alive


async def test_a_process_dies_with_its_killed_worker(workers: Workers) -> None:
    """Else it would go on computing beside the next execution, and nobody would end it."""
    worker = await workers.start()
    task = await workers.send(tasks.compute_for_ever, timeout=90)
    began = await workers.until(task, "begin")
    worker.kill()

    async def gone() -> bool:
        return not is_running(began.pid)

    await eventually(gone, within=10, what="the process is gone")


async def test_a_frozen_worker_changes_nothing_when_it_wakes(workers: Workers) -> None:
    """14 and 15: the lease ran out meanwhile; of two executions one outcome counts."""
    first = await workers.start("--name", "one", "--concurrency", "30")
    held = [await workers.send(tasks.nap, 1.0 + i / 10, timeout=90) for i in range(30)]
    for task in held:
        await workers.until(task, "begin")
    first.signal(signal.SIGSTOP)
    await workers.start("--name", "two")
    # Some are done elsewhere when it wakes, some are just being done, some it could still finish.
    await workers.until(held[0], "begin", times=2)
    first.signal(signal.SIGCONT)
    for task in held:
        done = await workers.ended(task)
        assert done.state == "completed"
        outcomes = await workers.outcomes(task)
        assert outcomes.count("succeeded") == 1
        assert set(outcomes[:-1]) <= {"lost"}
        assert done.result == len(outcomes), "the result is that of the execution that counts"
    # The one that was frozen is of use again.
    more = [await workers.send(tasks.add, n, n) for n in range(20)]
    assert [(await workers.ended(task)).result for task in more] == [2 * n for n in range(20)]
    assert first.alive


async def test_a_worker_that_restarts_under_its_name(
    cluster: Cluster, workers: Workers, node: Node
) -> None:
    """16: it revives nothing, and what its predecessor held is free at once."""
    first = await workers.start("--name", "one")
    held = await workers.send(tasks.nap, 5.0, timeout=90)
    await workers.until(held, "begin")
    first.signal(signal.SIGSTOP)
    second = await workers.start("--name", "one")
    again = await workers.until(held, "begin", times=2)
    assert again.pid == second.pid
    first.signal(signal.SIGCONT)
    done = await workers.ended(held)
    assert (done.state, done.result) == ("completed", 2)
    assert (await workers.outcomes(held))[0] == "lost"

    async def gave_up() -> bool:
        return bool(workers.noted(held, "cancelled")) or not first.alive

    await eventually(gave_up, within=10, what="the old one stops its execution")
    assert len(workers.noted(held, "end")) == 1


@pytest.mark.parametrize(
    ("handler", "end"),
    [(tasks.kill_the_worker, signal.SIGKILL), (tasks.overrun_memory, signal.SIGSEGV)],
    ids=["killed", "out of memory"],
)
async def test_a_task_that_kills_its_worker(
    workers: Workers, handler: Any, end: signal.Signals
) -> None:
    """17: leased alone after two losses, a dead letter after the third; its neighbours are neither
    harmed nor blamed."""
    workers.settings["MEMORY_LIMIT"] = str(MEMORY)
    running = [await workers.start("--name", "w")]
    neighbours = [await workers.send(tasks.nap, 1.0, retry={"max_attempts": 1}) for _ in range(5)]
    poison = await workers.send(handler, retry={"max_attempts": 10})

    async def dead() -> bool:
        if not running[-1].alive:  # what a supervisor does
            running.append(workers.spawn("--name", "w"))
        return (await workers.client.tasks.get(poison.id)).state == "failed"

    await eventually(dead, within=60, what="the task is a dead letter")
    letter = await workers.client.dead_letters.get(poison.id)
    assert letter.reason == "poison"
    assert [attempt.outcome for attempt in letter.attempts] == ["lost"] * 3
    assert [await worker.ended(5) for worker in running[:3]] == [-end] * 3
    if not running[-1].alive:
        await workers.start("--name", "w")
    for task in neighbours:
        done = await workers.ended(task, within=30)
        assert done.state == "completed", done.error
    executions = workers.noted(poison)
    assert [note.word for note in executions] == ["begin", "begin", "alone"]
    beside = [
        note
        for note in workers.noted()
        if note.pid == executions[-1].pid and note.at <= executions[-1].at
    ]
    assert sum(note.word == "begin" for note in beside) == sum(
        note.word == "end" for note in beside
    )


async def test_hard_timeouts(workers: Workers) -> None:
    """18: whatever a handler does instead of making progress, its time is over."""
    worker = await workers.start("--concurrency", "10")
    wanted = {"timeout": 1.0, "retry": {"max_attempts": 1}}
    stuck = [
        await workers.send(tasks.nap, 60.0, **wanted),
        await workers.send(tasks.spin, **wanted),
        await workers.send(tasks.sleep_hard, 8.0, **wanted),
        await workers.send(tasks.swallow, **wanted),
        await workers.send(tasks.compute_for_ever, **wanted),
    ]
    for task in stuck:
        done = await workers.ended(task)
        assert done.state == "failed", task.name
        assert done.error is not None
        assert done.error["code"] == "timeout", task.name
        assert await workers.outcomes(task) == ["timed_out"]
    assert (await workers.ended(await workers.send(tasks.add, 1, 2))).result == 3
    assert worker.alive


async def test_a_blocked_event_loop(workers: Workers) -> None:
    """Heartbeats go on: a handler that blocks the loop for longer than the lease is not
    lost, neither are its neighbours; and its timeout ends it."""
    worker = await workers.start("--name", "one", "--concurrency", "10")
    neighbour = await workers.send(tasks.nap, 1.0, timeout=60, retry={"max_attempts": 1})
    await workers.until(neighbour, "begin")
    blocker = await workers.send(tasks.block_the_loop, 2 * LEASE, timeout=60)
    done = await workers.ended(blocker, within=30)
    assert (done.state, done.result) == ("completed", 1)
    assert await workers.outcomes(neighbour) == ["succeeded"]
    assert "blocks the event loop" in worker.output()
    late = await workers.send(tasks.block_the_loop, 60.0, timeout=1.0, retry={"max_attempts": 1})
    assert (await workers.ended(late)).state == "failed"
    assert await workers.outcomes(late) == ["timed_out"]


async def test_a_loop_that_nothing_can_free(workers: Workers) -> None:
    """The worker gives the rest back and begins anew, under the same process id."""
    worker = await workers.start("--name", "one", "--concurrency", "10")
    neighbour = await workers.send(tasks.nap, 2.0, timeout=60, retry={"max_attempts": 1})
    await workers.until(neighbour, "begin")
    hopeless = await workers.send(tasks.block_for_ever, timeout=1.0, retry={"max_attempts": 1})
    assert (await workers.ended(hopeless, within=40)).state == "failed"
    assert await workers.outcomes(hopeless) == ["timed_out"]
    assert (await workers.ended(neighbour)).state == "completed"
    assert (await workers.outcomes(neighbour))[-1] == "succeeded"
    assert worker.alive
    assert worker.output().count("takes tasks from") == 2


async def test_cancelling_what_runs(workers: Workers) -> None:
    """19: the worker hears it at its next heartbeat; the task ends as cancelled."""
    await workers.start("--concurrency", "10")
    running = [
        await workers.send(tasks.nap, 60.0, timeout=90),
        await workers.send(tasks.nap_in_thread, 60.0, timeout=90),
        await workers.send(tasks.compute_for_ever, timeout=90),
    ]
    for task in running:
        await workers.until(task, "begin")
        await workers.client.tasks.cancel(task.id)
    for task in running[::2]:
        assert (await workers.ended(task)).state == "cancelled"
        assert await workers.outcomes(task) == ["cancelled"]
    # A thread is asked, not torn down: it noticed, and returned, which counts as done.
    assert (await workers.ended(running[1])).state == "completed"
    await workers.until(running[1], "cancelled")


async def test_a_cancel_does_not_wait_for_a_heartbeat(cluster: Cluster, tmp_path: Path) -> None:
    node = await cluster.start(worker_lease=120)
    async with workers_at(cluster, node, tmp_path) as workers:
        await workers.start("--concurrency", "10")
        task = await workers.send(tasks.nap, 60.0, timeout=90)
        await workers.until(task, "begin")
        await workers.client.tasks.cancel(task.id)
        assert (await workers.ended(task, within=10)).state == "cancelled"


async def test_handlers_of_both_kinds_are_shown(workers: Workers) -> None:
    """Threads and processes ask each for their own; it is one worker all the same."""
    await workers.start("--name", "one")

    async def all_of_them() -> bool:
        shown = [worker.handlers async for worker in workers.client.workers()]
        return shown == [sorted(workers.app.functions)]

    await eventually(all_of_them, within=10, what="every handler is shown")


async def test_memory(workers: Workers) -> None:
    """A process that devours memory is ended, and nobody else notices. A handler in the worker
    itself fails when there is no more."""
    workers.settings["MEMORY_LIMIT"] = str(2 * MEMORY)
    worker = await workers.start("--max-memory", "300", "--concurrency", "10")
    neighbour = await workers.send(tasks.nap, 3.0, retry={"max_attempts": 1})
    glutton = await workers.send(tasks.devour, retry={"max_attempts": 1}, timeout=60)
    unlucky = await workers.send(tasks.devour_in_the_worker, retry={"max_attempts": 1})
    done = await workers.ended(glutton, within=40)
    assert done.error is not None
    assert (done.state, done.error["code"]) == ("failed", "memory")
    failed = await workers.ended(unlucky)
    assert failed.error is not None
    assert (failed.state, failed.error["message"]) == ("failed", "MemoryError")
    assert (await workers.ended(neighbour)).state == "completed"
    assert (await workers.ended(await workers.send(tasks.compute, 10))).result == 285
    assert worker.alive


async def test_a_worker_that_is_cut_off_stops_before_its_lease_ends(
    workers: Workers, node: Node
) -> None:
    worker = await workers.start("--name", "one", "--concurrency", "5")
    held = await workers.send(tasks.nap, 60.0, timeout=90)
    await workers.until(held, "begin")
    await asyncio.sleep(LEASE)  # long enough that only heartbeats can have kept it
    frozen_at = time.time()
    node.freeze()
    stopped = await workers.until(held, "cancelled")
    assert stopped.at < frozen_at + LEASE
    node.thaw()
    again = await workers.until(held, "begin", times=2)
    assert again.at > stopped.at
    assert worker.alive


async def test_sigterm(workers: Workers) -> None:
    """What can finish finishes; the rest is given back, and runs elsewhere at once."""
    worker = await workers.start("--grace", "1.5")
    short = await workers.send(tasks.nap, 1.0)
    long = await workers.send(tasks.nap, 8.0, retry={"max_attempts": 1}, timeout=60)
    await workers.until(short, "begin")
    await workers.until(long, "begin")
    worker.signal(signal.SIGTERM)
    assert await worker.ended(within=15) == 0
    assert (await workers.client.tasks.get(short.id)).state == "completed"
    assert await workers.outcomes(long) == ["released"]
    second = await workers.start()
    again = await workers.until(long, "begin", times=2)
    assert again.pid == second.pid
    await workers.client.tasks.cancel(long.id)


async def test_worn_out_workers_begin_anew(workers: Workers) -> None:
    worker = await workers.start("--max-tasks", "10")
    sent: list[Task] = [await workers.send(tasks.add, n, 0) for n in range(25)]
    assert [(await workers.ended(task)).result for task in sent] == list(range(25))
    assert await workers.outcomes(sent[0]) == ["succeeded"]

    async def anew() -> bool:
        return worker.output().count("takes tasks from") >= 2

    await eventually(anew, within=15, what="the worker begins anew")
    assert worker.alive


async def test_errors_retries_effects_and_logs(workers: Workers) -> None:
    await workers.start("--concurrency", "10")
    quick = {"max_attempts": 2, "initial": 0.05}
    final = await workers.send(tasks.fail, "final", retry=quick)
    later = await workers.send(tasks.fail, "later", retry={**quick, "max_delay": 60})
    plain = await workers.send(tasks.fail, "plain", retry=quick)
    effect = await workers.send(tasks.once, retry=quick)
    wrong = await workers.client.tasks.create(
        {"type": "handler", "name": "add"}, payload={"a": "x"}, retry={"max_attempts": 3}
    )
    assert await workers.outcomes(await workers.ended(final)) == ["failed"]
    assert await workers.outcomes(await workers.ended(plain)) == ["failed", "failed"]
    assert await workers.outcomes(await workers.ended(wrong)) == ["failed"]
    waited = await workers.ended(later)
    first, second = await workers.client.tasks.executions(waited.id)
    assert first.started_at is not None
    assert second.started_at is not None
    assert (second.started_at - first.started_at).total_seconds() >= 1.0
    done = await workers.ended(effect)
    assert (done.state, done.result) == ("completed", False)
    spoken = await workers.send(tasks.talk, 3)
    await workers.ended(spoken)

    async def logged() -> bool:
        lines = [line.message async for line in workers.client.tasks.logs(spoken.id)]
        return lines == ["line 0", "line 1", "line 2"]

    # An end waits for its lines, but not longer than a second.
    await eventually(logged, within=10, what="all lines are there, in order")
