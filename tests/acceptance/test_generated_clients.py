"""Clients that are generated from the OpenAPI document work, without patches or flags."""

import asyncio
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from support.cluster import Cluster
from support.routes import document
from support.typescript import FOLDER, installed_tools

pytestmark = pytest.mark.slow

PACKAGE = "mainspring_client"


async def test_a_python_client_makes_the_round_trip(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await cluster.start()
    folder, output = await asyncio.to_thread(generate_python, node.url, tmp_path)
    # It warns of what it leaves out.
    assert output.split() == ["Generating", str(folder)]
    monkeypatch.syspath_prepend(folder)
    made: Any = importlib.import_module(PACKAGE)
    # An answer that the document does not promise is an error, and not None.
    key = (await cluster.tenant()).key
    async with made.AuthenticatedClient(node.url, key, raise_on_unexpected_status=True) as client:
        generated = Generated(client)
        await tasks(generated)
        await schedules(generated)
        await runs(generated)
        await leases(generated)
        await problems(generated)


def generate_python(url: str, place: Path) -> tuple[Path, str]:
    """Return the folder of the client's package, and what the generator printed."""
    tools = Path(sys.executable).parent
    done = subprocess.run(
        [tools / "openapi-python-client", "generate", "--url", f"{url}/openapi.json"],
        cwd=place,
        env={**os.environ, "PATH": f"{tools}:{os.defpath}", "COLUMNS": "1000"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return place / "mainspring-client", done.stdout + done.stderr


class Generated:
    """The generated client of a node."""

    def __init__(self, client: Any) -> None:
        self.models: Any = importlib.import_module(f"{PACKAGE}.models")
        self._client = client

    async def call(self, operation: str, *path: object, **arguments: Any) -> Any:
        """Return the answer of an operation, like `tasks.create_task`."""
        function: Any = importlib.import_module(f"{PACKAGE}.api.{operation}").asyncio
        return await function(*path, client=self._client, **arguments)


async def tasks(client: Generated) -> None:
    models = client.models
    later = datetime.now(UTC) + timedelta(hours=1)
    body = models.TaskIn(
        target=models.HttpTarget(type_="http", url="https://api.example.com/hook"),
        payload={"amount": 5.0},
        run_at=later,
        retry=models.RetryIn(max_attempts=3),
    )
    made = await client.call("tasks.create_task", body=body, idempotency_key="once")
    assert isinstance(made, models.TaskOut)
    again = await client.call("tasks.create_task", body=body, idempotency_key="once")
    assert (again.id, made.run_at) == (made.id, later)
    read = await client.call("tasks.get_task", made.id)
    assert (read.state, read.retry.max_attempts) == (models.TaskOutState.SCHEDULED, 3)
    assert read.schedule_id is None
    page = await client.call(
        "tasks.list_tasks", state=models.ListTasksState.SCHEDULED, payload=True
    )
    assert [(one.id, one.payload) for one in page.items] == [(made.id, {"amount": 5.0})]
    patch = models.TaskPatch(priority=9, name="renamed")
    changed = await client.call("tasks.edit_task", made.id, body=patch)
    assert (changed.priority, changed.name, changed.run_at) == (9, "renamed", later)
    stopped = await client.call("tasks.cancel_task", made.id)
    assert stopped.state == models.TaskOutState.CANCELLED
    assert await client.call("tasks.delete_task", made.id) is None


async def schedules(client: Generated) -> None:
    models = client.models
    template = models.TemplateIn(target=models.HandlerTarget(type_="handler", name="report"))
    kinds = {"cron": "0 8 * * MON-FRI", "interval": "PT1H", "rrule": "FREQ=MONTHLY;BYDAY=-1FR"}
    for kind, value in kinds.items():
        body = models.ScheduleIn(name=kind, task=template, **{kind: value})
        made = await client.call("schedules.create_schedule", body=body)
        assert isinstance(made, models.ScheduleOut), made
        assert getattr(made, kind) == (3600.0 if kind == "interval" else value)
        assert made.next_run_at > datetime.now(UTC)
    patch = models.SchedulePatch(cron="0 9 * * *", timezone="Europe/Berlin")
    changed = await client.call("schedules.edit_schedule", made.id, body=patch)
    assert (changed.cron, changed.rrule, changed.timezone) == ("0 9 * * *", None, "Europe/Berlin")
    page = await client.call("schedules.list_schedules")
    assert [one.name for one in page.items] == ["rrule", "interval", "cron"]


async def runs(client: Generated) -> None:
    models = client.models
    target = models.HandlerTarget(type_="handler", name="step")
    steps = [
        models.StepIn(id="first", target=target),
        models.StepIn(id="second", target=target, needs=["first"], if_="input.n > 3"),
    ]
    body = models.WorkflowIn(name="nightly", steps=steps)
    made = await client.call("workflows.create_workflow", body=body)
    assert (made.name, made.version, made.steps[1].if_) == ("nightly", 1, "input.n > 3")
    given = models.RunIn(input_=models.RunInInput.from_dict({"n": 5}))
    run = await client.call("workflow_runs.run_workflow", "nightly", body=given)
    assert run.state == models.RunSummaryState.RUNNING
    read = await client.call("workflow_runs.get_workflow_run", run.id)
    assert (read.id, read.input_) == (run.id, {"n": 5})
    assert {node.id for node in read.graph.nodes} == {"first", "second"}
    over = await client.call("workflow_runs.cancel_workflow_run", run.id)
    assert over.id == run.id


async def leases(client: Generated) -> None:
    models = client.models
    target = models.HandlerTarget(type_="handler", name="add")
    body = models.TaskIn(target=target, payload=[1, 2])
    made = await client.call("tasks.create_task", body=body)
    asked = models.LeaseIn(worker="w", incarnation="1", handlers=["add"], wait=20.0)
    leased = await client.call("workers.lease_tasks", body=asked)
    (task,) = leased.tasks
    assert (task.id, task.payload) == (made.id, [1, 2])
    held = models.BeatIn(id=task.id, fence=task.fence, progress={"half": True})
    beat = models.HeartbeatIn(worker="w", incarnation="1", running=[held])
    (pulse,) = (await client.call("workers.heartbeat", body=beat)).tasks
    assert pulse.action == models.PulseOutAction.CONTINUE
    ended = models.OutcomeIn(
        id=task.id, fence=task.fence, status=models.OutcomeInStatus.SUCCEEDED, result=3
    )
    report = models.ReportIn(outcomes=[ended], worker="w", incarnation="1")
    (judged,) = (await client.call("workers.report_outcomes", body=report)).outcomes
    assert judged.status == models.JudgedOutStatus.ACCEPTED
    read = await client.call("tasks.get_task", task.id)
    assert (read.state, read.result) == (models.TaskOutState.COMPLETED, 3)


async def problems(client: Generated) -> None:
    models = client.models
    missing = await client.call("tasks.get_task", uuid4())
    assert isinstance(missing, models.ProblemDocument)
    assert (missing.status, missing.type_) == (404, "urn:mainspring:problem:not-found")
    body = models.ScheduleIn(name="when?", workflow="nightly", timezone="Mars/Olympus")
    refused = await client.call("schedules.create_schedule", body=body)
    assert (refused.status, refused.title) == (422, "The request is not valid")
    assert "/timezone" in [error.pointer for error in refused.errors]


def test_typescript_types_fit_what_callers_write(
    tmp_path: Path, need_server: Callable[[str, Path | None], Path]
) -> None:
    tools = need_server("openapi-typescript (npm)", installed_tools())
    (tmp_path / "openapi.json").write_text(json.dumps(document()))
    (tmp_path / "client.ts").write_bytes((FOLDER / "client.ts").read_bytes())
    output = run_tool(tmp_path, tools / "openapi-typescript", "openapi.json", "--output", "api.ts")
    assert "warn" not in output.lower()
    run_tool(tmp_path, tools / "tsc", "--noEmit", "--strict", "--target", "es2022", "client.ts")


def run_tool(place: Path, *command: str | Path) -> str:
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    return output
