"""Commands in a real worker: what they see, what is kept of them, and how they are ended."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mainspring import command
from mainspring.sdk.resources.tasks import Task
from support.cluster import Cluster
from support.process import run
from support.sdk_workers import Workers, workers_at
from support.waiting import eventually

pytestmark = pytest.mark.slow

ALLOW = """
[defaults]
max_output = 2000
kill_after = 1

[commands.env]
program = "/usr/bin/env"
environment = { GREETING = "hello" }
inherit = ["EVIDENCE"]

[commands.cat]
program = "/bin/cat"

[commands.fail]
program = ["/bin/sh", "-c", "echo said; echo broken >&2; exit 3"]

[commands.give-up]
program = ["/bin/sh", "-c", "exit 64"]
permanent = [64]

[commands.flood]
program = ["/bin/sh", "-c", "yes flood | head -n 100000; echo the end"]

[commands.family]
program = ["/bin/sh", "-c", "echo $$ > pids; (trap '' TERM; echo ready; sleep 300) & wait"]

[commands.leaves-a-child]
program = ["/bin/sh", "-c", "sleep 300 & echo $$ > pids; echo bye; printf unfinished; exit 4"]

[commands.leaves-a-stranger]
program = ["/bin/sh", "-c", "setsid sleep 20 & echo bye; exit 4"]

[commands.where]
program = "/bin/pwd"
"""


@pytest.fixture
async def workers(cluster: Cluster, tmp_path: Path) -> AsyncIterator[Workers]:
    node = await cluster.start(worker_lease=3)
    allow = tmp_path / "allow.toml"
    allow.write_text(ALLOW.replace("[defaults]", f'[defaults]\ndirectory = "{tmp_path}"'))
    async with workers_at(cluster, node, tmp_path) as made:
        await made.start("--commands", str(allow), app="")
        yield made


async def lines_of(workers: Workers, task: Task, wanted: int) -> list[tuple[str, str]]:
    async def arrived() -> list[tuple[str, str]]:
        found = [(x.level, x.message) async for x in workers.client.tasks.logs(task.id)]
        return found if len(found) >= wanted else []

    return await eventually(arrived, within=10, what="the lines are in the log")


async def execute(workers: Workers, *argv: str, **fields: object) -> Task:
    wanted = {"retry": {"max_attempts": 2, "initial": 0.05}, **fields}
    task = await workers.client.tasks.create(command(*argv), **wanted)  # type: ignore[arg-type]
    return await workers.ended(task)


async def test_a_commands_environment_and_output(workers: Workers, tmp_path: Path) -> None:
    seen = await execute(workers, "env")
    variables = dict(
        line.split("=", 1) for _, line in await lines_of(workers, seen, 5) if "=" in line
    )
    assert variables["GREETING"] == "hello"
    assert variables["TASK_ID"] == str(seen.id)
    assert variables["TASK_ATTEMPT"] == variables["TASK_FENCE"] == "1"
    assert variables.keys() >= {"PATH", "EVIDENCE"}
    assert not [name for name in variables if name.startswith("MAINSPRING")], "no key leaks"
    echoed = await execute(workers, "cat", payload={"order": [1, 2]})
    assert await lines_of(workers, echoed, 1) == [("stdout", '{"order":[1,2]}')]
    where = await execute(workers, "where")
    assert await lines_of(workers, where, 1) == [("stdout", str(tmp_path))]


async def test_how_a_command_fails(workers: Workers) -> None:
    failed = await execute(workers, "fail")
    assert failed.error is not None
    assert failed.error["code"] == "exit-status"
    assert failed.error["message"].startswith("exit status 3: ")
    assert await workers.outcomes(failed) == ["failed", "failed"]
    assert {("stdout", "said"), ("stderr", "broken")} <= set(await lines_of(workers, failed, 4))
    final = await execute(workers, "give-up")
    assert await workers.outcomes(final) == ["failed"]
    refused = await execute(workers, "cat", "/etc/passwd")
    assert refused.error is not None
    assert "not allowed" in refused.error["message"]
    assert await workers.outcomes(refused) == ["failed"]


async def test_output_is_capped(workers: Workers) -> None:
    flood = await execute(workers, "flood")
    assert flood.state == "completed"
    lines = await lines_of(workers, flood, 300)
    assert len(lines) < 400
    assert "left out" in lines[-1][1]


async def group_gone(group: int) -> None:
    async def gone() -> bool:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        return False

    await eventually(gone, within=20, what="nobody of the group is left")


@pytest.mark.parametrize("how", ["timeout", "cancel", "worker"])
async def test_the_whole_group_is_ended(workers: Workers, tmp_path: Path, how: str) -> None:
    """Also a child that does not listen to SIGTERM, and when the worker itself is killed."""
    seconds = 2 if how == "timeout" else 60
    task = await workers.client.tasks.create(
        command("family"), timeout=seconds, retry={"max_attempts": 1}
    )

    async def begun() -> bool:
        return (tmp_path / "pids").exists() and bool((tmp_path / "pids").read_text().strip())

    await eventually(begun, within=20, what="the command runs")
    group = int((tmp_path / "pids").read_text())
    if how == "cancel":
        await workers.client.tasks.cancel(task.id)
    elif how == "worker":
        for process in workers.processes:
            process.signal(signal.SIGKILL)

    if how == "worker":
        # Only the program itself is bound to the worker's life, not what it started.
        async def leader_gone() -> bool:
            return not os.path.exists(f"/proc/{group}/cmdline")  # noqa: ASYNC240

        await eventually(leader_gone, within=10, what="the program died with its worker")
        os.killpg(group, signal.SIGKILL)
        return
    await group_gone(group)
    done = await workers.ended(task)
    assert done.state == ("failed" if how == "timeout" else "cancelled")
    assert await workers.outcomes(task) == ["timed_out" if how == "timeout" else "cancelled"]


@pytest.mark.parametrize("how", ["leaves-a-child", "leaves-a-stranger"])
async def test_a_command_ends_with_its_program(workers: Workers, tmp_path: Path, how: str) -> None:
    """Whatever it left behind, which holds its pipes open; who left the group is let go."""
    begun = asyncio.get_running_loop().time()
    done = await execute(workers, how, timeout=15, retry={"max_attempts": 1})
    assert asyncio.get_running_loop().time() - begun < 10
    assert await workers.outcomes(done) == ["failed"]
    assert done.error is not None
    last = "unfinished" if how == "leaves-a-child" else "bye"
    assert done.error["message"] == f"exit status 4: {last}"
    assert ("stdout", "bye") in await lines_of(workers, done, 1)
    if how == "leaves-a-child":
        group = int((tmp_path / "pids").read_text())
        await group_gone(group)


async def test_a_worker_that_cannot_begin(tmp_path: Path) -> None:
    environment = {"MAINSPRING_API_KEY": "key", "MAINSPRING_URL": "http://127.0.0.1:1"}

    async def worker(*arguments: str) -> tuple[int, str]:
        done = await asyncio.to_thread(run, "worker", *arguments, environment=environment)
        return done.returncode, done.stderr

    for arguments, output in (
        ((), "there is nothing to run"),
        (("no_such_module:app",), "cannot be imported"),
        (("json:app",), "has no mainspring.App"),
        (("json",), "0 apps"),
        (("--commands", str(tmp_path / "nothing")), "cannot be read"),
    ):
        status, text = await worker(*arguments)
        assert status == 2, text
        assert output in text
