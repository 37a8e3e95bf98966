"""Tasks that kill their worker, several at once, among many that do not.

POISON_RUNS=20 runs it so often.
"""

import asyncio
import os
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mainspring.sdk.resources.tasks import Task
from support import worker_app as tasks
from support.cluster import Cluster
from support.process import MainspringProcess
from support.sdk_workers import Noted, Workers, workers_at
from support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

INNOCENTS = 200
WORKERS = 3
RUNS = int(os.environ.get("POISON_RUNS", "1"))
UNPROVEN = "it is not known to have begun"


class Supervisor:
    """Starts workers again that died."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._current: dict[str, MainspringProcess] = {}
        self.deaths = 0

    def start(self, name: str) -> None:
        self._current[name] = self._workers.spawn("--name", name, "--concurrency", "20")

    def look(self) -> None:
        for name, process in list(self._current.items()):
            if not process.alive:
                self.deaths += 1
                self.start(name)


@pytest.fixture
async def workers(cluster: Cluster, tmp_path: Path) -> AsyncIterator[Workers]:
    nodes = [cluster.spawn() for _ in range(3)]
    for node in nodes:
        await node.ready()
    await cluster.balanced(*nodes)
    async with workers_at(cluster, nodes[0], tmp_path) as found:
        yield found


async def send_all(workers: Workers) -> tuple[list[Task], list[Task]]:
    """Six tasks that kill their worker, by two kinds of handlers, somewhere among the others."""
    chance = random.Random()
    poisons = [workers.send(tasks.exit_at_once) for _ in range(4)]
    poisons += [workers.send(tasks.exit_in_thread, seconds) for seconds in (0.0, 0.2)]
    innocents = [
        workers.send(chance.choice((tasks.nap, tasks.nap_in_thread)), chance.uniform(0.01, 0.4))
        for _ in range(INNOCENTS)
    ]
    found: dict[int, Task] = {}
    order = list(enumerate(poisons + innocents))
    chance.shuffle(order)
    for number, creation in order:
        found[number] = await creation
    sent = [found[number] for number in range(len(found))]
    return sent[: len(poisons)], sent[len(poisons) :]


def beside(notes: list[Noted], alone: Noted) -> list[Noted]:
    """What ran in the same process when a task began that must be alone."""
    before = [note for note in notes if note.pid == alone.pid and note.at < alone.at]
    over = {(n.task, n.attempt) for n in before if n.word == "end"}
    return [n for n in before if n.word == "begin" and (n.task, n.attempt) not in over]


@pytest.mark.parametrize("run", range(RUNS))
async def test_only_what_kills_workers_is_given_up(
    cluster: Cluster, workers: Workers, run: int
) -> None:
    """50: and no loss is counted against an execution that had not begun."""
    poisons, innocents = await send_all(workers)
    supervisor = Supervisor(workers)
    for number in range(WORKERS):
        supervisor.start(f"w{number}")

    async def all_ended() -> bool:
        supervisor.look()
        await asyncio.sleep(0.2)
        return await cluster.evidence.value("SELECT count(*) FROM tasks") == 0

    await eventually(all_ended, within=120, what="every task has ended")
    rows = await cluster.evidence.rows("SELECT id, reason FROM dead_letters")
    assert {(row["id"], row["reason"]) for row in rows} == {(p.id, "poison") for p in poisons}
    states = await cluster.evidence.rows("SELECT id, state FROM task_history")
    completed = {row["id"] for row in states if row["state"] == "completed"}
    assert completed == {task.id for task in innocents}
    notes = workers.noted()
    begun = {(note.task, note.attempt) for note in notes if note.word in ("begin", "alone")}
    lost = await cluster.evidence.rows(
        "SELECT task_id, attempt, error FROM executions WHERE outcome = 'lost'"
    )
    counted = {
        (str(row["task_id"]), row["attempt"])
        for row in lost
        if UNPROVEN not in row["error"]["message"]
    }
    assert counted <= begun, "counted against executions that had not begun"
    alone = [note for note in notes if note.word == "alone"]
    assert [note for one in alone for note in beside(notes, one)] == []
    deaths = sorted(sum(row["task_id"] == p.id for row in lost) for p in poisons)
    print(
        f"run {run}: {supervisor.deaths} deaths, {len(lost)} lost, {len(counted)} counted;", deaths
    )
