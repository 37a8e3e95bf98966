"""Real `mainspring worker` processes for tests: started, killed, and always cleaned up."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from mainspring import App, AsyncClient
from mainspring.sdk.resources.tasks import Task
from support import worker_app
from support.cluster import Cluster, Node, Tenant
from support.process import START_WITHIN, MainspringProcess
from support.waiting import eventually

TESTS = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Noted:
    """What a handler noted."""

    at: float
    word: str
    task: str
    attempt: int
    pid: int


class Workers:
    """A tenant's workers, its client, and what its handlers noted."""

    def __init__(self, node: Node, tenant: Tenant, directory: Path) -> None:
        self.url = node.url
        self.key = tenant.key
        self.client = AsyncClient(node.url, tenant.key)
        self.app: App = worker_app.app
        self.settings: dict[str, str] = {}
        """What the workers' environment says besides."""
        self._directory = directory
        self._evidence = directory / "evidence"
        self._evidence.touch()
        self._numbers = count(1)
        self.processes: list[MainspringProcess] = []

    @property
    def environment(self) -> dict[str, str]:
        return {
            "MAINSPRING_URL": self.url,
            "MAINSPRING_API_KEY": self.key,
            "EVIDENCE": str(self._evidence),
            "PYTHONPATH": os.pathsep.join([str(TESTS), str(self._directory)]),
            **self.settings,
        }

    def spawn(self, *options: str, app: str = "support.worker_app:app") -> MainspringProcess:
        """Start a worker and do not wait for it."""
        log = self._directory / f"worker-{next(self._numbers)}.log"
        named = [app] if app else []
        process = MainspringProcess(log, "worker", *named, *options, environment=self.environment)
        self.processes.append(process)
        return process

    async def start(self, *options: str, app: str = "support.worker_app:app") -> MainspringProcess:
        """Start a worker and wait until it takes tasks."""
        process = self.spawn(*options, app=app)

        async def takes_tasks() -> bool:
            assert process.alive, process.output()
            return "takes tasks from" in process.output()

        await eventually(takes_tasks, within=START_WITHIN, what="the worker takes tasks")
        return process

    async def send(self, function: Any, *args: Any, **fields: Any) -> Task:
        """Create a task of the app, with other fields if need be."""
        wanted = {**function.prepare(*args), **fields}
        target = wanted.pop("target")
        return await self.client.tasks.create(target, **wanted)

    async def ended(self, task: Task, within: float = 20.0) -> Task:
        return await self.client.tasks.wait(task.id, timeout=within)

    async def outcomes(self, task: Task) -> list[str]:
        return [execution.outcome for execution in await self.client.tasks.executions(task.id)]

    def noted(self, task: Task | None = None, word: str | None = None) -> list[Noted]:
        found = []
        for line in self._evidence.read_text().splitlines():
            at, noted, task_id, attempt, pid = line.split()
            found.append(Noted(float(at), noted, task_id, int(attempt), int(pid)))
        return [
            note
            for note in found
            if task is None or note.task == str(task.id)
            if word is None or note.word == word
        ]

    async def until(self, task: Task, word: str, times: int = 1) -> Noted:
        """Wait until a task's handler has noted this word so often."""

        async def seen() -> bool:
            return len(self.noted(task, word)) >= times

        await eventually(seen, within=20, what=f"{word} is noted")
        return self.noted(task, word)[times - 1]

    async def close(self) -> None:
        for process in self.processes:
            process.kill()
            print(f"--- worker ---\n{process.output()}")
        await self.client.close()


@asynccontextmanager
async def workers_at(cluster: Cluster, node: Node, directory: Path) -> AsyncIterator[Workers]:
    workers = Workers(node, await cluster.tenant(), directory)
    try:
        yield workers
    finally:
        await workers.close()
