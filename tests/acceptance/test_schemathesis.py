"""The API and its own description agree: Schemathesis tries every operation of a real node.

Data that fits the document is taken, data that does not is refused, and every answer is one that
the document promises; then the links are followed: create, read, change, cancel. Some runs go side
by side, for time; a failure is printed with a command that repeats the request. Another run, in
which nothing is left out and idempotency keys come again, looks for crashes and hangs alone.

SCHEMATHESIS_SEEDS=1,2,3 runs it all with each of these seeds.
"""

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.cluster import Cluster, Node
from support.waiting import eventually

SUPPORT = Path(__file__).resolve().parents[1] / "support"
SEEDS = os.environ.get("SCHEMATHESIS_SEEDS", "1").split(",")
# Either may end the key that the run itself uses: they are tried last.
FATAL = ("revokeKey", "deleteTenant")
MAKERS = ("createKey", "createTenant")
YEARS = 366 * 86400
MOST = 100  # tasks in a batch; the hooks say so too
PARTS = ("^/v1/tasks", "^/v1/(schedules|calendars)")
LONGEST = "30"  # seconds for an answer: a replay of dead letters may wait that long for tasks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.parametrize("seed", SEEDS)]


async def test_the_document_is_true(cluster: Cluster, tmp_path: Path, seed: str) -> None:
    node, key = await started(cluster)
    tried = Tried(tmp_path, node.url, key, seed)
    others = f"--exclude-path-regex={'|'.join(PARTS)}"
    checks = ("--checks", "all")
    runs = await asyncio.gather(
        *(tried.run(*checks, f"--include-path-regex={part}") for part in PARTS),
        tried.run(*checks, others, *named("exclude", FATAL)),
    )
    runs.append(await tried.run(*checks, *named("include", FATAL + MAKERS)))
    await in_order(node, runs)


async def test_nothing_hangs_or_breaks_a_node(cluster: Cluster, tmp_path: Path, seed: str) -> None:
    node, key = await started(cluster)
    tried = Tried(tmp_path, node.url, key, seed, SCHEMATHESIS_ANYTHING="1")
    only = ("--checks", "not_a_server_error", "--phases", "fuzzing,stateful", "--max-failures", "1")
    runs = [
        await tried.run(*only, *named("exclude", FATAL)),
        await tried.run(*only, *named("include", FATAL + MAKERS)),
    ]
    await in_order(node, runs)


async def started(cluster: Cluster) -> tuple[Node, str]:
    node = await cluster.start(
        horizon=100 * YEARS, secrets_key="ab" * 32, max_batch=MOST, longest_poll=0.05
    )
    return node, (await cluster.operator()).key


async def in_order(node: Node, runs: Sequence[tuple[int, str]]) -> None:
    """Nothing was found, and the node still serves."""
    assert node.alive
    failed = [output for status, output in runs if status]
    assert not failed, "\n".join(failed)
    await eventually(node.is_ready, within=10, what="the node serves")


def named(what: str, operations: Sequence[str]) -> list[str]:
    return [word for name in operations for word in (f"--{what}-operation-id", name)]


class Tried:
    """A node to try, with a seed."""

    def __init__(self, directory: Path, url: str, key: str, seed: str, **env: str) -> None:
        self._directory = directory
        self._url = url
        self._options = ("--header", f"Authorization: Bearer {key}", "--seed", seed)
        self._env = {
            **os.environ,
            **env,
            "PYTHONPATH": str(SUPPORT.parent),
            "SCHEMATHESIS_HOOKS": "support.schemathesis_hooks",
            "NO_COLOR": "1",
        }

    async def run(self, *options: str) -> tuple[int, str]:
        """Return the exit status of the command and what it printed."""
        process = await asyncio.create_subprocess_exec(
            str(Path(sys.executable).with_name("schemathesis")),
            *("--config-file", str(SUPPORT / "schemathesis.toml")),
            *("run", f"{self._url}/openapi.json", *self._options),
            *("--no-shrink", "--continue-on-failure", "--suppress-health-check", "all"),
            *("--request-timeout", LONGEST, "--max-response-time", LONGEST),
            *options,
            cwd=self._directory,
            env=self._env,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        assert process.returncode is not None
        return process.returncode, output.decode(errors="replace")
